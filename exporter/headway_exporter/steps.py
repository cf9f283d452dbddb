"""Step times and what the steps reported, for display; where their time is accounted is the ledger's business."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from headway_exporter.contention import Contention
from headway_exporter.distribution import Distribution
from headway_exporter.schema import STEP_BUCKETS

if TYPE_CHECKING:
    from headway.ring import StepColumns, StepRecord

BASELINE_STEPS: Final = 200
RECENT_STEPS: Final = 32
LEAST_STEPS: Final = 5
_NANOSECONDS: Final = 1_000_000_000


class Steps:
    """Folds step records of all slots of the pod."""

    def __init__(self) -> None:
        self.durations = Distribution(STEP_BUCKETS)
        self.contention = Contention()
        self.tokens = 0
        self.loss: float | None = None
        self.step: int | None = None
        """Last step that the current weights contain."""
        self.completed: float | None = None
        """When it completed, CLOCK_MONOTONIC seconds."""
        self._baseline: deque[float] = deque(maxlen=BASELINE_STEPS)
        self._recent: dict[int, deque[float]] = {}

    def fold(self, slot: int, record: StepRecord, *, leads: bool, saving_until: int | None) -> None:
        """One step; `leads`: the slot speaks for the pod, so that a step counts once.

        `saving_until`: nanoseconds, up to when a save was in flight; None: the step is no measure of what a save costs.
        """
        seconds = record.duration_ns / _NANOSECONDS
        self._recent.setdefault(slot, deque(maxlen=RECENT_STEPS)).append(seconds)
        self.tokens += max(0, record.tokens or 0)
        if record.loss is not None:
            self.loss = record.loss
        self.step, self.completed = record.step, record.end_ns / _NANOSECONDS
        if leads:
            self.durations.observe(seconds)
            self._baseline.append(seconds)
            if saving_until is not None:
                self.contention.fold(record, saving_until)

    def fold_run(self, slot: int, run: StepColumns, *, leads: bool, saving_until: int) -> None:
        """As `fold` for each of a run of steps, whose losses are all there or all missing."""
        wanted = run.durations if leads else run.durations[-BASELINE_STEPS:]
        seconds = [duration / _NANOSECONDS for duration in wanted]
        self._recent.setdefault(slot, deque(maxlen=RECENT_STEPS)).extend(seconds[-RECENT_STEPS:])
        if run.tokens.count(None) < len(run):
            self.tokens += sum(max(0, tokens) for tokens in run.tokens if tokens is not None)
        if run.losses[-1] is not None:
            self.loss = run.losses[-1]
        self.step, self.completed = run.steps[-1], run.ends[-1] / _NANOSECONDS
        if leads:
            self.durations.observe_all(seconds)
            self._baseline.extend(seconds[-BASELINE_STEPS:])
            self.contention.fold_run(run, saving_until)

    def reached(self, step: int, at: float) -> None:
        """It was complete at that time, whenever that was: there is no record of it."""
        if self.completed is None or at > self.completed:
            self.step, self.completed = step, at

    def came_back(self, step: int) -> None:
        """The weights are those of an earlier step now."""
        self.step = step

    def forget(self, slot: int) -> None:
        """A new process: its first steps are not compared with the old one's."""
        self._recent.pop(slot, None)

    @property
    def baseline_seconds(self) -> float | None:
        """Median duration of the last steps."""
        return median(self._baseline) if len(self._baseline) >= LEAST_STEPS else None

    @property
    def slowest_rank_ratio(self) -> float | None:
        """Slowest local rank over the median one, by their median step durations."""
        medians = [median(durations) for durations in self._recent.values()]
        middle = median(medians) if medians else 0.0
        return max(medians) / middle if middle > 0 else None
