"""The sidecar's two halves put together: one thread folds what the follower finds, others read the pod's state under a lock."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter import state_files
from headway_exporter.collectors import PodCollector
from headway_exporter.exchange import Exchange, Patience
from headway_exporter.follow import Follower
from headway_exporter.observations import StepsSeen
from headway_exporter.pod import Pod
from headway_exporter.status import status
from headway_exporter.summary import summary
from headway_exporter.thresholds import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headway_exporter.observations import Observation
    from headway_exporter.thresholds import Thresholds

_log = logging.getLogger("headway.exporter")

POLL_SECONDS: Final = 0.25
"""A death wakes the follower at once; nothing else is in such a hurry, and each look costs processor time."""
EXCHANGE_SECONDS: Final = 1.0
LEDGER_SECONDS: Final = 5.0
HEALTHY_SECONDS: Final = 10.0
_AT_ONCE: Final = 2_000
"""Observations folded before a waiting scrape gets its turn."""


class Sidecar:
    """Follows one pod's journals; `start` to `stop`, or `poll` by hand."""

    def __init__(
        self,
        directory: Path,
        run: str,
        pod_index: str,
        *,
        silence_seconds: float,
        state_dir: Path | None = None,
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        self._pod = Pod(run, pod_index, thresholds, shared_verdicts=state_dir is not None)
        self._exchange = None if state_dir is None else Exchange(state_dir, run, pod_index, thresholds)
        self._patience = Patience(thresholds)
        self._state_dir = state_dir
        self._session = os.urandom(8).hex()
        self._ledger_due = 0.0
        self._follower = Follower(directory, run, silence_seconds=silence_seconds)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headway-follower", daemon=True)
        self._polled = clock.monotonic()
        self.collector = PodCollector(self._pod, self._follower, self._lock)

    def start(self) -> None:
        """Follows in a thread of its own."""
        self._thread.start()
        if self._exchange is not None:
            threading.Thread(target=self._settle, args=(self._exchange,), name="headway-state", daemon=True).start()

    def stop(self) -> None:
        """Ends following, after a last look."""
        self._stopping.set()
        self._follower.wake.set()
        self._thread.join()
        self.poll()
        self._follower.close()

    @property
    def healthy(self) -> bool:
        """Whether the journals were looked at lately."""
        return clock.monotonic() - self._polled < HEALTHY_SECONDS

    def status(self) -> dict[str, Any]:
        """What `/status.json` shows."""
        with self._lock:
            return status(self._pod, self.collector.dropped)

    def poll(self) -> None:
        """Reads what is new and folds it."""
        batch = self._follower.poll()
        with self._lock:
            self._pod.set_clock(batch.mono, batch.wall)
        for portion in _portions(batch.observations):
            with self._lock:
                self._pod.fold(portion)
            self._polled = clock.monotonic()
        with self._lock:
            self._pod.advance(batch.mono)
            waiting = self._pod.failures.undecided.tries
            if waiting:
                self._pod.fold(self._patience.overdue(clock.monotonic(), [one.exchange for one in waiting]))
        self._polled = clock.monotonic()

    def _settle(self, exchange: Exchange) -> None:
        """Settles with other pods where failures began; in a thread of its own, because the shared folder may hang."""
        while not self._stopping.wait(EXCHANGE_SECONDS):
            try:
                self._write_ledger()
                self.exchange_turn(exchange)
            except Exception:  # noqa: BLE001, PERF203 - as below
                _log.exception("where a failure began could not be settled this time; trying again")

    def _write_ledger(self) -> None:
        """A ledger that holds only the summary: what other pods need of this one should it be lost."""
        mono = clock.monotonic()
        if self._state_dir is None or mono < self._ledger_due:
            return
        self._ledger_due = mono + LEDGER_SECONDS
        with self._lock:
            pod, wall = self._pod, clock.wall()
            body = {"summary": summary(pod, self.collector.dropped, wall)}
        folder = state_files.pod_folder(self._state_dir, pod.run, pod.pod_index)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            state_files.write_ledger(
                folder / state_files.LEDGER, state_files.Ledger(pod.run, pod.pod_index, self._session, wall, body)
            )
        except OSError as error:
            _log.warning("%s cannot be written: %s; trying again", folder / state_files.LEDGER, error)

    def exchange_turn(self, exchange: Exchange) -> None:
        """Tells other pods what is known of failures, and takes what was settled."""
        with self._lock:
            claims = self._pod.claims()
        seen = exchange.turn(clock.monotonic(), claims)
        with self._lock:
            self._pod.fold(seen)
            self._pod.dropped += exchange.dropped
        exchange.dropped.clear()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - it must go on whatever the folder holds
                _log.exception("the journals could not be followed this time; trying again")
                self._stopping.wait(1.0)
            if self._follower.caught_up:
                self._follower.wake.wait(POLL_SECONDS)


def _portions(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Parts of a bounded size; many steps in one observation are a part of their own."""
    portion: list[Observation] = []
    for seen in observations:
        portion.append(seen)
        if isinstance(seen, StepsSeen) or len(portion) >= _AT_ONCE:
            yield portion
            portion = []
    yield portion
