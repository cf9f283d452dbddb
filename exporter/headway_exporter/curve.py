"""Time by step number, summed up, in bounded memory.

A rollback needs the time that the steps above some step took. Keeping one number a step for ever would grow with the run, so
only the newest few thousand steps are exact; older ones are kept as ever longer stretches and divided evenly inside a stretch.
Machine words hold them, a fifth of what Python's numbers take: with 64 slots these are the largest part of the sidecar's memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from headway_exporter.packing import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

    from headway_exporter.packing import Saved

MOST_POINTS: Final = 4096
SAVED_EXACTLY: Final = 512
_SAVED_BEFORE: Final = 64


class StepCurve:
    """Nanoseconds spent on steps up to and including a given one; steps are appended in rising order and cut off at the end."""

    __slots__ = ("_steps", "_sums")

    def __init__(self) -> None:
        self._steps: MutableSequence[int] = array("q")
        self._sums: MutableSequence[int] = array("q")

    @property
    def total(self) -> int:
        """All of it, nanoseconds."""
        return self._sums[-1] if self._sums else 0

    @property
    def last(self) -> int | None:
        """Highest step in it."""
        return self._steps[-1] if self._steps else None

    def append(self, step: int, amount: int) -> None:
        """Adds `amount` nanoseconds for `step`, which must lie above `last`."""
        if self._steps and step <= self._steps[-1]:
            raise ValueError(f"step {step} is not above {self._steps[-1]}")
        if not self._steps or step - 1 > self._steps[-1]:  # steps that nobody saw took no known time
            self._add(step - 1, self.total)
        self._add(step, self.total + amount)
        if len(self._steps) > MOST_POINTS:
            self._thin()

    def extend(self, step: int, amounts: Sequence[int]) -> None:
        """As `append` for each of `amounts`, for consecutive steps from `step` on."""
        if not amounts:
            return
        self.append(step, amounts[0])
        at = 1
        while at < len(amounts):
            part = amounts[at : at + MOST_POINTS + 1 - len(self._steps)]
            sums = accumulate(part, initial=self.total)
            next(sums)
            self._put(range(step + at, step + at + len(part)), list(sums))
            at += len(part)
            if len(self._steps) > MOST_POINTS:
                self._thin()

    def up_to(self, step: int) -> int:
        """Nanoseconds of the steps up to and including `step`."""
        after = bisect_right(self._steps, step)
        if after == 0:
            return 0
        if after == len(self._steps):
            return self.total
        low, high = self._steps[after - 1], self._steps[after]
        below, above = self._sums[after - 1], self._sums[after]
        return below + (above - below) * (step - low) // (high - low)

    def cut(self, step: int) -> int:
        """Removes the steps above `step`; returns their nanoseconds."""
        total, kept = self.total, self.up_to(step)
        after = bisect_right(self._steps, step)
        del self._steps[after:], self._sums[after:]
        if self._steps and self._steps[-1] < step and kept > self._sums[-1]:  # in the middle of a stretch
            self._add(step, kept)
        return total - kept

    def for_saving(self) -> dict[str, Saved]:
        """As `codec` asks: the newest steps, and ever fewer points of what lies before."""
        exact = max(0, len(self._steps) - SAVED_EXACTLY)
        stride = -(-exact // _SAVED_BEFORE) if exact > _SAVED_BEFORE else 1
        return {
            name: packed([*numbers[:exact:stride], *numbers[exact:]])
            for name, numbers in (("_steps", self._steps), ("_sums", self._sums))
        }

    def after_loading(self) -> None:
        """As `codec` asks; an older version saved lists.

        Raises:
            TypeError, ValueError: what was saved are no numbers.
        """
        steps, sums = unpacked(self._steps), unpacked(self._sums)
        self._steps, self._sums = array("q"), array("q")
        self._put(steps, sums)

    def _add(self, step: int, total: int) -> None:
        self._put((step,), (total,))

    def _put(self, steps: Sequence[int], sums: Sequence[int]) -> None:
        """Appends points."""
        try:  # a list at once: an array takes an iterator's numbers one by one
            more_steps, more_sums = array("q", list(steps)), array("q", list(sums))
        except OverflowError:  # no step of a run, but a journal may say anything
            self._steps, self._sums = [*self._steps, *steps], [*self._sums, *sums]
        else:
            self._steps.extend(more_steps)
            self._sums.extend(more_sums)

    def _thin(self) -> None:
        half = len(self._steps) // 2
        self._steps[:half] = self._steps[:half:2]
        self._sums[:half] = self._sums[:half:2]
