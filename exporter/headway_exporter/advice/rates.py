"""Arithmetic of rare events and of checkpoint intervals. Pure; all times in seconds.

Failures are taken as a Poisson process: they come independently and at a constant rate. Real ones come in bursts, so the intervals
here are, if anything, too narrow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NEGLIGIBLE: Final = 1e-18
"""Terms smaller than this share of the largest one are left out of a sum."""
_HALVINGS: Final = 100


def rate_interval(count: int, seconds: float, confidence: float = 0.95) -> tuple[float, float]:
    """The events per second that `count` events in `seconds` are compatible with: a two-sided interval.

    Exact, from the Poisson distribution itself: F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28 (1936).
    (The same as with quantiles of chi-square, which the standard library does not have.)

    Raises:
        ValueError: no time was watched, or the count is negative.
    """
    if count < 0 or not seconds > 0:
        raise ValueError(f"{count} events in {seconds} seconds")
    tail = (1 - confidence) / 2
    high = _rising_root(lambda mean: 1 - poisson_at_most(count, mean), 1 - tail)
    low = 0.0 if count == 0 else _rising_root(lambda mean: 1 - poisson_at_most(count - 1, mean), tail)
    return low / seconds, high / seconds


def poisson_at_most(count: int, mean: float) -> float:
    """Probability of `count` events or fewer when `mean` are expected."""
    if mean <= 0:
        return 1.0
    mode = min(count, int(mean))
    largest = math.exp(mode * math.log(mean) - mean - math.lgamma(mode + 1))
    total, term = 1.0, 1.0
    for k in range(mode, 0, -1):
        term *= k / mean
        total += term
        if term < _NEGLIGIBLE:
            break
    term = 1.0
    for k in range(mode + 1, count + 1):
        term *= mean / k
        total += term
        if term < _NEGLIGIBLE:
            break
    return min(largest * total, 1.0)


def most_events(count: int, ahead: float, confidence: float = 0.95) -> int:
    """How many events to be ready for in a stretch of time `ahead` times as long as the one in which `count` were seen.

    The smallest number that is not exceeded with probability `confidence`. It allows for both what chance brings and how badly the
    rate is known: the rate has the posterior Gamma(count + 1/2) of Jeffreys' prior (H. Jeffreys, 1946), so the number is negative binomial.

    Raises:
        ValueError: `ahead` is not positive.
    """
    if not 0 < ahead < math.inf or count < 0:
        raise ValueError(f"{count} events, {ahead} times the time ahead")
    shape, grows = count + 0.5, ahead / (1 + ahead)
    mode = max(0, int((shape - 1) * ahead))
    above = _terms(mode, lambda k: grows * (k + shape) / (k + 1), 1)
    below = _terms(mode, lambda k: k / (grows * (k - 1 + shape)), -1)
    wanted = confidence * (1.0 + sum(above) + sum(below))
    for number, term in enumerate([*reversed(below), 1.0, *above], mode - len(below)):
        wanted -= term
        if wanted <= 0:
            return number
    return mode + len(above)


def _terms(mode: int, ratio: Callable[[int], float], direction: int) -> list[float]:
    """Probabilities beside the mode, going away from it, in units of the mode's."""
    found: list[float] = []
    term, k = 1.0, mode
    while k > 0 or direction > 0:
        term *= ratio(k)
        if term < _NEGLIGIBLE:
            break
        found.append(term)
        k += direction
    return found


def young_interval(cost: float, mtbf: float) -> float:
    """Computing time between two checkpoints that wastes least, to first order: sqrt(2 * cost * mtbf).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974).
    """
    return math.sqrt(2 * cost * mtbf)


def daly_interval(cost: float, mtbf: float) -> float:
    """The same to higher order, good also when a checkpoint costs much.

    sqrt(2cM) * (1 + sqrt(c/2M)/3 + (c/2M)/9) - c, and M from c = 2M on:

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
    (2006), equation 37.
    """
    if cost >= 2 * mtbf:
        return mtbf
    small = cost / (2 * mtbf)
    return young_interval(cost, mtbf) * (1 + math.sqrt(small) / 3 + small / 9) - cost


def wasted_share(interval: float, cost: float, mtbf: float, restart: float) -> float:
    """Share of the time, 0 to 1, that goes into checkpoints, repeated work and restarts.

    1 - interval / (M * exp(R/M) * (exp((interval + cost)/M) - 1)): the complete model of Daly (2006), equation 20, for exponential failures
    that may also strike during a restart.

    Args:
        interval: computing time between two checkpoints.
        cost: time for which a checkpoint stops the computation.
        mtbf: mean time between failures of the whole job.
        restart: from a failure until computing goes on.
    """
    exponent = (interval + cost) / mtbf
    if exponent + restart / mtbf > 700:  # beyond what a float holds: nothing would ever be finished
        return 1.0
    return 1 - interval / (mtbf * math.exp(restart / mtbf) * math.expm1(exponent))


def _rising_root(function: Callable[[float], float], target: float) -> float:
    """Where a rising function of a positive number reaches `target`."""
    low, high = 0.0, 1.0
    while function(high) < target:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return high
