"""A histogram as Prometheus wants it, without a registry: the fold keeps it, the collectors read it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


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

    def cumulative(self) -> list[tuple[str, float]]:
        """`(upper bound, observations up to it)`, the last one +Inf."""
        labels = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(labels, map(float, accumulate(self._counts)), strict=True))
