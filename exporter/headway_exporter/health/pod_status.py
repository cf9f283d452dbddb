"""What the status of a pod, as the Kubernetes API tells it, says of the ends of its containers and of its own.

Pure functions of the API's JSON, of which nothing is taken for granted: what is not of its type is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.evidence import exit_text
from headway_exporter.observations import PodStatusSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeGuard

MOST_CONTAINERS: Final = 16
MOST_PREDECESSORS: Final = 8
"""Earlier pods that are looked at, the newest ones."""
JOB_LABELS: Final = ("batch.kubernetes.io/job-name", "job-name")
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
MAIN_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
_GPU_RESOURCE: Final = re.compile(r"/(gpu|mig-)")
_SIGNAL_BASE: Final = 128
_HIGHEST_SIGNAL: Final = 64
_WHOLE_SECOND: Final = 0.999
"""Times are told in whole seconds; what a container's end caused or followed is in the journals exactly."""
_NAME_LIMIT: Final = 63
_TEXT_LIMIT: Final = 200
_MOST_EXIT_CODE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Look:
    """When the API was asked: CLOCK_MONOTONIC seconds, and seconds since 1970."""

    mono: float
    wall: float


@dataclass(frozen=True, slots=True)
class _Taken:
    """Why a pod was taken away: one of `labels.DISRUPTIONS`, the cause for training, and whether that is beyond doubt."""

    reason: str
    cause: str = "preempted"
    sure: bool = True


_NODE_GONE: Final = _Taken("node_lost", "node_lost")
_NODE_ENDS: Final = _Taken("node_shutdown", "node_lost")
_EVICTED: Final = _Taken("evicted")

# Reasons of the condition DisruptionTarget, and of a pod's status where there is no such condition (before Kubernetes 1.26).
_BY_REASON: Final[Mapping[str, _Taken]] = {
    "PreemptionByScheduler": _Taken("preempted"),
    "Preempting": _Taken("preempted"),
    "EvictionByEvictionAPI": _EVICTED,
    "DeletionByTaintManager": _Taken("node_lost", "node_lost", sure=False),  # or somebody wants the node empty
    "DeletionByPodGC": _NODE_GONE,
    "NodeLost": _NODE_GONE,
    "NodeShutdown": _NODE_ENDS,
    "Shutdown": _NODE_ENDS,
    "Terminated": _NODE_ENDS,
    "DeadlineExceeded": _Taken("deadline"),
}
# What the kubelet says in words only, of TerminationByKubelet and Evicted.
_BY_MESSAGE: Final = (
    (re.compile(r"node shutdown", re.IGNORECASE), _NODE_ENDS),
    (re.compile(r"critical pod|preempt", re.IGNORECASE), _Taken("preempted")),
    (re.compile(r"low on resource: \[?memory|MemoryPressure", re.IGNORECASE), _Taken("evicted", "host_oom")),
    (
        re.compile(r"low on resource: \[?(ephemeral-storage|inodes|nodefs|imagefs)|DiskPressure", re.IGNORECASE),
        _Taken("evicted", "storage_io"),
    ),
    (re.compile(r"exceed", re.IGNORECASE), _Taken("evicted", "config_error")),  # its own limit, of scratch space
)
_BY_KUBELET: Final = frozenset({"TerminationByKubelet", "Evicted"})


def uid(pod: Mapping[str, Any]) -> str:
    """The pod's own number; empty when it tells none."""
    return _text(_at(pod, "metadata", "uid"))


def restarts(pod: Mapping[str, Any], own_container: str = "") -> dict[str, int]:
    """Restarts so far by container."""
    counts = ((name, one.get("restartCount")) for name, one in _containers(pod, own_container))
    return {name: count for name, count in counts if _is_number(count) and count >= 0}


def happenings(pod: Mapping[str, Any], look: Look, own_container: str = "") -> list[PodStatusSeen]:
    """What happened to the pod and to its containers but `own_container`, as far as it is still told."""
    training = _training(pod, own_container)
    ends = [
        _ended(pod, name, one, state, look, trains=training in (name, ""))
        for name, one in _containers(pod, own_container)
        for state in ("lastState", "state")
    ]
    return [*(end for end in ends if end is not None), *_disruptions(pod, look)]


def selector(pod: Mapping[str, Any]) -> str | None:
    """Labels that the earlier pods in this one's place have too; None: it is no pod of an indexed job (Kubernetes 1.28 or newer)."""
    labels = _at(pod, "metadata", "labels")
    if not isinstance(labels, Mapping):
        return None
    index = _text(labels.get(INDEX_LABEL))
    named = next(((label, _text(labels.get(label))) for label in JOB_LABELS if labels.get(label)), None)
    return f"{named[0]}={named[1]},{INDEX_LABEL}={index}" if named and named[1] and index else None


def predecessors(answer: Mapping[str, Any], own_uid: str) -> list[Mapping[str, Any]]:
    """The newest of the other pods in a list of them, oldest first."""
    others = [pod for pod in _mappings(answer.get("items")) if uid(pod) not in ("", own_uid)]
    return sorted(others, key=lambda pod: _text(_at(pod, "metadata", "creationTimestamp")))[-MOST_PREDECESSORS:]


# Containers.


def _containers(pod: Mapping[str, Any], own: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and states; native sidecars are not among them."""
    for one in _mappings(_at(pod, "status", "containerStatuses"))[:MOST_CONTAINERS]:
        name = _text(one.get("name"))[:_NAME_LIMIT]
        if name and name != own:
            yield name, one


def _ended(
    pod: Mapping[str, Any], name: str, status: Mapping[str, Any], state: str, look: Look, *, trains: bool
) -> PodStatusSeen | None:
    """An end of the container: of its present run (`state`) or of the one before (`lastState`)."""
    end, code = _at(status, state, "terminated"), _at(status, state, "terminated", "exitCode")
    if not isinstance(end, Mapping) or not _is_number(code):
        return None
    word, finished = _text(end.get("reason")), _text(end.get("finishedAt"))
    count = status.get("restartCount")
    told = _seconds(finished)
    which = _text(end.get("containerID")) or finished or f"{state} {count}"
    out_of_memory, killed = word == "OOMKilled", code == _SIGNAL_BASE + 9
    restarted = f", restarts so far: {count}" if _is_number(count) and count > 0 else ""
    words = ", ".join(dict.fromkeys(part for part in (word, exit_text(_signed(code))) if part))
    return PodStatusSeen(
        "container",
        look.mono,
        look.wall if told is None else min(told + _WHOLE_SECOND, look.wall),
        f"{uid(pod)}/{name}/{which}"[:_TEXT_LIMIT],
        "oom_killed" if out_of_memory else _way(word, code),
        "host_oom" if out_of_memory and trains else None,
        killed or not out_of_memory,
        _signed(code),
        f"container {name} ended: {words}{restarted}"[:_TEXT_LIMIT],
        trains,
    )


def _training(pod: Mapping[str, Any], own: str) -> str:
    """Name of the container in which training runs; empty: any may be.

    The only one; else the only one with a GPU or a part of one; else the one that the pod names as the main one, or lists first.
    """
    names = [name for name, _ in _containers(pod, own)]
    listed = [one for one in _mappings(_at(pod, "spec", "containers")) if one.get("name") in names]
    with_gpus = [one["name"] for one in listed if _has_gpus(one)]
    main = _text(_at(pod, "metadata", "annotations", MAIN_ANNOTATION))
    if len(names) < 2 or len(with_gpus) == 1:
        return next(iter(with_gpus if len(names) > 1 else names), "")
    return main if main in names else next((one["name"] for one in listed), "")


def _has_gpus(container: Mapping[str, Any]) -> bool:
    limits = _at(container, "resources", "limits")
    return isinstance(limits, Mapping) and any(_GPU_RESOURCE.search(_text(name)) for name in limits)


def _way(word: str, code: int) -> str:
    """One of `labels.CONTAINER_ENDS`."""
    if word in ("Completed", "Error", ""):
        return "completed" if code == 0 else "error"
    return "other"


def _signed(code: int) -> int:
    """The exit code as processes have it: a signal is negative, where a shell or a container runtime adds 128 to it."""
    return _SIGNAL_BASE - code if _SIGNAL_BASE < code <= _SIGNAL_BASE + _HIGHEST_SIGNAL else code


# The pod.


def _disruptions(pod: Mapping[str, Any], look: Look) -> Iterator[PodStatusSeen]:
    """At most one: a pod is taken away once."""
    status = pod.get("status")
    conditions = _mappings(_at(pod, "status", "conditions"))
    target = next(
        (one for one in conditions if one.get("type") == "DisruptionTarget" and one.get("status") == "True"), None
    )
    if target is not None:
        reason, message = _text(target.get("reason")), _text(target.get("message"))
        yield _disruption(pod, look, reason, message, _seconds(_text(target.get("lastTransitionTime"))))
    elif isinstance(status, Mapping) and _text(status.get("reason")) in {*_BY_REASON, *_BY_KUBELET}:
        reason, message = _text(status.get("reason")), _text(status.get("message"))
        ends = [_seconds(_text(_at(one, "state", "terminated", "finishedAt"))) for _, one in _containers(pod, "")]
        yield _disruption(pod, look, reason, message, min((end for end in ends if end is not None), default=None))


def _disruption(pod: Mapping[str, Any], look: Look, reason: str, message: str, wall: float | None) -> PodStatusSeen:
    taken = why(reason, message)
    words = f"pod {_text(_at(pod, 'metadata', 'name'))} taken away: {reason}" + (f": {message}" if message else "")
    return PodStatusSeen(
        "disruption",
        look.mono,
        look.wall if wall is None else min(wall, look.wall),
        f"{uid(pod)}/taken away",
        taken.reason,
        taken.cause,
        taken.sure,
        None,
        words.replace("\n", " ")[:_TEXT_LIMIT],
    )


def gone(pod: Mapping[str, Any], look: Look) -> list[PodStatusSeen]:
    """That the API does not know the pod any more tells that somebody deleted it; nothing new where it was being taken away before."""
    if any(True for _ in _disruptions(pod, look)):
        return []
    text = f"pod {_text(_at(pod, 'metadata', 'name'))} was deleted while it ran"
    taken = _Taken("other", sure=False)
    return [
        PodStatusSeen(
            "disruption", look.mono, look.wall, f"{uid(pod)}/gone", taken.reason, taken.cause, taken.sure, None, text
        )
    ]


def why(reason: str, message: str) -> _Taken:
    """What a reason, and where that says little the message beside it, mean."""
    if reason in _BY_KUBELET:
        return next((taken for words, taken in _BY_MESSAGE if words.search(message)), _EVICTED)
    return _BY_REASON.get(reason, _Taken("other", sure=False))


# JSON of which nothing is known.


def _at(value: Any, *names: str) -> Any:
    """What lies below these names; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    items: Iterable[Any] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, Mapping)]


def _text(value: Any) -> str:
    return value[:_TEXT_LIMIT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_EXIT_CODE


def _seconds(text: str) -> float | None:
    """Seconds since 1970 of a time as the API writes it; None: there is none."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
