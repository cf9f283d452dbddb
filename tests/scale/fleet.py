"""A made-up fleet: what thousands of pods would have served in the last eighteen minutes, by the exporter's own hand.

A few stories are folded by the real fold and read through the real collector, scrape by scrape: what a pod shows where a failure begins,
and what one shows that only hears of it. Every pod of a run then tells one of the two under its own name. So names, labels and numbers
are those of a sidecar, and cannot drift from it. Metrics of the catalogue that no story serves (GPUs, host) are made up from their labels.
"""

from __future__ import annotations

import itertools
import struct
import threading
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from incident_tale import GAP
from story_series import Tape, by_time, samples_of_trainers

from headway_exporter.collectors import PodCollector
from headway_exporter.follow import Follower
from headway_exporter.pod import Pod
from headway_exporter.schema import COMMON_LABELS, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway_exporter.schema import Metric

RANKS: Final = 8
"""In each pod, and as many GPUs."""
EVERY: Final = 15.0
"""Seconds between two scrapes."""
SCRAPES: Final = 72
"""Eighteen minutes: no rule looks further back at a sidecar's own series."""
LAST_EVENT_SECONDS: Final = 500
"""Before the last scrape everything has happened: what must fire does so from then on."""

Values = tuple[float | None, ...]
"""Of a series, at each scrape; None: it was not there."""
Labels = tuple[tuple[str, str], ...]

_DIFFERENT: Final = ("rank", "node", "UUID")

STALE: Final[float] = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""What Prometheus writes when a series is in a scrape no more."""

_LOOP: Final = (
    "wait 20, launcher 1500, wait 20, kill 0, wait 20, launcher 1500, wait 20, kill 1, wait 20, launcher 1500, wait 560"
)


@dataclass(frozen=True)
class Kind:
    """What happens in a run: acts of the pod where it begins, in the language of `Tale`, and alerts that must come of it.

    Not those that look back at recorded series: when the rules come, everything has happened.
    """

    acts: str
    alerts: frozenset[str] = frozenset()
    gone: bool = False
    """The first pod is not scraped in the last ten minutes."""

    @property
    def heard(self) -> str:
        """The acts of the other pods: they only notice that their collectives break."""
        return self.acts.replace("kill", "echo").replace("fail", "echo")


KINDS: Final = {
    "steady": Kind("train 11-1500/60"),
    "recovered": Kind("train 11-1200/60, kill 1, wait 20, launcher 1200, wait 20, train 1201-1700/60"),
    "in process": Kind("train 11-1200/60, fail 3, wait 2, in_process 1200, train 1201-1700/60"),
    "twice": Kind(
        "train 11-900/60, fail 2, wait 2, in_process 900, train 901-1200/60, kill 2, wait 20, launcher 1200, train 1201-1700/60",
        frozenset({"HeadwayRecurringEntity"}),
    ),
    "restarting": Kind("train 11-1500/60, kill 1, wait 520"),
    "stuck": Kind("train 11-1500/60, kill 5, wait 100, launcher 1500, wait 1500", frozenset({"HeadwayRecoveryStuck"})),
    "crash loop": Kind(f"train 11-1500/60, kill 1, {_LOOP}", frozenset({"HeadwayRecurringFailure"})),
    "stalled": Kind("train 11-1500/60, wait 800", frozenset({"HeadwayTrainingStalled"})),
    "pod gone": Kind("train 11-1500/60", frozenset({"HeadwaySidecarDown"}), gone=True),
    "unsaved": Kind("train 11-900/60, steps 901-1900", frozenset({"HeadwayCheckpointStale"})),
    "finished": Kind("train 11-1500/60, finish, wait 600"),
}
MIX: Final = ("steady", "recovered", "steady", "in process", *KINDS, "steady")
"""Kinds of the runs of a fleet, in turn: most are well, or were again."""


@dataclass(frozen=True, eq=False)
class Series:
    """One series of a pod: its own labels, the name among them, and what it was. Many pods share it: it equals only itself."""

    labels: Labels
    values: Values

    @cached_property
    def differs(self) -> bool:
        """Whether its labels are others on every pod."""
        return any(name in _DIFFERENT for name, _ in self.labels)


@dataclass(frozen=True)
class PodSeries:
    """All series of one pod."""

    run: str
    index: int
    """Within the run."""
    number: int
    """Within the fleet."""
    series: tuple[Series, ...]

    @property
    def common(self) -> Labels:
        """On every series: what the exporter puts there, and what Prometheus adds of a target."""
        address = f"10.{self.number >> 16 & 255}.{self.number >> 8 & 255}.{self.number & 255}:9838"
        target = {
            "job": "headway",
            "namespace": "training",
            "pod": f"{self.run}-{self.index}-x7k2p",
            "instance": address,
        }
        return tuple({**target, "run": self.run, "pod_index": str(self.index)}.items())

    def own(self, series: Series) -> Labels:
        """Of one series: ranks are those of the whole run, nodes and GPUs those of the pod."""
        if not series.differs:
            return series.labels
        return tuple((name, self._own(name, value)) for name, value in series.labels)

    def _own(self, name: str, value: str) -> str:
        if name == "rank":
            return str(int(value) + RANKS * self.index)
        return f"{value}-{self.number:x}" if name in _DIFFERENT else value


@dataclass(frozen=True)
class Fleet:
    """So many runs of so many pods. `end`: seconds since 1970 of the last scrape."""

    runs: int
    pods: int
    end: float
    gpus: bool = False
    """With metrics of GPUs, hosts, network cards and volumes."""

    @property
    def kinds(self) -> dict[str, str]:
        """Run to what happens in it."""
        return {f"run-{at:02}": kind for at, kind in zip(range(self.runs), itertools.cycle(MIX), strict=False)}

    @property
    def alerts(self) -> set[tuple[str, str]]:
        """Alerts that must fire: name and run."""
        return {(alert, run) for run, kind in self.kinds.items() for alert in KINDS[kind].alerts}

    def times(self) -> list[int]:
        """Of the scrapes, milliseconds since 1970."""
        return [round((self.end - EVERY * back) * 1000) for back in reversed(range(SCRAPES))]

    def series(self) -> Iterator[PodSeries]:
        """Pod by pod; pods that tell the same story share its values."""
        for number, (run, index) in enumerate(itertools.product(self.kinds, range(self.pods))):
            kind = KINDS[self.kinds[run]]
            told = _told(
                kind.acts if index == 0 else kind.heard, self.pods, self.end, kind.gone and index == 0, self.gpus
            )
            yield PodSeries(run, index, number, told)


@cache
def _told(acts: str, pods: int, end: float, gone: bool, gpus: bool) -> tuple[Series, ...]:
    tape = Tape(RANKS, pods=pods)
    tape.world_size = RANKS * pods
    tape.tell(acts)
    scraped = _scraped(tape, end)
    names = {text: None for scrape in scraped for text in scrape}
    found = [Series(labels, _staled([scrape.get(labels) for scrape in scraped])) for labels in names]
    served = frozenset(dict(one.labels)["__name__"] for one in found)
    found += [Series(labels, (_well(labels),) * SCRAPES) for labels in (_unserved(served) if gpus else ())]
    return tuple(_until(one, SCRAPES - 40) if gone else one for one in found)


def _scraped(tape: Tape, end: float) -> list[dict[Labels, float]]:
    """The story's last scrapes; its last second is `end`."""
    pod = Pod("run", "0")
    pod.set_clock(0.0, end - tape.now)
    collector = PodCollector(pod, Follower(Path("none"), "run"), threading.Lock())
    left = by_time(tape.pod.told, end - tape.now)
    found = []
    for back in reversed(range(SCRAPES)):
        now = tape.now - back * EVERY
        while left and left[-1].mono <= now:
            pod.fold([left.pop()])
        samples_of_trainers(pod, now, end - tape.now)
        pod.advance(now)
        found.append(_exposition(collector))
    return found


def _exposition(collector: PodCollector) -> dict[Labels, float]:
    """Without the labels that every series has: each pod gives it its own."""
    return {
        tuple(
            (name, text)
            for name, text in {"__name__": sample.name, **sample.labels}.items()
            if name not in COMMON_LABELS
        ): (sample.value)
        for family in collector.collect()
        for sample in family.samples
    }


def _staled(values: Sequence[float | None]) -> Values:
    return tuple(
        STALE if value is None and before is not None else value
        for before, value in zip((None, *values), values, strict=False)
    )


def _until(series: Series, last: int) -> Series:
    values = (*series.values[:last], STALE)
    return Series(series.labels, (*values, *[None] * (SCRAPES - len(values))))


def _unserved(served: frozenset[str]) -> Iterator[Labels]:
    """Series of what instruments measure, all being well, with their closed sets of labels or a few made-up values."""
    for metric in METRICS.values():
        measured = metric.name.startswith(_MEASURED) and not metric.name.startswith(_ONLY_IN_TROUBLE)
        if measured and not any(name.startswith(metric.name) for name in served):
            yield from (labels for labels in _combinations(metric) if not _OF_OTHERS & set(labels))


def _well(labels: Labels) -> float:
    """A value that alarms nobody."""
    name = dict(labels)["__name__"]
    return 1.0 if name.endswith(("_up", "_bytes", "links_active", "_available_ratio")) and "used" not in name else 0.0


_MEASURED: Final = ("headway_gpu_", "headway_host_", "headway_nic_", "headway_storage_")
_ONLY_IN_TROUBLE: Final = "headway_gpu_xid_"
_OF_OTHERS: Final = {("kind", "receive"), ("kind", "integrity")}
"""Kinds of NVLink errors that GPUs of another generation count."""


_MADE_UP: Final = {
    "modelName": ("NVIDIA H100 80GB HBM3",),
    "device": ("mlx5_0", "mlx5_1"),
    "volume": ("checkpoints", "state"),
    "type": ("corrected", "uncorrected"),
    "counter": ("aggregate", "volatile"),
    "kind": ("replay", "recovery", "crc_flit", "crc_data"),
    "reason": ("hw_thermal", "hw_power_brake", "sw_thermal", "sw_power"),
    "xid": ("31",),
    "class": ("software",),
}


def _combinations(metric: Metric) -> Iterator[Labels]:
    per_gpu = "gpu" in metric.labels
    own = {
        name: known or _MADE_UP[name]
        for name, known in metric.labels.items()
        if name not in ("gpu", "UUID", "pci_bus_id")
    }
    for gpu in range(RANKS if per_gpu else 1):
        place = {"gpu": str(gpu), "UUID": f"GPU-{gpu}a5c2b9e-1111-2222", "pci_bus_id": f"00000000:{gpu:02X}:00.0"}
        for values in itertools.product(*own.values()):
            labels = {"__name__": metric.name, **(place if per_gpu else {}), **dict(zip(own, values, strict=True))}
            yield tuple(sorted(labels.items()))


assert GAP < EVERY
