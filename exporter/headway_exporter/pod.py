"""Everything the sidecar knows about its pod: the fold of all observations into ledger, failures, checkpoints and the rest.

A pure fold. `Pod` only decides who is to hear of an observation; what it means is the business of the parts. Bounded in memory whatever
the journals hold: slots, lives, saves and incidents are all capped.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from headway.events import Event
from headway_exporter import bulk, gpu_join, losses, nic_join, podstate
from headway_exporter import evidence as signs
from headway_exporter.checkpoints import Checkpoints
from headway_exporter.claims import absence, claim
from headway_exporter.failures import Failures
from headway_exporter.gpus import Gpus
from headway_exporter.health.cgroups import Container
from headway_exporter.ledger import Ledger
from headway_exporter.nics import Nics
from headway_exporter.observations import (
    NANOSECONDS,
    DeathSeen,
    EventSeen,
    EventsMissed,
    GpuSeen,
    GpusFound,
    NicsSeen,
    PodStatusSeen,
    StepSeen,
    StepsSeen,
    VerdictSeen,
)
from headway_exporter.orchestrator import Orchestrator
from headway_exporter.orchestrator import evidence as told_by_orchestrator
from headway_exporter.relaunch import Relaunch
from headway_exporter.replay import ReplayChecks
from headway_exporter.runinfo import RunInfo
from headway_exporter.slots import TERMINATION_SIGNALS, Slot, mark_gone
from headway_exporter.steps import Steps
from headway_exporter.thresholds import DEFAULT, Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.health.xids import XidTable
    from headway_exporter.observations import Observation
    from headway_exporter.origins import Claim
    from headway_exporter.scene import Evidence, Marker

_log = logging.getLogger("headway.exporter")

MOST_SLOTS: Final = 64
MOST_TOLD: Final = 8
"""Observations that could not be folded and are logged; all are counted."""
WALL_STEP_SECONDS: Final = 1.0


class Pod:
    """The state of one pod of one run."""

    def __init__(
        self,
        run: str,
        pod_index: str,
        thresholds: Thresholds = DEFAULT,
        *,
        shared_verdicts: bool = False,
        xids: XidTable | None = None,
    ) -> None:
        """`shared_verdicts`: where a failure of several pods began is settled between them; whoever folds tells by `VerdictSeen`.

        `xids`: what the driver's errors mean; None: the built-in table.
        """
        self.run = run
        self.pod_index = pod_index
        self.info = RunInfo()
        self.slots: dict[int, Slot] = {}
        self.ledger = Ledger()
        self.failures = Failures(self.info, pod_index, thresholds, run=run, shared=shared_verdicts)
        self.checkpoints = Checkpoints()
        self.steps = Steps()
        self.replay_checks = ReplayChecks()
        self.gpus = Gpus(xids)
        self.nics = Nics()
        self.container = Container()
        self.orchestrator = Orchestrator()
        self.relaunch = Relaunch()
        self.dropped: Counter[str] = Counter()
        self.clock_anomalies: Counter[str] = Counter()
        self.exports: Counter[tuple[str, str]] = Counter()
        """Incidents sent elsewhere, by signal and outcome; here because a counter must outlive the sidecar that counted."""
        self.source_wall: dict[str, float] = {}
        self.mark = 0
        self.state: str | None = None
        self.state_since_wall: float | None = None
        self.now = 0.0
        """Up to when the fold is complete, CLOCK_MONOTONIC seconds."""
        self._offset = 0.0
        self._event_offset: float | None = None
        self._incarnation: str | None = None
        self._former_incarnations: deque[str] = deque(maxlen=64)
        self._generation = (0, 0, 0)
        self._launchers = 0
        self._launcher_gone = False
        self._gone_since = 0.0
        self._vanished = False
        self._again = False
        """A process started although the run was complete: where it begins is not known yet."""
        self.last_trace = 0.0
        self._told = 0

    # Time.

    def set_clock(self, mono: float, wall: float) -> None:
        """The two clocks at one moment, before the observations up to it are folded."""
        self._offset = self.failures.clock_offset = wall - mono

    def advance(self, mono: float) -> None:
        """All observations up to `mono` are folded."""
        self.now = max(self.now, mono)
        self.failures.watch(self.now, self.last_trace, alive=bool(self.alive))
        losses.settle(self)

    @property
    def now_ns(self) -> int:
        """`now` in nanoseconds."""
        return round(self.now * NANOSECONDS)

    def wall_of(self, mono: float) -> float:
        """Seconds since 1970 of a moment on the monotonic clock."""
        return mono + self._offset

    # What the parts say together.

    @property
    def finished(self) -> bool:
        """Every local rank that trained has completed the run."""
        slots = self.slots.values()
        return any(slot.finished for slot in slots) and not any(books.running for books in self.ledger.slots.values())

    @property
    def alive(self) -> list[Slot]:
        """Slots whose process lives."""
        return [slot for slot in self.slots.values() if slot.alive]

    def leads(self, number: int) -> bool:
        """Whether this slot speaks for the pod: of those that take part the first."""
        return number == min((n for n, slot in self.slots.items() if slot.takes_part), default=min(self.slots))

    @property
    def launcher_lives(self) -> bool:
        """A launcher was heard to start, and not to end."""
        return self._launchers > 0 and not self._launcher_gone

    @property
    def writer_up(self) -> bool | None:
        """Whether the checkpoint writers of all local ranks live; None before one was needed."""
        known = [slot.writer_up for slot in self.slots.values() if slot.writer_up is not None]
        return all(known) if known else None

    def claims(self) -> list[Claim]:
        """What this pod knows of the failures whose verdict it awaits, oldest first."""
        return [claim(one, self.pod_index, self.info) for one in self.failures.undecided.tries]

    def absence(self) -> Claim | None:
        """That this pod vanished and its ranks have not started again: for others who know of a failure; by itself it is none."""
        if not self._vanished or self._incarnation is None:
            return None
        markers = self._markers()
        began = max((marker.began for marker in markers), default=self._gone_since)
        return absence(
            self.failures.undecided.next_name(self._incarnation),
            self.pod_index,
            self.info,
            wall=self.wall_of(self._gone_since),
            began_wall=self.wall_of(began),
            markers=markers,
        )

    def losses_depend_on(self, slot: Slot) -> tuple[object, ...]:
        """What the losses of a slot's steps depend on besides the weights."""
        return slot.rank, *self.info.losses_depend_on

    def came_back(self) -> None:
        """The pod is another one now, on this machine or elsewhere: its processes are gone, launcher included, and nobody saw how.

        That is no failure yet: the run may have been over, or told to end. If it goes on, the first process to start tells how long it was
        down, and that the pod vanished.
        """
        self._vanished = bool(self.alive) and self.failures.recovering is None
        for slot in self.alive:
            slot.die(self.last_trace)
        self._generation = (self._generation[0], self._launchers, self._generation[2] + 1)
        self._gone_since = self.last_trace
        self._launcher_gone = True
        self.container.replaced()
        self.gpus.present = ()  # another pod may have been given others, and another machine has
        self._note_state(self.last_trace)

    # The fold.

    def fold(self, observations: Iterable[Observation]) -> None:
        """Takes observations in time order; small disorder is tolerated."""
        for seen in observations:
            try:
                self._take(seen)
            except Exception:  # noqa: BLE001, PERF203 - whatever a journal holds, the rest of it counts
                self.dropped["malformed"] += 1
                self._tell_of(seen)

    def _tell_of(self, seen: Observation) -> None:
        """With the traceback, the first few times: a journal that is full of them must not fill the log."""
        self._told += 1
        if self._told <= MOST_TOLD:
            _log.exception("an observation could not be folded: %.300r", seen)
        if self._told == MOST_TOLD:
            _log.error('further ones are only counted: headway_events_dropped_total{reason="malformed"}')

    def _take(self, seen: Observation) -> None:
        if isinstance(seen, StepsSeen):
            bulk.fold(self, seen)
            return
        if isinstance(seen, VerdictSeen):  # no trace of the trainer
            self.failures.decide(seen.incident, seen.verdict)
            return
        if isinstance(seen, GpuSeen):
            self.gpus.fold(seen)
            gpu_join.arrived(self.failures, self.gpus, seen)
            return
        if isinstance(seen, GpusFound):
            self.gpus.found(seen)
            return
        if isinstance(seen, NicsSeen):
            for happened in self.nics.fold(seen):
                nic_join.arrived(self.failures, self.nics, happened)
            return
        if isinstance(seen, EventsMissed):
            self.dropped["gap"] += seen.count
            return
        if isinstance(seen, PodStatusSeen):
            self._hear(seen)
            return
        if isinstance(seen, StepSeen):
            self._step(seen)
        elif isinstance(seen, DeathSeen):
            self._death(seen)
        else:
            self._event(seen)
        mono = seen.mono
        self.last_trace = max(self.last_trace, mono)
        if self.state != "productive" or not isinstance(seen, StepSeen):  # a step in the loop changes nothing
            self._note_state(mono)
            losses.settle(self)

    def _slot(self, number: int) -> Slot | None:
        """The slot, made when new; None beyond the bound."""
        slot = self.slots.get(number)
        if slot is None and len(self.slots) < MOST_SLOTS:
            slot = self.slots[number] = Slot(number)
        if slot is None:
            self.dropped["limit"] += 1
        return slot

    def _step(self, seen: StepSeen) -> None:
        slot = self._slot(seen.slot)
        if slot is None:
            return
        record = seen.record
        begin, end = record.start_ns / NANOSECONDS, record.end_ns / NANOSECONDS
        current = self._is_current(slot, seen.life, begin)
        if current and self._again:
            self._begins_again(record.step - 1)
        self.ledger.slot(slot.number).step(record)
        # The first step after a failure warms up, and what became of the saves before it is not settled yet.
        normal = current and self.failures.recovering is None
        saving_until = self.checkpoints.saving_until if normal else None
        leads = self.leads(slot.number)
        self.steps.fold(slot.number, record, leads=leads, saving_until=saving_until)
        self.source_wall["trainer"] = self.wall_of(end)
        above, self.mark = record.step > self.mark, max(self.mark, record.step)
        if not current:
            return
        self._signs(slot, end)
        if slot.step_end <= slot.began:
            self._leave_out(slot, begin)
        slot.complete(record.step, end)
        self._trains(slot, begin, end, record.step, above_mark=above)
        if leads:  # one rank speaks for all: a rollback takes them all back
            newest = self.failures.recoveries[-1] if self.failures.recoveries else None
            context, wall = self.losses_depend_on(slot), self.wall_of(end)
            self.replay_checks.step(record.step, record.loss, context, newest, wall=wall)

    def _trains(self, slot: Slot, begin: float, end: float, step: int, *, above_mark: bool) -> None:
        was_open = self.failures.recovering
        self.failures.step(slot, begin, end, step, above_mark=above_mark)
        if was_open is not None and was_open.closed is not None:
            self.checkpoints.resumed()
        self.checkpoints.first_step()

    def _trained_unseen(self, slot: Slot, at: float, step: int) -> None:
        """The process tells of steps up to this one that no record told of: nobody knows how long they took, but training goes on."""
        self.ledger.slot(slot.number).reached(_ns(at), step)
        above, self.mark = step > self.mark, max(self.mark, step)
        self.steps.reached(step, at)
        slot.complete_unseen(at)
        self._trains(slot, at, at, step, above_mark=above)

    def _death(self, seen: DeathSeen) -> None:
        slot = self.slots.get(seen.slot)
        if slot is None or slot.life != seen.life or not slot.alive:
            return
        found = signs.from_death(slot, seen, self.wall_of(seen.mono))
        if not slot.reserve and not (slot.gone and self.failures.recovering is None):
            self._fail(found)
        slot.die(seen.mono)

    def _signs(self, slot: Slot, at: float) -> None:
        """The slot's life wrote something. After its death that means that it lost its lock, or was silent, and nothing failed."""
        if slot.signs(at):
            self.failures.withdraw(slot.number)

    def _event(self, seen: EventSeen) -> None:
        event = seen.event
        self._check_clock(event)
        self.source_wall["launcher" if seen.slot is None else "trainer"] = event.wall
        if seen.slot is None:
            self._launcher_event(event)
            return
        slot = self._slot(seen.slot)
        if slot is None:
            return
        if event.kind == "process_started":
            self._started(slot, event)
        elif self._is_current(slot, event.life, event.mono, event.wall) or event.kind == "checkpoint":
            self._slot_event(slot, event)
        self.failures.note(slot.number, event)

    def _slot_event(self, slot: Slot, event: Event) -> None:
        books, at, fields = self.ledger.slot(slot.number), _ns(event.mono), event.fields
        if slot.life == event.life:
            self._signs(slot, event.mono)
        step = fields.get("step")
        if event.kind == "train_entered":
            self._entered(slot, event)
        elif event.kind == "phase":
            if "name" in fields and fields.get("edge") in ("begin", "end"):
                books.phase(at, fields["name"], begins=fields["edge"] == "begin")
        elif event.kind == "checkpoint":
            self._checkpoint(slot, event)
        elif event.kind == "queue":
            slot.queue(fields)
        elif event.kind in ("fault_caught", "interruption"):
            if event.incarnation not in self._former_incarnations:
                self._fail(signs.from_slot(slot, event))
        elif event.kind == "ranks_reassigned" and fields.get("mode") == "inactive":
            slot.reserve = True
            books.standby(at)
        elif event.kind == "ranks_reassigned":
            mark_gone(self.slots.values(), fields.get("terminated", ()))
        elif event.kind == "signal" and fields.get("signal") in TERMINATION_SIGNALS:
            slot.terminated = event.mono
        elif event.kind == "operator_rollback" and step is not None:
            books.rolled_back(step)
            self.mark = self.ledger.mark
            self.steps.came_back(step)
            self.replay_checks.rolled_back(step)
        elif event.kind == "sample":
            self._sample(slot, event)
        elif event.kind == "nccl_trace":
            self.failures.hear(signs.trace(slot, event))
        elif event.kind == "train_finished":
            self._finish(slot, at)
            if self.finished:
                self.failures.finish(event.mono)
        elif event.kind == "process_exited":
            slot.left_in_order = True
            self._writer_dropped(slot, fields)
            self.info.phase_gaps_seen(fields.get("phase_gaps", {}))

    def _launcher_event(self, event: Event) -> None:
        if event.kind == "launcher_started":
            self._launchers += 1
            self._launcher_gone = False
            self._gone_since = self.last_trace
            return
        if event.kind == "launcher_exited":
            self._launcher_gone = True
            self._launcher_ended(event)
        if event.kind == "worker_group_failed":
            self.info.group_failed(event.fields)
        if event.kind in ("launcher_phase", "launcher_cycle"):
            self._relaunch_event(event)
            return
        stop = signs.launcher_stop(event)
        if stop is not None:
            self.failures.stop(stop)
            return
        named = event.fields.get("local_rank")
        slot = None if named is None else self._slot(named)
        late = None if slot is None else signs.late_exit(slot, event)
        ended = None if slot is None or late is None else slot.replaced(event.fields.get("pid"))
        if late is not None and ended is not None:
            self.failures.late(late, ended)
        else:
            self._fail(signs.from_launcher(slot, event))

    def _launcher_ended(self, event: Event) -> None:
        """A launcher that succeeds has seen all of its ranks succeed: a trainer that never says that it completed the run has done so."""
        ranks = [slot for slot in self.slots.values() if slot.life is not None and slot.takes_part]
        in_order = ranks and all(slot.finished or slot.left_in_order for slot in ranks)
        broke_off = self.failures.recovering is not None or self.failures.told_to_stop
        if event.fields.get("exit_code") == 0 and in_order and not broke_off:
            for slot in ranks:
                self._finish(slot, _ns(event.mono))
            self.failures.finish(event.mono)

    def _relaunch_event(self, event: Event) -> None:
        """The launcher's account of its restart: its first word is a sign, the others explain."""
        told = self.relaunch.phase(event) if event.kind == "launcher_phase" else self.relaunch.cycle(event)
        if told is not None and told.kind == "detected":
            self._fail(told)
        elif told is not None and not self.finished:
            self.failures.hear(told)

    def _hear(self, seen: PodStatusSeen) -> None:
        """The orchestrator's word: no trace of the trainer, and of a run that is complete it explains nothing."""
        told = told_by_orchestrator(seen, seen.wall - self._offset) if self.orchestrator.fold(seen) else None
        if told is not None and not self.finished:
            self.failures.hear(told)

    # Lives.

    def _is_current(self, slot: Slot, life: int, mono: float, wall: float | None = None) -> bool:
        """Whether the slot's present life speaks; a life whose start was not seen (rotated away) starts now."""
        if life != slot.life and life not in slot.former_lives:
            start = Event("process_started", 0, self.wall_of(mono) if wall is None else wall, mono, life)
            self._started(slot, start, announced=False)
        return life == slot.life

    def _started(self, slot: Slot, event: Event, *, announced: bool = True) -> None:
        if event.life == slot.life or event.life in slot.former_lives:
            return
        generation = self._note_generation(event)
        self._vanished = False
        if self.finished and (generation > slot.generation or not event.fields.get("cycle", 0)):
            self._again = True  # and no restart by the launcher that saw it to its end
        at, books = _ns(event.mono), self.ledger.slot(slot.number)
        again = slot.life is not None and generation > slot.generation
        if slot.life is not None and not slot.finished:
            if self.failures.last_opened < slot.began:
                self._unexplained(slot, event, again)
            complete = event.fields.get("world_size", 0) >= (self.info.world_size or 0)
            self.failures.restart(event.mono, "orchestrator" if again else "launcher", complete=complete)
        books.process_started(
            at,
            run_mark=self.mark,
            gone_since=_ns(self._gone_since) if again else None,
            recovering=self.failures.recovering is not None,
            announced=announced,
            returns=slot.gone,
        )
        slot.start(event, generation)
        self.info.process_started(event)
        self.checkpoints.configured_interval = self.info.settings.get("checkpoint_interval_steps")
        self.steps.forget(slot.number)

    def _note_generation(self, event: Event) -> tuple[int, int, int]:
        """Attempt, launchers and moves at this start; the first of a new generation dates the end of the one before."""
        attempt = max(self._generation[0], event.fields.get("attempt", 0))
        generation = (attempt, self._launchers, self._generation[2] + self.info.moves_to(event.fields.get("node")))
        if generation > self._generation:
            if self._launchers == self._generation[1]:
                self._gone_since = self.last_trace
            self._generation = generation
            self.container.replaced()
        self.gpus.present = ()  # another pod may have been given others, and another machine has
        return generation

    def _unexplained(self, slot: Slot, event: Event, again: bool) -> None:
        """Nothing told of the end of the life before."""
        if again:
            sign = signs.unexplained("vanished", self._gone_since, event.wall, slot.number, "the pod was started again")
            self._recover(sign)  # not a failure for the ledger: each slot learns by its own start how long it was down
        else:
            self._fail(
                signs.unexplained(
                    "replaced", event.mono, event.wall, slot.number, f"rank {slot.rank} was started again"
                )
            )

    def _entered(self, slot: Slot, event: Event) -> None:
        again = slot.entered is not None
        new = event.incarnation is not None and event.incarnation != self._incarnation
        if again and new and self.failures.recovering is None:
            text = f"rank {slot.rank} entered training again"
            self._fail(signs.unexplained("interrupted", event.mono, event.wall, slot.number, text))
        if again:
            self.failures.restart(event.mono, "in_process")
        if event.incarnation is not None and new:
            if self._incarnation is not None:
                self._former_incarnations.append(self._incarnation)
            self._incarnation = event.incarnation
        slot.enter(event)
        self.ledger.slot(slot.number).train_entered(_ns(event.mono), active=not slot.reserve, run_mark=self.mark)
        self.info.world_size = event.fields.get("world_size", self.info.world_size)
        self.info.train_entered(event.fields)

    def _begins_again(self, step: int) -> None:
        """The run was complete, and somebody starts it once more, under its name, from an earlier `step`: that is no replay."""
        self._again = False
        if step >= self.mark:
            return
        for number, books in self.ledger.slots.items():
            books.begun_again(step)
            self.slots[number].saved = min(self.slots[number].saved, step)
        self.mark = self.ledger.mark
        self.checkpoints.begun_again(step)
        self.steps.came_back(step)
        self.replay_checks.rolled_back(step)

    def _leave_out(self, slot: Slot, at: float) -> None:
        """This rank trains again at `at`, which a group does when all of its ranks are there: one whose process was gone before is none.

        Its place is idle as long as the pod stays what it was; a pod that was started again has fewer places now.
        """
        for other in self.slots.values():
            other.gone = other.gone or other.absent_since(slot.began)
            if other.gone:
                self.steps.forget(other.number)
            if other.gone and other.generation < slot.generation:
                self.ledger.slot(other.number).no_place(_ns(at), _ns(self._gone_since))

    def _finish(self, slot: Slot, at: int) -> None:
        """The rank completed the run; those in reserve or gone for good have nothing to complete, and end with the last one."""
        slot.finished = True
        self.ledger.slot(slot.number).finished(at)
        if all(other.finished or other.reserve or other.gone for other in self.slots.values()):
            for books in self.ledger.slots.values():
                books.finished(at)

    # The rest.

    def _fail(self, evidence: Evidence | None) -> None:
        if evidence is None or self.finished:
            return
        self._recover(evidence)
        self.ledger.failed(_ns(evidence.at))

    def _recover(self, evidence: Evidence) -> None:
        markers = self._markers(evidence.slot)
        began = self.failures.fail(
            evidence,
            tip=self.ledger.tip or 0,
            mark=self.mark,
            durable=self.checkpoints.durable_step,
            markers=markers,
            incarnation=self._incarnation,
            booked=self.ledger.booked(losses.STATES),
        )
        if began:
            gpu_join.began(self.failures, self.gpus)
            nic_join.began(self.failures, self.nics)
        self._out_of_memory(evidence.at, evidence.wall, self.failures.limits.oom_before_seconds)

    def _markers(self, named: int | None = None) -> tuple[Marker, ...]:
        """Where the ranks stand that take part, and the one in the slot that is `named`."""
        return tuple(
            signs.marker(slot, self.ledger.slot(slot.number).state)
            for slot in self.slots.values()
            if slot.life is not None and (slot.takes_part or (slot.gone and slot.number == named))
        )

    def _out_of_memory(self, at: float, wall: float, within_seconds: float) -> None:
        """Whether the failure under way was the kernel's, which had no memory left."""
        if self.failures.recovering is not None and self.container.take_kill(at, within_seconds):
            self.failures.ran_out_of_memory(signs.out_of_memory(at, wall, self.container.kills))

    def _checkpoint(self, slot: Slot, event: Event) -> None:
        completed = self.steps.completed
        wall = None if completed is None else self.wall_of(completed)
        if self.checkpoints.fold(slot.number, event, last_step=self.steps.step, last_step_wall=wall):
            self.failures.commit(event.mono, event.fields["step"])
        if event.fields.get("seconds", 0) < 0:
            self.clock_anomalies["negative_duration"] += 1
        step, stage = event.fields.get("step"), event.fields.get("stage")
        if step is None or event.life != slot.life:
            return
        books = self.ledger.slot(slot.number)
        if stage in ("requested", "committed") and slot.saves(step, books.tip):
            self._trained_unseen(slot, event.mono, step - 1)  # the newest may be the one that it is in
        if stage == "loaded":
            if self._again:
                self._begins_again(step)
            (books.loaded_own if step <= slot.saved else books.loaded)(step)
            self.mark = max(self.mark, step)
            self.failures.load(step)
            self.steps.came_back(step)
        elif stage == "rejected":
            self.failures.reject(step)

    def _sample(self, slot: Slot, event: Event) -> None:
        slot.sample(event)
        step, books = event.fields.get("step"), self.ledger.slot(slot.number)
        if step is not None and slot.tells_more(step, books.tip):
            self._trained_unseen(slot, event.mono, step - 1)  # the newest may yet be on its way through the ring
        self._writer_dropped(slot, event.fields)
        self.info.phase_gaps_seen(event.fields.get("phase_gaps", {}))
        self.container.sample(slot.number, event)
        self._out_of_memory(event.mono, event.wall, 0.0)

    def _writer_dropped(self, slot: Slot, fields: Any) -> None:
        count = min(fields.get("dropped", 0), 1 << 50)
        self.dropped["writer"] += max(0, count - slot.dropped)
        slot.dropped = max(slot.dropped, count)

    def _check_clock(self, event: Event) -> None:
        offset = event.wall - event.mono
        if self._event_offset is not None and abs(offset - self._event_offset) > WALL_STEP_SECONDS:
            self.clock_anomalies["wall_stepped"] += 1
        self._event_offset = offset

    def _note_state(self, mono: float) -> None:
        state = self._current_state()
        if state != self.state:
            self.state, self.state_since_wall = state, self.wall_of(mono)

    def _current_state(self) -> str | None:
        given_up = {slot.number for slot in self.slots.values() if slot.gone}
        states = {books.state for number, books in self.ledger.slots.items() if number not in given_up}
        waits_for_launcher = "restart" in states and not self._launcher_gone
        gone = bool(states) and not self.alive and not waits_for_launcher
        return podstate.combined(states, finished=self.finished, gone=gone)


def _ns(mono: float) -> int:
    return max(0, round(mono * NANOSECONDS))
