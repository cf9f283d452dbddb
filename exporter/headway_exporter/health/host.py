"""The machine under the pod, as psutil sees it: memory, processors, and what the sidecar itself takes of them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

_PRESSURE: Final = Path("/proc/pressure/memory")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of processor time: of the machine, all and busy; of the sidecar; and CLOCK_MONOTONIC when that was so."""

    total: float
    busy: float
    own: float
    mono: float


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine at one moment; None: not known. Bytes, and ratios as in the schema."""

    memory_used: int
    memory_size: int
    load: float
    own_memory: int
    pressure: float | None = None
    cpu: float | None = None
    own_cpu: float | None = None


class HostProbe:
    """See `Probe`; `pressure` is the kernel's file on memory pressure."""

    name = "host"
    every_seconds = 10.0
    deadline_seconds = 10.0

    def __init__(self, pressure: Path = _PRESSURE) -> None:
        self._pressure = pressure
        self._process = psutil.Process()
        self._before: ProcessorTime | None = None

    def read(self) -> HostReading:
        """See `Probe`."""
        memory, now, before = psutil.virtual_memory(), processor_time(), self._before
        self._before = now
        return HostReading(
            memory_used=memory.total - memory.available,
            memory_size=memory.total,
            load=os.getloadavg()[0] / (psutil.cpu_count() or 1),
            own_memory=self._process.memory_info().rss + sum(memory for memory, _ in children()),
            pressure=pressure_ratio(self._pressure),
            cpu=None if before is None else busy_ratio(before, now),
            own_cpu=None if before is None else own_ratio(before, now),
        )

    def samples(self, value: HostReading) -> Iterator[Sample]:
        """See `Probe`."""
        yield "headway_host_memory_used_bytes", ("node",), value.memory_used
        yield "headway_host_memory_limit_bytes", ("node",), value.memory_size
        yield "headway_host_memory_pressure_ratio", (), value.pressure
        yield "headway_host_cpu_ratio", (), value.cpu
        yield "headway_host_load_ratio", (), value.load
        yield "headway_sidecar_memory_bytes", (), value.own_memory
        yield "headway_sidecar_cpu_ratio", (), value.own_cpu

    def lost(self, value: HostReading) -> tuple[Sample, ...]:  # noqa: ARG002 - nothing of it holds any more
        """See `Probe`."""
        return ()

    def observations(self, value: HostReading) -> tuple[Observation, ...]:  # noqa: ARG002 - no event of the run
        """See `Probe`."""
        return ()


def processor_time() -> ProcessorTime:
    """What was spent so far. Waiting for a disk is not busy; guests' time is in user's already."""
    times = psutil.cpu_times()
    total = sum(getattr(times, name) for name in times._fields if not name.startswith("guest"))
    helpers = sum(seconds for _, seconds in children())
    return ProcessorTime(total, total - times.idle - times.iowait, clock.processors() + helpers, clock.monotonic())


def children() -> Iterator[tuple[int, float]]:
    """Resident bytes and processor seconds of each process of the sidecar's own, as the one that asks the GPUs' driver.

    psutil itself would look at all of the machine's to find them.
    """
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError, psutil.Error):  # a thread or a process that has just ended
            for pid in listed.read_text("ascii").split():
                process = psutil.Process(int(pid))
                times = process.cpu_times()
                yield process.memory_info().rss, times.user + times.system


def pressure_ratio(file: Path) -> float | None:
    """Share of the last minute in which some process waited for memory; None where the kernel does not tell."""
    try:
        words = file.read_text("ascii", "replace").split()
    except OSError:  # an old kernel, or one that was told not to count
        return None
    told = dict(word.split("=", 1) for word in words[1:5] if "=" in word) if words[:1] == ["some"] else {}
    try:
        return float(told["avg60"]) / 100
    except (KeyError, ValueError):
        return None


def busy_ratio(before: ProcessorTime, now: ProcessorTime) -> float | None:
    """Share of the machine's processors that were busy; None where no time has passed. Counters of the kernel may jump back a little."""
    passed = now.total - before.total
    return min(1.0, max(0.0, (now.busy - before.busy) / passed)) if passed > 0 else None


def own_ratio(before: ProcessorTime, now: ProcessorTime) -> float | None:
    """Share of one processor that the sidecar used, above 1 with several threads; None where no time has passed.

    A process of its own that was replaced meanwhile takes its time with it.
    """
    passed = now.mono - before.mono
    return max(0.0, now.own - before.own) / passed if passed > 0 else None
