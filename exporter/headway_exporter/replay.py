"""Was the restored state valid? The loss of a replayed step against the loss it had the first time.

A restored checkpoint whose files are whole can still be wrong: an optimizer state that was damaged before it was saved, a random state
that was forgotten, data that are read in another order. The first steps after a restore were done before, so their losses are known:

- bit-equal, two of them at least (the first only tells of the weights, the second of the optimizer too): `valid`;
- else `diverged`, when the run had reproduced bit for bit before, or when three of the first five differ by more than six times the
  spread of the losses' step-to-step differences (their median absolute deviation, so that one wild step does not count);
- `unverifiable` otherwise: another world size, configuration or code, too few steps, missing losses, differences too
  small to tell, or a loss that stands still and so gives no measure.

NaN equals NaN. A pure fold in bounded memory: it is told each step of one rank, and what losses depend on besides the weights.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import islice, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Result = Literal["valid", "diverged", "unverifiable"]

MOST_LOSSES: Final = 4_096
"""Newest first passes that are remembered; an older step's loss counts as missing."""
COMPARED_STEPS: Final = 5
DIVERGED_STEPS: Final = 3
SPREADS: Final = 6.0
LEAST_EQUAL: Final = 2
LEAST_DIFFERENCES: Final = 8
_SPREAD_STEPS: Final = 256
_MOST_SAVED: Final = 1_024


class Subject(Protocol):
    """What a check belongs to; it is told the result."""

    replay_check: str | None


class ReplayChecks:
    """Folds the losses of one rank's steps."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.diverged_wall: float | None = None
        """When the last divergence was seen, seconds since 1970."""
        # Two queues and not one of pairs: a late sidecar remembers thousands of steps at once.
        self._first: deque[int] = deque(maxlen=MOST_LOSSES)
        self._losses: deque[float | None] = deque(maxlen=MOST_LOSSES)
        self._context: Hashable = None
        self._reproduces = False
        self._tip: int | None = None
        self._check: _Check | None = None

    def step(
        self, step: int, loss: float | None, context: Hashable, subject: Subject | None, *, wall: float | None = None
    ) -> None:
        """One step, completed at `wall`. `context`: what losses depend on besides the weights; `subject`: the newest recovery."""
        if self._tip is not None and step <= self._tip:
            self._decide(wall)
            self._begin(step, context, subject)
        self._tip = step
        if self._check is not None:
            if step <= self._check.mark:
                self._check.add(step, loss)
            if self._check.complete or step >= self._check.mark:
                self._decide(wall)
        if not self._first or step > self._first[-1]:
            self._remember([step], [loss], context)

    def progress(
        self,
        steps: Sequence[int],
        losses: Sequence[float | None],
        context: Hashable,
        *,
        wall: float | None = None,
    ) -> None:
        """As `step` for each of many steps that were never done before."""
        self.step(steps[0], losses[0], context, None, wall=wall)
        self._tip = steps[-1]
        self._remember(steps[1:][-MOST_LOSSES:], losses[1:][-MOST_LOSSES:], context)

    def rolled_back(self, step: int) -> None:
        """The operator went back on purpose, perhaps to do it differently: what comes is no replay."""
        self._check = None
        while self._first and self._first[-1] > step:
            self._first.pop()
            self._losses.pop()
        self._tip = None if self._tip is None else min(self._tip, step)

    def for_saving(self) -> dict[str, Any]:
        """As `codec` asks: the newest losses; what went back further is then not checked."""
        if len(self._first) <= _MOST_SAVED:
            return {}
        older = len(self._first) - _MOST_SAVED
        newest = {
            name: islice(values, older, None) for name, values in (("_first", self._first), ("_losses", self._losses))
        }
        return {name: deque(values, MOST_LOSSES) for name, values in newest.items()}

    def _remember(self, steps: Sequence[int], losses: Sequence[float | None], context: Hashable) -> None:
        if context != self._context:
            self._first.clear()  # losses of before are no measure any more
            self._losses.clear()
            self._context, self._reproduces = context, False
        self._first.extend(steps)
        self._losses.extend(losses)

    def _begin(self, step: int, context: Hashable, subject: Subject | None) -> None:
        if self._first and step <= self._first[-1]:
            same_kind = context == self._context
            before = dict(zip(self._first, self._losses, strict=True)) if same_kind else {}
            self._check = _Check(before, self._first[-1], subject)

    def _decide(self, wall: float | None) -> None:
        check, self._check = self._check, None
        if check is None:
            return
        result = check.result(reproduces=self._reproduces)
        self._reproduces = self._reproduces or result == "valid"
        self.results[result] += 1
        if result == "diverged":
            self.diverged_wall = wall
        if check.subject is not None:
            check.subject.replay_check = result


class _Check:
    """The comparison of one replay."""

    __slots__ = ("_before", "_beyond", "_equal", "_limit", "_steps", "mark", "subject")

    def __init__(self, before: dict[int, float | None], mark: int, subject: Subject | None) -> None:
        self.mark = mark
        self.subject = subject
        self._before = before
        self._limit = SPREADS * spread(before)
        self._equal: list[bool] = []
        self._beyond = 0
        self._steps = 0

    def add(self, step: int, loss: float | None) -> None:
        """One more replayed step."""
        self._steps += 1
        first = self._before.get(step)
        if first is None or loss is None:
            return
        self._equal.append(same(first, loss))
        self._beyond += not self._equal[-1] and not abs(first - loss) <= self._limit

    @property
    def complete(self) -> bool:
        """As many steps as are compared."""
        return self._steps >= COMPARED_STEPS

    def result(self, *, reproduces: bool) -> Result:
        """What the steps so far say. `reproduces`: a replay of this run was bit-equal before."""
        if all(self._equal):
            return "valid" if LEAST_EQUAL <= len(self._equal) == self._steps else "unverifiable"
        if reproduces or (self._beyond >= DIVERGED_STEPS and self._limit > 0):
            return "diverged"
        return "unverifiable"


def same(one: float, other: float) -> bool:
    """Equal, where NaN equals NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


def spread(losses: dict[int, Any]) -> float:
    """Median absolute deviation of the differences from step to step; NaN when there are too few."""
    newest = list(losses.items())[-_SPREAD_STEPS:]
    pairs = [
        (before, after)
        for (step, before), (following, after) in pairwise(newest)
        if following == step + 1 and before is not None and after is not None
    ]
    found = [after - before for before, after in pairs if math.isfinite(after - before)]
    if len(found) < LEAST_DIFFERENCES:
        return math.nan
    middle = median(found)
    return float(median(abs(difference - middle) for difference in found))
