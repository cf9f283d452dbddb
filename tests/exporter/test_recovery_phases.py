"""Where the time of a recovery went, by what the journals tell."""

from __future__ import annotations

import pytest
from incident_tale import Tale
from pod_story import Story

from headway_exporter.labels import RECOVERY_PHASES


def phases(story: Story, layer: str) -> dict[str, float]:
    """Seconds by phase, those without time left out."""
    found = {phase: story.pod.failures.phases[layer, phase] for phase in RECOVERY_PHASES}
    return {phase: pytest.approx(seconds) for phase, seconds in found.items() if seconds}


def in_phase(story: Story, slot: int, name: str, begin: float, end: float) -> None:
    story.event(slot, "phase", begin, name=name, edge="begin")
    story.event(slot, "phase", end, name=name, edge="end", seconds=end - begin)


def launcher_restart(story: Story, end: float, *, until: float) -> None:
    """Failure at 2, gone at 4, new processes at 9, entered at 13, loaded from 14 to 16; seconds after `end`."""
    story.die(1, end + 2)
    story.event(0, "process_exited", end + 4)
    story.start(end + 9, 0, 1, cycle=1)
    for slot in (0, 1):
        in_phase(story, slot, "rendezvous", end + 10, end + 12.5 + slot / 2)
    story.enter(end + 13, 0, 1, incarnation="second")
    in_phase(story, 0, "checkpoint_load", end + 14, end + 16)
    story.event(0, "checkpoint", end + 16, stage="loaded", step=8, seconds=1.9)
    story.steps(end + until - 1, 0, 1, first=9, last=9)


def test_every_phase_of_a_launchers_restart() -> None:
    """Exclusive and complete: together they are the time from the last step before to the mark regained."""
    story = Story()
    end = story.running()
    launcher_restart(story, end, until=18)
    story.steps(end + 18, 0, 1, first=10, last=10)
    assert phases(story, "launcher") == {
        "detect": 2,
        "teardown": 2,
        "respawn": 5,
        "rendezvous": 3,
        "init": 1,
        "load": 2,
        "first_step": 3,
        "catch_up": 1,
    }
    assert sum(story.pod.failures.phases.values()) == pytest.approx(19)


def test_in_process_there_is_no_respawn() -> None:
    """The clean-up ends with NVRx's finalize; initialisation may come after training is entered."""
    story = Story()
    end = story.running()
    story.caught(1, end + 1)
    story.event(0, "finalized", end + 2, iteration=0)
    story.enter(end + 4, 0, 1, incarnation="second")
    in_phase(story, 0, "init", end + 4.5, end + 5)
    story.event(0, "checkpoint", end + 6, stage="loaded", step=10, seconds=1)
    story.steps(end + 7, 0, 1, first=11, last=11)
    assert phases(story, "in_process") == {
        "detect": 1,
        "teardown": 1,
        "init": 2.5,
        "load": 1,
        "first_step": 2.5,
    }


def test_a_failed_try_spends_its_time_on_the_phase_that_it_was_in() -> None:
    """A load that never ends is time of the load, booked to the layer that had restarted."""
    story = Story()
    end = story.running()
    story.caught(1, end + 1)
    story.enter(end + 2, 0, 1, incarnation="second")
    story.event(0, "phase", end + 3, name="checkpoint_load", edge="begin")
    story.die(0, end + 9)
    assert story.pod.failures.phases["in_process", "load"] == pytest.approx(6)
    story.start(end + 12, 0, 1, cycle=1)
    story.enter(end + 12, 0, 1, incarnation="third", load=10)
    story.steps(end + 12, 0, 1, first=11, last=11)
    assert sum(story.pod.failures.phases.values()) == pytest.approx(13)


def test_catching_up_ends_where_the_next_failure_begins() -> None:
    """Nothing is counted twice: the second recovery's time is not catch-up of the first."""
    tale = Tale().tell("fail 1, in_process 5, steps 6-7, fail 0, in_process 5, steps 6-10")
    recovered = [one.closed for one in tale.pod.failures.recoveries]
    assert None not in recovered
    assert tale.pod.failures.phases["in_process", "catch_up"] == pytest.approx(1 + 4)
    assert tale.pod.failures.high_water.cumulative()[-1][1] == 2


def test_a_loop_that_says_little() -> None:
    """Without a word about restarts all is first step: rather that than a phase that nobody saw."""
    story = Story()
    story.start(1.0, 0)
    end = story.steps(2.0, 0, first=1, last=3)
    story.caught(0, end + 1)
    story.steps(end + 2, 0, first=4, last=4)
    assert phases(story, "in_process") == {"detect": 1, "first_step": 2}
