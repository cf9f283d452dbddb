"""The ledger by hand-made sequences; times in seconds here, nanoseconds inside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.ring import StepRecord
from headway_exporter.books import MOST_PHASES, MOST_PIECES, SlotLedger
from headway_exporter.ledger import Ledger
from headway_exporter.slots import Slot

SECOND = 1_000_000_000


def ns(seconds: float) -> int:
    return round(seconds * SECOND)


def record(step: int, begin: float, end: float, *, waited: float = 0.0, blocked: float = 0.0) -> StepRecord:
    return StepRecord(0, step, ns(begin), ns(end) - ns(begin), ns(waited), ns(blocked))


def books(slot: SlotLedger, now: float) -> dict[str, float]:
    """Seconds by state, and what is pending, without zeros; checks the invariant on the way."""
    pending = slot.pending(ns(now))
    assert sum(slot.states.values()) + pending == slot.elapsed(ns(now))
    return {name: amount / SECOND for name, amount in {**slot.states, "pending": pending}.items() if amount}


def started(at: float = 0.0) -> SlotLedger:
    slot = SlotLedger()
    slot.process_started(ns(at), run_mark=0)
    return slot


def training(*, entered: float = 10.0, steps: int = 3, from_step: int = 1) -> SlotLedger:
    """Started at 0, entered at 10, then steps of one second."""
    slot = started()
    slot.train_entered(ns(entered))
    for number in range(steps):
        slot.step(record(from_step + number, entered + number, entered + number + 1))
    return slot


def test_an_undisturbed_run_is_init_and_productive() -> None:
    """The plain case: everything before the first step is init, steps are productive, gaps are other."""
    slot = training()
    slot.step(record(4, 13.5, 14.5))
    slot.finished(ns(15))
    assert books(slot, 100) == {"init": 10, "productive": 4, "other": 1}


def test_time_is_pending_until_something_closes_it() -> None:
    """A step shows only when it completed, so till then nobody knows what the time was."""
    slot = training()
    assert books(slot, 20) == {"init": 10, "productive": 3, "pending": 7}


def test_shares_of_a_step_go_to_their_states() -> None:
    """Data waits and blocking saves inside a step are not productive."""
    slot = started()
    slot.step(record(1, 0, 10, waited=2, blocked=3))
    assert books(slot, 10) == {"data_wait": 2, "checkpoint_save": 3, "productive": 5}


def test_the_innermost_phase_owns_the_time() -> None:
    """An evaluation that waits for data, inside a step: every second in one state only."""
    slot = training(steps=1)
    slot.phase(ns(12), "eval", begins=True)
    slot.phase(ns(13), "data_wait", begins=True)
    slot.phase(ns(14), "data_wait", begins=False)
    slot.phase(ns(16), "eval", begins=False)
    slot.step(record(2, 11.5, 17))
    assert books(slot, 17) == {"init": 10, "eval": 3, "data_wait": 1, "other": 0.5, "productive": 1 + 0.5 + 1}


def test_a_phase_around_the_whole_loop_hides_no_step() -> None:
    """Users wrap what they like; a failure must then not turn hours of finished steps into detection time."""
    slot = started()
    slot.train_entered(ns(10))
    slot.phase(ns(10), "my training", begins=True)
    for number in range(3):
        slot.step(record(number + 1, 10 + number, 11 + number))
    slot.failed(ns(14))
    assert books(slot, 14) == {"init": 10, "productive": 3, "detect": 1}


def test_a_phase_whose_end_was_lost_inside_a_step_ends_with_it() -> None:
    """A dropped line must not leave a phase open for ever."""
    slot = training(steps=1)
    slot.phase(ns(12), "eval", begins=True)
    slot.step(record(2, 11, 14))
    slot.step(record(3, 14, 15))
    assert books(slot, 15) == {"init": 10, "eval": 2, "productive": 1 + 1 + 1}


def test_what_is_open_at_a_failure_becomes_detection() -> None:
    """Only the unfinished step is detection; what closed before keeps its state."""
    slot = training()
    slot.phase(ns(14), "eval", begins=True)
    slot.phase(ns(15), "data_wait", begins=True)
    slot.phase(ns(16), "data_wait", begins=False)
    slot.failed(ns(20))
    slot.failed(ns(21))
    slot.process_started(ns(25), run_mark=3)
    slot.train_entered(ns(30))
    assert books(slot, 30) == {"init": 10, "productive": 3, "data_wait": 1, "detect": 6, "restart": 10}


def test_after_a_restart_comes_init_less_the_load_then_replay() -> None:
    """Rolled back from 3 to 1: one step again, then a new one."""
    slot = training()
    slot.failed(ns(14))
    slot.train_entered(ns(20))
    slot.phase(ns(21), "checkpoint_load", begins=True)
    slot.phase(ns(24), "checkpoint_load", begins=False)
    slot.loaded(1)
    assert slot.unregained == 2 * SECOND
    slot.step(record(2, 25, 27))
    assert slot.unregained == 1 * SECOND
    assert slot.state == "replay"
    slot.step(record(3, 27, 28))
    slot.step(record(4, 28, 29))
    assert books(slot, 29) == {
        "init": 10 + 2,
        "productive": 3 + 1,
        "detect": 1,
        "restart": 6,
        "checkpoint_load": 3,
        "replay": 3,
    }
    assert (slot.lost_steps, slot.lost, slot.unregained, slot.mark, slot.tip) == (2, 2 * SECOND, 0, 4, 4)
    assert (slot.productive_steps, slot.replayed_steps) == (4, 2)
    assert slot.state == "productive"


def test_rollback_of_a_rollback_loses_the_replayed_steps_too() -> None:
    """Each execution that was thrown away is lost once: first passes, then their replays."""
    slot = training()
    slot.loaded(0)
    slot.step(record(1, 20, 22))
    slot.loaded(0)
    assert (slot.lost_steps, slot.lost) == (3 + 1, (3 + 2) * SECOND)
    assert slot.unregained == 3 * SECOND


def test_a_replayed_step_revokes_without_a_load() -> None:
    """A failure before the first checkpoint loads nothing and must still count."""
    slot = training()
    slot.step(record(1, 20, 21))
    assert (slot.lost_steps, slot.lost, slot.tip, slot.mark) == (3, 3 * SECOND, 1, 3)


def test_failure_of_a_restart_starts_a_new_pair() -> None:
    """Evidence after training was entered is a new detection, not more of the same restart."""
    slot = training()
    slot.failed(ns(14))
    slot.train_entered(ns(20))
    slot.failed(ns(23))
    slot.train_entered(ns(30))
    assert books(slot, 30) == {"init": 10, "productive": 3, "detect": 1 + 3, "restart": 6 + 7}


def test_late_evidence_of_an_old_failure_does_not_touch_the_new_beginning() -> None:
    """A line of the launcher may be read late; the rank is training again by then."""
    slot = training()
    slot.failed(ns(14))
    slot.train_entered(ns(20))
    slot.failed(ns(15))
    slot.step(record(4, 21, 22))
    assert books(slot, 22) == {"init": 10 + 1, "productive": 4, "detect": 1, "restart": 6}


def test_a_pod_that_was_gone_was_down() -> None:
    """Last trace to next start is down when no launcher survived; what was open before was detection."""
    slot = training()
    slot.process_started(ns(100), run_mark=3, gone_since=ns(15))
    slot.train_entered(ns(110))
    assert books(slot, 110) == {"init": 10, "productive": 3, "detect": 2, "down": 85, "restart": 10}


def test_a_known_failure_before_the_pod_was_gone_stays_a_restart() -> None:
    """The launcher tried for a while, then the pod went."""
    slot = training()
    slot.failed(ns(14))
    slot.process_started(ns(100), run_mark=3, gone_since=ns(20))
    assert books(slot, 100) == {"init": 10, "productive": 3, "detect": 1, "restart": 6, "down": 80}


def test_a_new_process_is_evidence_when_there_was_none() -> None:
    """Without a launcher's words and without a lock, only the successor tells."""
    slot = training()
    slot.process_started(ns(20), run_mark=3)
    slot.train_entered(ns(25))
    assert books(slot, 25) == {"init": 10, "productive": 3, "detect": 7, "restart": 5}


def test_a_rank_in_reserve_is_not_counted() -> None:
    """Spare ranks cost nothing in either goodput, and a failure elsewhere is not theirs."""
    ledger = Ledger()
    ledger.slots[0] = training()
    spare = ledger.slot(1)
    spare.process_started(0, run_mark=0)
    spare.standby(ns(2))
    spare.failed(ns(5))
    totals = ledger.totals(ns(13))
    assert totals.counted == 13 * SECOND + 2 * SECOND
    assert totals.training_goodput == pytest.approx(3 / 15)
    spare.train_entered(ns(20))
    assert books(spare, 20) == {"init": 2, "standby": 18}


def test_the_last_step_from_before_a_failure_does_not_end_the_restart() -> None:
    """A peer finishes the step it was in; it is not training again."""
    slot = training()
    slot.failed(ns(13.5))
    slot.step(record(4, 13, 14))
    slot.train_entered(ns(20))
    assert books(slot, 20) == {"init": 10, "productive": 3 + 0.5, "detect": 0.5, "restart": 6}
    assert slot.mark == 4


def test_a_loop_that_does_not_say_when_it_enters_ends_its_restart_by_a_step() -> None:
    """Three lines make any loop visible: process start, steps, nothing else."""
    slot = started()
    slot.step(record(1, 5, 6))
    slot.failed(ns(7))
    slot.process_started(ns(9), run_mark=1)
    slot.step(record(1, 12, 13))
    slot.step(record(2, 13, 14))
    assert books(slot, 14) == {"init": 5, "productive": 2, "detect": 1, "restart": 5, "replay": 1}


def test_an_operators_rollback_lowers_the_mark() -> None:
    """A deliberate reset: the steps are lost, done again they are progress, nothing waits to be regained."""
    slot = training()
    slot.rolled_back(1)
    assert (slot.mark, slot.tip, slot.lost_steps, slot.lost, slot.unregained) == (1, 1, 2, 2 * SECOND, 0)
    slot.step(record(2, 20, 21))
    assert slot.productive_steps == 4


def test_a_finished_rank_stops_its_clock_until_it_starts_again() -> None:
    """A rank that finishes early must not collect time; a continued run does."""
    slot = training()
    slot.finished(ns(13))
    slot.failed(ns(20))
    slot.phase(ns(21), "eval", begins=True)
    slot.step(record(3, 12, 13))
    assert books(slot, 50) == {"init": 10, "productive": 3}
    slot.process_started(ns(60), run_mark=3)
    assert books(slot, 65) == {"init": 10, "productive": 3, "pending": 5}


def test_goodputs_of_a_run_with_a_rollback() -> None:
    """The two numbers by their formulas, pending time in the denominator."""
    ledger = Ledger()
    ledger.slots[0] = slot = training()
    slot.failed(ns(14))
    slot.train_entered(ns(20))
    slot.loaded(1)
    slot.step(record(2, 20, 21))
    totals = ledger.totals(ns(25))
    assert totals.training_goodput == pytest.approx((3 - 1) / 25)
    assert totals.infrastructure_goodput == pytest.approx(1 - (10 + 1 + 6) / 25)


def test_a_restart_that_never_ends_is_no_good_time() -> None:
    """By hand: 10 s init, 5 s steps, 1 s detection, then a restart that is still open at 100; a rank in reserve is left out."""
    ledger = Ledger()
    for number in (0, 1):
        ledger.slot(number).process_started(0, run_mark=0)
        ledger.slot(number).train_entered(10, active=number == 0)
    ledger.slot(1).phase(11, "init", begins=True)
    for step in range(1, 6):
        ledger.slot(0).step(StepRecord(step - 1, step, 9 + step, 1, 0, 0))
    ledger.failed(16)
    totals = ledger.totals(100)
    assert (totals.pending_unavailable, totals.states["restart"]) == (84, 0)
    assert totals.infrastructure_goodput == pytest.approx((110 - 10 - 10 - 1 - 84) / 110)
    assert totals.training_goodput == pytest.approx(5 / 110)


def test_no_goodput_before_there_is_time() -> None:
    """Nothing divided by nothing is not 0 %."""
    assert Ledger().totals(5).training_goodput is None


def test_hostile_phases_are_bounded() -> None:
    """Endless begins and endless short phases grow nothing and lose no time."""
    slot = training()
    for number in range(3 * MOST_PHASES):
        slot.phase(ns(14), f"deep-{number}", begins=True)
    assert len(slot._stack) <= MOST_PHASES + 1
    slot.failed(ns(15))
    slot.train_entered(ns(15))
    for number in range(3 * MOST_PIECES):
        slot.phase(ns(20 + number), "eval", begins=True)
        slot.phase(ns(20.5 + number), "eval", begins=False)
    assert len(slot._stack[0].pieces) <= MOST_PIECES
    assert books(slot, 2000)["eval"] == 0.5 * 3 * MOST_PIECES


times = st.integers(0, 1_000)
happenings = st.one_of(
    st.tuples(st.just("start"), times, st.none() | times),
    st.tuples(st.just("enter"), times, st.booleans()),
    st.tuples(
        st.just("phase"),
        times,
        st.sampled_from(["eval", "checkpoint_load", "init", "data_wait", "mine"]),
        st.booleans(),
    ),
    st.tuples(st.just("step"), times, times, st.integers(-2, 30), times, times),
    st.tuples(st.just("load"), st.integers(0, 30)),
    st.tuples(st.just("reset"), st.integers(0, 30)),
    st.tuples(st.just("fail"), times),
    st.tuples(st.just("standby"), times),
    st.tuples(st.just("finish"), times),
)


class Clock:
    """Elapsed time of a slot by a clock of its own: it only knows when the slot ran, and nothing of intervals."""

    def __init__(self) -> None:
        self.latest = 0
        self.since: int | None = None
        self.total = 0
        self.ever = False

    def see(self, at: int) -> int:
        self.latest = max(self.latest, at)
        return self.latest

    def run(self, at: int) -> None:
        if self.since is None:
            self.since, self.ever = at, True

    def end(self) -> None:
        if self.since is not None:
            self.total += self.latest - self.since
            self.since = None

    def elapsed(self, now: int) -> int:
        return self.total + (0 if self.since is None else max(now, self.latest) - self.since)


def apply(slot: SlotLedger, clock: Clock, happening: tuple[object, ...]) -> None:
    match happening:
        case ("start", int(at), gone):
            slot.process_started(at, run_mark=0, gone_since=gone if isinstance(gone, int) else None)
            clock.run(clock.see(at))
        case ("enter", int(at), bool(active)):
            slot.train_entered(at, active=active)
            clock.run(clock.see(at))
        case ("phase", int(at), str(name), bool(begins)):
            slot.phase(at, name, begins=begins)
            if clock.since is not None or not clock.ever:
                clock.run(clock.see(at))
        case ("standby", int(at)):
            slot.standby(at)
            if clock.since is not None or not clock.ever:
                clock.run(clock.see(at))
        case ("step", int(one), int(other), int(number), int(waited), int(blocked)):
            begin, end = sorted((one, other))
            slot.step(StepRecord(0, number, begin, end - begin, waited, blocked))
            if not clock.ever or end > clock.latest:
                clock.run(max(begin, clock.latest) if clock.ever else begin)
            clock.see(end)
        case ("fail", int(at)):
            if clock.since is not None:
                slot.failed(at)
                clock.latest = slot._edge  # evidence older than the beginning is not for this slot
        case ("finish", int(at)):
            if clock.since is not None:
                clock.see(at)
            slot.finished(at)
            clock.end()
        case ("load", int(number)):
            slot.loaded(number)
        case ("reset", int(number)):
            slot.rolled_back(number)


@settings(max_examples=400, deadline=None)
@given(st.lists(happenings, max_size=40))
def test_states_and_pending_add_up_to_elapsed(sequence: list[tuple[object, ...]]) -> None:
    """Invariant 1, for any sequence in any order of times: no second is lost or counted twice, and no counter falls."""
    slot, clock = SlotLedger(), Clock()
    before: dict[str, int] = {}
    for happening in sequence:
        apply(slot, clock, happening)
        now = max(clock.latest, 500)
        assert sum(slot.states.values()) + slot.pending(now) == slot.elapsed(now) == clock.elapsed(now)
        counters = {**slot.states, "lost": slot.lost, "lost_steps": slot.lost_steps, "done": slot.productive_steps}
        assert all(counters[name] >= amount for name, amount in before.items())
        assert 0 <= slot.unregained <= slot.states["productive"]
        before = counters


def test_steps_that_a_checkpoint_vouched_for_count_once() -> None:
    """Their records may be found after all, when the slot has gone on already: they are neither new steps nor replayed ones."""
    slot = training(steps=2)
    slot.process_started(ns(20), run_mark=2)
    slot.loaded_own(6)
    slot.train_entered(ns(21))
    assert (slot.productive_steps, slot.replayed_steps) == (6, 0)
    for step in (3, 4, 5, 6, 7):
        slot.step(record(step, 8.0 + step, 9.0 + step))
    assert (slot.productive_steps, slot.replayed_steps, slot.tip) == (7, 0, 7)
    slot.step(record(7, 22, 23))
    assert (slot.productive_steps, slot.replayed_steps, slot.mark) == (7, 1, 7)


def test_checkpoints_that_are_numbered_otherwise_tell_of_no_steps() -> None:
    """Epochs, samples or tokens for numbers would be thousands of steps that nobody made."""
    slot = Slot(0)
    slot.complete(5, 1.0)
    assert not slot.saves(50_000, 5)
    assert not slot.saves(50_001, 5)
    assert slot.saved == 0
    assert not slot.saves(6, 5)  # at the step whose number it has
    assert slot.saves(20, 6)
    assert slot.saved == 20
