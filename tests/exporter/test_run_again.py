"""A run that was complete and is started once more under its name: another training, which replays and loses nothing."""

from __future__ import annotations

import pytest
from pod_story import Story

from headway_exporter.incidents import State

DAY = 86_400.0


def _complete(steps: int = 100) -> Story:
    story = Story()
    end = story.running(steps=steps)
    for slot in (0, 1):
        story.event(slot, "checkpoint", end, stage="committed", step=steps)
        story.event(slot, "train_finished", end + 1, step=steps)
        story.event(slot, "process_exited", end + 1)
        story.die(slot, end + 2)
    story.event(None, "launcher_exited", end + 3, exit_code=0)
    return story


def _again(story: Story, *slots: int, load: int | None, cycle: int = 0) -> float:
    """The next day, by a launcher of its own when `cycle` is 0; when training is entered."""
    if not cycle:
        story.event(None, "launcher_started", DAY, pid=2)
    story.start(DAY + 1, *slots, cycle=cycle)
    story.enter(DAY + 10, *slots, incarnation="again", load=load)
    return DAY + 10


@pytest.mark.parametrize("slots", [(0, 1), (0, 1, 2, 3)], ids=["as many ranks", "more ranks"])
@pytest.mark.parametrize("load", [0, None], ids=["told", "untold"])
def test_all_of_it_is_new(load: int | None, slots: tuple[int, ...]) -> None:
    """From scratch, on ranks that trained before and on others: no step of it is a replay, none of before is lost."""
    story = _complete()
    begin = _again(story, *slots, load=load)
    story.steps(begin, *slots, first=1, last=50)
    pod = story.pod
    totals = pod.ledger.totals(pod.now_ns)
    assert (pod.state, pod.mark, pod.steps.step) == ("productive", 50, 50)
    assert (totals.states["replay"], totals.unregained, totals.lost) == (0, 0, 0)
    assert totals.states["productive"] == (200 + 50 * len(slots)) * 1_000_000_000
    assert max(books.lost_steps for books in pod.ledger.slots.values()) == 0
    assert not pod.failures.incidents


def test_its_checkpoints_are_its_own() -> None:
    """A failure has recovered once a checkpoint of this training is newer than its own last one, not than yesterday's."""
    story = _complete()
    end = story.steps(_again(story, 0, 1, load=None), 0, 1, first=1, last=20)
    assert story.pod.checkpoints.durable_step is None
    story.event(0, "checkpoint", end, stage="committed", step=10)
    assert story.pod.checkpoints.durable_step == 10
    for slot in (0, 1):
        story.die(slot, end + 1)
    story.start(end + 5, 0, 1, cycle=1)
    story.enter(end + 10, 0, 1, incarnation="restarted", load=10)
    end = story.steps(end + 10, 0, 1, first=11, last=30)
    assert story.pod.ledger.totals(story.pod.now_ns).states["replay"] == 20_000_000_000
    story.event(0, "checkpoint", end, stage="committed", step=30)
    assert [incident.state for incident in story.pod.failures.incidents] == [State.RECOVERED]


def test_one_that_goes_on_where_it_ended_keeps_its_books() -> None:
    """More steps than at first are asked for: it loads its last checkpoint, and nothing begins anew."""
    story = _complete()
    story.steps(_again(story, 0, 1, load=100), 0, 1, first=101, last=110)
    assert (story.pod.mark, story.pod.checkpoints.durable_step) == (110, 100)
    assert story.pod.ledger.totals(story.pod.now_ns).states["replay"] == 0


def test_a_restart_by_the_same_launcher_is_none() -> None:
    """Another pod failed at the very end: what is done again was done before."""
    story = _complete()
    story.steps(_again(story, 0, 1, load=90, cycle=1), 0, 1, first=91, last=100)
    assert story.pod.mark == 100
    assert story.pod.ledger.totals(story.pod.now_ns).states["replay"] == 20_000_000_000


def _three_lines(exit_code: int = 0, trouble: str = "") -> Story:
    """Ranks that tell their steps and nothing else; their processes end in order, and so does the launcher."""
    story = Story()
    story.event(None, "launcher_started", 0.0, pid=1)
    story.start(1.0, 0, 1)
    end = story.steps(5.0, 0, 1, first=1, last=100)
    if trouble == "fault":
        story.caught(0, end + 0.5)
    if trouble == "signal":
        story.event(None, "signal", end + 0.5, signal=15, name="SIGTERM")
    for slot in (0, 1):
        story.event(slot, "process_exited", end + 1)
        story.die(slot, end + 1.1)
    story.event(None, "launcher_exited", end + 2, exit_code=exit_code)
    return story


def test_a_launcher_that_succeeds_ends_the_run() -> None:
    """A trainer that never says that it is done has done so: the same command once more is no restart after a lost node."""
    story = _three_lines()
    assert (story.pod.finished, story.pod.state) == (True, "finished")
    story.steps(_again(story, 0, 1, load=None), 0, 1, first=1, last=50)
    assert not story.pod.failures.incidents
    totals = story.pod.ledger.totals(story.pod.now_ns)
    assert (totals.states["replay"], totals.states["down"], totals.states["detect"]) == (0, 0, 0)


@pytest.mark.parametrize(("exit_code", "trouble"), [(1, ""), (-15, ""), (0, "fault"), (0, "signal")])
def test_one_that_does_not_or_that_hides_what_happened_ends_nothing(exit_code: int, trouble: str) -> None:
    """Whatever the launcher's wrapper makes of it, a run that broke off is not complete."""
    story = _three_lines(exit_code, trouble)
    assert not story.pod.finished
    story.steps(_again(story, 0, 1, load=None), 0, 1, first=1, last=50)
    assert len(story.pod.failures.incidents) == 1
