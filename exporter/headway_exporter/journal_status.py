"""The status of a pod from its journals alone: read once, where no sidecar is there to ask.

It only reads, so a sidecar or another look beside it is not disturbed. What only a sidecar knows is missing: what came before
these journals (its state folder), what other pods settled, what the instruments saw.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.folder import entries
from headway_exporter.follow import slot_journals
from headway_exporter.resume import Where, without_memory
from headway_exporter.status import status

if TYPE_CHECKING:
    from pathlib import Path

    from headway_exporter.follow import Follower
    from headway_exporter.pod import Pod

READ_SECONDS: Final = 30.0
"""Longest wait for the folder: a full ring of 8 ranks takes some seconds, and a mount that hangs must not hang who looks."""
SILENCE_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 0.5
"""How long the kernel's word on the deaths of processes is waited for."""


class NothingToReadError(Exception):
    """The message says where and why, `usage` whether such a folder cannot be meant."""

    def __init__(self, words: str, *, usage: bool = False) -> None:
        super().__init__(words)
        self.usage = usage


def runs_in(directory: Path) -> list[str]:
    """Names of the runs of which journals lie there, sorted."""
    return sorted(name for name in entries(directory) if slot_journals(directory / name))


def read(
    directory: Path, pod_index: str, run: str, *, only: bool = False, seconds: float = READ_SECONDS
) -> dict[str, Any]:
    """As `/status.json` of a sidecar without a state folder; `only`: where just one run is there, it may be another than `run`.

    Raises:
        NothingToReadError: there are no journals of the run, or they cannot be read in time.
    """
    answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()

    def look() -> None:
        try:
            answers.put(_read(directory, pod_index, run, only=only))
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            answers.put(error)

    threading.Thread(target=look, name="headway-look", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise NothingToReadError(f"{directory} does not answer within {seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(directory: Path, pod_index: str, run: str, *, only: bool) -> dict[str, Any]:
    if slot_journals(directory):  # it is the run's own folder
        directory, run = directory.parent, directory.name
    found = runs_in(directory)
    if only and len(found) == 1:
        run = found[0]
    if run not in found:
        if not directory.is_dir():
            what = f"{directory} is neither a folder nor the address of a sidecar (http://HOST:PORT)"
            raise NothingToReadError(what, usage=True)
        there = f"; there are those of {', '.join(found[:5])} (--run)" if found else ""
        raise NothingToReadError(f"{directory} holds no journals of the run {run}{there}")
    beginning = without_memory(Where(directory, run, pod_index, SILENCE_SECONDS))
    pod, follower = beginning.pod, beginning.follower
    until: float | None = None
    while until is None or clock.monotonic() < until:
        _fold_news(pod, follower)
        if follower.caught_up:
            until = until or clock.monotonic() + _SETTLE_SECONDS
            follower.wake.wait(_SETTLE_SECONDS / 2)
    return status(pod, follower.dropped)


def _fold_news(pod: Pod, follower: Follower) -> None:
    batch = follower.poll()
    pod.set_clock(batch.mono, batch.wall)
    pod.fold(batch.observations)
    pod.advance(batch.mono)
