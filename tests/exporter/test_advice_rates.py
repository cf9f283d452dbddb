"""The arithmetic under the advice: against tables, against hand calculation, and as properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_exporter.advice.rates import (
    daly_interval,
    most_events,
    poisson_at_most,
    rate_interval,
    wasted_share,
    young_interval,
)

COSTS = st.floats(0.001, 300)
MTBFS = st.floats(600, 1e6)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (2, 0.242, 7.225), (10, 4.795, 18.39), (100, 81.36, 121.63)],
)
def test_rate_interval_is_that_of_the_tables(count: int, low: float, high: float) -> None:
    """The 95 % interval is the exact one of the printed tables (Garwood 1936; chi-square quantiles over two)."""
    found = rate_interval(count, 1.0)
    assert found == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    assert rate_interval(count, 50.0)[1] == pytest.approx(found[1] / 50)


@settings(deadline=None)
@given(st.integers(1, 3_000), st.floats(0.5, 0.999))
def test_ends_of_the_interval_leave_out_the_tails(count: int, confidence: float) -> None:
    """At either end of the interval the count is as extreme as the confidence allows, also for large counts."""
    low, high = rate_interval(count, 1.0, confidence)
    assert poisson_at_most(count, high) == pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert 1 - poisson_at_most(count - 1, low) == pytest.approx((1 - confidence) / 2, rel=1e-6)


@settings(deadline=None)
@given(st.integers(0, 60), st.floats(0.001, 60))
def test_poisson_sum_is_the_plain_sum(count: int, mean: float) -> None:
    """Summing from the largest term on changes nothing but what overflows."""
    plain = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))
    assert poisson_at_most(count, mean) == pytest.approx(min(plain, 1.0), rel=1e-9)


def test_events_to_be_ready_for_by_hand() -> None:
    """Nothing seen, as much time again: P(0), P(0 or 1), P(up to 2) are 0.7071, 0.8839, 0.9502: be ready for 2."""
    # Negative binomial with shape 1/2 and p = 1/2: P(0) = sqrt(1/2), P(1) = P(0)/4, P(2) = P(1) * 3/8.
    assert most_events(0, 1.0, 0.95) == 2
    assert most_events(0, 1.0, 0.88) == 1
    assert most_events(0, 1.0, 0.70) == 0


@settings(deadline=None)
@given(st.integers(0, 500), st.floats(0.01, 90))
def test_events_to_be_ready_for_rise_with_what_was_seen_and_with_time(count: int, ahead: float) -> None:
    """More seen, more time or more certainty never means fewer, and at 95 % it is never less than the mean by far."""
    most = most_events(count, ahead)
    assert most_events(count + 1, ahead) >= most
    assert most_events(count, 1.5 * ahead) >= most
    assert most_events(count, ahead, 0.99) >= most
    assert most >= math.floor(count * ahead)


@pytest.mark.parametrize("bad", [(-1, 1.0), (1, 0.0), (1, -3.0), (1, math.nan)])
def test_time_that_was_not_watched_is_refused(bad: tuple[int, float]) -> None:
    """No rate comes out of no time."""
    with pytest.raises(ValueError, match="events in"):
        rate_interval(*bad)


def test_intervals_by_hand() -> None:
    """A save of 5 s, a failure an hour: Young sqrt(2*5*3600) = 189.7 s; Daly 189.7*(1 + 0.02635/3 + 0.000694/9) - 5 = 186.4 s."""
    assert young_interval(5, 3_600) == pytest.approx(189.74, abs=0.01)
    assert daly_interval(5, 3_600) == pytest.approx(186.42, abs=0.01)
    assert daly_interval(20, 10) == 10  # a save costs twice what a failure does: Daly's limit


@settings(deadline=None)
@given(COSTS, MTBFS)
def test_interval_rises_with_cost_and_mtbf(cost: float, mtbf: float) -> None:
    """Dearer saves and rarer failures both ask for longer intervals."""
    assert daly_interval(cost, 1.5 * mtbf) > daly_interval(cost, mtbf)
    if cost < mtbf / 20:  # near cost = 2 * mtbf the formula is known to bend down
        assert daly_interval(1.5 * cost, mtbf) > daly_interval(cost, mtbf)


@settings(deadline=None)
@given(COSTS, MTBFS, st.floats(0, 600))
def test_no_other_interval_wastes_less(cost: float, mtbf: float, restart: float) -> None:
    """Daly's interval is the lowest point of the loss that the advice shows beside it, to a hundredth of a percent."""
    best = daly_interval(cost, mtbf)
    lowest = wasted_share(best, cost, mtbf, restart)
    for factor in (0.1, 0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 10.0):
        assert wasted_share(factor * best, cost, mtbf, restart) >= lowest - 1e-4


@settings(deadline=None)
@given(st.floats(0.1, 1e5), COSTS, MTBFS, st.floats(0, 1e5))
def test_waste_is_a_share(interval: float, cost: float, mtbf: float, restart: float) -> None:
    """It lies in 0 to 1 whatever the numbers, grows with each cost and falls with the time between failures."""
    share = wasted_share(interval, cost, mtbf, restart)
    assert 0 <= share <= 1
    assert wasted_share(interval, cost, mtbf, restart + 10) >= share
    assert wasted_share(interval, cost + 1, mtbf, restart) >= share - 1e-12
    assert wasted_share(interval, cost, 2 * mtbf, restart) <= share + 1e-12


def test_waste_at_its_limits() -> None:
    """Without failures only the saves cost; with a failure a second nothing is ever finished."""
    assert wasted_share(90, 10, 1e12, 60) == pytest.approx(0.1, rel=1e-6)
    assert wasted_share(1e5, 10, 1.0, 60) == 1.0
