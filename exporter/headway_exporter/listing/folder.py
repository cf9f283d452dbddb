"""Reads the incidents of all runs in a state folder, parsing no more than the question needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.listing.briefs import Brief, Group, Place, brief, groups, parse
from headway_exporter.report import fields
from headway_exporter.state_files import (
    LEDGER,
    RECORDS,
    StateFileError,
    parse_record,
    pods_of,
    read_ledger,
    record_lines,
)
from headway_exporter.thresholds import told

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headway_exporter.listing.query import Query
    from headway_exporter.listing.words import Words


_KINDS: Final = {
    "corrupt": ("damaged line", "damaged lines"),
    "newer": ("line of a newer Headway", "lines of a newer Headway"),
    "ledger": ("unusable ledger", "unusable ledgers"),
    "unreadable": ("unreadable file", "unreadable files"),
}


@dataclass
class Trouble:
    """What could not be read, counted."""

    counts: dict[str, int] = field(default_factory=dict)
    first: str = ""
    """One of them in words."""

    def add(self, kind: str, message: str) -> None:
        """One line or file more."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.first = self.first or fields.text(message, 300)

    def __str__(self) -> str:
        listed = ", ".join(f"{number} {_KINDS[kind][number > 1]}" for kind, number in sorted(self.counts.items()))
        return f"left out: {listed}; the first: {self.first}"


def runs_in(state_dir: Path, patterns: Sequence[str]) -> list[Path]:
    """Folders of the runs whose names fit one of the patterns, by name.

    Raises:
        OSError: the state folder cannot be read.
    """
    found = sorted(path for path in state_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path for path in found if not patterns or any(fnmatchcase(path.name, one) for one in patterns)]


class Reader:
    """Reads the incidents that a query asks for; `trouble` says what could not be read.

    Args:
        query: the conditions.
        now: seconds since 1970.
        words: what is searched for; it learns the texts.
        all_pods: each pod's record by itself.
        whole: parse all of every record, because something far down in it is asked for.
    """

    def __init__(
        self, query: Query, now: float, words: Words | None = None, *, all_pods: bool = False, whole: bool = False
    ) -> None:
        self.trouble = Trouble()
        self._query = query
        self._now = now
        self._words = words
        self._all_pods = all_pods
        self._whole = whole
        self._documents = count(1)

    def found(self, runs: Iterable[Path]) -> list[Group]:
        """The incidents asked for, in no order."""
        candidates: list[Group] = []
        for run in runs:
            some = groups(fields.text(run.name), self._briefs(run), all_pods=self._all_pods)
            candidates += filter(self._query.matches, some)
        if self._words is None:
            return candidates
        documents = self._words.found()
        return [one for one in candidates if any(brief.document in documents for brief in one.briefs)]

    def _briefs(self, run: Path) -> Iterator[Brief]:
        try:
            pods = pods_of(run)
        except OSError as error:
            self.trouble.add("unreadable", f"{run}: {error.strerror or error}")
            return
        for index, folder in pods.items():
            yield from self._closed(folder / RECORDS, index)
            yield from self._open(folder / LEDGER, index)

    def _closed(self, path: Path, pod_index: str) -> Iterator[Brief]:
        """Those that had their verdict."""
        try:
            for offset, line in record_lines(path):
                wanted = self._words is not None and self._words.possible(line)
                source = parse(line, f"{path}, at byte {offset}", whole=self._whole or wanted)
                if isinstance(source, StateFileError):
                    if line.strip():
                        self.trouble.add(source.fault, str(source))
                    continue
                found = self._brief(source, pod_index, Place(path, offset), wanted)
                if found is None:
                    self.trouble.add("corrupt", f"{path}, at byte {offset}: no id or no time")
                else:
                    yield found
        except OSError as error:
            self.trouble.add("unreadable", f"{path}: {error.strerror or error}")

    def _open(self, path: Path, pod_index: str) -> Iterator[Brief]:
        """The one that waits for its verdict, from the ledger's summary; given up where nobody has written that for long."""
        try:
            ledger = read_ledger(path, pod_index=pod_index)
        except FileNotFoundError:
            return
        except StateFileError as error:
            self.trouble.add("ledger", str(error))
            return
        except OSError as error:
            self.trouble.add("unreadable", f"{path}: {error.strerror or error}")
            return
        summary = fields.mapping(ledger.body.get("summary"))
        source = fields.mapping(summary.get("open"))
        if not source:
            return
        limits = told(fields.mapping(summary.get("thresholds")))
        silent = self._now - ledger.written_wall > limits.abandoned_seconds
        source = dict(source) | {"outcome": "abandoned" if silent else "open"}
        found = self._brief(source, pod_index, Place(path, 0, source), self._words is not None)
        if found is not None:
            yield found

    def _brief(self, source: Mapping[str, Any], pod_index: str, place: Place, wanted: bool) -> Brief | None:
        document = next(self._documents)
        if wanted and self._words is not None:
            self._words.add(document, source)
        return brief(source, pod_index, place, document)


def sources(group: Group) -> list[tuple[str, Mapping[str, Any]]]:
    """The whole records of an incident with the pods that wrote them, that of the lead first; what is gone meanwhile is left out."""
    briefs = sorted(group.briefs, key=lambda one: one is not group.lead)
    found = [(one.pod_index, one.place.source or _read_again(one)) for one in briefs]
    return [(pod_index, source) for pod_index, source in found if source is not None]


def _read_again(one: Brief) -> Mapping[str, Any] | None:
    try:
        _, line = next(record_lines(one.place.path, one.place.offset))
    except (OSError, StopIteration):
        return None
    source = parse_record(line, "")
    return None if isinstance(source, StateFileError) or source.get("id") != one.id else source
