"""The incident's state machine, pair by pair, and the count of attempts."""

from __future__ import annotations

import pytest

from headway_exporter.attempts import Attempts
from headway_exporter.incidents import TRANSITIONS, Happening, State
from headway_exporter.labels import INCIDENT_OUTCOMES
from headway_exporter.thresholds import Thresholds

SAME = "."
TABLE = """
state        failed  restarted   escalated   stepped  progressed   committed  finished   stopped    gone
running      open    .           .           .        .            .          .          .          .
open         .       restarting  restarting  resumed  .            .          recovered  cancelled  abandoned
restarting   open    .           .           resumed  .            .          recovered  cancelled  abandoned
resumed      open    .           .           .        progressing  .          recovered  cancelled  abandoned
progressing  open    .           .           .        .            recovered  recovered  cancelled  abandoned
recovered    .       .           .           .        .            .          .          .          .
cancelled    .       .           .           .        .            .          .          .          .
abandoned    .       .           .           .        .            .          .          .          .
"""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
EXPECTED = {
    (State(row[0]), Happening(happening)): State(row[0] if target == SAME else target)
    for row in ROWS
    for happening, target in zip(HEAD[1:], row[1:], strict=True)
}


def test_every_pair_is_decided() -> None:
    """No state may meet a happening that nobody thought of."""
    pairs = {(state, happening) for state in State for happening in Happening}
    assert set(TRANSITIONS) == set(EXPECTED) == pairs


@pytest.mark.parametrize("pair", EXPECTED, ids=lambda pair: f"{pair[0].value}-{pair[1].value}")
def test_transition(pair: tuple[State, Happening]) -> None:
    """The table of the design, written down a second time by hand."""
    assert TRANSITIONS[pair] is EXPECTED[pair]


def test_outcomes_are_the_states_that_nothing_leaves() -> None:
    """The metric's label and the machine's ends are the same words."""
    ends = {state.value for state in State if all(TRANSITIONS[state, one] is state for one in Happening)}
    assert ends == set(INCIDENT_OUTCOMES)


@pytest.mark.parametrize(
    ("tries", "count"),
    [
        ("in_process", 1),
        ("in_process in_process", 2),
        ("in_process in_process launcher", 1),
        ("launcher launcher launcher", 3),
        ("launcher in_process launcher", 2),
        ("in_process launcher in_process orchestrator", 1),
        ("in_process step in_process launcher", 2),
        ("launcher step launcher step in_process", 3),
    ],
)
def test_nested_tries_are_one_attempt(tries: str, count: int) -> None:
    """What an inner layer tried in vain belongs to the outer one's attempt; a step settles an attempt for good."""
    attempts = Attempts()
    for number, word in enumerate(tries.split()):
        attempts = attempts.stepped() if word == "step" else attempts.tried(word, float(number))
    assert attempts.count == count


def test_an_attempt_begins_with_its_first_nested_try() -> None:
    """How long nothing has gone on must not start anew when an outer layer takes over."""
    nested = Attempts().tried("in_process", 10.0).tried("in_process", 20.0).tried("launcher", 30.0)
    assert nested.started_wall == 10.0
    assert nested.tried("launcher", 40.0).started_wall == 40.0
    assert nested.tried("launcher", 40.0).tried("orchestrator", 50.0).started_wall == 10.0


def test_thresholds_must_make_sense() -> None:
    """A threshold of nothing would call every incident recurring."""
    with pytest.raises(ValueError, match="no_progress_attempts must be a number above 0"):
        Thresholds(no_progress_attempts=0)
