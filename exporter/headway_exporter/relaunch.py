"""The launcher's own account of a restart: when it noticed, what took its time, which nodes take part.

NVRx 0.6 and later print their way through it, and write a file for each cycle (`launcher_phase` and `launcher_cycle` events):

    failure_detected → worker_terminated → rendezvous_started → rendezvous_completed → worker_start_completed

and 0.7 health_check_completed in between. The moments are the launcher's own, to the millisecond: the journal has when `headway run`
read of them.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.scene import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.events import Event

MOST_NODES: Final = 4_096
MOST_NAMED: Final = 3
"""Nodes of each sort that a text names; the others are counted."""
_LATE_SECONDS: Final = 60.0
"""How far a moment may lie before it was read of; beyond that somebody set a clock."""
_NAME_LIMIT: Final = 48
_STAGES: Final = {
    "worker_terminated": "workers gone",
    "rendezvous_started": "next round open",
    "health_check_completed": "node checked",
    "rendezvous_completed": "nodes met",
    "worker_start_completed": "workers started",
}
_PART: Final = re.compile(r"([^,\[\]]*)\[([\d,-]+)\]|([^,\[\]]+)")


class Relaunch:
    """What is known of the launcher's restart under way, and of the nodes of the newest cycle."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Since the failure was detected, by stage."""
        self.detected: float | None = None
        """CLOCK_MONOTONIC seconds."""
        self.met: dict[int, float] = {}
        """When the nodes of a cycle had found each other, CLOCK_MONOTONIC seconds."""
        self.nodes: str | None = None

    def phase(self, event: Event) -> Evidence | None:
        """Takes a `launcher_phase` event: a sign of a failure when one was detected, an account when its workers are started again."""
        name, at, cycle = event.fields.get("name"), _moment(event), event.fields.get("cycle", 0)
        if name == "failure_detected":
            self.detected, self.seconds = at, {}
            where = event.fields.get("node", "")[:_NAME_LIMIT]
            return _evidence("detected", event, at, f"launcher {where} noticed the failure that began cycle {cycle}")
        if name == "rendezvous_completed":
            self.met = {cycle: at}
        if self.detected is None or name not in _STAGES:
            return None
        self.seconds[name] = at - self.detected
        return self._account(event, at) if name == "worker_start_completed" else None

    def cycle(self, event: Event) -> Evidence | None:
        """Takes a `launcher_cycle` event: who left and who came, when there was a cycle before it."""
        nodes, before = event.fields.get("active_nodes"), self.nodes
        if nodes is None:
            return None
        self.nodes = nodes
        number = event.fields.get("cycle", 0)
        if before is None:
            return None
        words = _changes(expand(before), expand(nodes))
        reserve = len(expand(event.fields.get("standby_nodes", "")))
        words += f", {reserve} in reserve" if reserve else ""
        return _evidence("nodes", event, self.met.get(number, event.mono), f"cycle {number}: {words}")

    def _account(self, event: Event, at: float) -> Evidence:
        told = ", ".join(f"{_STAGES[name]} {seconds:.1f} s" for name, seconds in self.seconds.items())
        self.detected = None
        return _evidence("relaunch", event, at, f"launcher, after it noticed: {told}")


def expand(nodelist: str) -> frozenset[str]:
    """The names in a Slurm node list such as `node[001-003,7],other`, at most MOST_NODES of them."""
    return frozenset(islice(_names(nodelist), MOST_NODES))


def _names(nodelist: str) -> Iterator[str]:
    for prefix, numbers, plain in _PART.findall(nodelist):
        if plain:
            yield plain
        for piece in numbers.split(",") if numbers else ():
            first, _, last = piece.partition("-")
            if not (first.isdecimal() and (last or first).isdecimal() and len(piece) <= 2 * 12):
                continue
            for number in range(int(first), min(int(last or first), int(first) + MOST_NODES) + 1):
                yield f"{prefix}{number:0{len(first)}d}"


def _changes(before: frozenset[str], now: frozenset[str]) -> str:
    parts = [f"{_some(names)} {verb}" for names, verb in ((before - now, "left"), (now - before, "came")) if names]
    return ", ".join(parts) or ("the same node" if len(now) == 1 else f"the same {len(now)} nodes")


def _some(names: frozenset[str]) -> str:
    shown = [name[:_NAME_LIMIT] for name in sorted(names)[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _moment(event: Event) -> float:
    """CLOCK_MONOTONIC seconds: the launcher's own moment, or when it was read of."""
    told = event.fields.get("told_wall")
    late = 0.0 if told is None else event.wall - told
    return event.mono - late if 0.0 <= late <= _LATE_SECONDS else event.mono


def _evidence(kind: Any, event: Event, at: float, text: str) -> Evidence:
    return Evidence(kind, at, event.wall - (event.mono - at), text)
