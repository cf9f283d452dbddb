"""Full-text search in records, with SQLite's FTS5 in memory.

Words are found whatever their case, in the causes, the evidence with its tracebacks, nodes, GPUs and settings that are texts. A word with
`_`, `-` or `.` in it is a phrase of its parts. `AND` is meant between words; `OR`, `NOT`, brackets, "phrases" and `prefix*` are FTS5's.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.listing.query import QueryError
from headway_exporter.report import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TOKEN: Final = re.compile(r'"[^"]*"\*?|[()]|[^\s()"]+')
_OPERATORS: Final = frozenset({"AND", "OR", "NOT", "(", ")"})
_BETWEEN: Final = rb"(?:\\[nrtbf]|[^a-z0-9])+"
"""What separates words in a line of JSON: an escaped line end, or anything that is no letter."""
_BATCH: Final = 500
_NO_INDEX: Final = "this Python's SQLite has no full-text search (FTS5): search with --format jsonl and grep instead"


class Words:
    """An index of the texts added so far, and the question put to it."""

    def __init__(self, words: Sequence[str]) -> None:
        tokens = [token for word in words for token in _tokens(word)]
        if not any(token not in _OPERATORS for token in tokens):
            raise QueryError("there is no word to search for")
        self._expression = _expression(tokens)
        plain = [] if _OPERATORS & set(tokens) or not all(map(str.isascii, tokens)) else tokens
        self._parts = {part for token in plain for part in _parts(token)}
        self._phrases = [_in_json(token) for token in plain if len(_parts(token)) > 1]
        self._waiting: list[tuple[int, str]] = []
        self._database = sqlite3.connect(":memory:")
        try:
            self._database.execute("CREATE VIRTUAL TABLE records USING fts5(text, content='', tokenize='unicode61')")
        except sqlite3.OperationalError:
            raise QueryError(_NO_INDEX) from None
        self.found()  # a question that FTS5 does not understand is known before anything is read

    def possible(self, line: bytes) -> bool:
        """Whether a record in this JSON line can hold the words; most can be told to have none without parsing them."""
        if b"\\u" in line:
            return True  # letters that are written as numbers
        lower = line.lower()
        return all(part in lower for part in self._parts) and all(phrase.search(lower) for phrase in self._phrases)

    def add(self, document: int, record: Mapping[str, Any]) -> None:
        """A record to search in, under a number of its own."""
        self._waiting.append((document, "\n".join(texts(record))))
        if len(self._waiting) >= _BATCH:
            self._write()

    def found(self) -> set[int]:
        """Numbers of the records that fit.

        Raises:
            QueryError: FTS5 does not understand the words.
        """
        self._write()
        try:
            rows = self._database.execute("SELECT rowid FROM records WHERE records MATCH ?", (self._expression,))
            return {row[0] for row in rows}
        except sqlite3.Error as error:
            raise QueryError(
                f"cannot search for {self._expression[:80]!r}: {fields.text(str(error), 100)}; put words in quotes"
            ) from None

    def _write(self) -> None:
        self._database.executemany("INSERT INTO records(rowid, text) VALUES (?, ?)", self._waiting)
        self._waiting.clear()


def texts(record: Mapping[str, Any]) -> Iterator[str]:
    """All texts of a record that are searched."""
    for name in ("id", "run", "cause", "node", "layer", "alternatives", "recurring", "outcome"):
        yield from _strings(record.get(name))
    yield from _strings(fields.mapping(record.get("origin")))
    for one in fields.objects(record.get("evidence")):
        yield from (str(one[name]) for name in ("kind", "text", "signature", "traceback") if one.get(name))
    for name, value in fields.mapping(record.get("settings")).items():
        if isinstance(value, str):
            yield f"{name} {value}"
    for recovery in fields.objects(record.get("recoveries")):
        yield from _strings(recovery.get("cause"))
        for one in fields.objects(recovery.get("tries")):
            yield from _strings([one.get("cause"), one.get("alternatives")])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _expression(tokens: Sequence[str]) -> str:
    """What FTS5 is asked; it knows no AND that is only meant before a bracket."""
    found: list[str] = []
    for before, token in zip(["(", *tokens], tokens, strict=False):
        if (before not in _OPERATORS or before == ")") and (token not in _OPERATORS or token == "("):  # noqa: S105
            found.append("AND")
        found.append(token if token in _OPERATORS else _quoted(token))
    return " ".join(found)


def _parts(token: str) -> list[bytes]:
    return re.findall(rb"[a-z0-9]+", token.lower().encode())


def _in_json(token: str) -> re.Pattern[bytes]:
    """Finds the token in a line of JSON in lower case wherever FTS5 would find it in its texts, and sometimes where it would not."""
    end = b"" if token.endswith("*") else rb"(?![a-z0-9])"
    return re.compile(_BETWEEN.join(_parts(token)) + end)


def _tokens(word: str) -> list[str]:
    """An argument with spaces in it and no operators is a phrase, as the shell's quotes meant it."""
    found = _TOKEN.findall(word)
    if len(found) > 1 and not _OPERATORS & set(found) and '"' not in word:
        return [f'"{word}"']
    return found


def _quoted(token: str) -> str:
    prefix = token.endswith("*")
    text = token.removesuffix("*").strip('"').replace('"', '""')
    return f'"{text}"{"*" if prefix else ""}'
