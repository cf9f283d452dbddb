"""Numbers of a ledger as one text."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway_exporter.packing import packed, unpacked


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)))
@example([])
@example([0, -1, 2**63 - 1, -(2**63)])
def test_what_was_packed_comes_back(numbers: list[int]) -> None:
    """To the last bit, through JSON."""
    assert list(unpacked(json.loads(json.dumps(packed(numbers))))) == numbers


def test_the_text_is_the_same_on_every_machine() -> None:
    """A pod may go on on a machine of the other order of bytes."""
    assert packed([1, -2]) == "AQAAAAAAAAD+/////////w=="


def test_a_longer_number_is_kept_too() -> None:
    """A journal may say anything."""
    numbers = [1, 2**70]
    assert list(unpacked(packed(numbers))) == numbers


@pytest.mark.parametrize("text", ["AAAA", "AQAAAAAAAA", "AQAAAAAAAAA*", "AQAAAAAAAAAéé"])
def test_another_text_is_refused(text: str) -> None:
    """A damaged ledger is set aside, not half read."""
    with pytest.raises(ValueError):  # noqa: PT011 - base64's own or the array's
        unpacked(text)
