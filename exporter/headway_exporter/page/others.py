"""What the run's other pods last wrote into the shared state folder, read while somebody looks on.

Their ledgers are read by the thread that writes our own, because the folder may hang, and only for a little while in each second: of many
pods each is read anew every few seconds, of very many every minute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headway import clock
from headway_exporter.report import parse
from headway_exporter.report.model import Checkpoints
from headway_exporter.state_files import LEDGER, StateFileError, pod_order, pods_of, read_ledger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headway_exporter.report.model import Pod

MOST_PODS: Final = 256
WATCHED_SECONDS: Final = 60.0
"""After the last look nobody is there any more."""
SHARE_SECONDS: Final = 0.01
"""Processor time that is spent in a second, or on one ledger if that takes longer."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a pod last told."""

    pod: Pod | None
    """None: its ledger cannot be read, or there is none yet."""


class Others:
    """The newest words, by pod index; `turn` is for the thread that may hang, the rest for any."""

    def __init__(self, run_folder: Path, run: str, pod_index: str) -> None:
        self.words: Mapping[str, Word] = {}
        self._folder, self._run, self._own = run_folder, run, pod_index
        self._until = 0.0
        self._queue: list[tuple[str, Path]] = []

    def watched(self) -> None:
        """Somebody looks on."""
        self._until = clock.monotonic() + WATCHED_SECONDS

    def turn(self) -> None:
        """Reads a few of them."""
        if clock.monotonic() > self._until:
            self.words, self._queue = {}, []
            return
        if not self._queue:
            self._queue = self._listed()
            names = {index for index, _ in self._queue}
            self.words = {index: word for index, word in self.words.items() if index in names}
        began = clock.processor()
        while self._queue:
            index, path = self._queue.pop()
            self.words = {**self.words, index: self._read(index, path)}
            if clock.processor() - began > SHARE_SECONDS:
                return

    def _listed(self) -> list[tuple[str, Path]]:
        try:
            found = pods_of(self._folder)
        except OSError:
            return []
        others = sorted((one for one in found.items() if one[0] != self._own), key=lambda one: pod_order(one[0]))
        return others[: MOST_PODS - 1][::-1]

    def _read(self, index: str, path: Path) -> Word:
        try:
            ledger = read_ledger(path / LEDGER, self._run, index)
        except (OSError, StateFileError):
            return Word(None)
        told = ledger.body.get("summary")
        return Word(_glance(parse.pod(told, index, ledger.written_wall)) if isinstance(told, dict) else None)


def _glance(pod: Pod) -> Pod:
    """What is shown of another pod: without what takes room."""
    known = pod.checkpoint
    return replace(
        pod,
        history=None,
        settings={},
        versions={},
        recovery_phases=(),
        phase_gap_seconds={},
        checkpoint=Checkpoints(known.durable_step, known.committed_wall, known.content_wall),
    )
