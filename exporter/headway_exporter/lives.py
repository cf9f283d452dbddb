"""Which trainer processes live: by the kernel's word where it is to be had, else by their silence.

A process holds a lock on one byte of its slot's lock file; a thread a life waits for it. That the lock is free means death
only if nothing of the life is written afterwards: else the lock is not to be relied on (the process may have lost it), and
silence decides. A holder that can be seen is waited for to its real end (`headway_exporter.holders`).
"""

from __future__ import annotations

import queue
import struct
import threading
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headway import clock
from headway.lifelock import lock_name, wait_until_released
from headway_exporter.holders import Holder
from headway_exporter.observations import DeathSeen, EventSeen, StepSeen, StepsSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from headway_exporter.observations import Observation

MOST_LIVES: Final = 4
"""Lives of a slot that are remembered: its newest, and those that may still be dying."""
MOST_WAITERS: Final = 256
AFTERWARDS_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Released:
    """A lock that became free, as the thread that waited for it tells; `mono` None: the lock cannot be waited for."""

    slot: int
    life: int
    mono: float | None = None
    at_once: bool = False


@dataclass(slots=True)
class _Life:
    number: int
    last_trace: float
    locked: bool = False
    """The kernel will tell of its death."""
    dead: bool = False
    died: float = 0.0


class Lives:
    """Watches the lives of all slots; calls `wake`, from another thread, when a lock became free."""

    def __init__(self, folder: Path, silence_seconds: float, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._silence_seconds = silence_seconds
        self._wake = wake
        self._queue: queue.SimpleQueue[Released] = queue.SimpleQueue()
        self._slots: dict[int, list[_Life]] = {}
        self._waiting = 0
        self._new: dict[tuple[int, int], None] = {}
        """Lives that told of a lock since the last `wait_for_new`."""

    def saved(self) -> dict[str, list[list[Any]]]:
        """By slot, the lives that are remembered, as JSON."""
        return {str(slot): [list(astuple(life)) for life in lives] for slot, lives in self._slots.items()}

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Goes on watching where another sidecar's `Lives` were."""
        for slot, lives in saved.items():
            self._slots[int(slot)] = known = [_Life(*life) for life in lives[-MOST_LIVES:]]
            for life in known:
                life.locked = life.locked and (life.dead or self._wait(int(slot), life.number))

    def note(self, seen: Observation) -> Iterator[DeathSeen]:
        """Takes an observation in time order; yields the deaths that it shows."""
        if isinstance(seen, StepsSeen):
            for run in sorted(seen.runs, key=lambda run: run.columns.ends[0]):
                yield from self._trace(run.slot, run.life, run.mono)
        elif isinstance(seen, StepSeen):
            yield from self._trace(seen.slot, seen.life, seen.mono)
        elif isinstance(seen, EventSeen) and seen.slot is not None:
            event = seen.event
            starts = event.kind == "process_started"
            locked = starts and bool(event.fields.get("life_lock"))
            yield from self._trace(seen.slot, event.life, seen.mono, starts=starts, locked=locked)

    def _trace(
        self, slot: int, number: int, mono: float, *, starts: bool = False, locked: bool = False
    ) -> Iterator[DeathSeen]:
        """A life wrote something; a `locked` one says at its start that the kernel will tell of its death."""
        lives = self._slots.setdefault(slot, [])
        life = self._find(slot, number)
        if life is None:
            for former in lives:
                if not former.dead:
                    yield self._die(slot, former, former.last_trace, "replaced")
            life = _Life(number, mono)
            lives.append(life)
            del lives[:-MOST_LIVES]
        if starts and locked and not life.locked:
            self._new[slot, number] = None
        if starts:
            life.locked = locked
        if life.dead and mono > life.died + AFTERWARDS_SECONDS and life is lives[-1]:
            life.dead = life.locked = False
        life.last_trace = max(life.last_trace, mono)

    def wait_for_new(self) -> None:
        """Begins to wait for the locks of lives that started: of those that are still of interest, after however many came and went."""
        for slot, number in self._new:
            life = self._find(slot, number)
            if life is not None and life.locked and not life.dead:
                life.locked = self._wait(slot, number)
        self._new.clear()

    def remembered(self) -> list[tuple[int, int]]:
        """Slot and number of each life that is known."""
        return [(slot, life.number) for slot, lives in self._slots.items() for life in lives]

    def remembers(self, released: Released) -> bool:
        """Whether it is a lock of such a life."""
        return self._find(released.slot, released.life) is not None

    def still(self, released: Mapping[tuple[int, int], Released]) -> dict[tuple[int, int], Released]:
        """Those of lives that are known."""
        return {key: one for key, one in released.items() if self.remembers(one)}

    def _find(self, slot: int, number: int) -> _Life | None:
        return next((known for known in self._slots.get(slot, ()) if known.number == number), None)

    def released(self) -> list[Released]:
        """Locks that became free since the last call; to be judged once everything written until now was read."""
        found = []
        while not self._queue.empty():
            found.append(self._queue.get())
        self._waiting -= len(found)
        return found

    def judge(self, released: Iterable[Released]) -> list[DeathSeen]:
        """The deaths among them, now that all that those lives wrote before is noted."""
        deaths = []
        for item in released:
            life = self._find(item.slot, item.life)
            if life is None or life.dead:
                continue
            if item.mono is None or life.last_trace > item.mono + AFTERWARDS_SECONDS:
                life.locked = False
            elif item.at_once:
                deaths.append(self._die(item.slot, life, life.last_trace, "found"))
            else:
                deaths.append(self._die(item.slot, life, item.mono, "lock"))
        return deaths

    def silent(self, now: float) -> list[DeathSeen]:
        """Lives without a lock that have written nothing for too long."""
        newest = [(slot, lives[-1]) for slot, lives in self._slots.items() if lives]
        return [
            self._die(slot, life, now, "silence")
            for slot, life in newest
            if not life.dead and not life.locked and now - life.last_trace > self._silence_seconds
        ]

    @staticmethod
    def _die(slot: int, life: _Life, mono: float, by: Literal["lock", "found", "replaced", "silence"]) -> DeathSeen:
        life.dead, life.died = True, mono
        return DeathSeen(slot, life.number, mono, by)

    def _wait(self, slot: int, life: int) -> bool:
        """Starts to wait for the life's lock; False when too many threads wait already."""
        if self._waiting >= MOST_WAITERS:
            return False
        self._waiting += 1
        thread = threading.Thread(target=self._waiter, args=(slot, life), name=f"headway-life-{slot}", daemon=True)
        thread.start()
        return True

    def _waiter(self, slot: int, life: int) -> None:
        met: list[Holder] = []
        try:
            wait_until_released(self._folder / lock_name(slot), life, lambda pid: met.append(Holder(pid)))
            met[0].wait()
        except (OSError, OverflowError, ValueError, struct.error):
            self._queue.put(Released(slot, life))
        else:
            self._queue.put(Released(slot, life, clock.monotonic(), at_once=met[0].nobody))
        finally:
            for holder in met:
                holder.close()
        self._wake()
