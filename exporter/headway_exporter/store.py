"""Persist, then publish: the thread that writes the sidecar's memory to the state folder, and what may be shown because it was written.

A counter that a scrape showed must not step back, whatever dies afterwards. So with a state folder a scrape shows the numbers of the last
moment whose memory is on disk, a few seconds old, and all of that one moment, so that states and pending time add up to elapsed time.

The folder may be on a network and hang for hours: all that touches it happens in a thread of its own, which is never waited for except at
the start and at the end, and then not for long.

While the folder cannot be written (full, read-only, no answer for 30 s) the counters, the histograms and the pending and unregained time
that belong to them stand still at what was last written. The other gauges go live instead: what the pod does, how far it is
and whether an incident is open carry no promise about the past, and whoever is on call needs them the more when a disk is in trouble.
`headway_collector_success{collector="state"}` is 0 then, and the source's time stamp stands still. `/status.json` stays whole, as it was
last written; its `written_wall` says when.

Two sidecars of one pod index, as a rescheduled pod's old one that lives on behind a broken network: each write first looks whose the file
is. Sessions are ordered by their start; the newer takes over, the older never writes or publishes anything new again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.state_files import (
    LEDGER,
    RECORDS,
    Ledger,
    StateFileError,
    append_record,
    last_records,
    remove_unfinished,
    session_of,
    set_aside,
    write_ledger,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headway_exporter.collectors import Sample

_log = logging.getLogger("headway.exporter")

LEAST_SECONDS: Final = 2.0
"""Between two snapshots."""
MOST_SECONDS: Final = 15.0
"""Between two snapshots, however much they cost: about what scrapes are apart."""
PROCESSOR_SHARE: Final = 0.002
"""Of a core goes into taking and writing them."""
CHORE_SECONDS: Final = 1.0
HUNG_SECONDS: Final = 30.0
LAST_SECONDS: Final = 10.0
"""Longest wait at the end for the last word to be written."""
_SUPERSEDED: Final = "superseded"
_DIGITS: Final = 20
_NEVER: Final = "9" + "0" * (_DIGITS - 1)
"""No clock shows so many microseconds: a session from there on leaves no room for others after it, so it counts as in no order."""


@dataclass(frozen=True)
class View:
    """What scrapes and `/status.json` show; all of one moment."""

    samples: Sequence[Sample]
    status: dict[str, Any]
    wall: float | None = None
    """When that was, if it is on disk."""


@dataclass(frozen=True)
class Snapshot:
    """One moment of the sidecar, to be written and then shown."""

    view: View
    body: dict[str, Any]
    """Of the ledger."""
    records: list[dict[str, Any]] = field(default_factory=list)


class Store:
    """Writes what it is offered into the pod's folder; `wants`, `offer` and `acknowledged` are for one thread, the rest for any."""

    def __init__(
        self, folder: Path, run: str, pod_index: str, session: str, view: View, *, lost: str | None = None
    ) -> None:
        """`view` is shown until something was written; `lost` says why the folder cannot be used at all."""
        self.published = view
        self.lost = lost
        self.write_seconds: float | None = None
        """How long the last write took."""
        self._folder = folder
        self._run, self._pod_index, self._session = run, pod_index, session
        self._error: str | None = None
        self._said = lost
        self._next_at = clock.monotonic()
        self._change = threading.Condition()
        self._offered: Snapshot | None = None
        self._busy_since: float | None = None
        self._appended: list[dict[str, Any]] = []
        self._faults: Counter[str] = Counter()
        self._tidied = False
        self._there: set[str] = set()
        """What the newest records say that were on disk when this process began to write."""
        self._chores: list[Callable[[], None]] = []
        self._failing: set[int] = set()
        """Chores that failed when they were last done."""
        self._closed = False
        self._write_processor_seconds = 0.0
        self._thread = threading.Thread(target=self._work, name="headway-store", daemon=True)
        self._thread.start()

    def every_second(self, chore: Callable[[], None]) -> None:
        """Has the thread do something else that may hang with the folder, about once a second."""
        with self._change:
            self._chores.append(chore)
            self._change.notify_all()

    def close(self) -> None:
        """Ends the thread, once what was offered is dealt with; does not wait for it."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    @property
    def running(self) -> bool:
        """Its thread lives."""
        return self._thread.is_alive()

    # For those who show.

    @property
    def trouble(self) -> str | None:
        """Why nothing new is on disk, for people; None while all is well."""
        since = self._busy_since
        if self.lost is not None:
            return self.lost
        if self._error == _SUPERSEDED:
            return f"another sidecar of pod {self._pod_index} has taken over {self._folder}; nothing new is shown here"
        if since is not None and clock.monotonic() - since > HUNG_SECONDS:
            return f"{self._folder} does not answer; the counters stand still until it does"
        if self._error is not None:
            return f"cannot write {self._folder}: {self._error}; the counters stand still until that works"
        return None

    @property
    def superseded(self) -> bool:
        """Another sidecar has taken over."""
        return self._error == _SUPERSEDED

    # For the one who folds.

    def wants(self, mono: float, *, caught_up: bool) -> bool:
        """Whether it is time for a snapshot; tells people, once, when the folder fails or works again.

        One that has not `caught_up` with the journals is waited for, though not for ever: what is shown as new should not be old.
        """
        self._report()
        usable = self.lost is None and not self.superseded
        due = self._next_at if caught_up else self._next_at + MOST_SECONDS
        return usable and mono >= due and self._offered is None

    def offer(self, snapshot: Snapshot, processor_seconds: float) -> None:
        """Hands over a snapshot that took so long to take."""
        cost = (processor_seconds + self._write_processor_seconds) / PROCESSOR_SHARE
        self._next_at = clock.monotonic() + min(max(LEAST_SECONDS, cost), MOST_SECONDS)
        with self._change:
            self._offered = snapshot
            self._change.notify_all()

    def acknowledged(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Since the last call: the records that are on disk, and the files that had to be set aside, by fault."""
        with self._change:
            records, faults = self._appended, self._faults
            self._appended, self._faults = [], Counter()
        return records, faults

    def failed(self, reason: str) -> None:
        """There is no snapshot to offer."""
        self._error = reason
        self._next_at = clock.monotonic() + LEAST_SECONDS

    def settle(self) -> bool:
        """Waits, not for long, until what was offered is dealt with; whether it was."""
        with self._change:
            idle = self._change.wait_for(lambda: self._offered is None, LAST_SECONDS)
        self._report()
        return idle

    def _report(self) -> None:
        trouble = self.trouble
        if trouble == self._said:
            return
        if trouble is not None:
            _log.warning("state folder: %s", trouble)
        else:
            _log.warning("state folder: %s is written again", self._folder)
        self._said = trouble

    # The thread.

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._offered is not None or self._closed, CHORE_SECONDS)
                snapshot = self._offered
            if snapshot is None and self._closed:
                return
            self._busy_since = clock.monotonic()
            if snapshot is not None:
                self._attempt(snapshot)
            for number, chore in enumerate(self._chores):
                self._do(number, chore)
            self._busy_since = None

    def _do(self, number: int, chore: Callable[[], None]) -> None:
        try:
            chore()
        except Exception:  # noqa: BLE001 - the thread must live on
            if number not in self._failing:
                _log.exception("state folder: something that is done every second failed; it is tried again and again")
            self._failing.add(number)
        else:
            self._failing.discard(number)

    def _attempt(self, snapshot: Snapshot) -> None:
        began, processor = clock.monotonic(), clock.processor()
        error: str | None = None
        try:
            self._write(snapshot)
        except OSError as problem:
            error = problem.strerror or type(problem).__name__
        except Exception as problem:  # noqa: BLE001 - the thread must live on
            _log.exception("state folder: a snapshot could not be written")
            error = f"{type(problem).__name__}: {problem}"
        self.write_seconds = clock.monotonic() - began
        self._write_processor_seconds = clock.processor() - processor
        with self._change:
            if error is None and not self.superseded:
                self._error = None
                self.published = snapshot.view
            elif error is not None:
                self._error = error
            self._offered = None
            self._change.notify_all()

    def _write(self, snapshot: Snapshot) -> None:
        """Records first: a ledger on disk says that they were written.

        Raises:
            OSError: it did not work.
        """
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._folder / LEDGER
        if not self._is_ours(path):
            self._error = _SUPERSEDED
            return
        if not self._tidied:
            remove_unfinished(self._folder)
            self._there = {_said(record) for record in last_records(self._folder / RECORDS)}
            self._tidied = True
        for record in snapshot.records:
            if _said(record) not in self._there:  # else the sidecar before was killed between the record and the ledger
                append_record(self._folder / RECORDS, record)
            with self._change:
                self._appended.append(record)
        wall = snapshot.view.wall or 0.0
        write_ledger(path, Ledger(self._run, self._pod_index, self._session, wall, snapshot.body))

    def _is_ours(self, path: Path) -> bool:
        try:
            writer = session_of(path, self._run, self._pod_index)
        except StateFileError as problem:
            other = set_aside(path, problem.fault)
            _log.warning("state folder: %s; it was moved to %s", problem, other.name)
            with self._change:
                self._faults[f"state_{problem.fault}"] += 1
            return True
        return writer is None or _order(writer) <= _order(self._session)


def _said(record: dict[str, Any]) -> str:
    """A record's content, whenever it was written."""
    content = {name: value for name, value in record.items() if name != "written_wall"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def new_session(before: str | None = None) -> str:
    """A name for this process's writing that comes after that of the one before it, even where the clock was put back."""
    number = max(round(clock.wall() * 1e6), 0 if before is None else _order(before)[0] + 1)
    return f"{number:0{_DIGITS}d}-{os.urandom(4).hex()}"


def _order(session: str) -> tuple[int, str]:
    """Sorts sessions by their start; what is none comes first."""
    number, _, unique = session.partition("-")
    known = number.isascii() and number.isdigit() and len(number) == _DIGITS and number < _NEVER
    return (int(number), unique) if known else (0, "")
