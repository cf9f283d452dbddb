"""A group that goes on with fewer ranks: those it left out hold nothing up, are blamed for nothing, and may come back."""

from __future__ import annotations

import pytest
from pod_story import Story

from headway_exporter.collectors import run


def _shrink(story: Story, *left: int, attempt: int = 0) -> float:
    """The ranks that are left start again 5 s after all had died, and train from step 11 to 40; returns when that is done."""
    end = story.pod.now
    for slot in list(story.lives):
        story.die(slot, end + 1)
    if attempt:
        story.pod.came_back()
        story.event(None, "launcher_started", end + 4, pid=1, attempt=attempt)
    story.start(end + 5, *left, cycle=1, attempt=attempt)
    story.enter(end + 10, *left, incarnation="fewer", load=10)
    return story.steps(end + 10, *left, first=11, last=40)


def _leave_out_in_process(story: Story, dead: int, *left: int) -> float:
    """NVRx goes on without a rank, and gives the others new numbers."""
    end = story.pod.now
    story.die(dead, end + 1)
    for rank, slot in enumerate(left):
        story.echo(slot, end + 1.2)
        story.event(slot, "interruption", end + 1.3, records=[{"rank": dead, "kind": "TERMINATED"}], iteration=0)
        same = {"iteration": 1, "world_size": len(left), "mode": "active", "terminated": [dead]}
        story.event(slot, "ranks_reassigned", end + 1.5, initial_rank=slot, rank=rank, **same)
    for rank, slot in enumerate(left):
        story.enter(end + 2, slot, incarnation="fewer", load=10, rank=rank, world_size=len(left), iteration=1)
    return story.steps(end + 3, *left, first=11, last=40)


def _seconds(story: Story, state: str) -> float:
    return round(story.pod.ledger.totals(story.pod.now_ns).states[state] / 1e9, 3)


@pytest.mark.parametrize("attempt", [0, 1], ids=["launcher", "new pod"])
def test_a_run_with_fewer_ranks_trains_and_finishes(attempt: int) -> None:
    """Two of four ranks never start again: the pod is not in a restart for ever, and the run is over when the two are done."""
    story = Story()
    story.running(slots=(0, 1, 2, 3))
    end = _shrink(story, 0, 1, attempt=attempt)
    assert story.pod.state == "productive"
    for slot in (0, 1):
        story.event(slot, "train_finished", end + 1, step=40)
    assert story.pod.finished
    assert story.pod.state == "finished"
    totals = story.pod.ledger.totals(story.pod.now_ns)
    assert sum(totals.states.values()) == totals.elapsed
    story.pod.advance(end + 1000)
    assert story.pod.ledger.totals(story.pod.now_ns).elapsed == totals.elapsed


def test_a_place_that_stays_idle_is_lost_time_and_one_that_is_gone_is_none() -> None:
    """The same pod still has the GPUs of the ranks left out; a pod started anew with fewer ranks has no such places."""
    same, new = Story(), Story()
    for story, attempt in ((same, 0), (new, 1)):
        story.running(slots=(0, 1, 2, 3))
        _shrink(story, 0, 1, attempt=attempt)
    assert same.pod.ledger.totals(same.pod.now_ns).pending == 78_000_000_000  # two ranks, since they were found dead
    assert new.pod.ledger.totals(new.pod.now_ns).pending == 0
    assert _seconds(new, "restart") + _seconds(new, "down") == 36.0  # four ranks, from their death to the others' entry
    assert _seconds(new, "other") == 0.0


def test_no_later_failure_begins_on_a_rank_that_is_gone() -> None:
    """The rank with the fewest steps is one that died long ago: the hang is that of a rank that still trains."""
    story = Story()
    story.running(slots=(0, 1, 2))
    end = _leave_out_in_process(story, 0, 1, 2)
    for slot in (1, 2):
        story.event(slot, "sample", end + 4, step=40, collective=slot == 1)
    story.event(None, "heartbeat_missed", end + 30, which="subsequent", waited_seconds=30.0, local_rank=2)
    assert [found[1:3] for found in story.recoveries] == [("process_killed", 0), ("heartbeat_timeout", 1)]


@pytest.mark.parametrize("how", ["gone", "in reserve"])
def test_another_rank_speaks_for_the_pod_when_the_first_does_not_train(how: str) -> None:
    """Slot 0 is left out, or waits in reserve: the pod's steps are timed all the same."""
    story = Story()
    if how == "gone":
        story.running(slots=(0, 1, 2))
        before, end = 10, _leave_out_in_process(story, 0, 1, 2)
    else:
        story.start(1.0, 0, 1, 2)
        story.event(0, "ranks_reassigned", 9.0, iteration=0, initial_rank=0, mode="inactive", terminated=[])
        story.enter(10.0, 1, 2, incarnation="first", load=0)
        before, end = 0, story.steps(10.0, 1, 2, first=11, last=40)
    assert sum(story.pod.steps.durations.counts) == before + 30
    assert story.pod.wall_of(story.pod.steps.completed or 0.0) == story.wall + end


def test_a_rank_that_is_gone_has_no_number() -> None:
    """NVRx gave its number to another rank: two places with one rank would join GPUs to the wrong one."""
    story = Story()
    story.running(slots=(0, 1, 2))
    _leave_out_in_process(story, 0, 1, 2)
    told = [sample for sample in run(story.pod) if sample[0] == "headway_rank_info"]
    assert [labels[:2] for _, labels, _ in told] == [("0", "1"), ("1", "2")]


def test_a_rank_that_comes_back_replays_what_the_others_did() -> None:
    """While it was gone they came from step 10 to 40: of what it does after a return to 30, only what is above 40 is new."""
    story = Story()
    story.running(slots=(0, 1, 2, 3))
    end = _shrink(story, 0, 1)
    for slot in (0, 1):
        story.die(slot, end + 1)
    story.start(end + 5, 0, 1, 2, 3, cycle=2)
    story.enter(end + 10, 0, 1, 2, 3, incarnation="all", load=30)
    story.steps(end + 10, 0, 1, 2, 3, first=31, last=45)
    assert _seconds(story, "replay") == 4 * 10.0
    assert _seconds(story, "productive") == 4 * 10 + 2 * 30 + 4 * 5
    assert story.pod.state == "productive"
    assert [marker.slot for marker in story.pod._markers()] == [0, 1, 2, 3]


def test_a_death_that_was_none_is_no_leave() -> None:
    """A silent rank speaks again after the others have trained: it takes part as before."""
    story = Story()
    story.running(slots=(0, 1))
    story.die(1, 25.0, by="silence")
    story.enter(30.0, 0, incarnation="second", load=10)
    story.steps(30.0, 0, first=11, last=12)
    story.enter(33.0, 1, incarnation="second", load=10)
    story.steps(33.0, 0, 1, first=13, last=14)
    assert [marker.slot for marker in story.pod._markers()] == [0, 1]


def test_the_launcher_may_tell_late_of_a_rank_that_is_gone() -> None:
    """It looks every few seconds: the others may have trained on in process before it sees the death and starts all anew."""
    story = Story()
    story.first_rank = 8
    story.world_size = 11
    story.running(slots=(0, 1, 2))
    end = story.pod.now
    story.die(1, end + 1)
    story.enter(end + 2, 0, 2, incarnation="fewer", load=10, iteration=1)
    end = story.steps(end + 3, 0, 2, first=11, last=12)
    story.event(None, "worker_exited", end + 0.5, local_rank=1, pid=story.pid(1), exit_code=-9)
    story.event(None, "worker_group_failed", end + 0.6, restarts_left=3, restarts_limit=3)
    for slot in (0, 2):
        story.die(slot, end + 0.7)
    story.start(end + 3, 0, 1, 2, cycle=1)
    story.enter(end + 5, 0, 1, 2, incarnation="all", load=10)
    story.steps(end + 6, 0, 1, 2, first=11, last=12)
    assert [found[1:3] for found in story.recoveries] == [("process_killed", 9), ("process_killed", 9)]
    assert dict(story.pod.failures.rank_failures)[9] >= 1
    assert 1 not in story.pod.failures.rank_failures
