"""What an XID speaks of."""

from __future__ import annotations

from typing import Final

_OF: Final = {
    **dict.fromkeys((13, 31), "application"),
    **dict.fromkeys((48, 79, 94, 95), "hardware"),
    **dict.fromkeys((74,), "fabric"),
    **dict.fromkeys((63,), "informational"),
    45: "echo",
}


def class_of(number: int) -> str:
    """One of `labels.XID_CLASSES`."""
    return _OF.get(number, "unknown")
