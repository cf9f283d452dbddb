"""The sampler: a daemon thread that now and then records what only the process's own container can see."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import frames, process

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 0.02
_MAX_PLACE: Final = 300


class Sampler(threading.Thread):
    """Calls `take` at once and then every `interval_seconds`, until `stop` or the end of the interpreter.

    A daemon, so that it never keeps the process alive; forked children do not inherit threads.
    """

    def __init__(self, take: Callable[[], None], interval_seconds: float = DEFAULT_SECONDS) -> None:
        super().__init__(name="headway-sampler", daemon=True)
        self._take = take
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Samples; a failing sample is skipped (`take` counts it)."""
        while True:
            self._take()
            if self._stopped.wait(self._interval_seconds):
                return

    def stop(self) -> None:
        """Ends the thread soon, without waiting for it."""
        self._stopped.set()


def reading(
    writer_pid: int | None, container: Callable[[], process.ContainerMemory] = process.container_memory
) -> dict[str, Any]:
    """Fields of a `sample` event: memory, files, and where the main thread is."""
    memory = container()
    fields: dict[str, Any] = {
        "rss_bytes": process.resident_bytes(),
        "writer_rss_bytes": None if writer_pid is None else process.resident_bytes(writer_pid),
        "open_files": process.open_files(),
        "cgroup_limit_bytes": memory.limit_bytes,
        "cgroup_used_bytes": memory.used_bytes,
        "cgroup_cache_bytes": memory.cache_bytes,
        "oom_kills": memory.oom_kills,
    }
    return fields | main_thread()


def main_thread() -> dict[str, Any]:
    """`at` and `collective` of the main thread's innermost Python frames."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places = list(frames.outside_headway(frames.stack(frame)))
    if not places:
        return {}
    return {"at": frames.place(places[0])[-_MAX_PLACE:], "collective": frames.in_collective(places)}


def interval_seconds(asked: float | None) -> float:
    """What is kept of HEADWAY_SAMPLE_SECONDS: 0 for no samples, else never so short that sampling spins."""
    if asked is None:
        return DEFAULT_SECONDS
    return min(max(asked, _SHORTEST_SECONDS), threading.TIMEOUT_MAX / 2) if asked else 0.0
