"""What the sidecar measures of its machine and of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from subprocess import PIPE
from typing import TYPE_CHECKING

import psutil
import pytest
from sidecar_process import sidecar

from headway_exporter.health.host import (
    HostProbe,
    ProcessorTime,
    busy_ratio,
    children,
    own_ratio,
    pressure_ratio,
    processor_time,
)

if TYPE_CHECKING:
    from pathlib import Path

SOME = "some avg10=90.00 avg60={} avg300=0.10 total=123456\n"
FULL = "full avg10=0.00 avg60=77.00 avg300=0.00 total=0\n"


def test_the_machine_is_read() -> None:
    """Memory adds up to the machine's, and shares of a time span come with the second look."""
    probe = HostProbe()
    first = probe.read()
    assert first.memory_size == psutil.virtual_memory().total
    assert 0 < first.memory_used < first.memory_size
    assert first.own_memory > 1_000_000
    assert first.load >= 0
    assert (first.cpu, first.own_cpu) == (None, None)
    sum(range(2_000_000))
    second = probe.read()
    assert second.own_cpu is not None
    assert second.own_cpu > 0
    while second.cpu is None:  # the kernel counts in hundredths of a second
        second = probe.read()
    assert 0 <= second.cpu <= 1


def test_the_sidecars_share_is_that_of_all_its_threads() -> None:
    """The thread that reads the machine is the one that has the least to do."""
    used = []

    def work() -> None:
        began = time.thread_time()
        sum(range(2_000_000))
        used.append(time.thread_time() - began)

    before, other = processor_time(), threading.Thread(target=work)
    other.start()
    other.join()
    assert processor_time().own - before.own >= used[0] > 0


def test_a_process_of_its_own_is_part_of_the_sidecar() -> None:
    """What asks the GPUs' driver costs the node as much as the rest, and is none of the trainer's."""
    before, memory = processor_time().own, HostProbe().read().own_memory
    busy = "sum(range(10_000_000)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        [(resident, seconds)] = children()
        assert seconds > 0
        assert resident > 1_000_000
        assert HostProbe().read().own_memory >= memory + resident // 2
        assert processor_time().own - before >= seconds
        child.kill()
    assert not list(children())


@pytest.mark.parametrize(
    ("now", "busy", "own"),
    [
        (ProcessorTime(200, 60, 4, 20), 0.5, 0.2),
        (ProcessorTime(200, 111, 4, 20), 1.0, 0.2),
        (ProcessorTime(200, 9, 34, 20), 0.0, 3.2),
        (ProcessorTime(100, 10, 2, 10), None, None),
        (ProcessorTime(99, 10, 2, 9), None, None),
        (ProcessorTime(200, 60, 1, 20), 0.5, 0.0),
    ],
)
def test_shares_are_of_the_time_between(now: ProcessorTime, busy: float | None, own: float | None) -> None:
    """Of a hundred seconds of all processors, and of ten of the clock; a counter that jumps gives no share below 0 or above 1."""
    before = ProcessorTime(100, 10, 2, 10)
    assert (busy_ratio(before, now), own_ratio(before, now)) == (busy, own)


@pytest.mark.parametrize(
    ("content", "ratio"),
    [
        (SOME.format("12.50") + FULL, 0.125),
        (SOME.format("0.00") + FULL, 0.0),
        (FULL, None),
        (SOME.format("many"), None),
        ("", None),
        ("some\n", None),
        ("some avg10 avg60\n", None),
        (None, None),
    ],
)
def test_pressure_is_the_last_minutes(tmp_path: Path, content: str | None, ratio: float | None) -> None:
    """Of some process, not of all; a kernel that does not count is not one without pressure."""
    if content is not None:
        (tmp_path / "memory").write_text(content)
    assert pressure_ratio(tmp_path / "memory") == ratio


def test_a_kernel_that_refuses_to_tell_pressure_costs_nothing_else(tmp_path: Path) -> None:
    """With psi=0 the file is there and cannot be read."""
    (tmp_path / "memory").mkdir()
    reading = HostProbe(tmp_path / "memory").read()
    assert reading.pressure is None
    assert reading.memory_size > 0


def test_a_sidecar_shows_its_machine(tmp_path: Path) -> None:
    """From the start and before any trainer, and its own share is that of its process."""
    with sidecar(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value("headway_sidecar_memory_bytes"), "the machine")
        found = exporter.samples()
        resident = psutil.Process(exporter.process.pid).memory_info().rss
        assert found["headway_host_memory_limit_bytes", (("scope", "node"),)] == psutil.virtual_memory().total
        assert found["headway_sidecar_memory_bytes", ()] == pytest.approx(resident, rel=0.5)
        assert found["headway_host_load_ratio", ()] >= 0
        assert found["headway_collector_success", (("collector", "host"),)] == 1
        assert ("headway_host_memory_pressure_ratio", ()) in found or not os.access("/proc/pressure/memory", os.R_OK)
