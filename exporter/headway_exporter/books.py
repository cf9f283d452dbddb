"""The books of one slot: every nanosecond of a local rank, in exactly one state.

A slot has a stack of open intervals: at the bottom the gap in which no phase is open (named by what the rank is up to: init,
restart, standby, or `other` for the loop), above it the phases. The innermost one owns the time. An interval is booked when it closes
and keeps its state for ever; until then its time is pending, since only its end tells what it was: a step shows when it completed, and what
was open at a failure turns out to have been the detection of that failure.

So at any moment: sum of all states + pending = elapsed, where elapsed is measured from first start to finish, without looking at
the intervals. All times are integer nanoseconds of CLOCK_MONOTONIC. Nothing here reads a clock.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headway_exporter.curve import StepCurve
from headway_exporter.history import History, Recent
from headway_exporter.labels import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.ring import StepColumns, StepRecord

_OWN_STATE: Final = frozenset({"checkpoint_load", "checkpoint_save", "data_wait", "eval"})
_STARTING: Final = frozenset({"init", "rendezvous"})
_FAILED: Final = frozenset({"restart", "standby"})
"""Bottoms that a failure does not change: it is known already, or it does not concern a rank in reserve."""

MOST_PHASES: Final = 32
"""Phases open at once; more are not tracked, their time is the outer one's."""
MOST_PIECES: Final = 256
"""Closed inner intervals remembered in an open one before what lies before them is booked."""


def phase_state(name: str, bottom: str) -> str:
    """The state of a phase while the gap's state is `bottom`; a user's own phase is as if it were not there."""
    if bottom == "restart" and name != "checkpoint_load":
        return bottom  # whatever a process does before it trains again is part of its restart
    if name in _OWN_STATE:
        return name
    return "init" if name in _STARTING else bottom


@dataclass(slots=True)
class _Open:
    """An open interval, and the closed ones inside it, which own their own time."""

    state: str
    begin: int
    name: str = ""
    pieces: list[tuple[int, int]] = field(default_factory=list)

    def own(self, begin: int, end: int) -> int:
        """Nanoseconds between the two that belong to this interval."""
        begin = max(begin, self.begin)
        inner = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in self.pieces)
        return max(0, end - begin - inner)

    def stretches(self, until: int) -> list[tuple[int, int]]:
        """The times that belong to this interval, up to `until`."""
        found, cursor = [], self.begin
        for start, stop in sorted(self.pieces):
            if min(start, until) > cursor:
                found.append((cursor, min(start, until)))
            cursor = max(cursor, stop)
        return [*found, (cursor, until)] if until > cursor else found

    def advance(self, to: int) -> None:
        """Forgets what lies before `to`: it is booked."""
        if to > self.begin:
            self.begin = to
            self.pieces = [piece for piece in self.pieces if piece[1] > to]


def _orderly(run: StepColumns) -> bool:
    """Whether each step begins after the one before ended, and has room for its shares."""
    after = all(map(operator.ge, run.starts[1:], run.ends))
    return after and min(run.durations) >= 0 and _room_for_shares(run)


def _room_for_shares(run: StepColumns) -> bool:
    if not any(run.waits) and not any(run.blocked):  # told much sooner
        return True
    shares: Iterable[int] = map(operator.add, run.waits, run.blocked)
    return all(map(operator.ge, run.durations, shares))


class SlotLedger:
    """The books of one slot."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(STATES, 0)
        self.mark = 0
        """Highest step ever completed."""
        self.tip: int | None = None
        """Last step that the current weights contain."""
        self.productive_steps = 0
        self.replayed_steps = 0
        self.lost_steps = 0
        self.lost = 0
        self._first = StepCurve()  # the first pass over each step: what is regained or not
        self._live = StepCurve()  # the steps that the current weights contain
        self.history = History()
        self.recent = Recent()
        self._stack: list[_Open] = []
        self._edge = 0  # latest time that was dealt with: no later sight may reach back before it
        self._entered = 0
        self._next_sequence: int | None = None  # of the present life's ring; None: what came before is not known
        self._vouched = (
            0,
            0,
        )  # steps above the first up to the second were counted although their records were not there
        self._span_begin: int | None = None
        self._closed_spans = 0
        self._ended = False

    # What happens to a slot.

    def process_started(
        self,
        at: int,
        *,
        run_mark: int,
        gone_since: int | None = None,
        recovering: bool = False,
        announced: bool = True,
        returns: bool = False,
    ) -> None:
        """A process begins.

        Args:
            at: when.
            run_mark: highest step of the run, for a slot without history.
            gone_since: the whole pod was gone since then, launcher included.
            recovering: the pod is: what the process does before it trains is part of that.
            announced: the process itself told of it; else it is older, and may have made steps that nobody saw.
            returns: the run has gone on without this slot.
        """
        at = self._move(at)
        self._next_sequence = 0 if announced else None
        if self._span_begin is None:
            self._begin_span(at, "restart" if recovering else "init")
            self.mark = max(self.mark, run_mark)
        else:
            bottom = self._stack[0].state
            self._settle_absence(at, gone_since)
            self._stack = [_Open("standby" if bottom == "standby" else "restart", at)]
        if returns:
            self.mark = max(self.mark, run_mark)
        self._entered = at

    def train_entered(self, at: int, *, active: bool = True, run_mark: int = 0) -> None:
        """The training function begins, or the rank is put in reserve. `run_mark` as for `process_started`."""
        at = self._running(at)
        bottom = self._stack[0].state
        if bottom == "standby" or (bottom == "restart" and not self.productive_steps + self.replayed_steps):
            self.mark = max(self.mark, run_mark)  # it joins a run that has gone on without it
        self._settle(
            at, "detect" if bottom == "other" else None
        )  # re-entered from the loop: this is the first to tell of a failure
        self._stack = [_Open("init" if active else "standby", at)]
        self._entered = at

    def standby(self, at: int) -> None:
        """The rank is in reserve from now on."""
        if self._ended:
            return
        at = self._running(at)
        self._settle(at)
        self._stack = [_Open("standby", at)]

    def phase(self, at: int, name: str, *, begins: bool) -> None:
        """A phase begins or ends; an end without a beginning means nothing."""
        if self._ended:
            return
        at = self._running(at)
        if begins:
            if len(self._stack) <= MOST_PHASES:
                self._stack.append(_Open(phase_state(name, self._stack[0].state), at, name))
            return
        depth = next((i for i in range(len(self._stack) - 1, 0, -1) if self._stack[i].name == name), None)
        while depth is not None and len(self._stack) > depth:
            self._close_innermost(at)

    def step(self, record: StepRecord) -> bool:
        """A step completed; whether it was productive, that is, above the mark."""
        end = max(record.end_ns, 0)
        begin = min(max(record.start_ns, 0), end)
        if self._stack and begin < self._stack[0].begin and self._vouched[0] < record.step <= self._vouched[1]:
            return False  # an older life's, and counted before its record was found
        productive = record.step > self.mark
        if self._span_begin is None and (end > self._edge or not self._ended):
            self._begin_span(max(begin, self._edge), "other")
        if self.running:
            self._notice_gap(begin, record)
        work = self._book_step(begin, end, record, "productive" if productive else "replay") if self.running else 0
        self._edge = max(self._edge, end)
        self._complete(record.step, work, productive=productive)
        return productive

    def takes(self, run: StepColumns) -> bool:
        """Whether these steps are nothing but progress in the loop, one after the other, so that `steps` may book them at once."""
        if len(self._stack) != 1 or self._stack[0].state != "other" or self._stack[0].pieces:
            return False
        if self.tip is None or self.tip < self.mark or self._next_sequence not in (None, run.first):
            return False
        consecutive = run.steps == list(range(self.tip + 1, self.tip + 1 + len(run)))
        return consecutive and run.starts[0] >= self._stack[0].begin and _orderly(run)

    def steps(self, run: StepColumns) -> None:
        """As `step` for each of a run that it `takes`."""
        own = run.durations
        for state, shares in (("data_wait", run.waits), ("checkpoint_save", run.blocked)):
            if any(shares):
                self._book_run(state, run.starts, run.ends, shares)
                own = list(map(operator.sub, own, shares))
        end, bottom = run.ends[-1], self._stack[0]
        gaps_begin = [bottom.begin, *run.ends[:-1]]
        gaps = list(map(operator.sub, run.starts, gaps_begin))
        if any(gaps):
            self._book_run("other", gaps_begin, run.starts, gaps)
        self._book_run("productive", run.starts, run.ends, own)
        bottom.advance(end)
        self._edge = max(self._edge, end)
        for curve in (self._live, self._first):
            curve.extend(run.steps[0], own)
        self.tip = self.mark = run.steps[-1]
        self.productive_steps += len(run)
        self._next_sequence = run.first + len(run)

    def reached(self, at: int, step: int) -> None:
        """Steps up to `step` were complete at `at`, and their records were never seen (overwritten): they count, but had no known time.

        What is open is therefore no start-up any more, and will not have been the detection of a failure.
        """
        if self._span_begin is None or at < self._stack[0].begin:
            return
        at = self._move(at)
        if self._stack[0].state not in _FAILED:
            self._stack[0].state = "other"
            self._settle(at)
        self._count_unseen(step)

    def _count_unseen(self, step: int) -> None:
        done = step if self.tip is None else self.tip
        above = max(0, step - max(done, self.mark))
        self.productive_steps += above
        self.replayed_steps += max(0, step - done) - above
        self.tip, self.mark = max(done, step), max(self.mark, step)

    def loaded_own(self, step: int) -> None:
        """As `loaded`, of a checkpoint that this slot itself saved: whatever records were lost, it had made all steps up to there."""
        if self.tip is not None:
            self._vouched = (self.tip, step) if step > self.tip else self._vouched
            self._count_unseen(step)
        self.loaded(step)

    def loaded(self, step: int) -> None:
        """The weights are those after `step` now."""
        self._revoke(step)
        self.tip = step
        self.mark = max(self.mark, step)

    def rolled_back(self, step: int) -> None:
        """The operator went back to `step` on purpose: it counts as if nothing above had been done."""
        self._revoke(step)
        self._first.cut(step)
        self.mark = min(self.mark, step)

    def begun_again(self, step: int) -> None:
        """The run was complete, and is done once more from `step` on: nothing is lost, and what comes is new."""
        if self.tip is not None and self.tip > step:
            self.tip = step
            self._live.cut(step)
        self._first.cut(step)
        self.mark = min(self.mark, step)

    def failed(self, at: int) -> None:
        """First evidence of a failure in the pod: what is open was the detection of it."""
        if self._span_begin is None or self._stack[0].state in _FAILED or at < self._entered:
            return
        at = self._move(at)
        self._settle(at, "detect")
        self._stack = [_Open("restart", at)]

    def finished(self, at: int) -> None:
        """Training is complete on this rank: its time ends."""
        if self._span_begin is None:
            return
        at = self._move(at)
        self._settle(at)
        self._stack = []
        self._closed_spans += at - self._span_begin
        self._span_begin = None
        self._ended = True

    def no_place(self, at: int, gone_since: int) -> None:
        """The pod was gone since then, and trains again without a place for this rank: its time ends."""
        if self._span_begin is not None:
            self._settle_absence(self._move(at), gone_since)
            self.finished(at)

    # What the books say.

    @property
    def running(self) -> bool:
        """Between first start and the end of training."""
        return self._span_begin is not None

    @property
    def state(self) -> str | None:
        """What the rank does now, as far as open intervals tell; None outside of its time."""
        if not self._stack:
            return None
        state = self._stack[-1].state
        if state != "other" or self.tip is None:
            return state
        return "replay" if self.tip < self.mark else "productive"

    @property
    def unregained(self) -> int:
        """Productive nanoseconds of steps above the tip."""
        return 0 if self.tip is None or self.tip >= self.mark else self._first.total - self._first.up_to(self.tip)

    def elapsed(self, now: int) -> int:
        """Nanoseconds from first start to now or to the end of training, by nothing but those two."""
        if self._span_begin is None:
            return self._closed_spans
        return self._closed_spans + max(now, self._edge) - self._span_begin

    def pending(self, now: int) -> int:
        """Nanoseconds in intervals that are open."""
        return sum(self.open_by_state(now).values())

    def open_by_state(self, now: int) -> dict[str, int]:
        """Nanoseconds in intervals that are open, by the state that each would be booked as."""
        found: dict[str, int] = {}
        for open_, limit in self._limits(max(now, self._edge)):
            found[open_.state] = found.get(open_.state, 0) + open_.own(open_.begin, limit)
        return found

    def open_stretches(self, now: int) -> list[tuple[str, int, int]]:
        """`(state, begin, end)` of what is open and in no history yet, by the state that it would be booked as."""
        limits = self._limits(max(now, self._edge))
        return [(one.state, *stretch) for one, limit in limits for stretch in one.stretches(limit)]

    @property
    def in_reserve(self) -> bool:
        """The pending time is standby."""
        return bool(self._stack) and self._stack[0].state == "standby"

    # How time is booked.

    def _settle_absence(self, at: int, gone_since: int | None) -> None:
        """There was no process up to now; the whole pod was gone since then."""
        bottom = self._stack[0].state
        unseen = None if bottom in _FAILED else "detect"  # nothing told of its end before
        if gone_since is not None and bottom != "standby":
            self._settle(min(gone_since, at), unseen)
            unseen = "down"
        self._settle(at, unseen)

    def _begin_span(self, at: int, state: str) -> None:
        self._span_begin = at
        self._ended = False
        self._stack = [_Open(state, at)]
        self._edge = max(self._edge, at)

    def _running(self, at: int) -> int:
        """`_move`, and a slot whose start nobody saw starts now."""
        at = self._move(at)
        if self._span_begin is None:
            self._begin_span(at, "init")
        return at

    def _move(self, at: int) -> int:
        self._edge = max(self._edge, at)
        return self._edge

    def _book(self, state: str, amount: int, begin: int, end: int) -> None:
        """So much time of an interval was spent on `state`."""
        self.states[state] += amount
        self.history.add(state, begin, end, amount)
        self.recent.add(state, begin, end, amount)

    def _book_run(self, state: str, begins: list[int], ends: list[int], amounts: list[int]) -> None:
        """As `_book` for each of many intervals, one after the other in time."""
        self.states[state] += sum(amounts)
        self.history.add_run(state, begins, ends, amounts)
        self.recent.add_run(state, begins, ends, amounts)

    def _book_open(self, interval: _Open, until: int, state: str | None = None) -> None:
        """What is an open interval's own up to `until`, for its own state or for another."""
        for begin, end in interval.stretches(until):
            self._book(state or interval.state, end - begin, begin, end)

    def _limits(self, until: int) -> list[tuple[_Open, int]]:
        """Each open interval with the time at which the next inner one takes over."""
        ends = [*(interval.begin for interval in self._stack[1:]), until]
        return (
            [(interval, min(end, until)) for interval, end in zip(self._stack, ends, strict=True)]
            if self._stack
            else []
        )

    def _settle(self, until: int, state: str | None = None) -> None:
        """Books what is open up to `until`, to each interval's own state or all to `state`; the intervals go on from there."""
        for interval, limit in self._limits(until):
            self._book_open(interval, limit, state)
        for interval in self._stack:
            interval.advance(until)

    def _close_innermost(self, at: int) -> None:
        interval = self._stack.pop()
        self._book_open(interval, at)
        outer = self._stack[-1]
        outer.pieces.append((interval.begin, at))
        if len(outer.pieces) > MOST_PIECES:
            self._book_open(outer, at)
            outer.advance(at)

    def _book_step(self, begin: int, end: int, record: StepRecord, state: str) -> int:
        """Books a step and what was open before it; returns the nanoseconds that are the step's own."""
        while len(self._stack) > 1 and begin < self._stack[-1].begin < end:
            self._close_innermost(end)  # its end was lost: it was inside the step, so it cannot have gone on
        bottom = self._stack[0]
        began_here = begin >= bottom.begin
        if (
            began_here and len(self._stack) == 1 and not bottom.pieces
        ):  # nearly always: a short cut for what follows below
            self._book(bottom.state, begin - bottom.begin, bottom.begin, begin)
            owned = end - begin
        else:
            self._settle(begin)
            host = next(interval for interval in reversed(self._stack) if interval is bottom or interval.begin <= end)
            owned = host.own(begin, end)
        waited = min(max(record.data_wait_ns, 0), owned)
        blocked = min(max(record.blocked_ns, 0), owned - waited)
        for name, amount in (("data_wait", waited), ("checkpoint_save", blocked), (state, owned - waited - blocked)):
            self._book(name, amount, begin, end)
        for interval in self._stack:
            interval.advance(end)
        if began_here:  # else it is the last step from before a failure
            bottom.state = "other"
        return owned - waited - blocked

    def _notice_gap(self, begin: int, record: StepRecord) -> None:
        """Steps of this life that were overwritten before anybody read them."""
        missed = 0 if self._next_sequence is None else record.sequence - self._next_sequence
        if missed and begin < self._stack[0].begin:
            return  # the last words of an older life
        self._next_sequence = record.sequence + 1
        if missed > 0:
            if self.tip is None:
                self.tip = max(0, record.step - 1 - missed)
            self.reached(begin, record.step - 1)

    def _complete(self, step: int, work: int, *, productive: bool) -> None:
        if self.tip is not None and self.tip >= step:
            self._revoke(step - 1)
        self._live.append(step, work)
        self.tip = step
        if productive:
            self._first.append(step, work)
            self.mark = step
            self.productive_steps += 1
        else:
            self.replayed_steps += 1

    def _revoke(self, step: int) -> None:
        """The steps above `step` are not in the weights any more."""
        if self.tip is not None and self.tip > step:
            self.lost_steps += self.tip - step
            self.tip = step
        self.lost += self._live.cut(step)
