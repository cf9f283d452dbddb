"""Traces of NCCL's flight recorder, kept for each incarnation that was aborted: which collective each rank was in.

torch keeps the last collectives in memory (`TORCH_FR_BUFFER_SIZE`, formerly `TORCH_NCCL_TRACE_BUFFER_SIZE`) and writes them to the
file `TORCH_FR_DUMP_TEMP_FILE` + rank (formerly `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) when its watchdog sees a time-out; the next time-out
overwrites it. NVRx from 0.5 on writes one at an abort, below `NVRX_FR_TRACE_PATH`. What was written since the last abort is moved to

    <folder of those files>/headway-traces/<incarnation>/<same name>

so that each incarnation has a folder that torch's analyser reads. Where nobody wrote one and one of these variables asks for traces, it
is written here: after the abort, when there is no communicator left to wait for, and without Python's stacks, which need its lock.

Only with NCCL; on CPU nothing is looked for. Sources: torch's FlightRecorder.hpp and FlightRecorderDetail.hpp (2.13), NVRx's
trace_collector.py (0.6, 0.7).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headway import clock
from headway.files import make_run_folder, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Writer = Literal["torch", "nvrx", "headway"]

FOLDER: Final = "headway-traces"
MOST_KEPT: Final = 8
"""Incarnations whose traces are kept, the newest ones: a trace is about a megabyte for each rank."""
SETTLE_SECONDS: Final = 1.0
"""How long a file that torch's watchdog is still writing is waited for."""
_LOOK_SECONDS: Final = 0.05
_CLOCK_SECONDS: Final = 1.0
"""File systems may date a file a little earlier than it was written."""
_BUFFER_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_PREFIXES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_NVRX: Final = "NVRX_FR_TRACE_PATH"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Trace:
    """One file that was kept."""

    path: Path
    bytes: int
    writer: Writer


class FlightTraces:
    """Finds, or else writes, this process's traces, once for each abort."""

    def __init__(self, environ: Mapping[str, str], find_dump: Callable[[], Callable[[], bytes] | None]) -> None:
        """`find_dump`: asked at each abort for what gives the flight recorder's memory; None: there is no NCCL."""
        self._environ = environ
        self._find_dump = find_dump
        self._since = clock.wall()

    @classmethod
    def of_this_process(cls) -> FlightTraces:
        """With torch's own flight recorder, where NCCL is what this process uses."""
        return cls(os.environ, _nccl_dump)

    def keep(self, incarnation: str, initial_rank: int, rank: int, iteration: int) -> list[Trace]:
        """What was written for this rank since the last call, in a place of its own.

        Args:
            incarnation: names the place.
            initial_rank: at the start of the process, in the name of torch's file.
            rank: when it was aborted, in the name of NVRx's file and of our own.
            iteration: NVRx's, in the name of its folder.

        Raises:
            OSError: a file or a folder could not be made, or moved.
        """
        dump = self._find_dump()
        if dump is None:
            return []
        since, self._since = self._since - _CLOCK_SECONDS, clock.wall()
        found = list(self._written(initial_rank, rank, iteration, since))
        if not found and self._asked_for:
            return [self._write(dump(), incarnation, rank)]
        return [_move(path, base, incarnation, writer) for path, base, writer in found]

    @property
    def _asked_for(self) -> bool:
        """Somebody set up traces; torch's memory of collectives alone is on by default in its newer versions."""
        sized = any(_positive(self._environ.get(name, "")) for name in _BUFFER_SIZES)
        return sized or any(self._environ.get(name) for name in (*_PREFIXES, _NVRX))

    def _written(
        self, initial_rank: int, rank: int, iteration: int, since: float
    ) -> Iterator[tuple[Path, Path, Writer]]:
        """Files and the folders beside which they are kept."""
        prefix = self._prefix
        torchs = Path(f"{prefix}{initial_rank}")
        if _is_new(torchs, since):
            yield torchs, Path(prefix).parent, "torch"
        folder = self._environ.get(_NVRX)
        for name in (f"_dump_{rank}.json", f"_dump_{rank}") if folder else ():
            path = Path(folder or "") / f"iter_{iteration}" / name
            if _is_new(path, since):
                yield path, Path(folder or ""), "nvrx"

    @property
    def _prefix(self) -> str:
        """Of torch's files, the rank left out."""
        named = next((self._environ[name] for name in _PREFIXES if self._environ.get(name)), None)
        cache = self._environ.get("XDG_CACHE_HOME") or f"{self._environ.get('HOME', '/tmp')}/.cache"  # noqa: S108 - as torch has it
        return named or f"{cache}/torch/comm_lib_trace_rank_"

    def _write(self, content: bytes, incarnation: str, rank: int) -> Trace:
        prefix = Path(self._prefix)
        path = _place(prefix.parent, incarnation, f"{prefix.name}{rank}")
        with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
        return Trace(path, len(content), "headway")


def _nccl_dump() -> Callable[[], bytes] | None:
    """What gives NCCL's traces; None where this process has not used NCCL, or torch cannot tell. Initialises nothing."""
    import torch
    import torch.distributed as dist

    cuda: Any = torch.cuda
    if not (cuda.is_initialized() and dist.is_available() and dist.is_nccl_available()):
        return None
    internals: Any = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(internals, "_dump_nccl_trace", None)
    return None if dump is None else lambda: bytes(dump(True, False, False))  # collectives, no stacks, also ended ones


def _is_new(path: Path, since: float) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and path.stat().st_mtime >= since
    except OSError:
        return False


def _move(path: Path, base: Path, incarnation: str, writer: Writer) -> Trace:
    _settle(path)
    kept = _place(base, incarnation, path.name)
    shutil.move(path, kept)
    return Trace(kept, kept.stat().st_size, writer)


def _settle(path: Path) -> None:
    """Waits until nobody writes to it any more, for a moment."""
    end, before = clock.monotonic() + SETTLE_SECONDS, -1
    while (size := path.stat().st_size) != before and clock.monotonic() < end:
        before = size
        time.sleep(_LOOK_SECONDS)


def _place(base: Path, incarnation: str, name: str) -> Path:
    """Where a trace of that name is kept; of older ones of the same name the newest stay.

    The folder may lie where every user may write (torch's default once was /tmp), so it must be our own.
    """
    base.mkdir(parents=True, exist_ok=True)
    folder = make_run_folder(base / FOLDER, _UNSAFE.sub("_", incarnation)[:64].lstrip("."), shared_place=True)
    others = sorted((path for path in (base / FOLDER).glob(f"*/{name}") if path.parent != folder), key=_age)
    for old in others[: max(0, len(others) - MOST_KEPT + 1)]:
        with contextlib.suppress(OSError):  # another rank's process may have been here first
            old.unlink()
            old.parent.rmdir()
    return folder / name


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _positive(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
