"""The ledger against answers that were worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from golden_story import FOLDER, answer, load, pod_after

if TYPE_CHECKING:
    from pathlib import Path

CASES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_books_say_what_was_worked_out_by_hand(path: Path) -> None:
    """Two numbers a team can defend: each case's arithmetic stands in its file."""
    case = load(path)
    expected: dict[str, Any] = case["expect"]
    found = answer(pod_after(case), expected)
    assert found == {name: _near(value) for name, value in expected.items()}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_answer_adds_up(path: Path) -> None:
    """A slip in the arithmetic of a case must not become the measure of the code."""
    expected = load(path)["expect"]
    assert sum(expected["states"].values()) + expected["pending"] == pytest.approx(expected["elapsed"])


def _near(value: Any) -> Any:
    """Nanoseconds apart is equal; a word or a truth value must be the same."""
    return value if isinstance(value, (bool, str)) else pytest.approx(value, abs=1e-9)
