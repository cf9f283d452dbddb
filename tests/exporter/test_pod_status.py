"""What a pod's status means, in every form in which the API tells of an end."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_api import POD, RECORDED, recorded

from headway_exporter.health.pod_status import Look, happenings, predecessors, restarts, selector, why
from headway_exporter.labels import CAUSES, CONTAINER_ENDS, DISRUPTIONS
from headway_exporter.orchestrator import evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway_exporter.observations import PodStatusSeen

LOOK = Look(1000.0, datetime(2026, 11, 30, 12, tzinfo=timezone.utc).timestamp())
NOT_SURE = False


def clock(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-30T{text}+00:00").timestamp()


def told(name: str, kind: str) -> list[PodStatusSeen]:
    return [seen for seen in happenings(recorded(name), LOOK) if seen.kind == kind]


@pytest.mark.parametrize(
    ("name", "reason", "cause", "sure", "code"),
    [
        ("oom_killed", "oom_killed", "host_oom", True, -9),
        ("oom_killed_and_restarted", "oom_killed", "host_oom", True, -9),
        ("out_of_memory_once", "oom_killed", "host_oom", NOT_SURE, 1),
        ("exited", "error", None, True, 3),
        ("completed", "completed", None, True, 0),
        ("node_shut_down", "error", None, True, -15),
        ("lost_sight", "other", None, True, -9),
        ("failure_policy", "error", None, True, 42),
        ("logs_oom_killed", "oom_killed", None, True, -9),
    ],
)
def test_the_end_of_a_container(name: str, reason: str, cause: str | None, sure: bool, code: int) -> None:
    """The word, the exit code and what follows from them; a signal is negative as everywhere else."""
    (seen,) = told(name, "container")
    assert (seen.reason, seen.cause, seen.sure, seen.exit_code) == (reason, cause, sure, code)
    assert seen.wall == LOOK.wall if name == "lost_sight" else clock("10:20:30") < seen.wall < clock("10:20:32")
    assert seen.text.startswith(f"container {'logs' if name == 'logs_oom_killed' else 'trainer'} ended: ")
    assert ("restarts so far: 1" in seen.text) == (name in ("oom_killed_and_restarted", "logs_oom_killed"))
    assert seen.trains == (name != "logs_oom_killed")


@pytest.mark.parametrize(
    ("name", "reason", "cause", "sure", "at"),
    [
        ("preempted", "preempted", "preempted", True, "10:20:20"),
        ("drained", "evicted", "preempted", True, "10:20:20"),
        ("evicted_for_memory", "evicted", "host_oom", True, "10:20:30"),
        ("evicted_by_its_own_limit", "evicted", "config_error", True, "10:20:30"),
        ("node_unreachable", "node_lost", "node_lost", NOT_SURE, "10:25:40"),
        ("node_deleted", "node_lost", "node_lost", True, "10:22:00"),
        ("node_shut_down", "node_shutdown", "node_lost", True, "10:20:20"),
        ("deadline", "deadline", "preempted", True, "10:20:31"),
        ("evicted_before_1_26", "evicted", "storage_io", True, None),
        ("node_lost", "node_lost", "node_lost", True, None),
    ],
)
def test_a_pod_that_is_taken_away(name: str, reason: str, cause: str, sure: bool, at: str | None) -> None:
    """By whom and why, once, however many fields of the status say it."""
    (seen,) = told(name, "disruption")
    assert (seen.reason, seen.cause, seen.sure) == (reason, cause, sure)
    assert seen.wall == (LOOK.wall if at is None else clock(at))
    assert recorded(name)["metadata"]["name"] in seen.text


@pytest.mark.parametrize(
    ("code", "signed"), [(137, -9), (143, -15), (139, -11), (134, -6), (1, 1), (128, 128), (255, 255), (-1, -1)]
)
def test_exit_codes(code: int, signed: int) -> None:
    """A container runtime adds 128 to a signal's number; what is no signal stays as it is."""
    pod = recorded("exited")
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = code
    (seen,) = happenings(pod, LOOK)
    assert seen.exit_code == signed


def test_native_sidecars_are_not_looked_at() -> None:
    """They are listed among the init containers; one that ran out of its memory has not ended the training."""
    assert happenings(recorded("native_sidecar_oom_killed"), LOOK) == []
    assert restarts(recorded("native_sidecar_oom_killed")) == {"trainer": 0}


def test_which_container_trains() -> None:
    """The one with the GPUs, else the one that the pod names, else the first; when nobody can tell, any may be."""

    def trains(change: Callable[[dict[str, Any]], object]) -> bool:
        pod = recorded("logs_oom_killed")
        change(pod)
        (seen,) = happenings(pod, LOOK)
        assert (seen.cause == "host_oom") == seen.trains
        return seen.trains

    def without_gpus(pod: dict[str, Any], **more: Any) -> None:
        for one in pod["spec"]["containers"]:
            del one["resources"]
        pod["metadata"]["annotations"].update(more)

    main = "kubectl.kubernetes.io/default-container"
    assert not trains(lambda _: None)
    assert trains(without_gpus)
    assert not trains(lambda pod: without_gpus(pod, **{main: "trainer"}))
    assert trains(lambda pod: without_gpus(pod, **{main: "logs"}))
    assert trains(lambda pod: without_gpus(pod, **{main: "gone"}))
    assert trains(lambda pod: pod.pop("spec"))
    assert trains(lambda pod: pod["status"]["containerStatuses"].pop())
    mig = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    assert not trains(lambda pod: pod["spec"]["containers"][1].update(resources=mig))


def test_a_container_beside_the_training_is_no_evidence() -> None:
    """It is counted, and blames nothing, however near to a failure it ended."""
    (seen,) = happenings(recorded("logs_oom_killed"), LOOK)
    assert evidence(seen, 0.0) is None
    (seen,) = happenings(recorded("oom_killed"), LOOK)
    assert evidence(seen, 0.0) is not None


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.iterdir()))
def test_recorded_answers_are_pods(name: str) -> None:
    """The official client's own model takes each, and gives all of it back: no field is misspelt, none is of another type."""
    client = pytest.importorskip(
        "kubernetes.client", reason="the client is not installed: pip install 'headway[kubernetes]'"
    ).ApiClient()
    text = (RECORDED / f"{name}.json").read_text()
    found = client.deserialize(text, "V1Pod", "application/json")
    assert type(found).__name__ == "V1Pod"
    assert same(client.sanitize_for_serialization(found)) == same(json.loads(text))


def same(value: Any) -> Any:
    """Without fields that say nothing, and with each time in one form."""
    if isinstance(value, dict):
        return {name: same(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [same(item) for item in value]
    return value.replace("+00:00", "Z") if isinstance(value, str) else value


def test_a_pod_that_runs_tells_of_nothing() -> None:
    """Conditions that are no disruption, and containers that run, are no happenings."""
    pod = recorded("running")
    pod["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}
    )
    assert happenings(pod, LOOK) == []
    assert restarts(pod) == {"trainer": 0}


def test_the_same_end_has_the_same_name() -> None:
    """A run's end moves from `state` to `lastState` when the container starts again: it is one end, and the next one is another."""
    ended, again = recorded("oom_killed", uid="u"), recorded("oom_killed_and_restarted", uid="u")
    (first,), (second,) = (happenings(pod, LOOK) for pod in (ended, again))
    assert first.happening == second.happening
    again["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 1, "containerID": "containerd://aaa1"}
    }
    assert len({seen.happening for seen in happenings(again, LOOK)}) == 2


def test_ends_of_the_sidecar_itself_are_left_out() -> None:
    """A sidecar that was killed for memory has not killed the training."""
    pod = recorded("oom_killed")
    assert happenings(pod, LOOK, "trainer") == []
    assert restarts(pod, "trainer") == {}


def test_times_are_not_in_the_future() -> None:
    """A node whose clock is ahead would date an end after the look that found it."""
    (seen,) = happenings(recorded("exited"), Look(5.0, clock("10:20:30")))
    assert seen.wall == clock("10:20:30")


def test_the_place_of_a_pod_is_its_job_and_index() -> None:
    """Earlier pods are looked for by the labels that all have in common; a pod that has none has no place."""
    pod = recorded("running")
    assert selector(pod) == "batch.kubernetes.io/job-name=llama,batch.kubernetes.io/job-completion-index=3"
    del pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    assert selector(pod) == "job-name=llama,batch.kubernetes.io/job-completion-index=3"
    del pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
    assert selector(pod) is None


def test_earlier_pods_are_the_newest_others() -> None:
    """A job that failed a hundred times has left a hundred pods; the last ones explain what this pod comes back from."""
    many = [recorded("exited", uid=f"u{n}", creationTimestamp=f"2026-11-30T09:{n:02}:00Z") for n in range(59, -1, -1)]
    found = predecessors({"items": [recorded("running"), *many]}, "u-now")
    assert [pod["metadata"]["uid"] for pod in found] == [f"u{n}" for n in range(52, 60)]


def test_words_of_a_kubelet_of_tomorrow() -> None:
    """A reason that is not known yet is a disruption all the same, and not beyond doubt."""
    assert why("TerminationByKubelet", "something new").reason == "evicted"
    assert why("SomethingNew", "").reason == "other"
    assert not why("SomethingNew", "").sure
    assert why("Evicted", "Pod was preempted by Kubelet to accommodate a critical pod.").reason == "preempted"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["True", "DisruptionTarget", "9999-12-31T23:59:59Z"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "state",
                    "lastState",
                    "terminated",
                    "exitCode",
                    "reason",
                    "finishedAt",
                    "restartCount",
                    "uid",
                    "type",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_an_answer_holds(data: st.DataObject) -> None:
    """Any part of an answer may be anything: what makes sense is told, in the closed sets, and nothing breaks."""
    names = sorted(path.stem for path in RECORDED.iterdir())
    pod: Any = recorded(data.draw(st.sampled_from(names)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = pod
        while isinstance(place, (dict, list)) and place:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if data.draw(st.booleans()):
                place[key] = data.draw(JSON)
                break
            place = place[key]
    restarts(pod)
    selector(pod)
    predecessors({"items": [pod]}, "x")
    for seen in happenings(pod, LOOK):
        assert seen.reason in (CONTAINER_ENDS if seen.kind == "container" else DISRUPTIONS)
        assert seen.cause is None or seen.cause in CAUSES
        assert seen.wall <= LOOK.wall
        json.dumps([seen.text, seen.happening], ensure_ascii=False).encode()


def test_the_recorded_answers_are_all_used() -> None:
    """An answer that no test reads protects nothing."""
    text = Path(__file__).read_text()
    assert all(path.stem in text for path in RECORDED.iterdir())
    assert recorded("running")["metadata"]["name"] == POD
