"""Copies of what the sidecar knows at one moment: the only part of the page that the fold ever waits for.

What takes long is done in small portions, each incident by itself, and once: a record is made again only when more became known of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter import records, summary
from headway_exporter.history import RECENT_STRETCHES, RECENT_WIDTH
from headway_exporter.observations import NANOSECONDS
from headway_exporter.report import parse
from headway_exporter.report.model import History, SlotHistory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway_exporter.collectors import Sample
    from headway_exporter.history import History as Stretches
    from headway_exporter.incidents import Incident
    from headway_exporter.pod import Pod
    from headway_exporter.report.model import Record
    from headway_exporter.sidecar import Sidecar

MOST_INCIDENTS: Final = 50
MOST_RECORD_BYTES: Final = 32 << 10
"""Of each incident: less detail than its record on disk has, where a journal is hostile."""
PENDING: Final = "pending"
_IN_THE_LOOP: Final = "other"


@dataclass(frozen=True, slots=True)
class SlotMore:
    """What the summary does not tell of a slot."""

    rank: int | None
    gpu_uuid: str
    in_reserve: bool


@dataclass(frozen=True, slots=True)
class More:
    """What the summary does not tell of the pod."""

    last_step_wall: float | None = None
    slowest_rank_ratio: float | None = None
    saves_since_commit: int = 0
    source_wall: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Incidents that are over."""
    incident_open: bool = False
    xids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By UUID and XID."""
    slots: Mapping[int, SlotMore] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Copies of what a slot did when, nanoseconds."""

    rank: int | None
    history: Stretches
    recent: Stretches
    open: Sequence[tuple[str, int, int]]
    """`(state, begin, end)` of what is not booked yet."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of all slots."""

    now: int
    offset: float
    """What the wall clock is ahead of the monotonic one, seconds."""
    slots: Mapping[int, SlotTimes]

    def whole(self) -> History | None:
        """The run, in stretches that widen with its length; None before there is anything."""
        books = {number: slot.history for number, slot in self.slots.items()}
        ranks = {number: slot.rank for number, slot in self.slots.items()}
        told = summary.stretches(books, ranks, lambda mono: mono + self.offset)
        return parse.history(told) if told["slots"] else None

    def last_hour(self) -> History | None:
        """The last hour, stretch by stretch, up to now; None before there is anything."""
        width = max((one.history.width for one in self.slots.values()), default=RECENT_WIDTH)
        width = min(width, RECENT_WIDTH)
        found = {number: _buckets(slot, width, self.now) for number, slot in sorted(self.slots.items())}
        first = min((min(buckets) for buckets in found.values() if buckets), default=None)
        if first is None:
            return None
        slots = tuple(
            SlotHistory(
                str(number),
                self.slots[number].rank,
                tuple((at - first, states) for at, states in sorted(buckets.items())),
            )
            for number, buckets in found.items()
            if buckets
        )
        return History(first * width / NANOSECONDS + self.offset, width / NANOSECONDS, slots)


@dataclass(frozen=True, slots=True)
class Taken:
    """All of it; nothing in it changes any more."""

    wall: float
    run: str
    pod_index: str
    figures: Mapping[str, Any]
    """`summary.figures`."""
    times: Times
    """What each slot did when."""
    records: tuple[Record, ...]
    """Of the newest incidents, by the time they opened."""
    more: More
    measured: tuple[Sample, ...] = ()
    """What instruments measured."""
    instruments: tuple[str, ...] = ()
    """Names of those that the sidecar has."""
    folder: str = ""
    """Where journals are looked for."""
    watched_seconds: float = 0.0
    """Since when the sidecar looks there."""
    state_dir: bool = False
    state_trouble: str | None = None


class Taking:
    """Takes from one sidecar, again and again, in one thread at a time."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._known: dict[str, tuple[str, Record]] = {}
        """Records by incident, beside how much was known of it."""

    def take(self) -> Taken:
        """What is so now."""
        sidecar = self._sidecar
        with sidecar.held() as pod:
            wall = pod.wall_of(pod.now)
            told, extra = summary.figures(pod, sidecar.collector.dropped, wall), more(pod)
            spent = times(pod)
            newest = list(pod.failures.incidents)[-MOST_INCIDENTS:]
        return Taken(
            wall=wall,
            run=sidecar.where.run,
            pod_index=sidecar.where.pod_index,
            figures=told,
            times=spent,
            records=tuple(self._records(newest, wall)),
            more=extra,
            measured=tuple(sidecar.collector.measured()),
            instruments=tuple(one.name for one in sidecar.collector.instruments),
            folder=str(sidecar.where.directory / sidecar.where.run),
            watched_seconds=clock.monotonic() - sidecar.began,
            state_dir=sidecar.state_dir is not None,
            state_trouble=sidecar.state_trouble,
        )

    def _records(self, incidents: list[Incident], wall: float) -> list[Record]:
        known = {}
        for incident in incidents:
            with self._sidecar.held() as pod:
                found = self._record(pod, incident, wall)
            if found is not None:
                known[incident.id] = found
        self._known = known
        return [record for _, record in known.values()]

    def _record(self, pod: Pod, incident: Incident, wall: float) -> tuple[str, Record] | None:
        fingerprint = records.fingerprint(incident)
        before = self._known.get(incident.id)
        if before is not None and before[0] == fingerprint and before[1].outcome != parse.OPEN:
            return before
        try:
            return fingerprint, parse.record(records.record(pod, incident, wall, MOST_RECORD_BYTES), pod.pod_index)
        except parse.RecordError:  # no sign of it has a time that makes sense
            return None


def more(pod: Pod) -> More:
    """What the summary does not tell."""
    outcomes: dict[str, int] = {}
    for (outcome, _), count in pod.failures.outcomes.items():
        outcomes[outcome] = outcomes.get(outcome, 0) + count
    xids: dict[str, dict[str, int]] = {}
    for (uuid, number), count in pod.gpus.xids.items():
        xids.setdefault(uuid, {})[str(number)] = count
    return More(
        last_step_wall=None if pod.steps.completed is None else pod.wall_of(pod.steps.completed),
        slowest_rank_ratio=pod.steps.slowest_rank_ratio,
        saves_since_commit=pod.checkpoints.since_commit,
        source_wall=dict(pod.source_wall),
        outcomes=outcomes,
        incident_open=pod.failures.open is not None,
        xids=xids,
        slots={
            slot.number: SlotMore(slot.rank, pod.gpus.whole(slot.gpu_uuid), pod.ledger.slot(slot.number).in_reserve)
            for slot in list(pod.slots.values())
        },
    )


def times(pod: Pod) -> Times:
    """Copies of what each slot did when."""
    now = pod.now_ns
    slots = {
        number: SlotTimes(
            pod.slots[number].rank if number in pod.slots else number,
            books.history.copy(),
            books.recent.copy(),
            books.open_stretches(now),
        )
        for number, books in pod.ledger.slots.items()
    }
    return Times(now, pod.wall_of(0.0), slots)


def _buckets(slot: SlotTimes, width: int, now: int) -> dict[int, dict[str, float]]:
    """Rank-seconds by state in each stretch of that width."""
    first = max((now - RECENT_STRETCHES * RECENT_WIDTH) // width + 1, 0)
    found = {number: dict(states) for number, states in _booked(slot, width, first).items()}
    for state, begin, end in slot.open:
        named = PENDING if state == _IN_THE_LOOP else state
        for number in range(max(begin // width, first), -(-end // width)):
            part = min(end, (number + 1) * width) - max(begin, number * width)
            states = found.setdefault(number, {})
            states[named] = states.get(named, 0) + part
    return {
        number: {state: amount / NANOSECONDS for state, amount in states.items()} for number, states in found.items()
    }


def _booked(slot: SlotTimes, width: int, first: int) -> Mapping[int, Mapping[str, int]]:
    """What is booked since the stretch `first`: as the whole history has it, unless the last hour is kept in more detail."""
    history, recent = slot.history, slot.recent.stretches
    if history.width <= width:
        return {number: states for number, states in history.wider(width).items() if number >= first}
    known_from = min(recent, default=None)
    found: dict[int, Mapping[str, int]] = {number: states for number, states in recent.items() if number >= first}
    parts = history.width // width
    for coarse, states in history.stretches.items():
        for number in range(max(coarse * parts, first), (coarse + 1) * parts):
            if known_from is None or number < known_from:
                found[number] = {state: amount // parts for state, amount in states.items()}
    return found
