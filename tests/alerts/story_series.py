"""Series as a Prometheus would have scraped them: made-up journals, folded by the real fold, through the real collectors.

What instruments measured is beside them, as it was at the time; see `Tape.measure`.

Second 0 of a story is promtool's time 0. A metric that leaves the scrape ends with a staleness marker, as in Prometheus.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from incident_tale import Tale
from pod_story import WALL, Story
from promtool import one

from headway.events import Event
from headway.ring import StepRecord
from headway_alerts import catalogue, promql
from headway_alerts.config import Config
from headway_alerts.model import Alert
from headway_exporter import collectors
from headway_exporter.distribution import Distribution
from headway_exporter.observations import DeathSeen, EventSeen, GpuSeen, GpusFound, StepSeen
from headway_exporter.pod import Pod
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from promtool import Series

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

    Told = EventSeen | StepSeen | DeathSeen | GpuSeen | GpusFound
    Measured = tuple[float, str, Sequence[Sample]]
    """When, by which instrument, and what it shows from then on."""

Scrape = dict[str, float]
BUDGET = 10
"""Restarts that the launcher may make."""


class Listening(Pod):
    """Keeps what it is told."""

    def __init__(self, run: str, pod_index: str) -> None:
        super().__init__(run, pod_index)
        self.told: list[Observation] = []

    def fold(self, observations: Iterable[Observation]) -> None:
        told = list(observations)
        self.told += told
        super().fold(told)


class Tape(Tale):
    """A `Tale` that can be scraped. Two acts more.

    `train 11-600/60`: steps, and a checkpoint requested and durable at every 60th · `steps` take `each` seconds.
    """

    def __init__(self, ranks: int = 2, *, pod_index: str = "0", pods: int = 1, each: float = 1) -> None:
        Story.__init__(self, pod_index, "demo")  # not the Tale's, which begins its story before this pod could listen
        self.pod: Listening = Listening("demo", pod_index)
        self.pod.set_clock(0.0, WALL)
        self.told: dict[str, Any] = {}
        self.ranks = tuple(range(ranks))
        self._restarts = 0
        self._each, self._pods = each, pods
        self.measured: list[Measured] = []
        self.happened: list[tuple[str, float]] = []
        """Acts, and when each began."""
        self.now = self.running(steps=10, slots=self.ranks)

    def start(self, at: float, *slots: int, **fields: Any) -> None:
        """With what a supervised launcher and a trainer say about themselves."""
        super().start(at, *slots, **({"restart_budget": BUDGET, "pods_expected": self._pods} | fields))

    def tell(self, acts: str) -> Tape:
        for act in acts.split(","):
            self.happened.append((act.strip(), self.now))
            super().tell(act)
        return self

    def when(self, act: str, time: int = 1) -> float:
        """When this act began for the n-th time."""
        return [at for said, at in self.happened if said.startswith(act)][time - 1]

    def measure(self, instrument: str, samples: Iterable[Sample]) -> None:
        """What this instrument shows from now on."""
        self.measured.append((self.now, instrument, list(samples)))

    def _train(self, span: str) -> None:
        steps, _, every = span.partition("/")
        first, last = map(int, steps.split("-"))
        for step in range(first, last + 1):
            self._steps(f"{step}-{step}")
            if step % int(every) == 0:
                self.event(0, "checkpoint", self.now, stage="requested", step=step)
                self.event(0, "checkpoint", self.now, stage="written", step=step, seconds=0.5, bytes=1000)
                self._commit(str(step))

    def _steps(self, span: str) -> None:
        first, last = map(int, span.split("-"))
        for number in range(first, last + 1):
            for slot in self.ranks:
                record = StepRecord(0, number, _ns(self.now), _ns(self._each), 0, 0, 2.0, 10)
                self.pod.fold([StepSeen(slot, self.lives[slot], record)])
            self.now += self._each
        self.pod.advance(self.now)

    def scrapes(self, every: float = 15) -> list[Scrape]:
        """Of its pod, up to the story's end."""
        return scrapes(self.pod.told, self.now, every, pod_index=self.pod.pod_index, measured=self.measured)


def scrapes(
    told: Iterable[Observation],
    until: float,
    every: float,
    *,
    pod_index: str = "0",
    measured: Sequence[Measured] = (),
) -> list[Scrape]:
    """What was scraped, every so many seconds from 0 on."""
    pod = Pod("demo", pod_index)
    pod.set_clock(0.0, 0.0)
    left = by_time(told)
    found = []
    for count in range(int(until // every) + 2):
        now = count * every
        while left and left[-1].mono <= now:
            pod.fold([left.pop()])
        samples_of_trainers(pod, now)
        pod.advance(now)
        newest = {instrument: samples for at, instrument, samples in measured if at <= now}
        found.append(_scrape(pod, newest.values()))
    return found


def series(scraped: Sequence[Scrape | None]) -> Series:
    """In promtool's notation; None: the target could not be scraped."""
    names = {text: None for scrape in scraped if scrape is not None for text in scrape}
    return {text: _notation([None if scrape is None else scrape.get(text) for scrape in scraped]) for text in names}


def by_time(told: Iterable[Observation], zero: float = 0.0) -> list[Told]:
    """The last one first. `zero`: wall time of the story's second 0."""
    found = sorted((_from(seen, zero) for seen in told), key=lambda seen: seen.key)
    found.reverse()
    return found


def _from(seen: Observation, zero: float) -> Told:
    if isinstance(seen, EventSeen):
        return EventSeen(seen.slot, replace(seen.event, wall=seen.event.mono + zero))
    if isinstance(seen, GpuSeen):
        return replace(seen, wall=seen.mono + zero)
    assert isinstance(seen, (StepSeen, DeathSeen, GpusFound))
    return seen


def samples_of_trainers(pod: Pod, now: float, zero: float = 0.0) -> None:
    """Every living process writes one every few seconds; here with each scrape, its container being as the last one found it."""
    container = {"cgroup_used_bytes": pod.container.used_bytes, "cgroup_limit_bytes": pod.container.limit_bytes}
    fields = {name: value for name, value in container.items() if value is not None}
    for slot in pod.alive:
        if slot.life is not None and not slot.finished:
            pod.fold([EventSeen(slot.number, Event("sample", 0, now + zero, now, slot.life, slot.incarnation, fields))])


def _used() -> frozenset[str]:
    texts: list[str] = []
    for group in catalogue.groups(Config()):
        for rule in group.rules:
            texts += [rule.expr, *((rule.summary, rule.description) if isinstance(rule, Alert) else ())]
    return frozenset(name for text in texts for name in promql.raw_names(text))


USED = _used()
"""Raw names that any rule looks at: the others would only cost time."""


def _scrape(pod: Pod, measured: Iterable[Sequence[Sample]]) -> Scrape:
    parts = (
        *measured,
        collectors.run(pod),
        collectors.steps(pod),
        collectors.ledger(pod),
        collectors.checkpoints(pod),
        collectors.restarts(pod),
        collectors.incidents(pod),
        collectors.gpus(pod),
        collectors.sources(pod, Counter(), 0),
    )
    return {
        text: value
        for part in parts
        for name, labels, sample in part
        for text, value in _series(pod, name, labels, sample)
    }


def _series(
    pod: Pod, name: str, labels: tuple[str, ...], sample: float | Distribution | None
) -> Iterator[tuple[str, float]]:
    named = dict(zip(METRICS[name].labels, labels, strict=True))
    if isinstance(sample, Distribution):
        values = {f"{name}_sum": sample.total, f"{name}_count": sample.cumulative()[-1][1]}
    else:
        values = {} if sample is None else {name: float(sample)}
    for text, value in values.items():
        if text in USED:
            yield one(text, pod.pod_index, pod.run, **named), value


def _notation(values: Sequence[float | None]) -> str:
    """Values, `_` where there is none, `stale` where one has just gone; runs of the same are written once."""
    words: list[str] = []
    for before, value in zip((None, *values), values, strict=False):
        words.append(f"{value:.6g}" if value is not None else "stale" if before is not None else "_")
    runs: list[tuple[str, int]] = []
    for word in words:
        again = runs and runs[-1][0] == word and word != "stale"
        runs[-1:] = [(word, runs[-1][1] + 1)] if again else [*runs[-1:], (word, 1)]
    return " ".join(_run(word, count) for word, count in runs)


def _run(word: str, count: int) -> str:
    """`1x3` stands for four values, `_x3` for three."""
    if count == 1:
        return word
    return f"_x{count}" if word == "_" else f"{word}x{count - 1}"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
