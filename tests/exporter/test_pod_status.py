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

if TYPE_CHECKING:
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
    ],
)
def test_the_end_of_a_container(name: str, reason: str, cause: str | None, sure: bool, code: int) -> None:
    """The word, the exit code and what follows from them; a signal is negative as everywhere else."""
    (seen,) = told(name, "container")
    assert (seen.reason, seen.cause, seen.sure, seen.exit_code) == (reason, cause, sure, code)
    assert seen.wall == LOOK.wall if name == "lost_sight" else clock("10:20:30") < seen.wall < clock("10:20:32")
    assert seen.text.startswith("container trainer ended: ")
    assert ("restarts so far: 1" in seen.text) == (name == "oom_killed_and_restarted")


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
    ],
)
def test_a_pod_that_is_taken_away(name: str, reason: str, cause: str, sure: bool, at: str | None) -> None:
    """By whom and why, once, however many fields of the status say it."""
    (seen,) = told(name, "disruption")
    assert (seen.reason, seen.cause, seen.sure) == (reason, cause, sure)
    assert seen.wall == (LOOK.wall if at is None else clock(at))
    assert recorded(name)["metadata"]["name"] in seen.text


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
