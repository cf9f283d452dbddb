"""A short soak in every CI run; `make soak` is the long one."""

from __future__ import annotations

import os
import random

import pytest
import soak
from soak_books import BrokenError, check_records

KILLS = int(os.environ.get("HEADWAY_SOAK_KILLS", "12"))


def test_the_books_add_up_whoever_is_killed() -> None:
    """Trainers, launchers and sidecars die at random; nothing is lost, nothing counts twice, no counter steps back."""
    seed = int(os.environ.get("HEADWAY_SOAK_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"once more with: HEADWAY_SOAK_SEED={seed} HEADWAY_SOAK_KILLS={KILLS} pytest tests/soak")
    kills = soak.run(KILLS, seed)
    assert sum(kills.values()) == KILLS


def record(name: str, revision: int = 0, outcome: str = "recovered", opened: float = 1.0) -> dict[str, object]:
    """What is looked at of one."""
    return {"id": name, "revision": revision, "outcome": outcome, "opened_wall": opened}


RECOVERED = ("headway_incidents_total", (("outcome", "recovered"), ("recurring", "false")))
ABANDONED = ("headway_incidents_total", (("outcome", "abandoned"), ("recurring", "true")))


def test_records_that_agree_pass() -> None:
    """Revisions follow each other, and one may be there twice: a sidecar was killed before it could say that it was written."""
    kept = [record("a"), record("b", outcome="abandoned"), record("a", 1), record("a", 1), record("b", 1, "abandoned")]
    check_records(kept, {RECOVERED: 1.0, ABANDONED: 1.0})
    check_records([], {RECOVERED: 0.0, ABANDONED: 0.0})


@pytest.mark.parametrize(
    ("kept", "complaint"),
    [
        ([record("a"), record("a", 2)], "revisions"),
        ([record("a", 1)], "revisions"),
        ([record("a"), record("a", 1), record("a")], "revisions"),
        ([record("a"), record("a", outcome="abandoned")], "different outcomes"),
        ([record("a"), record("a", 1, opened=9.0)], "several incidents"),
        ([record("a"), record("b")], "counted"),
        ([record("a", outcome="abandoned")], "counted"),
        ([], "counted"),
        ([record("a"), ValueError("torn")], "cannot be read"),
    ],
)
def test_records_that_do_not_are_noticed(kept: list[dict[str, object] | Exception], complaint: str) -> None:
    """A check that cannot fail is none."""
    with pytest.raises(BrokenError, match=complaint):
        check_records(kept, {RECOVERED: 1.0})
