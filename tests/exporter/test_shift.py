"""Another clock's times on the fold's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from test_accounting_properties import END, counters, in_order, new_pod, sequences

from headway.ring import StepColumns
from headway_exporter.observations import Run, StepsSeen
from headway_exporter.shift import moved

if TYPE_CHECKING:
    from headway_exporter.observations import Observation


@settings(max_examples=60, deadline=None)
@given(sequences, st.integers(0, 10**6))
def test_all_of_it_moved_alike_counts_alike(sequence: list[Observation], seconds: int) -> None:
    """Only differences of times mean anything to the fold."""
    here, there = new_pod(), new_pod()
    there.set_clock(seconds, 1e9)
    here.fold(in_order(sequence))
    there.fold(moved(seen, seconds * 1_000_000_000) for seen in in_order(sequence))
    here.advance(END + 10)
    there.advance(END + 10 + seconds)
    assert counters(here) == counters(there)


def test_runs_of_steps_are_moved_whole() -> None:
    """Begins and ends go together, and what they come from stays as it was."""
    columns = StepColumns(0, [1, 2], [100, 300], [200, 400], [100, 100], [0, 0], [0, 0], [None, None], [None, None])
    seen = StepsSeen((Run(0, 7, columns),))
    later = moved(seen, 50)
    assert isinstance(later, StepsSeen)
    assert [one.record.start_ns for one in later.steps()] == [150, 350]
    assert [one.record.end_ns for one in later.steps()] == [250, 450]
    assert columns.starts == [100, 300]
