"""What the sidecar sees, one value per sight: the only input of everything that is counted.

The ledger and the failures fold these and read no clock and no file, so a recorded sequence replays to the same answer. Times
are CLOCK_MONOTONIC seconds of the machine, which all processes of a pod share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headway.events import Event
    from headway.ring import StepRecord

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
    def mono(self) -> float:
        """When it was complete."""
        return self.record.end_ns / NANOSECONDS

    @property
    def key(self) -> Key:
        """Its place in time."""
        return self.record.end_ns // 1_000, 0


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


Key = tuple[int, int]
"""Place in time: microseconds, and at equal times steps before events before deaths.

Journal lines round to microseconds, so a step that came just before a line must not slip behind it; and what a process wrote last
comes before its death.
"""

Observation = EventSeen | StepSeen | DeathSeen


@dataclass(frozen=True, slots=True)
class Batch:
    """Observations in time order; all that happened up to `mono` is in this batch or in one before it, short of a writer's delay."""

    observations: tuple[Observation, ...]
    mono: float
    wall: float
