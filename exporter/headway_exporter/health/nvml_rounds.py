"""Rounds of questions about all GPUs, to a process that may hang or crash at any of them.

A GPU at which it did is not asked for a while, which grows, and then after all others, which are read as before. Where it
was no GPU's question, all hang. A process that failed is replaced: after a crash at once, whatever comes again later and later.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health import gpu_readings
from headway_exporter.health.instruments import AbsentError
from headway_exporter.health.nvml_pipe import LIBRARY, DriverProcess, EndedError, SilentError, library_is_here

if TYPE_CHECKING:
    from collections import deque

    from headway_exporter.health.gpu_readings import Raw
    from headway_exporter.health.nvml_pipe import Message

_log = logging.getLogger("headway.exporter")

ABSENT_SECONDS: Final = 300.0
"""When a process is started again to see whether there is a driver for the library yet."""
PATIENCE: Final = 0.8
"""Share of the deadline after which a process is given up, so that a reading still comes in time."""
_MOST_DOUBLINGS: Final = 10


@dataclass
class Fault:
    """The driver hung or crashed when it was asked about a GPU. Times are CLOCK_MONOTONIC seconds."""

    text: str
    hung: bool
    since: float
    """When it was first asked in vain."""
    again: float
    """When it is asked again."""
    times: int


@dataclass
class Round:
    """What a round brought."""

    mono: float
    looked: bool
    found: dict[int, Message] = field(default_factory=dict)
    """What the driver lists, by number, where it was looked; see `nvml_child`."""
    answers: dict[int, Raw | str] = field(default_factory=dict)
    """What it says of a GPU; a text: why it says nothing."""
    only_last: bool = False
    """All have answered but those that come last."""


class Rounds:
    """Asks; one thread only."""

    def __init__(
        self, reports: deque[Message], every_seconds: float, deadline_seconds: float, look_seconds: float
    ) -> None:
        """`reports`: where what the driver reports by itself goes."""
        self._reports = reports
        self._every_seconds = every_seconds
        self._deadline_seconds = deadline_seconds
        self._look_seconds = look_seconds
        self.process: DriverProcess | None = None
        self._leaving: DriverProcess | None = None
        """One that was killed and may still be there."""
        self.faults: dict[int, Fault] = {}
        """By number."""
        self.hangs_since: float | None = None
        """Whatever it is asked, the driver hangs since then."""
        self.missed = 0
        """Times that something which the driver reported may have been lost with a process; who tells of it sets it back."""
        self._looked: float | None = None
        self._failures = 0
        self._not_before = 0.0
        self._trouble = ""
        self._closed = threading.Event()

    @property
    def look_is_due(self) -> bool:
        """Whether the last look for other GPUs is long ago."""
        return self._looked is None or clock.monotonic() - self._looked > self._look_seconds

    def ask(self) -> Round:
        """One round.

        Raises:
            AbsentError: there is no driver.
            OSError: not all GPUs could be asked that could be.
        """
        if clock.monotonic() < self._not_before:
            raise OSError(self._trouble)
        try:
            found = self._twice()
        except (AbsentError, OSError) as trouble:
            self._wait_longer(str(trouble))
            raise
        self._failures, self.hangs_since = 0, None
        return found

    def begin_anew(self) -> None:
        """With another process."""
        self._end()

    def close(self) -> None:
        """Never again, whatever a round under way in another thread makes of it."""
        self._closed.set()
        self._end()

    def _wait_longer(self, trouble: str) -> None:
        """Not after the first failure."""
        doublings = min(self._failures, _MOST_DOUBLINGS)
        delay = min(self._look_seconds, self._every_seconds * 2.0**doublings) if self._failures else 0.0
        self._failures += 1
        self._not_before, self._trouble = clock.monotonic() + delay, trouble

    def _twice(self) -> Round:
        """A process that ended is replaced at once, one time."""
        try:
            return self._once()
        except EndedError:
            if self._failures:
                raise
        return self._once()

    def _once(self) -> Round:
        process = self._running()
        now = clock.monotonic()
        skip = [index for index, fault in self.faults.items() if now < fault.again]
        last = [index for index in self.faults if index not in skip]
        found = Round(now, looked=self.look_is_due or bool(last))  # the process has not met those yet
        try:
            process.ask(found.looked, skip, last)
            silent = self._listen(process, found, now + self._deadline_seconds * PATIENCE)
        except (SilentError, EndedError) as trouble:
            self._stumble(found, trouble, process.asks())
            asked = [index for index in last if index in found.answers]
        else:
            asked = last
            if silent > self._deadline_seconds:  # it answers, but reports nothing any more
                self._end()
                self.missed += 1
        for index in asked:
            del self.faults[index]
        if found.looked:
            self._looked = now if self.process is not None else None
            found.found = {index: {} for index in self.faults} | found.found
        return found

    # The process.

    def _running(self) -> DriverProcess:
        if self._closed.is_set():
            raise OSError("closed")
        if self.process is None:
            if self._leaving is not None and not self._leaving.gone:
                raise OSError("the driver hangs, and with it a process that cannot be ended")
            self._leaving = None
            if not library_is_here():
                raise AbsentError(f"no NVIDIA driver ({LIBRARY} cannot be loaded)")
            self.process = process = DriverProcess(self._reports)
            self._looked = None
            if self._closed.is_set():  # meanwhile
                self._end()
            return process
        return self.process

    def _end(self) -> None:
        process, self.process = self.process, None
        self._looked = None
        if process is not None:
            process.end()
            self._leaving = process

    # A round.

    def _listen(self, process: DriverProcess, found: Round, until: float) -> float:
        """Takes answers to the end; for how many seconds the driver has been silent about what it reports by itself."""
        while True:
            message = process.answer(until)
            try:
                if "end" in message:
                    return float(message["end"])
                self._take(found, message)
            except (KeyError, TypeError, ValueError) as error:
                raise EndedError(f"the process that asks the driver answers nonsense ({error!r})") from error

    def _take(self, found: Round, message: dict[str, Any]) -> None:
        if "gpus" in message:
            found.found.update((int(index), dict(told)) for index, told in message["gpus"])
            for index, told in message["answers"]:
                found.answers[int(index)] = told if isinstance(told, str) else gpu_readings.raw(told)
            found.only_last = True
        else:
            self._end()
            if "absent" in message:
                raise AbsentError(str(message["absent"]), ABSENT_SECONDS)
            raise OSError(str(message["failed"]))

    def _stumble(self, found: Round, trouble: OSError, asks: tuple[int, float] | None) -> None:
        """The process hung or ended when it asked. Raises an error of the same kind unless all others have answered before."""
        hung = isinstance(trouble, SilentError)
        self._end()
        self.missed += 1
        if asks is not None:
            fault = self._blame(*asks, hung=hung, why=str(trouble))
            if not found.only_last:
                raise type(trouble)(fault.text)
        elif hung:
            hangs = [fault.since for fault in self.faults.values() if fault.hung]
            self.hangs_since = self.hangs_since or min(hangs, default=found.mono)
            self.faults.clear()
            raise SilentError("the driver hangs") from trouble
        else:
            raise trouble

    def _blame(self, index: int, asked: float, *, hung: bool, why: str) -> Fault:
        """Not asked for a while, which grows, and then last; after one crash, which may have been a chance, last at once."""
        text = (
            f"the driver hangs when it is asked about GPU {index}" if hung else f"{why} when it asked about GPU {index}"
        )
        before = self.faults.get(index)
        if before is None:
            _log.warning("nvml: %s", text)
        times = 1 if before is None else before.times + 1
        pause = min(self._look_seconds, self._every_seconds * 2.0 ** min(times, _MOST_DOUBLINGS))
        again = clock.monotonic() + (pause if hung or times > 1 else 0.0)
        since = before.since if before is not None and hung and before.hung else asked
        fault = self.faults[index] = Fault(text, hung, since, again, times)
        return fault
