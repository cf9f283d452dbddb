"""The sidecar's two halves put together: one thread folds what the follower finds, others read the pod's state under a lock."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.collectors import PodCollector
from headway_exporter.follow import Follower
from headway_exporter.observations import StepsSeen
from headway_exporter.pod import Pod
from headway_exporter.status import status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headway_exporter.observations import Observation

_log = logging.getLogger("headway.exporter")

POLL_SECONDS: Final = 0.5
"""A death wakes the follower at once; nothing else is in such a hurry, and each look costs processor time."""
HEALTHY_SECONDS: Final = 10.0
_AT_ONCE: Final = 2_000
"""Observations folded before a waiting scrape gets its turn."""


class Sidecar:
    """Follows one pod's journals; `start` to `stop`, or `poll` by hand."""

    def __init__(self, directory: Path, run: str, pod_index: str, *, silence_seconds: float) -> None:
        self._pod = Pod(run, pod_index)
        self._follower = Follower(directory, run, silence_seconds=silence_seconds)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headway-follower", daemon=True)
        self._polled = clock.monotonic()
        self.collector = PodCollector(self._pod, self._follower, self._lock)

    def start(self) -> None:
        """Follows in a thread of its own."""
        self._thread.start()

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
        self._polled = clock.monotonic()

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
