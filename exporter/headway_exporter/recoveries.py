"""Recoveries: from the first evidence of a failure to the first step after it.

    (nothing) -- evidence --> open -- new process, or training entered again --> restarted -- a step of it --> closed
                               ^                                                    |
                               +------------- evidence after that: one more attempt +

All evidence up to the restart belongs to one attempt. A try that fails before its first step leads to a further attempt of
the same recovery, whose layer is the outermost that was needed. A cause is decided per attempt, when the attempt is over, because the
launcher's line and the container's memory counters come after the fact.

A pure fold: it takes what others saw, and reads no clock. What is missing on purpose: verdicts (did it recover, does it recur).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headway_exporter.causes import Diagnosis, Evidence, Marker, Scene, diagnose
from headway_exporter.distribution import Distribution
from headway_exporter.labels import LAYERS
from headway_exporter.schema import RECOVERY_BUCKETS, ROLLBACK_BUCKETS

if TYPE_CHECKING:
    from headway_exporter.slots import Slot

MOST_KEPT: Final = 200
MOST_EVIDENCE: Final = 32
MOST_ATTEMPTS: Final = 8
"""Attempts of one recovery that are kept in detail; all are counted."""
STOP_SECONDS: Final = 120.0
"""A failure this long after the launcher was told to end is still its end."""


@dataclass(slots=True)
class Attempt:
    """One try to go on."""

    markers: tuple[Marker, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    restarted: float | None = None
    layer: str | None = None
    loaded: int | None = None
    diagnosis: Diagnosis | None = None

    def add(self, evidence: Evidence) -> bool:
        """One more sign; False beyond a bound: the first ones tell the story."""
        room = len(self.evidence) < MOST_EVIDENCE
        if room:
            self.evidence.append(evidence)
        return room


@dataclass(slots=True)
class Recovery:
    """A failure of the pod and what followed. Times are CLOCK_MONOTONIC seconds unless named wall."""

    opened: float
    opened_wall: float
    tip: int
    """Last step that the weights contained."""
    mark: int
    """Highest step ever completed."""
    attempts: list[Attempt] = field(default_factory=list)
    attempt_count: int = 1
    layer: str | None = None
    loaded: int | None = None
    rejected: list[int] = field(default_factory=list)
    """Checkpoints that were found bad on the way."""
    closed: float | None = None
    regained: float | None = None
    """When the mark was reached again."""
    steps_lost: int | None = None
    diagnosis: Diagnosis | None = None
    replay_check: str | None = None
    """Whether the replayed steps' losses were those of before; None: not known (yet), or nothing was replayed."""

    @property
    def current(self) -> Attempt:
        """The attempt under way."""
        return self.attempts[-1]

    @property
    def evidence(self) -> list[Evidence]:
        """All of it, in the order of its attempts."""
        return [item for attempt in self.attempts for item in attempt.evidence]


class Recoveries:
    """Folds evidence, restarts, loads and steps of one pod."""

    def __init__(self) -> None:
        self.kept: deque[Recovery] = deque(maxlen=MOST_KEPT)
        self.restarts: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.causes: Counter[tuple[str, str]] = Counter()
        """By layer and cause; only failures that began here."""
        self.rank_failures: Counter[int] = Counter()
        self.first_step = Distribution(RECOVERY_BUCKETS)
        self.high_water = Distribution(RECOVERY_BUCKETS)
        self.rollbacks = Distribution(ROLLBACK_BUCKETS)
        self.last_rollback: int | None = None
        self.without_progress = 0
        self.same_checkpoint_loads = 0
        self.oom_rose: float | None = None
        self.world_size: int | None = None
        self.claims_orphans = True
        """Whether failures that nobody can place are counted on this pod."""
        self._last_loaded: int | None = None
        self._stop: Evidence | None = None
        self._catching_up: deque[Recovery] = deque(maxlen=MOST_KEPT)

    @property
    def open(self) -> Recovery | None:
        """The recovery under way."""
        return self.kept[-1] if self.kept and self.kept[-1].closed is None else None

    @property
    def quiet(self) -> bool:
        """No step can close a recovery or regain a mark."""
        return self.open is None and not self._catching_up

    @property
    def last_opened(self) -> float:
        """When the newest attempt of the newest recovery became necessary; minus infinity before the first."""
        if not self.kept:
            return -math.inf
        newest = self.kept[-1]
        return max((sign.at for sign in newest.current.evidence), default=newest.opened)

    def fail(self, evidence: Evidence, *, tip: int, mark: int, markers: tuple[Marker, ...]) -> None:
        """A sign of a failure: opens a recovery, or a further attempt, or adds to the one under way."""
        recovery = self.open
        if recovery is None:
            recovery = Recovery(evidence.at, evidence.wall, tip, mark, [Attempt(markers)])
            if self._stop is not None and evidence.at - self._stop.at <= STOP_SECONDS:
                recovery.current.add(self._stop)
            self._stop = None
            self.kept.append(recovery)
            self._catching_up.append(recovery)
        elif recovery.current.restarted is not None and evidence.at > recovery.current.restarted:
            self._end_attempt(recovery)
            recovery.attempt_count += 1
            recovery.attempts.append(Attempt(markers))
            if len(recovery.attempts) > MOST_ATTEMPTS:
                del recovery.attempts[1]  # the first one tells how it began
        if recovery.current.add(evidence):
            recovery.diagnosis = self._diagnose(recovery)

    def stop(self, evidence: Evidence) -> None:
        """The launcher was told to end: no failure by itself, but the reason of those that follow."""
        if self.open is None:
            self._stop = evidence
        else:
            self.open.current.add(evidence)

    def restart(self, at: float, layer: str) -> None:
        """A new process began, or training was entered again; several ranks of one restart count once."""
        recovery = self.open
        if recovery is None or recovery.current.restarted is not None:
            return
        attempt = recovery.current
        attempt.restarted, attempt.layer = at, layer
        recovery.layer = max(recovery.layer or layer, layer, key=LAYERS.index)
        recovery.diagnosis = self._diagnose(recovery)
        self.restarts[layer] += 1
        self.without_progress += 1

    def load(self, step: int) -> None:
        """A checkpoint was loaded (0: from scratch); several ranks of one attempt count once."""
        recovery = self.open
        if recovery is None or recovery.current.loaded is not None:
            return
        recovery.loaded = recovery.current.loaded = step
        self.same_checkpoint_loads = self.same_checkpoint_loads + 1 if step == self._last_loaded else 1
        self._last_loaded = step

    def reject(self, step: int) -> None:
        """A checkpoint was found bad."""
        if self.open is not None and step not in self.open.rejected and len(self.open.rejected) < MOST_EVIDENCE:
            self.open.rejected.append(step)

    def commit(self) -> None:
        """A newer checkpoint is durable: whatever is loaded next is not the same one again."""
        self.same_checkpoint_loads = 0
        self._last_loaded = None

    def step(self, slot: Slot, begin: float, end: float, step: int, *, above_mark: bool) -> None:
        """A step completed: closes the recovery when it is one of after the restart."""
        if above_mark:
            self.without_progress = 0
        recovery = self.open
        if recovery is not None and _goes_on(recovery, slot, begin):
            self._close(recovery, end, step)
        elif recovery is not None and recovery.layer is None:  # a peer's last step from before the failure
            recovery.tip, recovery.mark = max(recovery.tip, step), max(recovery.mark, step)
        while self._catching_up and step >= self._catching_up[0].mark and self._catching_up[0].closed is not None:
            done = self._catching_up.popleft()
            done.regained = end
            self.high_water.observe(end - done.opened)

    def _close(self, recovery: Recovery, end: float, step: int) -> None:
        if recovery.current.restarted is None:  # the loop swallowed the exception, or does not say when it is entered
            self.restart(end, "in_process")
        self._end_attempt(recovery)
        recovery.closed = end
        came_back_at = step - 1 if recovery.loaded is None else recovery.loaded
        recovery.steps_lost = self.last_rollback = max(0, recovery.tip - came_back_at)
        recovery.diagnosis = _first_known(recovery)
        self.closed[recovery.layer or "in_process"] += 1
        self.rollbacks.observe(recovery.steps_lost)
        self.first_step.observe(end - recovery.opened)

    def _end_attempt(self, recovery: Recovery) -> None:
        """Decides the attempt's cause and counts it, if it began on this pod."""
        attempt = recovery.current
        diagnosis = attempt.diagnosis = self._judge(attempt)
        local = {marker.rank for marker in attempt.markers}
        if diagnosis.origin in local if diagnosis.origin is not None else self.claims_orphans:
            self.causes[attempt.layer or "in_process", diagnosis.cause] += 1
            if diagnosis.origin is not None:
                self.rank_failures[diagnosis.origin] += 1

    def _judge(self, attempt: Attempt) -> Diagnosis:
        return diagnose(Scene(tuple(attempt.evidence), attempt.markers, attempt.layer, self.world_size, self.oom_rose))

    def _diagnose(self, recovery: Recovery) -> Diagnosis:
        """What is known so far."""
        recovery.current.diagnosis = self._judge(recovery.current)
        return _first_known(recovery)


_VAGUE: Final = frozenset({"unknown", "collective_timeout", "peer_failure"})


def _first_known(recovery: Recovery) -> Diagnosis:
    """The failure began where its first attempt did; a later one answers only when that one stayed vague."""
    found = [attempt.diagnosis for attempt in recovery.attempts if attempt.diagnosis is not None]
    clear = (diagnosis for diagnosis in found if diagnosis.cause not in _VAGUE)
    return next(clear, found[0] if found else Diagnosis("unknown"))


def _goes_on(recovery: Recovery, slot: Slot, begin: float) -> bool:
    """Whether a step of this slot that began then shows that training goes on.

    A peer may finish a step that it began before it noticed. So the slot must have started or entered training since the failure, or
    itself have told of it and then begun a step without either (a loop that swallows exceptions and says little).
    """
    since = max(slot.started, slot.entered or 0.0)
    restarted = recovery.current.restarted
    if restarted is not None and since >= restarted:
        return begin >= since
    own = [item.at for item in recovery.current.evidence if item.slot == slot.number and item.kind != "interruption"]
    return bool(own) and begin >= max(own)
