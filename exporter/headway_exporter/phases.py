"""What a try to go on spent its time on, as far as the journals tell: exclusive phases that add up to the whole of it.

    last step  failed       gone        started                  entered                       end           mark regained
        | detect  | teardown   | respawn   | rendezvous and init    | init, load and first_step  |  catch_up  |

A boundary that nobody told of is not there: its phase is empty and the next one begins earlier. Where ranks differ the slowest counts. A
try that failed before its end spent its last time on the phase that it was in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway.events import Event

_CLEANED: Final = ("aborted", "finalized")
_LEFT: Final = "process_exited"
_MEASURED: Final = {"rendezvous": "rendezvous", "checkpoint_load": "load", "init": "init"}
_MOST_RANKS: Final = 64


@dataclass(slots=True)
class Timeline:
    """Boundaries of one try, CLOCK_MONOTONIC seconds; None: nobody told."""

    progressed: float
    """End of the last step, or whatever else was the last sign that all was well."""
    failed: float
    """First evidence."""
    gone: float | None = None
    """The last old process died, or the last rank had cleaned up."""
    started: float | None = None
    """The last new process began."""
    entered: float | None = None
    """The last rank entered training."""
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """Measured phases, by slot."""
    _begun: dict[tuple[str, int], float] = field(default_factory=dict)

    def note(self, slot: int, event: Event) -> None:
        """An event of a rank of the pod."""
        at, kind = event.mono, event.kind
        if kind in _CLEANED:
            self.gone = at
        elif kind == "process_started":
            self.started = at
        elif kind == _LEFT:
            self.died(at)
        elif kind == "train_entered":
            self.entered = at
        elif kind == "phase":
            self._phase(slot, _MEASURED.get(event.fields.get("name", "")), event)
        elif kind == "checkpoint" and event.fields.get("stage") == "loaded":
            self._add("load", slot, event.fields.get("seconds", 0.0))

    def died(self, at: float) -> None:
        """A process of before the restart is gone."""
        if self.started is None:
            self.gone = at

    def durations(self, end: float) -> dict[str, float]:
        """Seconds by phase, up to the first step or to the next failure at `end`."""
        self._close_open(end)
        found = {"detect": max(0.0, self.failed - self.progressed)}
        cursor = self.failed
        for phase, boundary in (("teardown", self.gone), ("respawn", self.started)):
            until = cursor if boundary is None else max(min(boundary, end), cursor)
            found[phase], cursor = until - cursor, until
        entered = end if self.entered is None and self.started is not None else self.entered
        entered = cursor if entered is None else max(min(entered, end), cursor)
        before, after = entered - cursor, max(0.0, end - entered)
        found["rendezvous"], before = _take("rendezvous", self.seconds, before)
        found["load"], before = _take("early load", self.seconds, before)
        load, after = _take("load", self.seconds, after)
        init, after = _take("init", self.seconds, after)
        found["load"] += load
        found["init"] = before + init
        found["first_step"] = after
        return found

    def _phase(self, slot: int, phase: str | None, event: Event) -> None:
        edge = event.fields.get("edge")
        if phase is None or edge not in ("begin", "end"):
            return
        if edge == "begin":
            if len(self._begun) < 2 * _MOST_RANKS:
                self._begun[phase, slot] = event.mono
        else:
            begun = self._begun.pop((phase, slot), event.mono)
            self._add(phase, slot, event.mono - begun)

    def _add(self, phase: str, slot: int, seconds: float) -> None:
        """A measured duration; a load may be told twice, by its phase and by its own event."""
        if self.entered is None and phase == "init":
            return  # what comes before training is entered is init anyhow
        if self.entered is None and phase == "load":
            phase = "early load"
        known = self.seconds.setdefault(phase, {})
        if slot in known or len(known) < _MOST_RANKS:
            known[slot] = max(known.get(slot, 0.0), seconds)

    def _close_open(self, end: float) -> None:
        for (phase, slot), begun in self._begun.items():
            self._add(phase, slot, end - begun)
        self._begun.clear()


def _take(phase: str, seconds: dict[str, dict[int, float]], room: float) -> tuple[float, float]:
    """The slowest rank's time in a phase, as far as there is room for it, and the room that is left."""
    taken = min(max(seconds.get(phase, {}).values(), default=0.0), room)
    return taken, room - taken
