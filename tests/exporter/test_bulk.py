"""Many steps folded at once, against the same steps one by one."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.events import Event
from headway.ring import StepColumns
from headway_exporter import bulk
from headway_exporter.curve import MOST_POINTS, StepCurve
from headway_exporter.distribution import Distribution
from headway_exporter.merge import merged
from headway_exporter.observations import EventSeen, Run, StepsSeen
from headway_exporter.pod import Pod

if TYPE_CHECKING:
    import pytest

    from headway_exporter.observations import DeathSeen, Observation, StepSeen

SECOND = 1_000_000_000


def columns(first: int, steps: list[int], starts: list[int], durations: list[int], **more: list[Any]) -> StepColumns:
    zeros = [0] * len(steps)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    rest = {"waits": zeros, "blocked": zeros, "losses": [1.5] * len(steps), "tokens": [7] * len(steps)} | more
    return StepColumns(first, steps, starts, ends, durations, **rest)


@st.composite
def runs(draw: st.DrawFn, slot: int) -> Run:
    """A ring's content: mostly plain progress, with one thing in it that is not."""
    count = draw(st.integers(1, 400))
    begin, oddity = draw(st.integers(0, 20)) * SECOND, draw(st.integers(0, count - 1))
    steps = list(range(1, count + 1))
    each, gap = draw(st.sampled_from([1, SECOND // 10, SECOND])), draw(st.integers(0, 1000))
    starts = [begin + place * (each + gap) for place in range(count)]
    durations, zeros = [each] * count, [0] * count
    more: dict[str, list[Any]] = {"waits": list(zeros), "blocked": list(zeros), "losses": [2.5] * count}
    match draw(st.integers(0, 8)):
        case 1:
            steps[oddity:] = [step - min(step - 1, draw(st.integers(0, 9))) for step in steps[oddity:]]
        case 2:
            steps[oddity:] = [step + 5 for step in steps[oddity:]]
        case 3:
            more["losses"][oddity] = None
        case 4:
            more["waits"][oddity] = draw(st.integers(0, 2 * SECOND))
        case 5:
            more["blocked"] = [draw(st.integers(0, each)) for _ in steps]
        case 6:
            starts[oddity] = max(0, starts[oddity] - draw(st.integers(0, SECOND)))
        case 7:
            more["losses"] = [None] * count
    durations = [max(0, later - start) for start, later in zip(starts, _rising(starts, durations), strict=True)]
    return Run(slot, slot + 1, columns(draw(st.integers(0, 1)), steps, starts, durations, **more))


def _rising(starts: list[int], durations: list[int]) -> list[int]:
    """Ends that rise: the follower hands on nothing else as a run."""
    ends, last = [], 0
    for start, duration in zip(starts, durations, strict=True):
        last = max(last, start + duration)
        ends.append(last)
    return ends


def event(slot: int, kind: str, at: float, **fields: Any) -> EventSeen:
    return EventSeen(slot, Event(kind, 0, 1e9 + at, at, slot + 1, None, fields))


@st.composite
def events(draw: st.DrawFn) -> EventSeen:
    slot, at = draw(st.integers(0, 1)), draw(st.integers(0, 60))
    kind, fields = draw(
        st.sampled_from(
            [
                ("process_started", {"life_lock": True}),
                ("train_entered", {}),
                ("phase", {"name": "eval", "edge": "begin"}),
                ("phase", {"name": "eval", "edge": "end"}),
                ("fault_caught", {"type": "ValueError"}),
                ("checkpoint", {"stage": "loaded", "step": 5}),
                ("checkpoint", {"stage": "requested", "step": 30}),
                ("checkpoint", {"stage": "committed", "step": 30}),
                ("sample", {"step": 50}),
                ("train_finished", {}),
            ]
        )
    )
    return event(slot, kind, float(at), **fields)


def alone(observations: list[Observation]) -> list[EventSeen | StepSeen | DeathSeen]:
    found: list[EventSeen | StepSeen | DeathSeen] = []
    for seen in observations:
        found += seen.steps() if isinstance(seen, StepsSeen) else [seen]
    return found


def told(observations: list[Any]) -> Pod:
    pod = Pod("run", "0")
    pod.set_clock(0.0, 1e9)
    pod.fold(observations)
    pod.advance(100.0)
    assert not pod.dropped["malformed"]
    return pod


def everything(pod: Pod) -> Any:
    """All that the pod holds, down to the private parts."""
    books = [
        (
            (slot.states, slot.mark, slot.tip, slot.productive_steps, slot.replayed_steps, slot.lost_steps, slot.lost),
            (slot._stack, slot._edge, slot._next_sequence, slot._first._steps, slot._first._sums, slot._live._sums),
        )
        for _, slot in sorted(pod.ledger.slots.items())
    ]
    steps = (pod.steps.durations.cumulative(), pod.steps.durations.total, pod.steps.tokens, pod.steps.loss)
    more = (
        pod.steps.step,
        pod.steps.completed,
        list(pod.steps._baseline),
        pod.steps._recent,
        list(pod.steps.contention._saving),
        list(pod.steps.contention._alone),
        pod.mark,
        pod.last_trace,
    )
    recoveries = [(one.opened, one.closed, one.regained, one.steps_lost) for one in pod.failures.recoveries]
    checks = (list(pod.replay_checks._first), pod.replay_checks._tip, pod.replay_checks.results)
    rest = (checks, pod.failures.without_progress, pod.source_wall, pod.state, pod.state_since_wall, pod.slots)
    history = [(slot.history.width, slot.history.stretches) for _, slot in sorted(pod.ledger.slots.items())]
    return books, steps, more, recoveries, rest, history


@settings(max_examples=150, deadline=None)
@given(runs(0), runs(1), st.lists(events(), max_size=6))
def test_the_same_answer_as_one_by_one(first: Run, second: Run, happenings: list[EventSeen]) -> None:
    """Speed must not cost a nanosecond of truth: whatever the rings hold and whatever comes in between."""
    starts = [event(slot, "process_started", 0.0) for slot in (0, 1)]
    observations = merged([*starts, *happenings], [first, second])
    assert everything(told(observations)) == everything(told(sorted(alone(observations), key=attrgetter("key"))))


@settings(max_examples=50, deadline=None)
@given(runs(0), runs(1), st.lists(events(), max_size=6), st.sampled_from([1.0, 7.0]))
def test_the_same_answer_however_often_was_looked(
    first: Run, second: Run, happenings: list[EventSeen], period: float
) -> None:
    """A sidecar that keeps up gets few steps at a time, of all ranks at once: these are added up together, too."""
    starts = [event(slot, "process_started", 0.0) for slot in (0, 1)]
    polls: list[list[Observation]] = [merged(starts, [])]
    rings: list[Run | None] = [first, second]
    upto = -1.0
    while any(rings):
        before, upto = upto, upto + period
        parts = [ring.split(round(upto * 1e6)) if ring is not None else (None, None) for ring in rings]
        rings = [late for _, late in parts]
        new = [
            seen
            for seen in happenings
            if before < seen.event.mono <= upto or (not any(rings) and seen.event.mono > upto)
        ]
        polls.append(merged(new, [early for early, _ in parts if early is not None]))
    looked = [seen for poll in polls for seen in poll]
    assert everything(told(looked)) == everything(told(alone(looked)))


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 500),
    saves=st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 40), st.sampled_from(["committed", "failed"])), max_size=6
    ),
    blocked=st.integers(0, SECOND),
)
def test_steps_beside_saves_are_the_same_either_way(
    count: int, saves: list[tuple[int, int, str]], blocked: int
) -> None:
    """Contention does not depend on when the sidecar looked: a run that a save ends in is split where one by one would."""
    starts = [place * SECOND + 7 for place in range(count)]
    run = Run(0, 1, columns(0, list(range(1, count + 1)), starts, [SECOND] * count, blocked=[blocked] * count))
    told_of = [event(0, "process_started", 0.0)]
    for number, (at, seconds, end) in enumerate(saves):
        told_of.append(event(0, "checkpoint", at + 0.5, stage="requested", step=number))
        told_of.append(event(0, "checkpoint", at + seconds + 0.6, stage=end, step=number))
    observations = merged(told_of, [run])
    assert everything(told(observations)) == everything(told(sorted(alone(observations), key=attrgetter("key"))))


def test_a_plain_run_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short cut must be taken, or a late sidecar is slow and no test would say so."""
    taken: list[int] = []
    add = bulk._add
    monkeypatch.setattr(bulk, "_add", lambda pod, run: (taken.append(len(run)), add(pod, run)))
    starts = [place * SECOND for place in range(5000)]
    run = Run(0, 1, columns(0, list(range(1, 5001)), starts, [SECOND] * 5000))
    pod = told(merged([event(0, "process_started", 0.0), event(0, "sample", 3000.5, step=3000)], [run]))
    assert sum(taken) >= 5000 - 2 * bulk.FEW
    assert pod.ledger.slots[0].productive_steps == 5000


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3 * MOST_POINTS), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_a_curve_grows_the_same_either_way(amounts: list[int], gap: int) -> None:
    """It is thinned at the same points, so that a later rollback costs the same."""
    at_once, each = StepCurve(), StepCurve()
    for curve in (at_once, each):
        curve.append(1, 4)
    at_once.extend(2 + gap, amounts)
    for place, amount in enumerate(amounts):
        each.append(2 + gap + place, amount)
    assert (at_once._steps, at_once._sums) == (each._steps, each._sums)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_a_distribution_fills_the_same_either_way(values: list[float]) -> None:
    """Down to the last bit of its sum, which a scrape may have shown already."""
    at_once, each = Distribution((0.1, 1.0, 5.0)), Distribution((0.1, 1.0, 5.0))
    at_once.observe_all(values)
    for value in values:
        each.observe(value)
    assert (at_once.cumulative(), at_once.total) == (each.cumulative(), each.total)
