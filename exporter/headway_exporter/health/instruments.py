"""Things that are read again and again and may fail, hang or be absent, without any harm to what else is served.

Each instrument reads in a thread of its own, and everybody else sees only its newest answer. One that fails or takes longer than its
deadline costs its own metrics: they are absent, and `headway_collector_success` of its name is 0. One that is not there (no driver, no
such hardware) has no series at all and says so once.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

_log = logging.getLogger("headway.exporter")

T = TypeVar("T")

RETRY_SECONDS: Final = 60.0
"""How often is looked again for what is not there."""
STOP_SECONDS: Final = 1.0
"""How long the end waits for a read under way; one that hangs is left behind, in a daemon thread."""

MOST_SAID: Final = 4
"""Sorts of trouble that are told before it is over: what differs each time must not fill the log."""

SETTLE_SECONDS: Final = 0.5
"""Before a last read: who tells of the same end gets to know it at this moment too."""


class AbsentError(Exception):
    """What is to be read is not on this machine, which is no fault.

    Attributes:
        retry_seconds: when to look again.
    """

    def __init__(self, reason: str, retry_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class Probe(Protocol[T]):
    """Something to read. Only `read` may block; it is called in one thread, never twice at a time."""

    name: str
    """Value of the labels `collector` and `source`."""
    every_seconds: float
    deadline_seconds: float
    """An answer older than this, and than `every_seconds`, is none."""

    def read(self) -> T:
        """What is so now.

        Raises:
            AbsentError: there is nothing to read on this machine.
            Exception: it failed this time.
        """

    def samples(self, value: T) -> Iterable[Sample]:
        """Metrics of an answer."""

    def lost(self, value: T) -> Iterable[Sample]:
        """Metrics when an answer failed to come, after this one, the last; mostly none."""

    def observations(self, value: T) -> Iterable[Observation]:
        """What an answer tells the fold, once for each answer."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """An answer. Times are seconds: CLOCK_MONOTONIC, since 1970, and how long it took."""

    value: T
    mono: float
    wall: float
    seconds: float


class Instrument(Generic[T]):
    """A probe that is read in a thread of its own from `start` to `stop`; all else never blocks."""

    def __init__(self, probe: Probe[T], *, last_seconds: float = 0.0) -> None:
        """`last_seconds`: told to stop, it reads once more, and is waited for so long at most; 0: it does not."""
        self._last_seconds = last_seconds
        self.name = probe.name
        self._probe = probe
        self._newest: Reading[T] | None = None
        self._began: float | None = None
        self._trouble: str | None = None
        self._said: set[str] = set()
        self._absent = False
        self._retry_seconds = RETRY_SECONDS
        self._unheard: list[Observation] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"headway-{probe.name}", daemon=True)

    def start(self) -> None:
        """Reads from now on."""
        self._thread.start()

    def end(self) -> None:
        """Is to read no more, or once more; does not wait for it."""
        self._stopping.set()

    def stop(self) -> None:
        """Reads no more; a read that is left behind has nothing more to say, for what it reads is taken away from it."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(max(STOP_SECONDS, self._last_seconds))
        self._stopped = True

    def observations(self) -> list[Observation]:
        """What the fold has not heard yet."""
        with self._lock:
            found, self._unheard = self._unheard, []
        return found

    def samples(self) -> Iterator[Sample]:
        """The newest answer's metrics, and whether it may be believed."""
        newest = self._newest
        if self._absent or (newest is None and self._trouble is None and not self._overdue(clock.monotonic())):
            return
        worked = self._trouble is None and not self._overdue(clock.monotonic())
        if newest is not None:
            yield from self._probe.samples(newest.value) if worked else self._probe.lost(newest.value)
            yield "headway_source_last_update_timestamp_seconds", (self.name,), newest.wall
            yield "headway_collector_duration_seconds", (self.name,), newest.seconds
        yield "headway_collector_success", (self.name,), float(worked)

    def _overdue(self, now: float) -> bool:
        """Whether the read under way takes too long."""
        began = self._began
        return began is not None and now - began > self._probe.deadline_seconds

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.read()
            self._stopping.wait(self._retry_seconds if self._absent else self._probe.every_seconds)
        if self._last_seconds > 0 and not self._absent:
            time.sleep(SETTLE_SECONDS)
            self.read()

    def read(self) -> None:
        """One read, by hand where there is no thread."""
        self._began = began = clock.monotonic()
        try:
            value = self._probe.read()
            told = list(self._probe.observations(value))
        except AbsentError as reason:
            if not self._absent and not self._stopped:
                self._say_absent(reason)
            self._absent, self._retry_seconds = True, reason.retry_seconds
        except Exception as error:  # noqa: BLE001 - whatever it is, only its own metrics are lost
            self._note(f"{type(error).__name__}: {error}")
        else:
            now = clock.monotonic()
            self._newest = Reading(value, now, clock.wall(), now - began)
            self._absent = False
            with self._lock:
                self._unheard.extend(told)
            self._note(None)
        finally:
            self._began = None

    def _say_absent(self, reason: AbsentError) -> None:
        """Told whenever it is found out, for those who ask for such details."""
        _log.info("%s: %s; its metrics are left out", self.name, reason)

    def _note(self, trouble: str | None) -> None:
        """Says each sort of trouble once until it is over, and once that it is."""
        if self._stopped:
            return
        if trouble is not None and trouble not in self._said and len(self._said) < MOST_SAID:
            self._said.add(trouble)
            _log.warning("%s cannot be read (%s); its metrics are missing until it can", self.name, trouble)
        elif trouble is None and self._trouble is not None:
            self._said.clear()
            _log.warning("%s can be read again", self.name)
        self._trouble = trouble
        if trouble is not None:
            self._absent = False


AnyInstrument = Instrument[Any]
