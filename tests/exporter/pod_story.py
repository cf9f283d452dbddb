"""Hand-made observations, told to a pod in the order of time."""

from __future__ import annotations

from typing import Any, Literal

from headway.events import Event
from headway.ring import StepRecord
from headway_exporter.observations import DeathSeen, EventSeen, StepSeen
from headway_exporter.pod import Pod

WALL = 1_700_000_000.0
"""Wall time of second 0 of a story."""


class Story:
    """Tells a pod what happens; seconds count from the story's beginning. A life is a hundred times its slot, plus its number."""

    def __init__(self, pod_index: str = "0", run: str = "story") -> None:
        self.pod = Pod(run, pod_index)
        self.wall = WALL
        """Wall time of second 0, by the clock as it is now: `set_clock` changes it."""
        self.pod.set_clock(0.0, WALL)
        self.lives: dict[int, int] = {}
        self.incarnations: dict[int, str | None] = {}
        self.first_rank = 0
        """Global rank of slot 0."""
        self.world_size: int | None = None
        """Ranks in the whole group; None: those of this pod."""

    def event(self, slot: int | None, kind: str, at: float, **fields: Any) -> None:
        """One journal line of the slot's present life, or of the launcher."""
        life = 1 if slot is None else self.lives[slot]
        incarnation = None if slot is None else self.incarnations.get(slot)
        self.pod.fold([EventSeen(slot, Event(kind, 0, self.wall + at, at, life, incarnation, fields))])
        self.pod.advance(at)

    def set_clock(self, at: float, hours: float) -> None:
        """Somebody sets the wall clock so much ahead, for the trainer and the sidecar."""
        self.wall += 3600 * hours
        self.pod.set_clock(at, self.wall + at)

    def start(self, at: float, *slots: int, attempt: int = 0, cycle: int = 0, **fields: Any) -> None:
        """New processes."""
        for slot in slots:
            self.lives[slot] = self.lives.get(slot, 100 * slot) + 1
            self.incarnations[slot] = None
            pid = self.pid(slot)
            same = {
                "rank": self.first_rank + slot,
                "world_size": self.world_size or len(slots),
                "attempt": attempt,
                "cycle": cycle,
                "pid": pid,
                "life_lock": True,
            }
            self.event(slot, "process_started", at, **(same | fields))

    def pid(self, slot: int) -> int:
        """Process id of the slot's present life."""
        return 1000 + self.lives[slot]

    def enter(self, at: float, *slots: int, incarnation: str, load: int | None = None, **fields: Any) -> None:
        """Training is entered, and a checkpoint loaded (0: from scratch)."""
        for slot in slots:
            self.incarnations[slot] = incarnation
            same = {"rank": self.first_rank + slot, "world_size": self.world_size or len(slots)}
            self.event(slot, "train_entered", at, **(same | fields))
        for slot in slots if load is not None else ():
            self.event(slot, "checkpoint", at, stage="loaded", step=load, seconds=0.5, verified=True)

    def steps(self, at: float, *slots: int, first: int, last: int, loss: float | None = None) -> float:
        """Steps of one second each on every slot; returns when the last one is complete."""
        for number in range(first, last + 1):
            begin = at + number - first
            for slot in slots:
                record = StepRecord(0, number, round(begin * 1e9), 1_000_000_000, 0, 0, loss, 10)
                self.pod.fold([StepSeen(slot, self.lives[slot], record)])
        end = at + last - first + 1
        self.pod.advance(end)
        return end

    def die(self, slot: int, at: float, by: Literal["lock", "found", "replaced", "silence"] = "lock") -> None:
        """The slot's process is gone."""
        self.pod.fold([DeathSeen(slot, self.lives[slot], at, by)])
        self.pod.advance(at)

    def running(self, *, steps: int = 10, slots: tuple[int, ...] = (0, 1), **fields: Any) -> float:
        """Launcher and ranks started at 0, training from 10 on; returns when the last step is complete."""
        self.event(None, "launcher_started", 0.0, pid=1)
        self.start(1.0, *slots, **fields)
        self.enter(10.0, *slots, incarnation="first", load=0)
        return self.steps(10.0, *slots, first=1, last=steps)

    @property
    def recoveries(self) -> list[tuple[str | None, str, int | None, int | None]]:
        """Layer, cause, origin rank and steps lost of every recovery."""
        found = self.pod.failures.recoveries
        return [(one.layer, one.diagnosis.cause, one.diagnosis.origin, one.steps_lost) for one in found]

    def caught(self, slot: int, at: float, name: str = "ValueError", **fields: Any) -> None:
        """An exception reached the edge of the training function."""
        told = {"type": f"builtins.{name}", "message": "boom", "collective": False}
        self.event(slot, "fault_caught", at, **(told | fields))

    def echo(self, slot: int, at: float) -> None:
        """A collective broke."""
        self.caught(slot, at, "RuntimeError", collective=True, category="collective_timeout")
