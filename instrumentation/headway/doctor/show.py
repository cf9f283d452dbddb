"""Findings as people read them, and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway.doctor.findings import Finding

_COLOURS: Final = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}
_NAME_WIDTH: Final = 16
_INDENT: Final = 6 + _NAME_WIDTH
_NARROWEST: Final = 60
_MOST_CHARACTERS: Final = 600


def lines(heading: str, findings: Sequence[Finding], width: int, *, colour: bool) -> Iterator[str]:
    """All findings, wrapped; what is to be done stands below what was found."""
    width = max(width, _NARROWEST)
    yield _plain(heading)
    yield ""
    for one in findings:
        first, *more = _wrapped(one.what, width - _INDENT)
        yield f"{_coloured(one.status, colour)}{one.check:<{_NAME_WIDTH}}{first}"
        yield from (" " * _INDENT + line for line in more)
        if one.do:
            start, *rest = _wrapped(one.do, width - _INDENT - 3)
            yield f"{'':{_INDENT}}-> {start}"
            yield from (" " * (_INDENT + 3) + line for line in rest)
    yield ""
    counts = Counter(one.status for one in findings)
    yield f"{counts['fail']} failed, {counts['warn']} to look at, {counts['ok']} fine, {counts['skip']} not checked"


def as_json(run: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """A JSON object; `findings` is a list in the order of the text."""
    return {"version": 1, "run": run, "findings": [asdict(one) for one in findings]}


def _coloured(status: str, colour: bool) -> str:
    word = f"{status:<6}"
    return f"\x1b[{_COLOURS[status]}m{word}\x1b[0m" if colour else word


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(_plain(text), width, break_on_hyphens=False) or [""]


def _plain(text: str) -> str:
    """Names of files and runs, and answers of servers, are not trusted with the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MOST_CHARACTERS])
