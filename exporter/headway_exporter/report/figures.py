"""Small statistics, exact and honest about few values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPREAD: Final = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of durations, in seconds; None where there are too few values to tell that percentile from the maximum."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


def spread(values: Iterable[float]) -> Spread:
    """Nearest-rank percentiles: each is one of the values. p90 needs 10 of them, p99 100."""
    known = sorted(values)
    return Spread(
        len(known),
        _nearest(known, 50, 1),
        _nearest(known, 90, 10),
        _nearest(known, 99, 100),
        known[-1] if known else None,
    )


def _nearest(known: list[float], percent: int, least: int) -> float | None:
    return known[-(-percent * len(known) // 100) - 1] if len(known) >= least else None


@dataclass(frozen=True, slots=True)
class Rate:
    """`good` of `count`, and between which shares the true rate lies with 95 % confidence."""

    good: int
    count: int

    @property
    def share(self) -> float | None:
        """None when nothing was counted."""
        return self.good / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval (1927), which stays sensible for a few trials and for 0 or all of them."""
        if not self.count:
            return 0.0, 1.0
        share, square = self.good / self.count, _SPREAD**2
        centre = share + square / (2 * self.count)
        reach = _SPREAD * math.sqrt(share * (1 - share) / self.count + square / (4 * self.count**2))
        scale = 1 + square / self.count
        low = (centre - reach) / scale if self.good else 0.0  # exactly, where rounding would tell of 99.9 %
        high = (centre + reach) / scale if self.good < self.count else 1.0
        return low, high
