"""A driver's library that hangs or crashes, at one GPU or at all: a real library that does so, in the process that loads it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeNvml, uuid
from nvml_process import Reader, reader

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = uuid(0), uuid(1)


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs in good health."""
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def read(fake: FakeNvml) -> Iterator[Reader]:
    """A process that has read them once."""
    with reader(fake.environ) as process:
        process.do()
        yield process


def children(pid: int) -> list[int]:
    """Processes that it started."""
    return [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]


def until(condition: object) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_crash_is_no_more_than_a_pause(read: Reader, fake: FakeNvml) -> None:
    """SIGSEGV in the driver's library: another process takes its place, the other GPUs are up, and XIDs that may be lost are counted."""
    fake.change(1, power="@crash")
    read.do()
    assert (read.samples["gpu_up", FIRST], read.samples["collector_success", "nvml"]) == (1, 1)
    fake.change(1, power=500_000)
    read.until(lambda: read.samples.get(("gpu_power_watts", SECOND)) == 500, "read")
    assert sum(seen["count"] for seen in read.told if seen["what"] == "EventsMissed") >= 1
    fake.report(1, 79)
    read.until(lambda: read.happened("xid"))


def test_a_gpu_that_crashes_the_library_costs_itself_only(read: Reader, fake: FakeNvml) -> None:
    """Whatever asks about it ends by SIGSEGV: it is down, the others are read on, and it is not evidence of a hang."""
    fake.change(0, power="@crash")
    for _ in range(4):
        read.do()
        up = {key[1]: value for key, value in read.samples.items() if key[0] == "gpu_up"}
        assert up == {FIRST: 0, SECOND: 1}
        assert ("gpu_power_watts", SECOND) in read.samples
    assert not read.happened("hung")


def test_a_library_that_crashes_at_once_is_not_started_again_and_again(fake: FakeNvml) -> None:
    """Each start costs processor time: after some failures there are only few, and the reading process lives on."""
    fake.machine["init"] = "@crash"
    fake.play()
    with reader(fake.environ) as read:
        for _ in range(3):
            read.do()
            assert read.samples == {("collector_success", "nvml"): 0}
        pids = set()
        for _ in range(20):
            read.do()
            pids.update(children(read.process.pid))
        assert len(pids) <= 3
        del fake.machine["init"]
        fake.play()
        read.until(lambda: read.samples.get(("gpu_up", FIRST)) == 1, "read")


def test_the_gpu_at_which_the_driver_hangs_is_told_and_no_other(read: Reader, fake: FakeNvml) -> None:
    """Its rank's failure is explained by it; the healthy one is read on, and told of nothing."""
    before = time.monotonic()
    fake.change(1, power="@hang")
    read.until(lambda: read.samples.get(("gpu_up", FIRST)) == 1 and read.happened("hung"), "read")
    (hung,) = read.happened("hung")
    assert hung["uuid"] == SECOND
    assert before <= hung["mono"] <= time.monotonic() - 1.0  # when it was asked, not when it was given up
    read.do()
    assert (read.samples["gpu_up", FIRST], read.samples["gpu_up", SECOND]) == (1, 0)
    assert ("gpu_power_watts", FIRST) in read.samples
    fake.change(1, power=1_000)
    read.until(lambda: read.happened("back"), "read")
    assert [seen["uuid"] for seen in read.happened("hung") + read.happened("back")] == [SECOND, SECOND]


def test_a_driver_that_hangs_altogether_is_told_of_each_gpu_once(read: Reader, fake: FakeNvml) -> None:
    """No call returns: all ranks' GPUs hang, since the first call that did not return."""
    before = time.monotonic()
    fake.machine["hang"] = 1
    fake.play()
    read.until(lambda: len(read.happened("hung")) == 2, "read")
    assert {seen["uuid"] for seen in read.happened("hung")} == {FIRST, SECOND}
    assert all(before <= seen["mono"] < before + 5 for seen in read.happened("hung"))
    assert {value for key, value in read.samples.items() if key[0] == "gpu_up"} == {0}
    read.do()
    assert len(read.happened("hung")) == 2
    del fake.machine["hang"]
    fake.play()
    read.until(lambda: len(read.happened("back")) == 2, "read")


def test_waiting_for_events_that_never_returns(read: Reader, fake: FakeNvml) -> None:
    """The GPUs answer and are up; the process is replaced, so that XIDs are heard again, and the gap is told."""
    fake.machine["wait"] = "@hang"
    fake.play()
    read.until(lambda: any(seen["what"] == "EventsMissed" for seen in read.told), "read")
    assert (read.samples["gpu_up", FIRST], read.samples["collector_success", "nvml"]) == (1, 1)
    del fake.machine["wait"]
    fake.play()

    def heard() -> bool:
        fake.report(1, 74)
        read.do()
        return bool(read.happened("xid"))

    read.until(heard)


def test_waiting_that_fails_begins_anew_at_once(read: Reader, fake: FakeNvml) -> None:
    """XIDs are heard again without another reading, and that some may be lost is told once, however often it failed."""
    fake.machine["wait"] = "!999"
    fake.play()
    read.until(lambda: any(seen["what"] == "EventsMissed" for seen in read.told))
    del fake.machine["wait"]
    fake.play()

    def heard() -> bool:
        fake.report(0, 31)
        return bool(read.happened("xid"))

    read.until(heard)
    assert sum(seen["count"] for seen in read.told if seen["what"] == "EventsMissed") == 1


def test_registering_that_hangs_costs_the_events_only(fake: FakeNvml) -> None:
    """GPUs are up meanwhile, and once it ends their errors are heard."""
    fake.change(0, events="@hang")
    with reader(fake.environ) as read:
        read.do()
        assert (read.samples["gpu_up", FIRST], read.samples["collector_success", "nvml"]) == (1, 1)
        fake.change(0, events=8)

        def heard() -> bool:
            fake.report(0, 79)
            read.do()
            return bool(read.happened("xid"))

        read.until(heard)


@pytest.mark.parametrize("hangs", [False, True], ids=["idle", "in a call that hangs"])
def test_the_process_ends_with_the_one_that_started_it(fake: FakeNvml, hangs: bool) -> None:
    """However the sidecar ends, nobody is left who holds the GPUs."""
    with reader(fake.environ) as read:
        read.do()
        (child,) = children(read.process.pid)
        if hangs:
            fake.machine["hang"] = 1
            fake.play()
        os.kill(read.process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text())


def test_an_end_while_the_driver_hangs_is_quiet(fake: FakeNvml, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever ends the sidecar kills the process that asks: no fault of the driver's, and no reason to start another."""
    with reader(fake.environ) as read:
        read.do()
        fake.machine["hang"] = 1
        fake.play()
        read.do("start")
        read.do("stop")
        assert children(read.process.pid) == []
    assert capfd.readouterr().err == ""


def test_the_process_is_small(read: Reader) -> None:
    """It must not import what only the sidecar needs: of Python and its bindings it has memory, and of nothing else."""
    (child,) = children(read.process.pid)
    maps = Path(f"/proc/{child}/maps").read_text()
    assert "libnvidia-ml" in maps
    assert "psutil" not in maps
    (line,) = [one for one in Path(f"/proc/{child}/status").read_text().splitlines() if one.startswith("VmRSS")]
    assert int(line.split()[1]) < 24_000  # kB; 15.7 MB as this is written


def test_a_storm_of_many_numbers_is_counted_exactly(read: Reader, fake: FakeNvml) -> None:
    """Thousands of XIDs that nobody knows, each with another number: none is lost, and none pushes out the one that matters."""
    with (fake.folder / "events").open("a") as file:
        for number in range(3_000):
            file.write(f"0 8 {100_000 + number} 2\n" + ("1 8 79 1\n" if number == 1_500 else ""))
    read.until(lambda: sum(seen["count"] for seen in read.happened("xid")) == 6_001)
    assert [(seen["uuid"], seen["count"]) for seen in read.happened("xid") if seen["xid"] == 79] == [(SECOND, 1)]
