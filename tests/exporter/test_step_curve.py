from __future__ import annotations

import tracemalloc

import pytest

from headway_exporter.codec import Encoder, decode
from headway_exporter.curve import MOST_POINTS, StepCurve
from headway_exporter.memory import REGISTRY


def filled(steps: range, amount: int) -> StepCurve:
    curve = StepCurve()
    for step in steps:
        curve.append(step, amount)
    return curve


def test_sums_up_to_a_step() -> None:
    """A rollback asks for the time of the steps above the loaded one."""
    curve = filled(range(5, 9), 10)
    assert [curve.up_to(step) for step in (4, 5, 6, 8, 99)] == [0, 10, 20, 40, 40]


def test_cut_returns_what_it_removed() -> None:
    """What is revoked once must not be revoked again."""
    curve = filled(range(1, 11), 10)
    assert curve.cut(7) == 30
    assert curve.cut(7) == 0
    assert (curve.total, curve.last) == (70, 7)


def test_steps_that_were_not_seen_take_no_time() -> None:
    """Overwritten records must not smear the next step's time over their numbers."""
    curve = filled(range(1, 3), 10)
    curve.append(100, 10)
    assert curve.up_to(99) == 20
    assert curve.cut(50) == 10


def test_memory_is_bounded_and_the_newest_steps_stay_exact() -> None:
    """A run of many steps must not grow the sidecar, and the usual rollback reaches back only a little."""
    curve = filled(range(1, 50_001), 3)
    assert len(curve._steps) <= MOST_POINTS
    assert curve.total == 150_000
    assert curve.up_to(49_000) == 147_000
    assert curve.up_to(1_000) == pytest.approx(3_000, abs=200)
    assert curve.cut(1_000) + curve.total == 150_000


def test_refuses_steps_that_are_not_above_the_last() -> None:
    """The sums would be wrong without a word."""
    with pytest.raises(ValueError, match="step 5 is not above 8"):
        filled(range(5, 9), 1).append(5, 1)


@pytest.mark.parametrize("saved", [False, True])
def test_a_full_curve_takes_little_memory(*, saved: bool) -> None:
    """A pod of 64 slots has 128 of them: in Python's own numbers they would take most of the sidecar's budget."""
    tracemalloc.start()
    try:
        curve = filled(range(1, 3 * MOST_POINTS), 1_000_000_007)
        if saved:
            document = Encoder(REGISTRY).encode(curve)
            curve = StepCurve()
            decode(REGISTRY, document, curve)
            del document
            for step in range(3 * MOST_POINTS, 6 * MOST_POINTS):
                curve.append(step, 1_000_000_007)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(curve._steps) > MOST_POINTS // 2
    assert held < 24 * MOST_POINTS


@pytest.mark.parametrize("many", [False, True])
def test_numbers_beyond_machine_words_are_numbers_too(*, many: bool) -> None:
    """A journal may claim any step; the sums are right all the same, also in the memory of the next sidecar."""
    curve, first = filled(range(1, 6), 10), 2**70
    if many:
        curve.extend(first, [3, 4, 2**65])
    else:
        for number, amount in enumerate([3, 4, 2**65]):
            curve.append(first + number, amount)
    again = StepCurve()
    decode(REGISTRY, Encoder(REGISTRY).encode(curve), again)
    for one in (curve, again):
        assert [one.up_to(step) for step in (5, first, first + 1)] == [50, 53, 57]
        assert (one.total, one.last) == (57 + 2**65, first + 2)
        assert one.cut(first) == 4 + 2**65
