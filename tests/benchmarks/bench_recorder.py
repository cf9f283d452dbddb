"""What recording a step costs, next to one histogram observation of prometheus_client in the same run.

Run it with `make bench`, on a machine that does nothing else. Prints the median of each, in microseconds, and their
ratio; exits with 1 when a bound of the design does not hold. Each figure is the best of several repetitions, taken in
turns, because a shared machine only ever adds time.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Histogram

from headway import Recorder
from headway.ring import DEFAULT_CAPACITY, RingReader, ring_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_MICROSECONDS: Final = 1.5
MOST_OBSERVATIONS: Final = 1.0
MOST_CATCH_UP_MILLISECONDS: Final = 100.0
REPETITIONS: Final = 25
BATCHES: Final = 200
BATCH: Final = 100


def main() -> int:
    """Prints the figures; 1 when a bound is broken."""
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        recorder = Recorder.from_env(environ={"HEADWAY_DIR": folder, "HEADWAY_RUN": "bench"})
        histogram = Histogram("step_seconds", "Duration of a step", registry=CollectorRegistry())
        ring = recorder.identity.folder / ring_name(recorder.identity.slot, recorder.life)
        fill(recorder)
        home = recorder.identity.folder
        jobs = (record_steps, record_steps_with_tokens, record_steps_with_data_wait)
        found = []
        for _ in range(REPETITIONS):
            steps = [median_us(lambda job=job: job(recorder)) for job in jobs]  # type: ignore[misc]
            with folder_gone(home):
                lost_step = median_us(lambda: record_steps(recorder))
            found.append((*steps, median_us(lambda: observe(histogram)), lost_step, catch_up(ring)))
        step_us, with_tokens_us, with_wait_us, observe_us, lost_step_us, catch_up_ms = map(
            min, zip(*found, strict=True)
        )
        event_us = best_us(lambda: record_phases(recorder))
        with folder_gone(home):
            lost_event_us = best_us(lambda: record_phases(recorder))
        recorder.close()
    ratio = step_us / observe_us
    rows = [
        ("recording a step", step_us, "us", MOST_MICROSECONDS),
        ("one Histogram.observe", observe_us, "us", None),
        ("step / observation", ratio, "", MOST_OBSERVATIONS),
        ("step with tokens too", with_tokens_us, "us", MOST_MICROSECONDS),
        ("and a data_wait in it", with_wait_us, "us", None),
        ("a phase (two events)", event_us, "us", None),
        ("step, folder removed", lost_step_us, "us", MOST_MICROSECONDS),
        ("phase, folder removed", lost_event_us, "us", None),
        ("reading a full ring", catch_up_ms, "ms", MOST_CATCH_UP_MILLISECONDS),
    ]
    for name, figure, unit, bound in rows:
        print(f"{name:<24}{figure:8.2f} {unit:<3}" + (f"at most {bound:g}" if bound is not None else ""))
    return int(any(bound is not None and figure > bound for _, figure, _, bound in rows))


@contextlib.contextmanager
def folder_gone(folder: Path) -> Iterator[None]:
    """Moves the journal's folder away, and back: so the same recorder is measured with and without, in turns."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    yield
    shutil.rmtree(folder, ignore_errors=True)  # the recorder may have made it anew
    aside.rename(folder)


def record_steps(recorder: Recorder) -> None:
    """One batch of what a trainer writes."""
    for number in range(BATCH):
        with recorder.step(number) as step:
            step.loss = 1.0


def record_steps_with_tokens(recorder: Recorder) -> None:
    """Steps that tell their tokens as well."""
    for number in range(BATCH):
        with recorder.step(number) as step:
            step.loss = 1.0
            step.tokens = 4096


def record_steps_with_data_wait(recorder: Recorder) -> None:
    """What the reference trainer records in each step."""
    for number in range(BATCH):
        with recorder.step(number) as step:
            with recorder.phase("data_wait"):
                pass
            step.loss = 1.0
            step.tokens = 4096


def record_phases(recorder: Recorder) -> None:
    """Phases outside a step, each of which writes two events."""
    for _ in range(BATCH):
        with recorder.phase("eval"):
            pass


def observe(histogram: Histogram) -> None:
    """One batch of the observation that a trainer would make instead, of steps of a second."""
    for _ in range(BATCH):
        histogram.observe(1.0)


def fill(recorder: Recorder) -> None:
    """Fills the ring, so that every place of it has been written before."""
    for _ in range(DEFAULT_CAPACITY // BATCH + 1):
        record_steps(recorder)


def median_us(job: Callable[[], None]) -> float:
    """Median microseconds of one operation, over many batches."""
    return statistics.median(_batch_seconds(job) for _ in range(BATCHES)) / BATCH * 1e6


def best_us(job: Callable[[], None]) -> float:
    """The least of some medians: what the code takes when the machine does nothing else."""
    return min(median_us(job) for _ in range(REPETITIONS // 5))


def catch_up(path: Path) -> float:
    """Milliseconds that a sidecar takes to read a full ring."""
    reader = RingReader.open(path)
    begin = time.perf_counter()
    records = reader.poll(limit=reader.capacity)
    end = time.perf_counter()
    reader.close()
    if len(records) != reader.capacity:
        sys.exit(f"only {len(records)} of {reader.capacity} records were read")
    return (end - begin) * 1e3


def _batch_seconds(job: Callable[[], None]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def _memory_folder() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
