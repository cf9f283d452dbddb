"""Which nodes take part: NVRx 0.6 and later tell it in a file for each cycle, which `headway run` reads.

With `ft_launcher --ft-cycle-info-dir FOLDER` the host of the rendezvous writes `cycle_info.JOB.ATTEMPT.CYCLE`, JSON, and moves the link
`cycle_info.JOB.current` there; the folder is shared by all nodes. The file appears a moment after the nodes have found each other, and its
`cycle_end_time` is when the next cycle's nodes did: no time of a failure. The folder may be on a storage that hangs, so a thread reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPTIONS: Final = ("--ft-cycle-info-dir", "--ft_cycle_info_dir")
_MOST_BYTES: Final = 65_536
_MOST_CHARACTERS: Final = 4_096
_PATIENCE_SECONDS: Final = 30.0
"""How long a cycle's file is awaited."""
_PAUSE_SECONDS: Final = 0.25
_MOST_THREADS: Final = 4
"""Each may hang with the storage."""


def current_link(command: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    """Where a launcher started so finds its current cycle's file; None: it was not told to write one on its command line."""
    for at, word in enumerate(command):
        name, given, value = word.partition("=")
        folder = value if given else next(iter(command[at + 1 : at + 2]), "")
        if name in _OPTIONS and folder:
            job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "")
            return Path(folder) / f"cycle_info.{job}.current"
    return None


def parse(text: str) -> dict[str, Any] | None:
    """Fields of a `launcher_cycle` event from a file's content; None: it is not whole, or something else."""
    try:
        told = json.loads(text)
        cycle, attempt = int(told["cycle_number"]), int(told.get("attempt_index", 0))
        began = datetime.fromisoformat(told["cycle_start_time"].replace("Z", "+00:00")).timestamp()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    names = ("active_nodes", "standby_nodes", "active_ranks")
    texts = {name: str(told[name])[:_MOST_CHARACTERS] for name in names if told.get(name)}
    return {"cycle": cycle, "attempt": attempt, "began_wall": began, **texts}


class CycleInfo:
    """Reads a cycle's file once the cycle has begun, and tells what is in it, once."""

    def __init__(self, link: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self._link = link
        self._tell = tell
        self._cycle: int | None = None
        self._room = threading.Semaphore(_MOST_THREADS)

    def look_for(self, cycle: int) -> None:
        """Returns at once; what an older cycle's file says is not awaited any more."""
        self._cycle = cycle
        if self._room.acquire(blocking=False):
            threading.Thread(target=self._wait_for, args=(cycle,), name="headway-cycle-info", daemon=True).start()

    def close(self) -> None:
        """Nothing is awaited any more."""
        self._cycle = None

    def _wait_for(self, cycle: int) -> None:
        deadline = clock.monotonic() + _PATIENCE_SECONDS
        try:
            while self._cycle == cycle and clock.monotonic() < deadline:
                found = self._read()
                if found is not None and found["cycle"] == cycle:
                    self._tell(found)
                    return
                time.sleep(_PAUSE_SECONDS)
        finally:
            self._room.release()

    def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            fd = os.open(self._link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return parse(os.read(fd, _MOST_BYTES).decode("utf-8", "replace"))
            finally:
                os.close(fd)
        return None
