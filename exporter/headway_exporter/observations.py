"""What the sidecar sees, one value per sight: the only input of everything that is counted.

The ledger and the failures fold these and read no clock and no file, so a recorded sequence replays to the same answer. Times
are CLOCK_MONOTONIC seconds of the machine, which all processes of a pod share.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headway.events import Event
    from headway.ring import StepColumns, StepRecord
    from headway_exporter.origins import OriginVerdict

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class EventSeen:
    """A journal line of a slot, or of the launcher (`slot` None)."""

    slot: int | None
    event: Event

    @property
    def mono(self) -> float:
        """When it was written."""
        return self.event.mono

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.event.mono * 1e6), 1


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A completed step."""

    slot: int
    life: int
    record: StepRecord

    @property
    def sequence(self) -> int:
        """Its number in the ring."""
        return self.record.sequence

    @property
    def mono(self) -> float:
        """When it was complete."""
        return self.record.end_ns / NANOSECONDS

    @property
    def key(self) -> Key:
        """Its place in time."""
        return self.record.end_ns // 1_000, 0


@dataclass(frozen=True, slots=True)
class Run:
    """Completed steps of one life, whose ends rise."""

    slot: int
    life: int
    columns: StepColumns

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def sequence(self) -> int:
        """The first one's number in the ring."""
        return self.columns.first

    @property
    def mono(self) -> float:
        """When the last one was complete."""
        return self.columns.ends[-1] / NANOSECONDS

    @property
    def key(self) -> Key:
        """Place in time of the last one."""
        return self.columns.ends[-1] // 1_000, 0

    def split(self, microseconds: int) -> tuple[Run | None, Run | None]:
        """The steps up to this time, that one included, and those after it."""
        at = bisect_right(self.columns.ends, microseconds * 1_000 + 999)
        return self._part(0, at), self._part(at, len(self))

    def steps(self) -> list[StepSeen]:
        """One by one."""
        return [StepSeen(self.slot, self.life, record) for record in self.columns.records()]

    def _part(self, low: int, high: int) -> Run | None:
        if low == 0 and high == len(self):
            return self
        return Run(self.slot, self.life, self.columns.cut(low, high)) if low < high else None


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """Many steps of one or more lives, between which nothing else was seen; one run a life."""

    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    @property
    def mono(self) -> float:
        """When the last one was complete."""
        return max(run.mono for run in self.runs)

    @property
    def key(self) -> Key:
        """Place in time of the last one."""
        return max(run.key for run in self.runs)

    def steps(self) -> list[StepSeen]:
        """One by one, in time order."""
        return sorted((seen for run in self.runs for seen in run.steps()), key=lambda seen: seen.key)

    def halves(self) -> list[StepsSeen]:
        """The earlier and the later steps; one part when all came at the same time."""
        first = min(run.columns.ends[0] for run in self.runs) // 1_000
        middle = (first + self.key[0]) // 2
        parts = [run.split(middle) for run in self.runs]
        halves = ([run for run in half if run is not None] for half in zip(*parts, strict=True))
        return [StepsSeen(tuple(half)) for half in halves if half]


@dataclass(frozen=True, slots=True)
class DeathSeen:
    """A trainer process is gone.

    `by` says how that is known: the kernel released its `lock`; the lock was already free when it was `found`, so that the
    death is dated by the life's last trace; it was `replaced` by another life of the slot (dated likewise); or by `silence`.
    """

    slot: int
    life: int
    mono: float
    by: Literal["lock", "found", "replaced", "silence"]

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 2


@dataclass(frozen=True, slots=True)
class VerdictSeen:
    """The pods settled where a failure began; None: they did not in time, and each decides alone."""

    incident: str
    """Id under which they exchanged what they knew."""
    verdict: OriginVerdict | None
    mono: float
    """When it was read."""

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 3


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """Something happened to a GPU of this machine, as its driver tells.

    `kind`: `xid`, an error that the driver reported (`xid` is its number; `count` of them, the last at this time); `ecc`, memory errors
    that could not be corrected (`count` more of them); `nvlink`, errors of its links (`count` more); `lost`, it does not answer any more;
    `hung`, the driver hangs when it is asked about it; `back`, it answers again; `remap`, a bad row could not be replaced.
    """

    uuid: str
    kind: Literal["xid", "ecc", "nvlink", "lost", "hung", "back", "remap"]
    mono: float
    wall: float
    """Seconds since 1970."""
    xid: int = 0
    count: int = 1
    text: str = ""
    """For people, short: what the driver said, or which counter rose."""
    parts: tuple[str, ...] = ()
    """UUIDs of its MIG devices, as ranks may name them."""

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 1


@dataclass(frozen=True, slots=True)
class GpusFound:
    """The GPUs of this machine, told when they are first seen and when something about that changes."""

    gpus: tuple[tuple[str, ...], ...]
    """Of each its number, UUID, address on the bus and model: the values of its labels."""
    parts: tuple[tuple[str, str], ...]
    """UUIDs of MIG instances, each with that of the GPU it is a part of."""
    mono: float

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 0


@dataclass(frozen=True, slots=True)
class EventsMissed:
    """So many times the GPUs' driver was not listened to for a moment; whatever it reported then is lost."""

    count: int
    mono: float

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 3


@dataclass(frozen=True, slots=True)
class PodStatusSeen:
    """What the orchestrator tells of this pod, or of an earlier one in its place.

    `kind`: `heard`, it answers at all; `container`, a container ended; `disruption`, the pod is taken away, or was.
    """

    kind: Literal["heard", "container", "disruption"]
    mono: float
    """When it was read."""
    wall: float
    """When it happened, by the orchestrator's clock: seconds since 1970, the end of its whole second for a container."""
    happening: str = ""
    """Names it, so that the same one told again is known again."""
    reason: str = "other"
    """One of `labels.CONTAINER_ENDS` or `labels.DISRUPTIONS`."""
    cause: str | None = None
    """What it tells of why, one of `labels.CAUSES`."""
    sure: bool = True
    """That cause is beyond doubt."""
    exit_code: int | None = None
    """Of a container; negative is a signal."""
    text: str = ""
    """For people, short."""
    trains: bool = True
    """Of a container: training runs in it, as far as the pod tells."""

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 3


@dataclass(frozen=True, slots=True)
class PortSeen:
    """A port of a network card that has, or once had, a link."""

    device: str
    number: str
    linked: bool
    errors: tuple[tuple[str, int], ...] = ()
    """What it has counted since its driver was loaded, by kind (`labels.NIC_ERRORS`); what it does not count is not there."""


@dataclass(frozen=True, slots=True)
class NicsSeen:
    """All ports of this machine's network cards that have, or once had, a link."""

    boot: str
    """Names this start of this machine: on another one the same names are other cards."""
    ports: tuple[PortSeen, ...]
    mono: float
    """When they were read."""
    wall: float
    """Seconds since 1970."""

    @property
    def key(self) -> Key:
        """Its place in time."""
        return round(self.mono * 1e6), 1


Key = tuple[int, int]
"""Place in time: microseconds, and at equal times steps before events before deaths.

Journal lines round to microseconds, so a step that came just before a line must not slip behind it; and what a process wrote last
comes before its death.
"""

Observation = (
    EventSeen
    | StepSeen
    | StepsSeen
    | DeathSeen
    | VerdictSeen
    | GpuSeen
    | GpusFound
    | EventsMissed
    | NicsSeen
    | PodStatusSeen
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Observations in time order; all that happened up to `mono` is in this batch or in one before it, short of a writer's delay."""

    observations: tuple[Observation, ...]
    mono: float
    wall: float
