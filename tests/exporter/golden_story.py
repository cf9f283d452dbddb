"""Golden cases of the ledger: stories in YAML, each with the answer worked out by hand, turned into observations.

A file holds one case: `says` (what it protects), `ranks` (slots that an item concerns unless it names its own), `story` and `expect`
(what the books say at second `now`). The items of a story, `at` in seconds:

    {at: 10, do: steps, from: 1, to: 5}      completed steps; each: 1 (seconds), every: each (from start to start), blocked: 0,
                                             waited: 0 (seconds of each); seen: false when their records were overwritten
    {at: 20, do: death, by: lock}            a process is gone
    {at: 0, do: process_started}             a new life; every other `do` is a journal event of the present life, fields as there
    {at: 0, do: launcher_started}            events of the launcher have no slot

`wall_shift` on an item moves the wall clock from there on. In `expect`, seconds are summed over ranks, steps are those of the rank that
has most, and a goodput is a fraction of such seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import yaml

from headway.events import KINDS, Event
from headway.ring import StepRecord
from headway_exporter.observations import DeathSeen, EventSeen, StepSeen
from headway_exporter.pod import Pod

FOLDER: Final = Path(__file__).parent / "golden"
WALL: Final = 1_700_000_000.0
_LAUNCHER: Final = ("launcher_started", "worker_exited", "heartbeat_missed", "worker_group_failed", "launcher_exited")
_ITEM: Final = frozenset({"at", "do", "ranks", "wall_shift"})


@dataclass
class Teller:
    """Turns the items of one story into observations, in the order in which they are told."""

    ranks: list[int]
    seen: list[EventSeen | StepSeen | DeathSeen] = field(default_factory=list)
    lives: dict[int, int] = field(default_factory=dict)
    incarnations: dict[int, str | None] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    shift: float = 0.0

    def tell(self, item: dict[str, Any]) -> None:
        """One item."""
        self.shift += item.get("wall_shift", 0.0)
        if item["do"] in _LAUNCHER:
            self._event(None, item)
            return
        for slot in item.get("ranks", self.ranks):
            if item["do"] == "steps":
                self._steps(slot, item)
            elif item["do"] == "death":
                self.seen.append(DeathSeen(slot, self.lives[slot], item["at"], item["by"]))
            else:
                self._event(slot, item)

    def _event(self, slot: int | None, item: dict[str, Any]) -> None:
        fields = {name: value for name, value in item.items() if name not in _ITEM}
        incarnation = fields.pop("incarnation", None)
        unknown = fields.keys() - KINDS[item["do"]].fields.keys()
        assert not unknown, f"{item['do']} has no {unknown}"
        life = 1
        if slot is not None:
            life = self._life(slot, item["do"], incarnation)
            incarnation = self.incarnations[slot]
            fields = ({"rank": slot} if "rank" in KINDS[item["do"]].fields else {}) | fields
        event = Event(item["do"], 0, WALL + item["at"] + self.shift, item["at"], life, incarnation, fields)
        self.seen.append(EventSeen(slot, event))

    def _life(self, slot: int, kind: str, incarnation: str | None) -> int:
        if kind == "process_started":
            self.lives[slot] = self.lives.get(slot, 100 * slot) + 1
            self.sequences[slot] = 0
            self.incarnations[slot] = None
        if kind == "train_entered":
            self.incarnations[slot] = incarnation
        return self.lives[slot]

    def _steps(self, slot: int, item: dict[str, Any]) -> None:
        each = item.get("each", 1)
        for count, number in enumerate(range(item["from"], item["to"] + 1)):
            begin = item["at"] + count * item.get("every", each)
            shares = (_ns(item.get("waited", 0)), _ns(item.get("blocked", 0)))
            record = StepRecord(self.sequences[slot], number, _ns(begin), _ns(each), *shares)
            self.sequences[slot] += 1
            if item.get("seen", True):
                self.seen.append(StepSeen(slot, self.lives[slot], record))


def observations(case: dict[str, Any]) -> list[EventSeen | StepSeen | DeathSeen]:
    """The case as the follower would hand it on: in order of time."""
    teller = Teller(case["ranks"])
    for item in case["story"]:
        teller.tell(item)
    return sorted(teller.seen, key=lambda seen: seen.key)


def pod_after(case: dict[str, Any]) -> Pod:
    """A pod that was told the whole case."""
    pod = Pod("golden", "0")
    pod.set_clock(0.0, WALL)
    pod.fold(observations(case))
    pod.advance(case["now"])
    assert not sum(pod.dropped.values())
    return pod


def answer(pod: Pod, names: Any) -> dict[str, Any]:
    """What the pod says about each of the names that a case may expect."""
    totals = pod.ledger.totals(pod.now_ns)
    books = pod.ledger.slots.values()
    found: dict[str, Any] = {
        "states": {name: amount / 1e9 for name, amount in totals.states.items() if amount},
        "elapsed": totals.elapsed / 1e9,
        "pending": totals.pending / 1e9,
        "unregained": totals.unregained / 1e9,
        "lost_seconds": totals.lost / 1e9,
        "lost_steps": max(slot.lost_steps for slot in books),
        "productive_steps": max(slot.productive_steps for slot in books),
        "replayed_steps": max(slot.replayed_steps for slot in books),
        "mark": pod.mark,
        "training_goodput": totals.training_goodput,
        "infrastructure_goodput": totals.infrastructure_goodput,
        "restarts": {layer: count for layer, count in pod.failures.restarts.items() if count},
        "origins": ", ".join(
            f"{one.diagnosis.cause} on rank {one.diagnosis.origin}" for one in pod.failures.recoveries
        ),
        "recoveries": len(pod.failures.recoveries),
        "same_checkpoint_loads": pod.failures.same_checkpoint_loads,
        "clock_anomalies": sum(pod.clock_anomalies.values()),
        "saves": dict(pod.checkpoints.outcomes),
        "finished": pod.finished,
        "incidents": {
            f"{outcome}{', recurring' * recurring}": count
            for (outcome, recurring), count in pod.failures.outcomes.items()
        },
    }
    return {name: found[name] for name in names}


def load(path: Path) -> dict[str, Any]:
    """One case; its goodputs as numbers."""
    case: dict[str, Any] = yaml.safe_load(path.read_text())
    for name in ("training_goodput", "infrastructure_goodput"):
        case["expect"][name] = float(Fraction(case["expect"][name]))
    return case


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
