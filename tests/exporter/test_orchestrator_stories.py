"""What the orchestrator knows of a pod's end explains the failure that the journals tell of, and no other one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pod_story import WALL, Story

from headway_exporter import collectors, records
from headway_exporter.claims import claim
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import PodStatusSeen
from headway_exporter.pod import Pod
from headway_exporter.recoveries import MOST_BESIDE, MOST_EVIDENCE

Answer = tuple[str | None, str, str]
OOM: dict[str, Any] = {"reason": "oom_killed", "cause": "host_oom", "exit_code": -9, "text": "OOMKilled"}


def told(story: Story, kind: Any, at: float, seen: float | None = None, name: str = "a", **fields: Any) -> None:
    """What the orchestrator says happened `at`, read when it is `seen`."""
    mono = at if seen is None else seen
    story.pod.fold([PodStatusSeen(kind, mono, WALL + at, name, **({"reason": "error"} | fields))])
    story.pod.advance(mono)


def answer(story: Story, which: int = -1) -> Answer:
    """Layer, cause and confidence of a recovery."""
    found = story.pod.failures.recoveries[which]
    return found.layer, found.diagnosis.cause, found.diagnosis.confidence


def all_die(story: Story, at: float) -> None:
    for slot in (0, 1):
        story.die(slot, at)


def again(story: Story, at: float, *, by_launcher: bool = False, step: int = 11, incarnation: str = "second") -> None:
    """The container, or with it only the ranks, starts again, and makes a step."""
    if not by_launcher:
        story.event(None, "launcher_started", at, pid=2)
    story.start(at + 1, 0, 1)
    story.enter(at + 2, 0, 1, incarnation=incarnation, load=10)
    story.steps(at + 3, 0, 1, first=step, last=step)


def test_a_container_out_of_memory_is_host_oom_of_the_orchestrator() -> None:
    """OOMKilled: the kernel killed all at once and the journals know no reason; the orchestrator does, before the restart."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    assert answer(story)[1] == "process_killed"
    told(story, "container", end + 1.999, end + 8, **OOM)
    again(story, end + 20)
    assert answer(story) == ("orchestrator", "host_oom", "confirmed")
    assert story.pod.failures.causes == {("orchestrator", "host_oom"): 1}
    assert story.pod.failures.recoveries[-1].diagnosis.alternatives[0] == "process_killed"


def test_late_evidence_is_appended_to_a_closed_incident() -> None:
    """The API answers only when all is over: what was counted stays, and the record is written again with what is known now."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    again(story, end + 20)
    story.event(0, "checkpoint", end + 30, stage="committed", step=11)
    (first,) = records.due(story.pod)
    records.written(story.pod, first)
    assert first["outcome"] == "recovered"
    assert first["cause"] == "node_lost", "no launcher and no rank said why"
    counted = dict(story.pod.failures.causes)
    told(story, "container", end + 1.999, end + 60, **OOM)
    (second,) = records.due(story.pod)
    assert (second["cause"], second["confidence"], second["revision"]) == ("host_oom", "confirmed", 1)
    assert [item["text"] for item in second["evidence"] if item["kind"] == "container"] == ["OOMKilled"]
    assert story.pod.failures.causes == counted


@pytest.mark.parametrize(
    ("cause", "sure", "confidence"),
    [("preempted", True, "confirmed"), ("node_lost", False, "likely"), ("host_oom", True, "confirmed")],
)
def test_a_pod_that_was_taken_away(cause: str, sure: bool, confidence: str) -> None:
    """Preempted, evicted or on a lost node: known before the first death, whatever the processes did when told to end."""
    story = Story()
    end = story.running()
    told(story, "disruption", end + 1, reason="preempted", cause=cause, sure=sure, text="taken away")
    story.event(None, "signal", end + 2, signal=15, name="SIGTERM")
    all_die(story, end + 20)
    story.event(None, "launcher_exited", end + 21, exit_code=-15)
    assert answer(story)[1:] == (cause, confidence)
    assert story.pod.failures.open is not None, "nobody cancelled it: another pod is to come"
    assert story.pod.failures.open.current.expected_layer == "orchestrator"


def test_a_pod_that_was_told_to_end_by_its_operator() -> None:
    """The same signals without a word of a disruption are the operator's: the run is cancelled, nobody waits for another pod."""
    story = Story()
    end = story.running()
    story.event(None, "signal", end + 2, signal=15, name="SIGTERM")
    all_die(story, end + 20)
    story.event(None, "launcher_exited", end + 21, exit_code=-15)
    assert story.pod.failures.open is None
    assert story.pod.failures.outcomes == {("cancelled", False): 1}


def test_a_node_that_is_lost_without_a_word() -> None:
    """The machine stops; minutes later the orchestrator gives its pod up, and the next one learns of it before or after it trains."""
    for early in (True, False):
        story = Story()
        end = story.running()
        story.pod.came_back()
        lost: dict[str, Any] = {"reason": "node_lost", "cause": "node_lost", "text": "DeletionByPodGC: node is gone"}
        if early:
            told(story, "disruption", end + 340, end + 350, **lost)
        story.start(end + 360, 0, 1, node="n2")
        if not early:
            told(story, "disruption", end + 340, end + 365, **lost)
        assert answer(story) == ("orchestrator", "node_lost", "confirmed"), early


def test_a_node_that_is_lost_without_a_word_from_anybody() -> None:
    """Without the orchestrator the same is only likely, which is what makes the test before this one say something."""
    story = Story()
    end = story.running()
    story.pod.came_back()
    story.start(end + 360, 0, 1, node="n2")
    assert answer(story) == ("orchestrator", "node_lost", "likely")


def test_the_exit_code_of_a_container_that_nobody_else_told() -> None:
    """Without `headway run` nobody journals the launcher's end: its container's exit code says that the node was not lost."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    told(story, "container", end + 2, end + 9, exit_code=3, text="container trainer ended: exit code 3")
    again(story, end + 20)
    assert answer(story) == ("orchestrator", "process_exited", "confirmed")


def test_a_container_that_ended_was_not_restarted_by_its_launcher() -> None:
    """Without `headway run` new processes look like the launcher's; when the container ended, it was not the launcher."""
    for ended in (True, False):
        story = Story()
        end = story.running()
        all_die(story, end + 1)
        if ended:
            told(story, "container", end + 2, end + 9, exit_code=3)
        again(story, end + 20, by_launcher=True)
        assert answer(story)[0] == ("orchestrator" if ended else "launcher")
        assert sum(story.pod.failures.restarts.values()) == 1


def test_a_rank_that_failed_first_stays_the_origin() -> None:
    """An exception, and half a minute later the container that could not go on: the exception is the reason, whatever ends after it."""
    story = Story()
    end = story.running()
    story.caught(1, end + 1)
    story.die(1, end + 2)
    story.die(0, end + 30)
    told(story, "container", end + 31, end + 40, **OOM)
    told(story, "disruption", end + 50, end + 60, "b", reason="evicted", cause="host_oom")
    again(story, end + 70)
    assert answer(story) == ("orchestrator", "app_exception", "confirmed")
    assert story.recoveries[-1][2] == 1


def test_a_death_well_before_the_container_keeps_its_rank() -> None:
    """A killed rank that the launcher could not replace ends the container later: the rank is where it began."""
    story = Story()
    end = story.running()
    story.die(1, end + 1)
    told(story, "container", end + 41, end + 50, exit_code=1)
    again(story, end + 60)
    assert answer(story)[1] == "process_killed"
    assert story.recoveries[-1][2] == 1


def test_memory_that_once_ran_out_need_not_be_why_it_ended() -> None:
    """A runtime that once saw a kill for memory calls any end OOMKilled: without exit code 137 it is only an alternative."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    told(story, "container", end + 2, end + 9, **(OOM | {"exit_code": 1, "sure": False}))
    again(story, end + 20)
    assert answer(story)[1:] == ("process_exited", "confirmed")
    assert story.pod.failures.recoveries[-1].diagnosis.alternatives[0] == "host_oom"


def test_another_failure_is_left_alone() -> None:
    """What ended an hour before, or after the ranks were restarted, explains nothing."""
    story = Story()
    end = story.running(steps=4000)
    told(story, "container", end - 3000, end - 2990, **OOM)
    told(story, "disruption", end - 200, end - 190, "b", reason="preempted", cause="preempted")
    story.die(1, end + 1)
    again(story, end + 5, by_launcher=True, step=4001)
    told(story, "container", end + 30, end + 40, "c", **OOM)
    assert answer(story)[:2] == ("launcher", "process_killed")
    assert all(item.kind == "death" for item in story.pod.failures.recoveries[-1].evidence)


def test_it_opens_no_failure_by_itself() -> None:
    """A side container that ends, or a notice that is withdrawn, is no failure of training."""
    story = Story()
    end = story.running()
    told(story, "container", end + 1, **OOM)
    told(story, "disruption", end + 2, name="b", reason="preempted", cause="preempted")
    story.steps(end + 2, 0, 1, first=11, last=12)
    assert not story.pod.failures.incidents
    assert story.pod.state == "productive"


def test_the_next_failure_is_noticed_though_the_answer_came_late() -> None:
    """Evidence dated after the restart must not pass for an explanation of the new process's own end."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    story.event(None, "launcher_started", end + 2, pid=2)
    story.start(end + 3, 0, 1)
    story.event(0, "sample", end + 10)
    told(story, "container", end + 3.9, end + 12, **OOM)
    story.event(None, "launcher_started", end + 30, pid=3)
    story.start(end + 31, 0, 1)
    assert story.pod.failures.recoveries[-1].try_count == 2


def test_everything_is_counted_once() -> None:
    """The same end is told at every look, by the pod, by its successor, and after a restart of the sidecar."""
    story = Story()
    story.running()
    assert not list(collectors.orchestrator(story.pod)), "nobody was asked"
    told(story, "heard", 20.0)
    counts = {(name, *labels): value for name, labels, value in collectors.orchestrator(story.pod)}
    assert set(counts.values()) == {0}
    for seen in (30.0, 40.0, 50.0):
        told(story, "container", 25.0, seen, "uid/trainer/1", **OOM)
        told(story, "disruption", 26.0, seen, "uid/DisruptionTarget", reason="evicted", cause="host_oom")
    other = Pod("story", "0")
    recall(other, encoder().encode(story.pod))
    other.fold([PodStatusSeen("container", 60.0, WALL + 25, "uid/trainer/1", "oom_killed", "host_oom", exit_code=-9)])
    for pod in (story.pod, other):
        shown = {(name, *labels): value for name, labels, value in collectors.orchestrator(pod)}
        assert shown["headway_container_ends_total", "oom_killed"] == 1
        assert shown["headway_pod_disruptions_total", "evicted"] == 1
        assert sum(float(str(value)) for value in shown.values()) == 2


def test_there_is_room_for_it_beside_many_deaths() -> None:
    """64 ranks die at once and fill the evidence; the one sign that says why must still find a place, and thousands must not."""
    story = Story()
    slots = tuple(range(MOST_EVIDENCE + 8))
    end = story.running(slots=slots)
    for slot in slots:
        story.die(slot, end + 1)
    for number in range(2_000):
        told(story, "container", end + 1.999, end + 8, f"c{number}", **OOM)
    assert answer(story)[1:] == ("host_oom", "confirmed")
    assert len(story.pod.failures.recoveries[-1].evidence) <= MOST_EVIDENCE + MOST_BESIDE


def test_a_withdrawn_death_leaves_no_failure_behind() -> None:
    """A lock that was lost is no death, even though the orchestrator had announced that the pod may be taken away."""
    story = Story()
    end = story.running()
    told(story, "disruption", end + 0.5, name="b", reason="preempted", cause="preempted")
    story.die(1, end + 1)
    story.steps(end + 2, 0, 1, first=11, last=13)
    assert not story.pod.failures.recoveries


def test_evidence_has_the_form_of_all_evidence() -> None:
    """Texts from the API are cut like all others: a message of a megabyte must not be kept."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    told(story, "container", end + 1.9, end + 9, **(OOM | {"text": "x" * 1_000_000}))
    (kept,) = (item for item in story.pod.failures.recoveries[-1].evidence if item.kind == "container")
    assert len(kept.text) < 500
    assert dataclasses.replace(kept, text="").exit_code == -9


def trace(story: Story, slot: int, at: float, path: str = "/traces/first/rank_0") -> None:
    story.event(slot, "nccl_trace", at, path=path, bytes=4096, writer="torch", iteration=0)


def test_the_trace_of_an_aborted_group_is_kept_with_its_failure() -> None:
    """NVRx tears the group down before any rank says why: the trace comes first, and belongs to the failure that is told of after it."""
    story = Story()
    end = story.running()
    for slot in (0, 1):
        trace(story, slot, end + 1, f"/traces/first/rank_{slot}")
    assert not story.pod.failures.recoveries, "a trace is no failure"
    story.caught(1, end + 1.5)
    story.echo(0, end + 1.6)
    trace(story, 0, end + 1.7, "/traces/first/late_0")
    story.enter(end + 3, 0, 1, incarnation="second", load=10)
    story.steps(end + 4, 0, 1, first=11, last=11)
    assert answer(story) == ("in_process", "app_exception", "confirmed")
    story.event(0, "checkpoint", end + 9, stage="committed", step=11)
    (record,) = records.due(story.pod)
    found = [(item["rank"], item["path"], item["bytes"]) for item in record["evidence"] if item["kind"] == "trace"]
    assert found == [
        (0, "/traces/first/rank_0", 4096),
        (1, "/traces/first/rank_1", 4096),
        (0, "/traces/first/late_0", 4096),
    ]
    assert {item["path"] for item in record["evidence"] if item["kind"] != "trace"} == {None}


def test_a_trace_belongs_to_one_failure() -> None:
    """The next failure, moments later, has traces of its own and not those of the one before."""
    story = Story()
    end = story.running()
    for number, incarnation in enumerate(("second", "third")):
        at = end + 10 * number
        trace(story, 0, at + 1, f"/traces/{number}/0")
        story.caught(1, at + 1.5)
        trace(story, 1, at + 2, f"/traces/{number}/1")
        story.enter(at + 3, 0, 1, incarnation=incarnation, load=10)
        story.steps(at + 4, 0, 1, first=11, last=11)
    paths = [[item.path for item in one.evidence if item.path] for one in story.pod.failures.recoveries]
    assert paths == [["/traces/0/0", "/traces/0/1"], ["/traces/1/0", "/traces/1/1"]]


def test_a_trace_does_not_keep_a_loop_from_going_on() -> None:
    """A loop that swallows exceptions shows by its next step that it goes on, be its rank's trace written before or after that."""
    story = Story()
    end = story.running()
    story.caught(0, end + 1)
    trace(story, 0, end + 5)
    story.steps(end + 2, 0, first=11, last=12)
    assert story.pod.failures.recoveries[-1].closed is not None


def test_other_pods_hear_of_it_as_of_what_a_pod_saw_itself() -> None:
    """A container killed for memory is this pod's own failure, dated by its deaths and not to the second; a lost node is a silence."""
    story = Story()
    end = story.running()
    all_die(story, end + 1)
    told(story, "container", end + 1.999, end + 8, **OOM)
    made = claim(story.pod.failures.recoveries[-1].current, "0", story.pod.info)
    assert (made.evidence, made.cause, made.confidence, made.wall) == (
        "direct",
        "host_oom",
        "confirmed",
        WALL + end + 1,
    )
    assert all(one.step_age_seconds == 1.0 for one in made.standings)
    story = Story()
    end = story.running()
    story.pod.came_back()
    story.start(end + 360, 0, 1, node="n2")
    told(story, "disruption", end + 340, end + 365, reason="node_lost", cause="node_lost")
    made = claim(story.pod.failures.recoveries[-1].current, "0", story.pod.info)
    assert (made.evidence, made.cause, made.confidence) == ("silence", "node_lost", "confirmed")
