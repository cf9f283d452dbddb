"""Which step files were gone before they were read: the steps in them are in no number, and nobody can say how many they were.

A slot keeps the files of its two newest lives. So one is lost when lives follow each other faster than anybody looks, or while no sidecar
lives, or with the pod. A life that says that it has a file and has none in the folder once another life has begun had one, which is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway.ring import parse_ring_name, ring_name
from headway_exporter.observations import DeathSeen, EventSeen

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping

    from headway_exporter.observations import Observation

_MOST_NAMES: Final = 1_024


class LostRings:
    """Compares what lives say with what is in the folder; call `look`, then `note` for what was read after it, again and again."""

    def __init__(self) -> None:
        self._newest: dict[int, str] = {}
        """File of each slot's newest life."""
        self._ended: set[str] = set()
        """Those of them to which nothing is added any more."""
        self._unopened: dict[str, int] = {}
        """Files that this sidecar has not found yet, and their slots."""

    def look(self, there: Collection[str]) -> int:
        """How many are lost, each once; `there`: the files that are in the folder now, and those that are still open."""
        self._unopened = {name: slot for name, slot in self._unopened.items() if name not in there}
        gone = [name for name, slot in self._unopened.items() if self._newest.get(slot) != name]
        for name in gone:
            del self._unopened[name]
        return len(gone)

    def note(self, seen: Observation, read: Container[str]) -> None:
        """A life begins or ends; `read`: files that were read before they went."""
        if isinstance(seen, DeathSeen):
            name = ring_name(seen.slot, seen.life)
            if self._newest.get(seen.slot) == name:
                self._ended.add(name)
        elif isinstance(seen, EventSeen) and seen.slot is not None and seen.event.kind == "process_started":
            self._begin(seen.slot, ring_name(seen.slot, seen.event.life), seen.event.fields.get("ring"), read)

    def _begin(self, slot: int, name: str, has_ring: object, read: Container[str]) -> None:
        before = self._newest.get(slot)
        if name == before:
            return
        self._newest[slot] = name
        self._ended.discard(before or "")
        if has_ring and name not in read and len(self._unopened) < _MOST_NAMES:
            self._unopened[name] = slot

    # From one sidecar to the next.

    def saved(self) -> dict[str, Any]:
        """As JSON."""
        growing = [name for name in self._newest.values() if name not in self._ended]
        return {"newest": list(self._newest.values()), "awaited": sorted({*self._unopened, *growing})}

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Goes on where another one was: what could still grow is to be found again."""
        self._newest = dict(_placed(saved["newest"]))
        self._unopened = {name: slot for slot, name in _placed(saved["awaited"])}
        self._ended = set(self._newest.values()) - self._unopened.keys()


def _placed(names: list[str]) -> list[tuple[int, str]]:
    """Ring names with their slots."""
    parsed = ((parse_ring_name(name), name) for name in names[:_MOST_NAMES])
    return [(ring[0], name) for ring, name in parsed if ring is not None]
