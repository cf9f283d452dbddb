"""Events that wait for those of other files, kept small: a parsed table takes up to thirty times the memory of its text."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.observations import EventSeen

if TYPE_CHECKING:
    from collections.abc import Iterator

FEW_ITEMS: Final = 32
"""An event whose tables and lists have no more items waits as it is: that is nearly every one."""
USUAL_BYTES: Final = 512
"""About what a usual event takes."""


class PackedFields(Mapping[str, Any]):
    """An event's fields, of which tables and lists are bytes that are unpacked whenever they are asked for."""

    __slots__ = ("_packed", "_plain")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._packed = {name: marshal.dumps(value) for name, value in fields.items() if isinstance(value, (dict, list))}
        self._plain = {name: value for name, value in fields.items() if name not in self._packed}

    @property
    def weight(self) -> int:
        """How many usual events take as much memory."""
        return 1 + sum(map(len, self._packed.values())) // USUAL_BYTES

    def __getitem__(self, name: str) -> Any:
        if name in self._packed:
            return marshal.loads(self._packed[name])  # noqa: S302 - packed above, by this process
        return self._plain[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._packed

    def __len__(self) -> int:
        return len(self._plain) + len(self._packed)


def packed(seen: EventSeen) -> EventSeen:
    """The event in the form in which it takes less memory."""
    fields = seen.event.fields
    if sum(len(value) for value in fields.values() if isinstance(value, (dict, list))) <= FEW_ITEMS:
        return seen
    return EventSeen(seen.slot, replace(seen.event, fields=PackedFields(fields)))


def weight(seen: object) -> int:
    """About how many usual events take as much memory as this observation."""
    fields = seen.event.fields if isinstance(seen, EventSeen) else None
    return fields.weight if isinstance(fields, PackedFields) else 1
