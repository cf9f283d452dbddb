"""A histogram as Prometheus wants it, without a registry: the fold keeps it, the collectors read it."""

from __future__ import annotations

from bisect import bisect_left
from functools import reduce
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Distribution:
    """Counts by upper bound; `bounds` rise and leave out +Inf. An exemplar, where one is given, leads from a bucket to a trace."""

    __slots__ = ("_counts", "bounds", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        """By bucket, the newest one: id of the trace, value, seconds since 1970."""

    @property
    def counts(self) -> list[int]:
        """Observations in each bucket, the last one those above all bounds."""
        return list(self._counts)

    def observe(self, value: float) -> None:
        """Adds one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_traced(self, value: float, trace_id: str, wall: float) -> None:
        """Adds one value that a trace tells more of; `wall`: when it was measured, seconds since 1970."""
        self.observe(value)
        self.exemplars[bisect_left(self.bounds, value)] = (trace_id, value, wall)

    def observe_all(self, values: Sequence[float]) -> None:
        """As `observe` for each, in their order (a sum of fractions depends on it)."""
        low, high = (bisect_left(self.bounds, value) for value in (min(values), max(values)))
        if low == high:
            self._counts[low] += len(values)
        else:
            for value in values:
                self._counts[bisect_left(self.bounds, value)] += 1
        self.total = reduce(add, values, self.total)

    def copy(self) -> Distribution:
        """As it is now, for good."""
        copied = Distribution(self.bounds)
        copied.total, copied._counts = self.total, self._counts.copy()
        copied.exemplars = self.exemplars.copy()
        return copied

    def cumulative(self) -> list[tuple[str, float]]:
        """`(upper bound, observations up to it)`, the last one +Inf."""
        labels = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(labels, map(float, accumulate(self._counts)), strict=True))
