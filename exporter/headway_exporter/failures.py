"""The failures of one pod, folded into incidents, recoveries and tries, and counted.

A pure fold: it takes what others saw, and reads no clock. Each thing is counted once, when it is decided: a restart with its restart, its
cause when its try is over (the launcher's line and the container's memory counters come after the fact), an incident at its closure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final

from headway_exporter import verdicts
from headway_exporter.causes import diagnose
from headway_exporter.distribution import Distribution
from headway_exporter.incident_ids import incident_id, trace_id
from headway_exporter.incidents import BACK, CLOSED, Happening, Incident, State
from headway_exporter.orchestrator import MOST_KEPT as MOST_KEPT_TOLD
from headway_exporter.orchestrator import belongs, explained
from headway_exporter.phases import Timeline
from headway_exporter.recoveries import Recovery, Try, first_known
from headway_exporter.scene import Scene
from headway_exporter.schema import RECOVERY_BUCKETS, ROLLBACK_BUCKETS
from headway_exporter.thresholds import DEFAULT
from headway_exporter.undecided import Undecided, agreed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.events import Event
    from headway_exporter.origins import OriginVerdict
    from headway_exporter.runinfo import RunInfo
    from headway_exporter.scene import Evidence, Marker
    from headway_exporter.slots import Slot
    from headway_exporter.thresholds import Thresholds

MOST_KEPT: Final = 200
MOST_RANKS: Final = 256
"""Ranks of this pod that ever failed, whose failures are counted one by one: a rank may move to another pod and back."""


class Failures:
    """Folds evidence, restarts, loads, commits and steps of one pod."""

    def __init__(
        self, info: RunInfo, pod_index: str, limits: Thresholds = DEFAULT, *, run: str = "", shared: bool = False
    ) -> None:
        self.incidents: deque[Incident] = deque(maxlen=MOST_KEPT)
        self.recoveries: deque[Recovery] = deque(maxlen=MOST_KEPT)
        self.restarts: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        """Recoveries, by their outermost layer."""
        self.causes: Counter[tuple[str, str]] = Counter()
        """Restarts by layer and cause; only failures that began here."""
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        """Incidents by outcome and whether they were recurring."""
        self.last_closed_wall: dict[str, float] = {}
        """When an incident last had this outcome."""
        self.incident_causes: Counter[tuple[str, str]] = Counter()
        """Incidents by outermost layer and cause; only those that began here."""
        self.rank_failures: Counter[int] = Counter()
        self.unplaced = 0
        """Failures of further ranks: no pod has so many, but ranks are what a journal says."""
        self.phases: defaultdict[tuple[str, str], float] = defaultdict(float)
        """Seconds by layer and recovery phase."""
        self.first_step = Distribution(RECOVERY_BUCKETS)
        self.high_water = Distribution(RECOVERY_BUCKETS)
        self.rollbacks = Distribution(ROLLBACK_BUCKETS)
        self.last_rollback: int | None = None
        self.without_progress = 0
        self.same_checkpoint_loads = 0
        self.oom_rose: float | None = None
        self.unsettled: Incident | None = None
        """The newest incident, until all its losses are known."""
        self.clock_offset = 0.0
        """Wall clock less CLOCK_MONOTONIC, seconds, at the last look."""
        self._run = run
        self._info = info
        self._pod_index = pod_index
        self.limits = limits
        self._last_loaded: int | None = None
        self._stop: Evidence | None = None
        self.undecided = Undecided(run, pod_index, shared=shared)
        # Of before the newest failure, in case it turns out to have been none; no state: it opened its incident.
        self._state_before: State | None = None
        self._unsettled_before: Incident | None = None
        self._failed_incarnation: str | None = None
        self._catching_up: deque[Recovery] = deque(maxlen=MOST_KEPT)
        self._told: deque[Evidence] = deque(maxlen=MOST_KEPT_TOLD)
        self._booked_until = -math.inf  # phases: a failure that is dated back must not have its time twice

    # What is under way.

    @property
    def open(self) -> Incident | None:
        """The incident without a verdict."""
        return self.incidents[-1] if self.incidents and self.incidents[-1].state not in CLOSED else None

    @property
    def recovering(self) -> Recovery | None:
        """The failure after which no step was made yet; it may outlive its incident's verdict."""
        unfinished = self.recoveries and self.recoveries[-1].closed is None
        return self.recoveries[-1] if unfinished and self.incidents[-1].state is not State.RECOVERED else None

    @property
    def told_to_stop(self) -> bool:
        """The launcher was told to end, and nothing has failed since."""
        return self._stop is not None

    @property
    def quiet(self) -> bool:
        """No step can change a verdict, end a recovery or regain a mark."""
        return self.open is None and self.recovering is None and not self._catching_up

    @property
    def last_opened(self) -> float:
        """When the newest try became necessary; minus infinity before the first failure."""
        if not self.recoveries:
            return -math.inf
        newest = self.recoveries[-1]
        return max((sign.at for sign in newest.current.seen_here), default=newest.opened)

    def recurring(self, incident: Incident) -> frozenset[str]:
        """Why the incident is said to be recurring; what was found for good stays until it closes."""
        if incident.state in CLOSED:
            return incident.recurred
        return incident.recurred | verdicts.reasons(incident, self.limits)

    def repeat_offenders(self, now: float) -> dict[verdicts.Entity, int]:
        """Entities where several incidents began lately."""
        return verdicts.repeat_offenders(self.incidents, now, self._info, self.limits)

    # The fold.

    def fail(
        self,
        evidence: Evidence,
        *,
        tip: int,
        mark: int,
        durable: int | None,
        markers: tuple[Marker, ...],
        incarnation: str | None = None,
        booked: Mapping[str, int] | None = None,
    ) -> bool:
        """A sign of a failure: opens an incident, or begins a further try, or adds to the one under way; whether a try began.

        `incarnation`: the one that failed; `booked`: what the pod's books say before they hear of the failure.
        """
        recovery = self.recovering
        restarted = None if recovery is None else recovery.current.restarted
        again = recovery is None or (restarted is not None and evidence.at > restarted)
        if again:
            name = self.undecided.name(incarnation)
            self._failed_incarnation, self._unsettled_before = incarnation, self.unsettled
            if self.open is None:
                incident = self._open_incident(evidence, mark, durable, booked)
                incident.id = name or incident_id(self._run, None, self._pod_index, evidence.wall)
                incident.incarnation = incarnation
            self._state_before = self.incidents[-1].state if self.incidents[-1].recoveries else None
            self._begin(evidence, tip, mark, markers)
            self.incidents[-1].happens(Happening.FAILED)
            self.undecided.add(self.incidents[-1].current, name, self._info.pods_expected or 1)
            if self.undecided.overdue is not None:
                self.decide(self.undecided.overdue, None)
        one = self.incidents[-1].current
        one.meet(markers, evidence.slot)
        added = one.add(self.incidents[-1].keep(evidence))
        added |= again and self._add_what_was_told(one)
        if added:
            self._diagnose(one)
        return again

    def learnt(self, recovery: Recovery, one: Try) -> None:
        """More is known of the hardware of a try; if it is over, it was counted as it was, and only the record is revised."""
        self._diagnose(one, recovery)
        self._incident_of(recovery).at_rest = False

    def hear(self, told: Evidence) -> None:
        """Something that is no sign of a failure: it may belong to one that is known, or to one that is noticed after it."""
        found = explained(told, reversed(self.recoveries), self.limits)
        if found is not None and found[1].add(told):
            self._diagnose(found[1], found[0])
        if found is None or told.kind == "disruption":  # of which several failures may come
            self._told.append(told)

    def _add_what_was_told(self, one: Try) -> bool:
        """Adds what came before the first sign of a failure that has just begun; whether there was anything."""
        found = [told for told in self._told if belongs(told, one, self.limits)]
        self._told = deque(
            (told for told in self._told if told not in found or told.kind == "disruption"), MOST_KEPT_TOLD
        )
        for told in found:
            one.add(told)
        return bool(found)

    def late(self, evidence: Evidence, ended: float) -> None:
        """The launcher tells of a process whose successor started at `ended`, after which others may have failed already.

        The try that ended it is the newest one that had restarted by then; it has another cause perhaps, and was counted as it was.
        """
        over = ((one, recovery) for recovery in reversed(self.recoveries) for one in reversed(recovery.tries))
        restarted = (pair for pair in over if pair[0].restarted is not None and pair[0].restarted <= ended)
        one, recovery = next(restarted, (None, None))
        if one is None or any(item.kind == "exit" and item.slot == evidence.slot for item in one.evidence):
            return
        one.add(evidence)
        self._diagnose(one, recovery)

    def ran_out_of_memory(self, evidence: Evidence) -> None:
        """The kernel killed a process of the trainer's container at about the time of the failure under way."""
        if self.recovering is not None:
            self.oom_rose = evidence.at
            one = self.recovering.current
            one.add(evidence)
            self._diagnose(one)

    def withdraw(self, slot: int) -> None:
        """The death of this slot's process was none: if it was all that told of the failure, there was no failure.

        Nothing of it was counted yet: restarts, causes and outcomes are, when they are decided.
        """
        recovery = self.recovering
        if recovery is None or recovery.try_count > 1 or recovery.current.restarted is not None:
            return
        if not all(sign.kind == "death" and sign.slot == slot for sign in recovery.current.seen_here):
            return
        incident = self.incidents[-1]
        self.undecided.withdraw(recovery.current, self._failed_incarnation)
        self.unsettled = self._unsettled_before
        self.recoveries.pop()
        if recovery in self._catching_up:
            self._catching_up.remove(recovery)
        if self._state_before is None:
            self.incidents.pop()
            return
        incident.state = self._state_before
        incident.recoveries.pop()
        incident.recent.pop()

    def stop(self, evidence: Evidence) -> None:
        """The launcher was told to end: no failure by itself, but the reason of those that follow."""
        if self.recovering is None:
            self._stop = evidence
        else:
            self.recovering.current.add(evidence)

    def restart(self, at: float, layer: str, *, complete: bool = True) -> None:
        """A new process began, or training was entered again; several ranks of one restart count once.

        `complete`: the group has as many ranks as before. If a pod was gone the orchestrator brought it back, for all pods.
        """
        recovery = self.recovering
        if recovery is None or recovery.current.restarted is not None:
            return
        one = recovery.current
        if layer == "launcher" and (one.container_ended or (one.pod_ended and complete)):
            layer = "orchestrator"
        self.incidents[-1].restarted_by(layer)
        recovery.restarted_by(layer, at)
        recovery.current.restarted_wall = self.incidents[-1].wall_of(at)
        self._diagnose(recovery.current)
        self.restarts[layer] += 1
        self.without_progress += 1

    def note(self, slot: int, event: Event) -> None:
        """An event that may date a phase of the recovery under way."""
        if self.recovering is not None:
            self.recovering.current.timeline.note(slot, event)

    def load(self, step: int) -> None:
        """A checkpoint was loaded (0: from scratch); several ranks of one try count once."""
        recovery = self.recovering
        if recovery is None or recovery.current.loaded is not None:
            return
        recovery.loaded = recovery.current.loaded = step
        self.incidents[-1].loaded(step)
        self.same_checkpoint_loads = self.same_checkpoint_loads + 1 if step == self._last_loaded else 1
        self._last_loaded = step

    def reject(self, step: int) -> None:
        """A checkpoint was found bad."""
        if self.recovering is not None:
            self.recovering.reject(step)

    def commit(self, at: float, step: int) -> None:
        """A checkpoint became durable: whatever is loaded next is not the same one again."""
        self.same_checkpoint_loads = 0
        self._last_loaded = None
        if self.open is not None:
            self.open.committed(step)
            self._close_if_decided(at)

    def step(self, slot: Slot, begin: float, end: float, step: int, *, above_mark: bool) -> None:
        """A step completed: ends the recovery when it is one of after the restart."""
        if above_mark:
            self.without_progress = 0
        recovery = self.recovering
        if recovery is not None and recovery.goes_on(slot, begin):
            self._first_step(recovery, end, step)
        elif recovery is not None and recovery.layer is None:
            self._late_step(recovery, step)
        if self.open is not None and self.open.state in BACK:
            self.open.step(step, above_mark=above_mark)
        while self._catching_up and step >= self._catching_up[0].mark and self._catching_up[0].closed is not None:
            self._regained(self._catching_up.popleft(), end)

    def decide(self, name: str, verdict: OriginVerdict | None) -> None:
        """All pods agreed on where the failure of that name began; None: they did not in time, so this pod decides alone."""
        for one in self.undecided.take(name):
            one.verdict, one.decided_by = verdict, "timeout" if verdict is None else "verdict"
            one.diagnosis = one.local if verdict is None else agreed(verdict, one.local)
            if one.over:
                self._count(one)
        for recovery in self.recoveries:
            recovery.diagnosis = first_known([one.diagnosis for one in recovery.tries])
        for incident in self.undecided.take_decided_incidents():
            self._count_incident(incident)

    def finish(self, at: float) -> None:
        """The run is complete."""
        self._end(Happening.FINISHED, at)

    def watch(self, now: float, last_trace: float, *, alive: bool) -> None:
        """Time goes by: with nobody alive, and the launcher told to end or nothing heard for long, nothing more will come."""
        if alive or self.open is None:
            return
        recovery = self.recovering
        if self._stop is not None if recovery is None else recovery.current.cancelled:
            self._end(Happening.STOPPED, now)
        elif now - last_trace > self.limits.abandoned_seconds:
            self._end(Happening.GONE, now)

    # Tries.

    def _begin(self, evidence: Evidence, tip: int, mark: int, markers: tuple[Marker, ...]) -> None:
        incident, before = self.incidents[-1], self.recovering
        progressed = max((marker.progressed for marker in markers), default=evidence.at)
        timeline = Timeline(max(progressed, self._booked_until), max(evidence.at, self._booked_until))
        one = Try(timeline, tip, markers, mark_changes=incident.mark_changes, reloaded=True)
        if before is not None:
            timeline.progressed = timeline.failed  # what lies before it is the failed try's time
            one.reloaded = before.current.loaded is not None
            self._end_try(before, evidence.at)
        if before is not None and incident.recoveries and incident.recoveries[-1] is before:
            before.try_again(one)
        else:
            self._open_recovery(Recovery(evidence.at, evidence.wall, tip, mark, [one]), timeline.progressed)
        incident.recent.append(one)
        if self._stop is not None and evidence.at - self._stop.at <= self.limits.stop_seconds:
            one.add(self._stop)
        self._stop = None

    def _open_incident(
        self, evidence: Evidence, mark: int, durable: int | None, booked: Mapping[str, int] | None
    ) -> Incident:
        incident = Incident.at(evidence, mark, durable, self.limits)
        incident.booked = dict(booked or {})
        known, before_it = self._info.circumstances, self.incidents[-1].circumstances if self.incidents else None
        incident.circumstances = before_it if before_it == known else known  # one object for many incidents
        self.incidents.append(incident)
        if self.unsettled is not None:  # it will not regain its mark any more: what is lost from now on is another's
            self.unsettled.lost = self.unsettled.more_than_when_opened(incident.booked)
        self.unsettled = incident
        return incident

    def _open_recovery(self, recovery: Recovery, progressed: float) -> None:
        for unfinished in self._catching_up:
            self._book_catch_up(unfinished, progressed)
        self._catching_up = deque((one for one in self._catching_up if one.closed is not None), MOST_KEPT)
        self.recoveries.append(recovery)
        self._catching_up.append(recovery)
        self.incidents[-1].begin(recovery)

    def _first_step(self, recovery: Recovery, end: float, step: int) -> None:
        if recovery.current.restarted is None:  # the loop swallowed the exception, or does not say when it is entered
            self.restart(end, "in_process")
        self._end_try(recovery, end)
        recovery.close(end, step)
        recovery.closed_wall = self.incidents[-1].wall_of(end)
        recovery.diagnosis = first_known([one.diagnosis for one in recovery.tries])
        self.incidents[-1].stepped(self.limits)
        self.closed[recovery.layer or "in_process"] += 1
        self.last_rollback = recovery.steps_lost
        self.rollbacks.observe(recovery.steps_lost or 0)
        self.first_step.observe_traced(end - recovery.opened, self._trace_of(recovery), end + self.clock_offset)

    def _late_step(self, recovery: Recovery, step: int) -> None:
        recovery.late_step(step)
        incident = self.incidents[-1]
        if len(incident.recoveries) == 1:
            incident.mark = max(incident.mark, step)

    def _regained(self, recovery: Recovery, end: float) -> None:
        self._book_catch_up(recovery, end)
        recovery.regained, recovery.regained_wall = end, self._incident_of(recovery).wall_of(end)
        self.high_water.observe_traced(end - recovery.opened, self._trace_of(recovery), end + self.clock_offset)

    def _incident_of(self, recovery: Recovery) -> Incident:
        """What it is part of, which need not be the newest one."""
        owners = (one for one in reversed(self.incidents) if any(each is recovery for each in one.recoveries))
        return next(owners, self.incidents[-1])

    def _trace_of(self, recovery: Recovery) -> str:
        return trace_id(self._run, self._incident_of(recovery).id)

    def _book_catch_up(self, recovery: Recovery, until: float) -> None:
        """A recovery catches up until its mark is regained or training breaks down again."""
        if recovery.closed is not None and not recovery.caught_up:
            recovery.caught_up = True
            self._booked_until = max(self._booked_until, until)
            seconds = recovery.current.phases["catch_up"] = max(0.0, until - recovery.closed)
            self.phases[recovery.layer or "in_process", "catch_up"] += seconds

    def _end_try(self, recovery: Recovery, end: float) -> None:
        """Decides the try's cause, and counts it if it began on this pod; books its time."""
        one = recovery.current
        self._diagnose(one)
        layer = one.layer or "in_process"
        one.over = True
        if one.decided_by is not None:
            self._count(one)
        self._booked_until = max(self._booked_until, end)
        one.phases = one.timeline.durations(end)
        for phase, seconds in one.phases.items():
            self.phases[layer, phase] += seconds

    def _diagnose(self, one: Try, recovery: Recovery | None = None) -> None:
        """What is known so far of a try of this recovery; None: of the newest."""
        settings = self._info.settings
        one.local = diagnose(
            Scene(
                tuple(one.evidence),
                one.markers,
                one.layer,
                self._info.world_size,
                self.oom_rose,
                settings.get("heartbeat_rank_seconds"),
                self.limits,
                tuple(one.gpu),
                tuple(one.nics),
            )
        )
        one.diagnosis = one.local if one.verdict is None else agreed(one.verdict, one.local)
        recovery = self.recoveries[-1] if recovery is None else recovery
        recovery.diagnosis = first_known([each.diagnosis for each in recovery.tries])

    def _count(self, one: Try) -> None:
        """Counts the try's cause if it began on this pod, or if this pod is to count it for one that is gone."""
        if not self._counts_here(one):
            return
        self.causes[one.layer or "in_process", one.diagnosis.cause] += 1
        origin = one.diagnosis.origin
        if origin is None or origin not in {marker.rank for marker in one.markers}:
            return
        if origin in self.rank_failures or len(self.rank_failures) < MOST_RANKS:
            self.rank_failures[origin] += 1
        else:
            self.unplaced += 1

    def _counts_here(self, one: Try) -> bool:
        """Whether this pod is to count it; without a verdict what nobody can place is counted on the first pod."""
        if one.verdict is not None:
            return one.verdict.claimed_by == self._pod_index
        if one.diagnosis.origin is None:
            return (self._info.pods_expected or 1) <= 1 or self._pod_index == "0"
        return one.diagnosis.origin in {marker.rank for marker in one.markers}

    # Verdicts.

    def _end(self, happening: Happening, at: float) -> None:
        if self.open is not None:
            self.open.happens(happening)
            self._close_if_decided(at)

    def _close_if_decided(self, at: float) -> None:
        incident = self.incidents[-1]
        if incident.state not in CLOSED or incident.closed is not None:
            return
        incident.recurred |= verdicts.reasons(incident, self.limits)
        incident.closed, incident.closed_wall = at, incident.wall_of(at)
        self.outcomes[incident.state.value, bool(incident.recurred)] += 1
        self.last_closed_wall[incident.state.value] = incident.closed_wall
        if incident.decided:
            self._count_incident(incident)
        else:
            self.undecided.incidents.append(incident)

    def _count_incident(self, incident: Incident) -> None:
        if self._counts_here(incident.telling):
            self.incident_causes[incident.expected_layer, incident.telling.diagnosis.cause] += 1
