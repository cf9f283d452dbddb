"""Events that wait for those of other files, kept small: a parsed table takes up to thirty times the memory of its text."""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headway.events import Event
from headway_exporter.observations import EventSeen

if TYPE_CHECKING:
    from headway_exporter.observations import Key

FEW_ITEMS: Final = 32
"""An event whose tables and lists have no more items waits as it is: that is nearly every one."""
USUAL_BYTES: Final = 512
"""About what a usual event takes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An event with a large table or list, as bytes."""

    slot: int | None
    mono: float
    key: Key
    content: bytes

    def __len__(self) -> int:
        """How many usual events take as much memory."""
        return 1 + len(self.content) // USUAL_BYTES

    @property
    def seen(self) -> EventSeen:
        """The event again."""
        kind, n, wall, life, incarnation, fields = marshal.loads(self.content)  # noqa: S302 - written below, by this process
        return EventSeen(self.slot, Event(kind, n, wall, self.mono, life, incarnation, MappingProxyType(fields)))


def packed(seen: EventSeen) -> EventSeen | Packed:
    """The event in the form in which it takes less memory."""
    event = seen.event
    if sum(len(value) for value in event.fields.values() if isinstance(value, (dict, list))) <= FEW_ITEMS:
        return seen
    content = (event.kind, event.n, event.wall, event.life, event.incarnation, dict(event.fields))
    return Packed(seen.slot, seen.mono, seen.key, marshal.dumps(content))
