"""Checkpoints as the pod's ranks report them, each counted once however many ranks tell of it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headway_exporter.distribution import Distribution
from headway_exporter.schema import IO_BUCKETS

if TYPE_CHECKING:
    from headway.events import Event

MOST_SAVES: Final = 128
FOR_EVER: Final = 1 << 62
_NANOSECONDS: Final = 1_000_000_000


@dataclass(slots=True)
class Save:
    """One checkpoint on its way; per slot where the ranks differ."""

    step: int
    incarnation: str | None
    content_wall: float
    """When its step completed."""
    outcome: str | None = None
    blocked: dict[int, float] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)


class Checkpoints:
    """Folds `checkpoint` events."""

    def __init__(self) -> None:
        self.requests = 0
        self.outcomes: Counter[str] = Counter()
        self.since_commit = 0
        self.durable_step: int | None = None
        self.committed_wall: float | None = None
        self.content_wall: float | None = None
        self.configured_interval: float | None = None
        self.observed_interval_steps: int | None = None
        self.interval_seconds: float | None = None
        self.last_write_seconds: float | None = None
        self.last_bytes: int | None = None
        self.saving_until = 0
        """Up to when a save was in flight, CLOCK_MONOTONIC nanoseconds; `FOR_EVER`: one is now."""
        self.blocking = Distribution(IO_BUCKETS)
        self.writing = Distribution(IO_BUCKETS)
        self.loading = Distribution(IO_BUCKETS)
        self.written_bytes = 0
        """Of all saves whose time is in `writing`."""
        self.read_bytes = 0
        """Of all loads whose time is in `loading`."""
        self._saves: OrderedDict[int, Save] = OrderedDict()
        self._durable: OrderedDict[int, tuple[float | None, float | None]] = OrderedDict()  # step: commit, content
        self._last_request: tuple[int, float] | None = None
        self._loads: dict[int, float] = {}
        self._load_bytes: dict[int, int] = {}

    def fold(self, slot: int, event: Event, *, last_step: int | None, last_step_wall: float | None) -> bool:
        """One event; True when a checkpoint became durable by it."""
        durable = self._fold(slot, event, last_step, last_step_wall)
        self._note_saving(round(event.mono * _NANOSECONDS))
        return durable

    def _fold(self, slot: int, event: Event, last_step: int | None, last_step_wall: float | None) -> bool:
        step = event.fields.get("step")
        stage = event.fields.get("stage")
        if step is None or stage is None:
            return False
        seconds = max(0.0, event.fields.get("seconds", 0.0))
        if stage == "requested":
            self._requested(step, event, last_step_wall if step == last_step and last_step_wall else event.wall)
        elif stage == "staged":
            self._save(step, event).blocked[slot] = seconds
        elif stage == "written":
            self._written(slot, step, event, seconds)
        elif stage in ("failed", "aborted"):
            self._end(self._save(step, event), stage)
        elif stage == "committed":
            return self._committed(step, event)
        elif stage == "loaded":
            self._loaded(slot, step, seconds, max(0, event.fields.get("bytes", 0)))
        elif stage == "rejected":
            self._forget_durable(step)
        return False

    def begun_again(self, step: int) -> None:
        """A complete run is done once more from `step` on: its newer checkpoints are none of the new one's."""
        for newer in [known for known in self._durable if known > step]:
            self._forget_durable(newer)
        self._saves.clear()
        self._note_saving(0)

    def resumed(self) -> None:
        """Training goes on after a failure: saves of before that nobody spoke of any more are given up, loads are complete."""
        for save in self._saves.values():
            if save.outcome is None:
                self._end(save, "aborted")
        self._note_saving(0)  # when they ended nobody knows, but the steps up to now are in no comparison
        self.first_step()

    @property
    def load_open(self) -> bool:
        """A load waits for the first step after it."""
        return bool(self._loads)

    def first_step(self) -> None:
        """A step completed: the load before it, if there was one, is complete on all ranks."""
        if self._loads:
            self.loading.observe(max(self._loads.values()))
            self.read_bytes += sum(self._load_bytes.values())
            self._loads, self._load_bytes = {}, {}

    def _note_saving(self, at: int) -> None:
        """Whether a save is in flight. Writers work in order: once a newer save has ended, the word of an older one's end was lost."""
        newest = next(reversed(self._saves.values()), None)
        if newest is not None and newest.outcome is None:
            self.saving_until = FOR_EVER
        elif self.saving_until == FOR_EVER:
            self.saving_until = at

    def _save(self, step: int, event: Event) -> Save:
        """The save of this step, made up when its request was not seen."""
        found = self._saves.get(step)
        if found is None:
            found = self._saves[step] = Save(step, event.incarnation, event.wall)
            if self._last_request is None or step > self._last_request[0]:
                self._note_interval(step, event.wall)
            if len(self._saves) > MOST_SAVES:
                self._saves.popitem(last=False)
        return found

    def _requested(self, step: int, event: Event, content_wall: float) -> None:
        known = self._saves.get(step)
        if known is not None and known.incarnation == event.incarnation:
            return  # another rank's
        if known is not None and known.outcome is None:
            self._end(known, "aborted")  # the same step is saved anew
        self._saves.pop(step, None)
        self._save(step, event).content_wall = content_wall
        self.requests += 1
        self._last_request = (step, event.wall)  # be it one of before: saves of steps that are made once more

    def _note_interval(self, step: int, wall: float) -> None:
        """From save to save, whatever is told of one first: some loops tell of commits only."""
        if self._last_request is not None:
            self.observed_interval_steps = step - self._last_request[0]
            self.interval_seconds = max(0.0, wall - self._last_request[1])
        self._last_request = (step, wall)

    def _written(self, slot: int, step: int, event: Event, seconds: float) -> None:
        save = self._save(step, event)
        save.written[slot] = seconds
        if "bytes" in event.fields:
            save.bytes[slot] = max(0, event.fields["bytes"])
        self.last_write_seconds = max(save.written.values())
        self.last_bytes = sum(save.bytes.values()) if save.bytes else self.last_bytes

    def _end(self, save: Save, outcome: str) -> bool:
        """The first word about a save's end counts."""
        if save.outcome is not None:
            return False
        save.outcome = outcome
        self.outcomes[outcome] += 1
        self.since_commit = 0 if outcome == "committed" else self.since_commit + 1
        if save.blocked:
            self.blocking.observe(max(save.blocked.values()))
        if save.written:
            self.writing.observe(max(save.written.values()))
            self.written_bytes += sum(save.bytes.values())
        return True

    def _committed(self, step: int, event: Event) -> bool:
        save = self._save(step, event)
        if not self._end(save, "committed") and step in self._durable:
            return False
        self._add_durable(step, event.wall, save.content_wall)
        return True

    def _loaded(self, slot: int, step: int, seconds: float, size: int) -> None:
        self._loads[slot], self._load_bytes[slot] = seconds, size
        for newer in [known for known in self._durable if known > step]:  # passed over: they did not load
            self._forget_durable(newer)
        if step > 0 and step not in self._durable:
            self._add_durable(step, None, None)

    def _add_durable(self, step: int, committed: float | None, content: float | None) -> None:
        self._durable[step] = (committed, content)
        while len(self._durable) > MOST_SAVES:
            self._durable.popitem(last=False)
        self._show_durable()

    def _forget_durable(self, step: int) -> None:
        self._durable.pop(step, None)
        self._show_durable()

    def _show_durable(self) -> None:
        self.durable_step = max(self._durable, default=None)
        walls = (None, None) if self.durable_step is None else self._durable[self.durable_step]
        self.committed_wall, self.content_wall = walls
