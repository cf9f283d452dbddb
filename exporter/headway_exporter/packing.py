"""Many whole numbers as one text: what a ledger holds most of, and what takes long to write out and read as JSON numbers."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Saved = Sequence[int] | str
    """Numbers as a ledger may hold them."""


def packed(numbers: list[int]) -> Saved:
    """The numbers as base64 of little-endian 64-bit words, whatever the machine; themselves when one of them is longer than that."""
    try:
        words = array("q", numbers)
    except OverflowError:  # no step or time of a run, but a journal may say anything
        return numbers
    return base64.b64encode(_turned(words).tobytes()).decode("ascii")


def unpacked(saved: Saved) -> Sequence[int]:
    """What `packed` was given.

    Raises:
        ValueError: a text that is none of its own.
    """
    if not isinstance(saved, str):
        return saved
    words = array("q")
    words.frombytes(base64.b64decode(saved, validate=True))
    return _turned(words)


def _turned(words: array[int]) -> array[int]:
    """Between the machine's order of bytes and the file's."""
    if sys.byteorder == "big":
        words.byteswap()
    return words
