r"""Reading values out of JSON that anybody may have written: each function returns what it was asked for, or its default.

Numbers that are not finite or beyond any use are as good as missing; texts are cut and lose what could steer a terminal or turn a
line of text around (control characters, bidirectional marks, halves of characters): these are spelt out as `\u202e`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_TEXT: Final = 500
MOST_TRACEBACK: Final = 8_000
MOST_NUMBER: Final = 1e15
"""Larger ones are nonsense here, and above it floats are no longer exact counts."""
FIRST_WALL: Final = 0.0
LAST_WALL: Final = 4_102_444_800.0
"""The year 2100: calendars and pictures must not have to cope with more."""


def number(value: Any) -> float | None:
    """A finite number, whatever JSON type it has; True and False are none."""
    if type(value) is float or type(value) is int:  # no bool; and a large report asks this a million times
        return float(value) if -MOST_NUMBER <= value <= MOST_NUMBER else None
    return None


def amount(value: Any) -> float:
    """A number that is not negative, 0 when it is not known."""
    if type(value) is float or type(value) is int:
        return float(value) if 0 < value <= MOST_NUMBER else 0.0
    return 0.0


def whole(value: Any) -> int | None:
    """A whole number, 3.0 included."""
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value) if -MOST_NUMBER <= value <= MOST_NUMBER else None
    return None


def count(value: Any) -> int:
    """A whole number that is not negative, 0 when it is not known."""
    return max(whole(value) or 0, 0)


def wall(value: Any) -> float | None:
    """A time, in seconds since 1970."""
    if type(value) is float or type(value) is int:
        return float(value) if FIRST_WALL < value < LAST_WALL else None
    return None


def text(value: Any, limit: int = MOST_TEXT) -> str:
    """One line of text."""
    if not isinstance(value, str):
        return ""
    if len(value) <= limit and value.isprintable():
        return value
    shown = value[:limit]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _spelt(char) for char in shown)[: 2 * limit]
    return shown if len(value) <= limit else f"{shown}… ({len(value)} characters)"


def lines(value: Any, limit: int = MOST_TRACEBACK) -> str:
    """Several lines of text, the last ones if it is too long: a traceback ends with what matters."""
    if not isinstance(value, str):
        return ""
    shown = value if len(value) <= limit else f"… {len(value) - limit} characters\n{value[-limit:]}"
    return "\n".join(text(line, limit) for line in shown.replace("\t", "    ").split("\n"))


def optional_text(value: Any) -> str | None:
    """One line of text, None when there is none."""
    return text(value) or None


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    return value if isinstance(value, dict) else {}


def items(value: Any, most: int = 10_000) -> list[Any]:
    """A JSON array."""
    return value[:most] if isinstance(value, list) else []


def objects(value: Any, most: int = 10_000) -> Iterator[Mapping[str, Any]]:
    """The objects in a JSON array."""
    return (one for one in items(value, most) if isinstance(one, dict))


def texts(value: Any, most: int = 100) -> tuple[str, ...]:
    """The texts in a JSON array."""
    return tuple(text(one) for one in items(value, most) if isinstance(one, str))


def amounts(value: Any) -> dict[str, float]:
    """A JSON object's numbers by name, without those that are 0 or negative."""
    return {text(name): found for name, one in mapping(value).items() if (found := amount(one)) > 0}


def counts(value: Any) -> dict[str, int]:
    """A JSON object's whole numbers by name."""
    return {text(name): count(one) for name, one in mapping(value).items()}


def _spelt(char: str) -> str:
    return " " if char.isspace() else char.encode("unicode_escape").decode("ascii")
