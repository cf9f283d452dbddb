"""A process whose step file is gone, or that had no room for one, tells of its steps by its samples: training is seen to go on."""

from __future__ import annotations

from pod_story import WALL, Story


def test_training_is_not_seen_to_stand_still() -> None:
    """Somebody removed the journal folder: the newest step and its time go on, or an alert would say that training has stalled."""
    story = Story()
    end = story.running(steps=10)
    for later, step in ((5, 15), (10, 20)):
        for slot in (0, 1):
            story.event(slot, "sample", end + later, step=step)
    steps = story.pod.steps
    assert (steps.step, story.pod.mark, story.pod.state) == (19, 19, "productive")
    assert story.pod.wall_of(steps.completed or 0.0) == WALL + end + 10


def test_a_restart_without_a_step_file_ends() -> None:
    """No room for a second step file: the recovery has its first step all the same, and its incident recovers."""
    story = Story()
    end = story.running(steps=10)
    for slot in (0, 1):
        story.die(slot, end + 1)
    story.start(end + 5, 0, 1, cycle=1, ring=False)
    story.enter(end + 10, 0, 1, incarnation="second", load=5)
    story.event(0, "sample", end + 12)  # none yet
    assert story.pod.failures.recovering is not None
    for slot in (0, 1):
        story.event(slot, "sample", end + 20, step=14)
    assert story.pod.failures.recovering is None
    assert [one.steps_lost for one in story.pod.failures.recoveries] == [5]
    story.event(0, "checkpoint", end + 21, stage="committed", step=14)
    assert story.pod.failures.open is None


def test_what_is_not_known_is_no_sign_of_a_hang() -> None:
    """One rank's file is gone, and its last record is old: that is no reason to say that the others waited for it."""
    story = Story()
    end = story.running(steps=10)
    story.event(1, "sample", end + 5, step=15, collective=True)
    story.steps(end, 0, first=11, last=20)
    story.event(0, "sample", end + 15, step=20, collective=False)
    story.event(1, "sample", end + 15.5, step=20, collective=True)
    story.event(1, "sample", end + 20.5, step=20, collective=True)
    story.event(0, "sample", end + 20, step=20, collective=False)
    story.event(None, "heartbeat_missed", end + 22, which="subsequent", waited_seconds=10.0)
    assert [found[1:3] for found in story.recoveries] == [("heartbeat_timeout", 0)]
