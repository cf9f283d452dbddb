"""How much longer steps take while a save is in flight: the price of writing in the background."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway.ring import StepColumns, StepRecord

MOST_STEPS: Final = 200
LEAST_STEPS: Final = 5
_NANOSECONDS: Final = 1_000_000_000


class Contention:
    """Folds the steps of the rank that speaks for the pod.

    A step counts as one beside a save when a save was in flight during any part of it: a save that is shorter than a step
    slows one down, too. What a save blocks is left out of its time, since checkpoint efficiency has it already.
    """

    def __init__(self) -> None:
        self._saving: deque[float] = deque(maxlen=MOST_STEPS)
        self._alone: deque[float] = deque(maxlen=MOST_STEPS)

    def fold(self, record: StepRecord, saving_until: int) -> None:
        """One step; `saving_until`: nanoseconds, up to when a save was in flight (`Checkpoints.saving_until`)."""
        steps = self._saving if record.start_ns < saving_until else self._alone
        steps.append(_seconds(record.duration_ns, record.blocked_ns))

    def fold_run(self, run: StepColumns, saving_until: int) -> None:
        """As `fold` for each of a run of steps."""
        if min(run.starts) >= saving_until:
            self._alone.extend(map(_seconds, run.durations[-MOST_STEPS:], run.blocked[-MOST_STEPS:]))
            return
        for start, duration, blocked in zip(run.starts, run.durations, run.blocked, strict=True):
            (self._saving if start < saving_until else self._alone).append(_seconds(duration, blocked))

    @property
    def ratio(self) -> float | None:
        """Median step time beside a save over that of the others, less 1; None before there are `LEAST_STEPS` of both."""
        if min(len(self._saving), len(self._alone)) < LEAST_STEPS:
            return None
        alone = median(self._alone)
        return median(self._saving) / alone - 1 if alone > 0 else None


def _seconds(duration_ns: int, blocked_ns: int) -> float:
    return max(0, duration_ns - blocked_ns) / _NANOSECONDS
