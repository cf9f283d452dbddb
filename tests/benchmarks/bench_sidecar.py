"""What the sidecar costs: catching up, staying up to date, being scraped, memory.

Run it with `make bench`, on a machine that does nothing else. Prints each figure with the design's bound, and exits with 1 when one does
not hold. Catching up is processor time, which a shared machine disturbs least, and beside it stands what merely reading the ring into
records takes. The scrape is measured of a pod without GPUs, with the series of eight, and with these and a state folder; beside it stand
`prometheus_client` with as many series of its own, in one process and in its multiprocess mode, which both only render.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from headway import clock
from headway.journal import JournalWriter
from headway.ring import DEFAULT_CAPACITY, RingReader, RingWriter, ring_name
from headway_exporter.follow import Follower
from headway_exporter.pod import Pod

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "exporter")]

import peers  # noqa: E402 - found by the line above
from fake_nvml import FakeNvml  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_CATCH_UP_MILLISECONDS: Final = 100.0
MOST_CPU_PERCENT: Final = 1.0
MOST_SCRAPE_MILLISECONDS: Final = 10.0
MOST_MEGABYTES: Final = 64.0
RUN: Final = "bench"
RANKS: Final = 8
GPUS: Final = 8
STEPS_PER_SECOND: Final = 10
WATCHED_SECONDS: Final = 20
SCRAPES: Final = 300
SCRAPE_ROUNDS: Final = 5
REPETITIONS: Final = 9
Row = tuple[str, float, str, "float | None"]
"""Name, figure, unit, bound."""


def main() -> int:
    """Prints the figures; 1 when a bound is broken."""
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        catch_up, reading = full_ring(Path(folder))
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        live, with_gpus, with_state = live_sidecars(Path(folder))
    rows = [
        ("catching up a full ring", catch_up, "ms", MOST_CATCH_UP_MILLISECONDS),
        ("  reading it as records", reading, "ms", None),
        ("  catching up / reading", catch_up / reading, "", None),
        (f"CPU, {RANKS} ranks x {STEPS_PER_SECOND}/s", live.cpu_percent, "%", MOST_CPU_PERCENT),
        *scrape_rows("scrape", live),
        *beside(live.series),
        (f"with {GPUS} GPUs, CPU", with_gpus.cpu_percent, "%", MOST_CPU_PERCENT),
        *scrape_rows(f"with {GPUS} GPUs", with_gpus),
        ("and a state folder, CPU", with_state.cpu_percent, "%", MOST_CPU_PERCENT),
        *scrape_rows("and a state folder", with_state),
        *beside(with_gpus.series),
        ("resident memory", live.megabytes, "MB", MOST_MEGABYTES),
        (f"  with {GPUS} GPUs and a state folder", with_state.megabytes, "MB", MOST_MEGABYTES),
    ]
    for name, figure, unit, bound in rows:
        print(f"{name:<36}{figure:8.2f} {unit:<3}" + (f"at most {bound:g}" if bound is not None else ""))
    return int(any(bound is not None and figure > bound for _, figure, _, bound in rows))


def scrape_rows(what: str, live: Live) -> list[Row]:
    """What a scrape costs."""
    return [
        (f"{what}, processor time", live.scrape_cpu_ms, "ms", None),
        (f"{what}, median", live.scrape(50), "ms", None),
        (f"{what}, 99 of 100", live.scrape(99), "ms", MOST_SCRAPE_MILLISECONDS),
    ]


def beside(series: int) -> list[Row]:
    """What others take for as many series."""
    found = [("  series", float(series), "", None), ("  prometheus_client alone", plain_exposition(series), "ms", None)]
    gathered = peers.multiprocess_scrape(series)
    return [*found, *([] if gathered is None else [("  its multiprocess mode", gathered, "ms", None)])]


@dataclass
class Trainers:
    """The journals of a pod's ranks, written by this process."""

    folder: Path
    ranks: int
    rings: list[RingWriter] = field(default_factory=list)
    journals: list[JournalWriter] = field(default_factory=list)
    step: int = 0

    def start(self) -> None:
        """Starts and entries of all ranks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for slot in range(self.ranks):
            self.journals.append(JournalWriter(self.folder / f"slot-{slot}.jsonl", 100 + slot))
            self.rings.append(RingWriter.create(self.folder, slot, 100 + slot))
            self.journals[slot].write("process_started", {"rank": slot, "world_size": self.ranks})
            self.journals[slot].write("train_entered", {"rank": slot, "world_size": self.ranks})

    def steps(self, seconds: float) -> None:
        """One step of every rank, that took so long and ends now."""
        self.step += 1
        end = clock.monotonic_ns()
        for ring in self.rings:
            ring.append(self.step, end - round(seconds * 1e9), end, 0, 0, 2.0, None)

    def samples(self) -> None:
        """What each rank writes every five seconds."""
        for journal in self.journals:
            journal.write("sample", {"step": self.step, "rss_bytes": 1 << 30})


def full_ring(folder: Path) -> tuple[float, float]:
    """Milliseconds to catch up with a ring of the default size, and to read it into records; the best of several."""
    trainers = Trainers(folder / RUN, 1)
    trainers.start()
    for _ in range(DEFAULT_CAPACITY):
        trainers.steps(1e-6)
    return min(_catch_up_ms(folder) for _ in range(REPETITIONS)), min(
        _reading_ms(folder / RUN) for _ in range(REPETITIONS)
    )


def _catch_up_ms(folder: Path) -> float:
    begin = time.process_time()
    follower, pod = Follower(folder, RUN), Pod(RUN, "0")
    while pod.steps.step != DEFAULT_CAPACITY:
        batch = follower.poll()
        pod.set_clock(batch.mono, batch.wall)
        pod.fold(batch.observations)
        pod.advance(batch.mono)
    end = time.process_time()
    follower.close()
    return (end - begin) * 1e3


def _reading_ms(folder: Path) -> float:
    begin = time.process_time()
    reader = RingReader.open(folder / ring_name(0, 100))
    records = reader.poll(limit=reader.capacity)
    end = time.process_time()
    reader.close()
    if len(records) != DEFAULT_CAPACITY:
        sys.exit(f"only {len(records)} of {DEFAULT_CAPACITY} records were read")
    return (end - begin) * 1e3


@dataclass
class Live:
    """What was measured of a sidecar process."""

    cpu_percent: float
    scrapes_ms: list[list[float]]
    """In rounds."""
    scrape_cpu_ms: float
    """Processor time of one, which a shared machine disturbs least."""
    series: int
    megabytes: float

    def scrape(self, percent: int) -> float:
        """Milliseconds that so many of a hundred scrapes do not exceed; of the best round, since a shared machine only adds time."""
        return min(statistics.quantiles(times, n=100)[percent - 1] for times in self.scrapes_ms)


def live_sidecars(folder: Path) -> tuple[Live, Live, Live]:
    """Real sidecars beside ranks that train, one after the other: first its CPU time alone, then scrapes, then its memory.

    The GPUs are a shared library in the driver's place, so that what a true driver takes for an answer is not in the figures.
    """
    journals = folder / "journals"
    trainers = Trainers(journals / RUN, RANKS)
    trainers.start()
    alone = [sys.executable, "-m", "headway_exporter", "--dir", str(journals), "--run", RUN, "--listen", "127.0.0.1:0"]
    alone += ["--linger-seconds", "0"]
    gpus = FakeNvml(folder / "nvml", GPUS).environ
    return (
        _live(trainers, [*alone, "--gpus", "off"], {}, WATCHED_SECONDS),
        _live(trainers, alone, gpus, WATCHED_SECONDS),
        _live(trainers, [*alone, "--state-dir", str(folder / "state")], gpus, WATCHED_SECONDS),
    )


def _live(trainers: Trainers, command: list[str], environ: dict[str, str], seconds: int) -> Live:
    with _process(command, environ) as (pid, address):
        _train(trainers, 2 * STEPS_PER_SECOND)
        before = _cpu_seconds(pid)
        elapsed = _train(trainers, seconds * STEPS_PER_SECOND)
        cpu = (_cpu_seconds(pid) - before) / elapsed * 100
        before = _all_cpu_seconds(pid)
        rounds = [_scrape(address) for _ in range(SCRAPE_ROUNDS)]
        cpu_ms = (_all_cpu_seconds(pid) - before) / (SCRAPE_ROUNDS * SCRAPES) * 1e3
        return Live(cpu, [times for times, _ in rounds], cpu_ms, rounds[-1][1], _resident_bytes(pid) / 1e6)


@contextlib.contextmanager
def _process(command: list[str], environ: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Pid and address of a sidecar that runs."""
    with subprocess.Popen(command, env=os.environ | environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://([^/]+)/", process.stdout.readline())
            if found is None:
                sys.exit("the sidecar did not say where it listens")
            yield process.pid, found[1]
        finally:
            process.terminate()


def _train(trainers: Trainers, steps: int) -> float:
    """Writes so many steps at the pace of the bench; returns the seconds it took."""
    begin = time.monotonic()
    for number in range(steps):
        trainers.steps(0.9 / STEPS_PER_SECOND)
        if number % (5 * STEPS_PER_SECOND) == 0:
            trainers.samples()
        time.sleep(max(0.0, begin + (number + 1) / STEPS_PER_SECOND - time.monotonic()))
    return time.monotonic() - begin


def _scrape(address: str) -> tuple[list[float], int]:
    """Milliseconds of each scrape over one connection, and the samples in the last one."""
    connection = http.client.HTTPConnection(address, timeout=10)
    times, body = [], b""
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        connection.request("GET", "/metrics")
        body = connection.getresponse().read()
        times.append((time.perf_counter() - begin) * 1e3)
    connection.close()
    return times, sum(not line.startswith(b"#") for line in body.splitlines())


def plain_exposition(series: int) -> float:
    """Median milliseconds that `prometheus_client` takes for as many series of a gauge."""
    registry = CollectorRegistry()
    gauge = Gauge("plain", "A gauge", ["run", "pod_index", "number"], registry=registry)
    for number in range(series):
        gauge.labels(RUN, "0", str(number)).set(number)
    times = []
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        generate_latest(registry)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def _processes(pid: int) -> list[int]:
    """The sidecar and the process that asks the GPUs' driver, where there is one."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(child) for listed in children for child in listed.read_text().split())]


def _cpu_seconds(pid: int) -> float:
    """Processor time of all threads so far (user and system), to the nanosecond where the kernel tells."""
    tasks = (task for one in _processes(pid) for task in Path(f"/proc/{one}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _all_cpu_seconds(pid: int) -> float:
    """Processor time of the sidecar, with that of threads that have ended: a scrape has one of its own. To a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    """Of both processes: what they share counts twice."""
    told = (re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{one}/status").read_text()) for one in _processes(pid))
    return sum(int(found[1]) * 1024 for found in told if found)


def _memory_folder() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
