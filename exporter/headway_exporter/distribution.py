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
    """Counts by upper bound; `bounds` rise and leave out +Inf."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Adds one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """As `observe` for each, in their order (a sum of fractions depends on it)."""
        low, high = (bisect_left(self.bounds, value) for value in (min(values), max(values)))
        if low == high:
            self._counts[low] += len(values)
        else:
            for value in values:
                self._counts[bisect_left(self.bounds, value)] += 1
        self.total = reduce(add, values, self.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """`(upper bound, observations up to it)`, the last one +Inf."""
        labels = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(labels, map(float, accumulate(self._counts)), strict=True))
