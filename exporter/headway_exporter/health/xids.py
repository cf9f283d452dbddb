"""What the numbers of NVIDIA's driver errors (XIDs) mean: a table kept as data, in `xids.json` beside this file.

Each row names the documents that it was taken from, and says where they disagree. A row of a file of one's own (`headway exporter
--xid-table`) replaces the fields that it gives:

    {"v": 1, "xids": [{"number": 94, "class": "informational", "action": "reset the GPU on Sunday"}]}
"""

from __future__ import annotations

import functools
import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
MOST_BYTES: Final = 1 << 20
MOST_TEXT: Final = 400
MOST_NUMBER: Final = 1 << 31

XidClass = Literal["application", "driver", "hardware", "fabric", "informational", "echo", "unknown"]
"""application: the program did it; driver: driver or firmware; hardware: the GPU or its board; fabric: the links between GPUs;
informational: nothing failed; echo: the clean-up after another error; unknown: not in the table."""

BLAMING: Final = ("application", "driver", "hardware", "fabric")
"""Classes that explain failures."""
BLAMES: Final = ("gpu_memory", "gpu_fell_off_bus", "gpu_driver", "nvlink", "pcie", "illegal_access")
"""Causes that an XID can tell: those of `labels.CAUSES` that the driver knows about."""

_BUILT_IN: Final = Path(__file__).with_name("xids.json")
_TEXTS: Final = ("name", "action", "note")


class XidTableError(ValueError):
    """A table that cannot be used; the message says which file, which row, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One number. `sources` are names of documents (`XidTable.documents`)."""

    number: int
    name: str
    """What the driver means by it, short."""
    cls: XidClass
    action: str
    """What to do about it, for people."""
    sources: tuple[str, ...] = ()
    note: str = ""
    """Where documents disagree, and what else is to be known."""
    cause: str | None = None
    """One of `BLAMES`, that it explains a failure with, on the GPU where it began; None: it explains none."""


@dataclass(frozen=True, slots=True)
class XidTable:
    """All numbers that are known."""

    table: str
    """Version of the built-in rows, year and month."""
    rows: Mapping[int, Xid]
    documents: Mapping[str, str]
    """Sources by name."""

    def of(self, number: int) -> Xid:
        """What is known of this one; of class `unknown` when nothing is."""
        return self.rows.get(number) or Xid(number, "not in the table", "unknown", "see the driver's log")


def load(override: Path | None = None) -> XidTable:
    """The built-in table, with the rows of a file of one's own.

    Raises:
        XidTableError: the file cannot be read, or is no such table.
    """
    known = _built_in()
    if override is None:
        return known
    rows = _rows(_parsed(override), known.rows, str(override))
    return XidTable(known.table, rows, {**known.documents, str(override): "the table given with --xid-table"})


@functools.cache
def _built_in() -> XidTable:
    document = _parsed(_BUILT_IN)
    return XidTable(document["table"], _rows(document, {}, _BUILT_IN.name), document["documents"])


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = _content(path)
    except OSError as error:
        raise XidTableError(f"{path}: cannot be read: {error.strerror or error}") from error
    if content is None:
        raise XidTableError(f"{path}: no regular file, which a table of XIDs must be")
    if len(content) > MOST_BYTES:
        raise XidTableError(f"{path}: more than {MOST_BYTES} bytes, which is no table of XIDs")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise XidTableError(f"{path}: no JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("xids"), list):
        raise XidTableError(f'{path}: no table of XIDs: expected {{"v": {VERSION}, "xids": [{{"number": …}}, …]}}')
    if document.get("v") != VERSION:
        raise XidTableError(f'{path}: "v" is {str(document.get("v"))[:20]}, and this Headway reads {VERSION}')
    return document


def _content(path: Path) -> bytes | None:
    """A byte more than a table may have at most; None: it is no file, and who waits for a pipe or reads a device comes to no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)


def _rows(document: Mapping[str, Any], known: Mapping[int, Xid], place: str) -> dict[int, Xid]:
    rows = dict(known)
    for position, raw in enumerate(document["xids"], 1):
        try:
            row = _row(raw, known, place)
        except ValueError as error:
            raise XidTableError(f"{place}: row {position}: {error}") from error
        if row.number in rows and (row.number not in known or rows[row.number] is not known[row.number]):
            raise XidTableError(f"{place}: row {position}: XID {row.number} is there twice")
        rows[row.number] = row
    return rows


def _row(raw: Any, known: Mapping[int, Xid], place: str) -> Xid:
    """One row over what is known of its number."""
    number = raw.get("number") if isinstance(raw, dict) else None
    if type(number) is not int or not 0 <= number < MOST_NUMBER:
        raise ValueError('expected an object whose "number" is that of an XID')
    odd = sorted(raw.keys() - {"number", "class", "cause", "sources", *_TEXTS})
    if odd:
        raise ValueError(
            f"XID {number}: {str(odd[0])[:40]!r} is none of number, name, class, cause, action, sources, note"
        )
    if number not in known and not {"name", "class"} <= raw.keys():
        raise ValueError(f'XID {number} is not in the built-in table, so it needs a "name" and a "class"')
    before = known.get(number) or Xid(number, "", "unknown", "see the driver's log")
    changes: dict[str, Any] = {name: _text(number, name, raw[name]) for name in _TEXTS if name in raw}
    if "class" in raw:
        changes["cls"] = _one_of(number, "class", raw["class"], get_args(XidClass)[:-1])
    if "cause" in raw:
        changes["cause"] = None if raw["cause"] is None else _one_of(number, "cause", raw["cause"], BLAMES)
    changes["sources"] = _sources(number, raw["sources"]) if "sources" in raw else (place,)
    row = replace(before, **changes)
    if row.cls not in BLAMING and raw.get("cause") is not None:
        raise ValueError(f'XID {number}: "cause" needs a class that explains failures: one of {", ".join(BLAMING)}')
    return row if row.cls in BLAMING else replace(row, cause=None)


def _text(number: int, name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
        raise ValueError(f'XID {number}: "{name}" must be a text of at most {MOST_TEXT} characters on one line')
    return value


def _one_of(number: int, name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f'XID {number}: "{name}" is {str(value)[:40]!r}, and must be one of {", ".join(allowed)}')
    return str(value)


def _sources(number: int, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'XID {number}: "sources" must be a list of texts')
    return tuple(item[:MOST_TEXT] for item in value)
