"""Text for terminals: tables whose columns line up, and output that may be cut off by its reader."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_COLUMNS: Final = 100
"""Width where there is no terminal and COLUMNS does not tell it."""
ELLIPSIS: Final = "…"


def columns() -> int:
    """Width of the terminal, or of COLUMNS."""
    return shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns


def printed(lines: Iterable[str], program: str) -> int:
    """Writes the lines to stdout; the exit code: 0, also when the reader has had enough (`| head`), 1 when it cannot be written."""
    if sys.stdout is None:  # it was closed before we began
        print(f"{program}: cannot write the output: there is no standard output", file=sys.stderr)
        return 1
    try:
        for line in lines:
            sys.stdout.write(f"{_encodable(line)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        print(f"{program}: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns; what is left out is marked."""
    if shown_width(text) <= width:
        return text
    kept, room = [], width - 1
    for char in text:
        room -= _columns_of(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS if width > 0 else ""


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` columns."""
    shown = cut(text, width)
    blank = " " * (width - shown_width(shown))
    return blank + shown if right else shown + blank


def shown_width(text: str) -> int:
    """Columns that the text takes: letters of East Asia two, accents that combine none."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _encodable(line: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "replace").decode(encoding)


def _discard_output() -> None:
    """What is still in the buffer must not fail once more when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
