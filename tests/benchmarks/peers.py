"""Other people's tools beside ours, in the same run: what a step costs them, what their scrape costs, and what their goodput says.

Run it with `make peers`. Speed: `prometheus_client` in its multiprocess mode (what a trainer with several processes would use) and the
OpenTelemetry SDK, each recording a step's duration and number as a histogram and a gauge. Goodput: the calculator of
`ml-goodput-measurement` on the ledger's golden cases, each of which has an answer that was worked out by hand. It is in no extra, as it
brings clients of Google's cloud that nothing here needs: `pip install --no-deps ml-goodput-measurement==0.2.3`. Who is not installed is
left out. It exits with 1 when our answer is not the one worked out by hand.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "exporter")]

import golden_story  # noqa: E402 - found by the line above

from headway_exporter.observations import DeathSeen, EventSeen, StepSeen  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH: Final = 500
BATCHES: Final = 40
PROCESSES: Final = 8
OUTSIDE: Final = (
    *(
        "google",
        "google.cloud",
        "google.cloud.logging",
        "google.cloud.storage",
        "google.api_core",
        "google.api_core.exceptions",
    ),
    *("scipy", "scipy.stats", "requests", "urllib3", "urllib3.util", "urllib3.util.retry"),
)
"""What their calculator imports and does not need here."""
SERIES: Final = 50
"""Series of each process in the multiprocess scrape: eight times as many are about those of a pod."""
NEAR: Final = 0.005
"""An answer that is off by less than this share of the right one counts as that: their clock is the wall's, ours the story's."""
_LAST: Final = "what breaks between two steps, and its repair, is the earlier step's"
_ONE: Final = "one process's log speaks for all ranks"
_AGAIN: Final = "a step done twice counts with its second, slower pass"
WHY: Final[dict[str, str]] = {
    "failure_during_a_save": "the half second that a save blocked inside a step is part of the step",
    "failure_during_evaluation": _LAST,
    "found_dead_together": _LAST,
    "in_process_restart": _LAST,
    "in_process_tries_that_escalate": _LAST,
    "never_regained_and_abandoned": "a last step counts only once another starts or the job ends",
    "no_loss_restart_after_an_hour": _LAST + ": an hour",
    "operators_reset": "a deliberate reset counts as a disruption, and its steps as wasted",
    "rank_finished_and_needed_again": _LAST + "; " + _ONE,
    "rank_finishes_early": _ONE,
    "reserve_rank_never_needed": _ONE,
    "reserve_rank_takes_over": _ONE,
    "ring_overwritten_around_a_failure": "lost records: two steps at the edges of what is missing have no neighbour to end them",
    "slow_replay": _AGAIN,
    "slow_replay_half_way": _AGAIN,
    "straggler": _ONE + "; " + _LAST,
}
"""Why their answer is another one; both are told the same story."""


def main() -> int:
    """Prints both tables; 1 when ours is not the answer by hand."""
    for name, figure, unit in speed():
        print(f"{name:<52}{figure:10.2f} {unit}")
    print()
    wrong, same, cases = 0, 0, sorted(golden_story.FOLDER.glob("*.yaml"))
    calculator = load_calculator()
    print(f"{'case':<42}{'by hand':>9}{'headway':>9}{'ml-goodput':>12}  why it differs")
    for path in cases:
        case = golden_story.load(path)
        hand, ours = (
            case["expect"]["training_goodput"],
            golden_story.pod_after(case).ledger.totals(round(case["now"] * 1e9)),
        )
        theirs = None if calculator is None else their_goodput(calculator, case)
        found = ours.training_goodput
        wrong += found is None or abs(found - hand) > 1e-6
        differs = theirs is not None and abs(theirs - hand) > NEAR * hand
        same += theirs is not None and not differs
        told = "none" if theirs is None else f"{theirs:.4f}"
        print(
            f"{path.stem:<42}{hand:9.4f}{found or 0.0:9.4f}{told:>12}  {WHY.get(path.stem, '?') if differs else ''}".rstrip()
        )
    print(
        f"of {len(cases)} cases, ours is the answer by hand in {len(cases) - wrong}, ml-goodput-measurement's in {same}"
    )
    return int(wrong > 0)


# Speed.


def speed() -> Iterator[tuple[str, float, str]]:
    """Name, figure and unit of each."""
    for name, code in (
        ("headway, a step with a loss", OURS),
        ("prometheus_client, multiprocess mode", MULTIPROCESS),
        ("OpenTelemetry SDK", OTEL),
    ):
        figure = alone(code)
        if figure is not None:
            yield f"recording a step: {name}", figure, "us"
    figure = multiprocess_scrape()
    if figure is not None:
        yield f"scrape of {PROCESSES} processes, multiprocess mode", figure, "ms"


PRELUDE: Final = f"""
import os, statistics, sys, time
def report(job, batch={BATCH}, batches={BATCHES}):
    times = []
    for _ in range(batches):
        begin = time.perf_counter()
        for number in range(batch):
            job(number)
        times.append((time.perf_counter() - begin) / batch * 1e6)
    print(statistics.median(times))
"""
OURS: Final = """
from headway import Recorder
recorder = Recorder.from_env()
def job(number):
    with recorder.step(number) as step:
        step.loss = 1.0
report(job)
"""
MULTIPROCESS: Final = """
from prometheus_client import Gauge, Histogram
duration, step = Histogram("step_seconds", "Duration"), Gauge("step", "Number", multiprocess_mode="max")
def job(number):
    duration.observe(1.0)
    step.set(number)
report(job)
"""
OTEL: Final = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
meter = MeterProvider(metric_readers=[InMemoryMetricReader()]).get_meter("bench")
duration, step = meter.create_histogram("step_seconds"), meter.create_gauge("step")
def job(number):
    duration.record(1.0)
    step.set(number)
report(job)
"""
WRITER: Final = """
from prometheus_client import Counter
counter = Counter("things", "Things", ["which"])
for number in range(SERIES):
    counter.labels(str(number)).inc()
os._exit(0)
"""
COLLECTOR: Final = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
report(lambda _: generate_latest(registry), 1, 50)
"""


def alone(code: str, folder: str | None = None, runs_made: int = 3) -> float | None:
    """What the code reports, in a process and a folder in memory of its own; the best of several; None when a package is missing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as fresh:
        place = folder or fresh
        environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": place, "HEADWAY_DIR": place, "HEADWAY_RUN": "bench"}
        runs = [
            subprocess.run(
                [sys.executable, "-c", PRELUDE + code], env=environ, capture_output=True, text=True, check=False
            )
            for _ in range(runs_made)
        ]
    figures = [float(one.stdout) for one in runs if one.returncode == 0 and one.stdout]
    return min(figures, default=None)


def multiprocess_scrape(series: int = PROCESSES * SERIES) -> float | None:
    """Milliseconds of a scrape of so many series in the process that gathers what the others wrote; the best of three medians."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for _ in range(PROCESSES):
            alone(f"SERIES = {series // PROCESSES}\n{WRITER}", folder, 1)
        microseconds = alone(COLLECTOR, folder)
    return None if microseconds is None else microseconds / 1e3


# Goodput.


class Log:
    """Stands where their Cloud Logging client stands."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        """As theirs."""
        self.entries.append(entry)

    def read_cloud_logging_entries(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], tuple[None, None]]:
        """As theirs: the entries, and where the next query would begin."""
        return self.entries, (None, None)


class Absent(types.ModuleType):
    """A module that is not installed, and that nothing here needs: every name in it is a class that does nothing."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load_calculator() -> Any:
    """Their module; None when it is not installed. What it imports only to reach Google's cloud is left out."""
    found = importlib.util.find_spec("ml_goodput_measurement")
    for name in OUTSIDE:
        if name.startswith("google") or not importable(name):
            sys.modules[name] = Absent(name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
    try:
        bare = types.ModuleType("ml_goodput_measurement")  # its own __init__ imports their monitoring, too
        bare.__path__ = list(found.submodule_search_locations or []) if found else []
        sys.modules["ml_goodput_measurement"] = bare
        return importlib.import_module("ml_goodput_measurement.src.goodput")
    except ImportError as error:
        print(
            f"{error}; pip install --no-deps ml-goodput-measurement==0.2.3, or its column stays empty", file=sys.stderr
        )
        return None


def importable(name: str) -> bool:
    """Whether the module is installed."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def their_goodput(module: Any, case: dict[str, Any]) -> float | None:
    """What their calculator says of the first rank's story, told as their documentation wants it; None when it refuses.

    A process start is a job start, the way to `train_entered` their accelerator's start-up, loading a checkpoint their training
    preparation; data waits outside of steps are data loading, an evaluation is an event of the user's own.
    """
    log = Log()
    offset = time.time() - case["now"]  # it always asks what has become by now
    slot = case["ranks"][0]
    for seen in golden_story.observations(case):
        tell(log, seen, slot, offset)
    log.entries.sort(key=lambda entry: max(value for name, value in entry.items() if name.endswith("_time")))
    with tempfile.TemporaryDirectory() as cache:
        calculator = module.GoodputCalculator("golden", "golden", cloud_logger=log, cache_dir=cache)
        try:
            return float(calculator.get_job_goodput()[0]) / 100
        except ValueError:
            return None


def tell(log: Log, seen: EventSeen | StepSeen | DeathSeen, slot: int, offset: float) -> None:
    """One observation in their words."""
    if seen.slot != slot or isinstance(seen, DeathSeen):
        return
    if isinstance(seen, StepSeen):
        begin = seen.record.start_ns / 1e9 + offset
        log.write_cloud_logging_entry({"job_name": "golden", "step_count": seen.record.step, "step_start_time": begin})
        return
    for name in THEIR_WORDS.get((seen.event.kind, seen.event.fields.get("name"), seen.event.fields.get("edge")), ()):
        entry = {"job_name": "golden", name: seen.mono + offset}
        log.write_cloud_logging_entry(
            entry | ({"custom_badput_event_type": "eval"} if name.startswith("custom") else {})
        )


THEIR_WORDS: Final[dict[tuple[str, Any, Any], tuple[str, ...]]] = {
    ("process_started", None, None): ("job_start_time", "tpu_init_start_time"),
    ("train_entered", None, None): ("tpu_init_end_time",),
    ("phase", "checkpoint_load", "begin"): ("training_prep_start_time",),
    ("phase", "checkpoint_load", "end"): ("training_prep_end_time",),
    ("phase", "data_wait", "begin"): ("data_loading_start_time",),
    ("phase", "data_wait", "end"): ("data_loading_end_time",),
    ("phase", "eval", "begin"): ("custom_badput_event_start_time",),
    ("phase", "eval", "end"): ("custom_badput_event_end_time",),
    ("train_finished", None, None): ("job_end_time",),
}

if __name__ == "__main__":
    sys.exit(main())
