"""Replay checks by hand-made losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from pod_story import Story

from headway_exporter.replay import MOST_LOSSES, ReplayChecks, same, spread
from headway_exporter.status import status

LOSSES = [10.0 - 0.1 * step + 0.1 * (0, 1, 3)[step % 3] for step in range(1, 41)]
"""Losses of steps 1 to 40: the differences from step to step are 0, 0.1 and -0.4 in turns, so their spread is 0.1."""


@dataclass
class Subject:
    replay_check: str | None = None


def replayed(
    losses: list[float | None],
    *,
    loaded: int = 20,
    before: list[float] | list[float | None] = LOSSES,
    context: tuple[str, str] = ("a", "a"),
    checks: ReplayChecks | None = None,
) -> str | None:
    """The result of a replay after `loaded`, of a run whose first steps had the losses `before`."""
    checks, subject = checks or ReplayChecks(), Subject()
    for step, loss in enumerate(before, 1):
        checks.step(step, loss, context[0], None)
    for step, loss in enumerate(losses, loaded + 1):
        checks.step(step, loss, context[1], subject, wall=float(step))
    return subject.replay_check


def off(by: float, *steps: int) -> list[float | None]:
    """The losses of steps 21 to 25, some of them off by so much."""
    return [LOSSES[step - 1] + (by if step in steps else 0) for step in range(21, 26)]


def test_the_same_losses_are_a_valid_restore() -> None:
    """Bit for bit the same: nothing that a loss depends on was lost."""
    assert replayed(off(0)) == "valid"


def test_three_of_five_far_off_are_a_divergence() -> None:
    """More than six times the spread (0.1) and in most of the first steps: no noise does that."""
    assert spread(dict(enumerate(LOSSES))) == pytest.approx(0.1)
    assert replayed(off(0.61, 22, 23, 25)) == "diverged"
    assert replayed(off(-0.61, 22, 23, 25)) == "diverged"


def test_a_divergence_has_its_time() -> None:
    """An alert looks at it: a counter that is read anew would look like news."""
    checks = ReplayChecks()
    replayed(off(0), checks=checks)
    assert checks.diverged_wall is None
    replayed(off(0.61, 22, 23, 25), before=[], checks=checks)
    assert checks.diverged_wall == 25


@pytest.mark.parametrize("losses", [off(0.61, 22, 23), off(0.59, 21, 22, 23, 24, 25), off(1e-12, 25)])
def test_less_than_that_is_no_proof_either_way(losses: list[float | None]) -> None:
    """A run that is not deterministic differs a little: neither a pass nor an alarm."""
    assert replayed(losses) == "unverifiable"


def test_a_run_that_reproduced_once_must_do_so_again() -> None:
    """Where bit-equality is known to hold, the last bit is evidence."""
    checks = ReplayChecks()
    assert replayed(off(0), checks=checks) == "valid"
    assert replayed(off(1e-12, 25), checks=checks, before=[]) == "diverged"
    assert checks.results == {"valid": 1, "diverged": 1}


def test_a_loss_that_stands_still_has_no_spread_to_measure_by() -> None:
    """A coarse loss on a plateau repeats itself: its last bit is no alarm."""
    assert replayed([5.0625] * 5, before=[5.0] * 40) == "unverifiable"


def test_nan_equals_nan() -> None:
    """A run that was broken before is broken in the same way: the restore is not to blame."""
    assert same(math.nan, math.nan)
    before = [*LOSSES[:21], *[math.nan] * 10]
    assert replayed([before[20], *[math.nan] * 4], before=before) == "valid"
    assert replayed(off(0), before=before) == "diverged"
    assert replayed([*off(0)[:2], *[math.nan] * 3]) == "diverged"


def test_another_world_configuration_or_code_cannot_be_compared() -> None:
    """Its losses differ for a good reason, and are the measure from then on."""
    checks = ReplayChecks()
    assert replayed([*off(9, 21, 22, 23, 24, 25)], context=("a", "b"), checks=checks) == "unverifiable"
    for step in range(26, 60):
        checks.step(step, 1.0, "b", None)
    assert replayed([1.0] * 5, loaded=45, before=[], context=("b", "b"), checks=checks) == "valid"


def test_too_few_steps_cannot_be_compared() -> None:
    """One equal loss tells of the weights alone; a second one of the optimizer too."""
    assert replayed([LOSSES[39], 1.0, 1.0], loaded=39) == "unverifiable"
    assert replayed([LOSSES[38], LOSSES[39]], loaded=38) == "valid"


def test_missing_losses_cannot_be_compared() -> None:
    """A trainer that reports no loss gets no verdict."""
    assert replayed([*off(0)[:4], None]) == "unverifiable"
    assert replayed(off(0), before=[None] * 40) == "unverifiable"


def test_a_replay_that_is_cut_off_is_judged_by_what_there_was() -> None:
    """The next failure ends it; each recovery gets its own result."""
    checks, first, second = ReplayChecks(), Subject(), Subject()
    for step, loss in enumerate(LOSSES, 1):
        checks.step(step, loss, "a", None)
    for step in (21, 22):
        checks.step(step, LOSSES[step - 1], "a", first)
    for step in (21, 22, 23, 24, 25):
        checks.step(step, 0.0, "a", second)
    assert (first.replay_check, second.replay_check) == ("valid", "diverged")


def test_a_deliberate_return_is_no_replay() -> None:
    """The operator may have changed anything."""
    checks = ReplayChecks()
    for step, loss in enumerate(LOSSES, 1):
        checks.step(step, loss, "a", None)
    checks.rolled_back(20)
    for step in range(21, 60):
        checks.step(step, 0.0, "a", None)
    assert not checks.results


def test_memory_is_bounded() -> None:
    """A month of steps keeps the newest few thousand losses, whichever way they came."""
    checks = ReplayChecks()
    checks.progress(range(1, 3 * MOST_LOSSES), [1.0] * (3 * MOST_LOSSES - 1), "a")
    for step in range(3 * MOST_LOSSES, 4 * MOST_LOSSES):
        checks.step(step, 1.0, "a", None)
    assert len(checks._first) == MOST_LOSSES


@pytest.mark.parametrize(("fingerprint", "result"), [("aa", "valid"), ("bb", "unverifiable")])
def test_a_changed_configuration_is_noticed(fingerprint: str, result: str) -> None:
    """Somebody restarts with another learning rate: other losses are no sign of a bad checkpoint."""
    story = Story()
    end = story.running(steps=0, settings={"config_fingerprint": "aa", "total_steps": 40})
    for step in range(1, 11):
        end = story.steps(end, 0, 1, first=step, last=step, loss=10.0 / step)
    story.die(1, end)
    story.start(end + 1, 0, 1, cycle=1, settings={"config_fingerprint": fingerprint, "total_steps": 40})
    story.enter(end + 2, 0, 1, incarnation="second", load=4)
    for step in range(5, 11):
        story.steps(end + step, 0, 1, first=step, last=step, loss=10.0 / step)
    assert story.pod.failures.recoveries[0].replay_check == result


def test_the_result_is_on_the_recovery_and_in_the_counter() -> None:
    """People see it where they look after a restart."""
    story = Story()
    end = story.running(steps=10)
    story.caught(0, end)
    story.enter(end + 1, 0, 1, incarnation="second", load=4)
    story.steps(end + 2, 0, 1, first=5, last=10)
    assert status(story.pod, {})["recoveries"][0]["replay_check"] == "unverifiable"  # the story's steps have no losses
    assert story.pod.replay_checks.results == {"unverifiable": 1}
