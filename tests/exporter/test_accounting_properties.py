"""The invariants of the accounting, for any sequence of observations of a pod."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.events import Event
from headway.ring import StepRecord
from headway_exporter import records
from headway_exporter.labels import LAYERS
from headway_exporter.observations import DeathSeen, EventSeen, GpuSeen, StepSeen
from headway_exporter.pod import Pod

if TYPE_CHECKING:
    from headway_exporter.observations import Observation

pytestmark = pytest.mark.slow

SECOND = 1_000_000_000
END = 300
MILLISECOND = 1_000_000

slots = st.integers(0, 2)
lives = st.integers(1, 3)
times = st.integers(0, END * 10).map(lambda tenth: tenth / 10)
numbers = st.integers(0, 12)


@st.composite
def events(draw: st.DrawFn) -> Observation:
    """A journal line of a slot."""
    kind, fields = draw(
        st.one_of(
            st.builds(
                lambda attempt: ("process_started", {"attempt": attempt, "gpu_uuid": f"GPU-000{attempt}"}),
                st.integers(0, 2),
            ),
            st.builds(
                lambda mode: ("train_entered", {"mode": mode}), st.sampled_from(["active", "active", "inactive"])
            ),
            st.builds(
                lambda name, edge: ("phase", {"name": name, "edge": edge}),
                st.sampled_from(["init", "checkpoint_load", "checkpoint_save", "eval", "data_wait", "mine"]),
                st.sampled_from(["begin", "end"]),
            ),
            st.builds(
                lambda stage, step: ("checkpoint", {"stage": stage, "step": step}),
                st.sampled_from(["requested", "committed", "failed", "loaded", "rejected"]),
                numbers,
            ),
            st.builds(lambda step: ("sample", {"step": step}), numbers),
            st.builds(lambda step: ("operator_rollback", {"step": step}), numbers),
            st.builds(lambda ranks: ("ranks_reassigned", {"terminated": ranks}), st.lists(slots, max_size=1)),
            st.just(("ranks_reassigned", {"mode": "inactive"})),
            st.just(("fault_caught", {"type": "ValueError"})),
            st.just(("interruption", {"records": [{"rank": 1, "kind": "EXCEPTION"}]})),
            st.just(("train_finished", {})),
            st.just(("process_exited", {})),
        )
    )
    at, slot = draw(times), draw(slots)
    incarnation = draw(st.sampled_from([None, "a", "b", "c"]))
    return EventSeen(slot, Event(kind, 0, 1e9 + at, at, 10 * slot + draw(lives), incarnation, fields))


@st.composite
def step_records(draw: st.DrawFn) -> Observation:
    """A completed step."""
    slot = draw(slots)
    begin, length = draw(times), draw(st.integers(0, 50)) / 10
    shares = (draw(st.integers(0, 2 * SECOND)), draw(st.integers(0, 2 * SECOND)))
    record = StepRecord(draw(numbers), draw(numbers), round(begin * SECOND), round(length * SECOND), *shares)
    return StepSeen(slot, 10 * slot + draw(lives), record)


launcher_lines = st.builds(
    lambda kind_fields, at: EventSeen(None, Event(kind_fields[0], 0, 1e9 + at, at, 1, None, kind_fields[1])),
    st.sampled_from(
        [
            ("launcher_started", {}),
            ("launcher_exited", {"exit_code": 1}),
            ("worker_exited", {"local_rank": 1, "exit_code": -9}),
            ("worker_group_failed", {"restarts_left": 1, "restarts_limit": 3}),
        ]
    ),
    times,
)
deaths = st.builds(
    lambda slot, life, at, by: DeathSeen(slot, 10 * slot + life, at, by),
    slots,
    lives,
    times,
    st.sampled_from(["lock", "found", "replaced", "silence"]),
)
gpus = st.builds(
    lambda number, kind, at, xid: GpuSeen(f"GPU-000{number}", kind, at, 1e9 + at, xid),
    st.integers(0, 2),
    st.sampled_from(["xid", "xid", "ecc", "nvlink", "lost", "back", "remap"]),
    times,
    st.sampled_from([13, 31, 45, 74, 79, 94]),
)
sequences: st.SearchStrategy[list[Observation]] = st.lists(
    st.one_of(events(), step_records(), launcher_lines, deaths, gpus), max_size=40
)


def in_order(sequence: list[Observation]) -> list[Observation]:
    return sorted(sequence, key=lambda seen: seen.key)


def new_pod() -> Pod:
    pod = Pod("run", "0")
    pod.set_clock(0.0, 1e9)
    return pod


def counters(pod: Pod) -> dict[str, int]:
    """Everything that may only rise; not the recoveries that are kept, for a death that was none is withdrawn."""
    totals, books = pod.ledger.totals(pod.now_ns), pod.ledger.slots.values()
    return {
        **totals.states,
        "elapsed": totals.elapsed,
        "lost": totals.lost,
        "lost_steps": max((slot.lost_steps for slot in books), default=0),
        "productive_steps": max((slot.productive_steps for slot in books), default=0),
        "replayed_steps": max((slot.replayed_steps for slot in books), default=0),
        **{f"restarts by {layer}": pod.failures.restarts[layer] for layer in LAYERS},
        **{f"closed by {layer}": pod.failures.closed[layer] for layer in LAYERS},
        "saves": pod.checkpoints.outcomes.total(),
        "requests": pod.checkpoints.requests,
    }


def visible(pod: Pod) -> Any:
    """What anybody can see of a pod."""
    totals = pod.ledger.totals(pod.now_ns)
    recoveries = [(one.opened, one.closed, one.layer, one.steps_lost, one.diagnosis) for one in pod.failures.recoveries]
    places = [(slot.alive, slot.step, slot.rank, slot.incarnation) for slot in pod.slots.values()]
    steps = (pod.steps.step, pod.steps.completed, pod.steps.loss, pod.steps.tokens, pod.steps.durations.cumulative())
    kept = [records.record(pod, incident, 0.0) for incident in pod.failures.incidents]
    return totals, counters(pod), recoveries, places, steps, pod.mark, pod.state, pod.state_since_wall, kept


@settings(max_examples=150, deadline=None)
@given(sequences)
def test_every_moment_adds_up_and_no_counter_falls(sequence: list[Observation]) -> None:
    """Invariants 1 and 2 at every moment: states and pending make the elapsed time, goodputs are fractions, and counters only rise."""
    pod = new_pod()
    before: dict[str, int] = {}
    for seen in in_order(sequence):
        pod.fold([seen])
        pod.advance(seen.mono)
        totals, now = pod.ledger.totals(pod.now_ns), counters(pod)
        assert sum(totals.states.values()) + totals.pending == totals.elapsed
        assert all(now[name] >= amount for name, amount in before.items())
        for later in (totals, pod.ledger.totals(pod.now_ns + 100 * SECOND)):
            training, infrastructure = later.training_goodput, later.infrastructure_goodput
            if training is not None and infrastructure is not None:
                assert 0 <= training <= infrastructure <= 1
        before = now
    assert not pod.dropped["malformed"]


@settings(max_examples=100, deadline=None)
@given(sequences, st.lists(st.integers(0, 40), max_size=6))
def test_polls_do_not_change_the_answer(sequence: list[Observation], cuts: list[int]) -> None:
    """When the sidecar looks decides nothing: the same observations in other portions give the same answer."""
    ordered = in_order(sequence)
    whole, portions = new_pod(), new_pod()
    whole.fold(ordered)
    borders = [0, *sorted(cuts), len(ordered)]
    for begin, end in itertools.pairwise(borders):
        portions.fold(ordered[begin:end])
        portions.advance(max((seen.mono for seen in ordered[begin:end]), default=0.0))
    for pod in (whole, portions):
        pod.advance(END + 10)
    assert visible(whole) == visible(portions)


class Clock:
    """When one slot ran, by nothing but the first sign of it and its end."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None

    def elapsed(self) -> float:
        return 0.0 if self.first is None else (END if self.last is None else self.last) - self.first


@st.composite
def life_stories(draw: st.DrawFn) -> tuple[list[Observation], Clock]:
    """A slot whose lives follow each other, and which may complete the run at the end of the last one; with a clock beside it."""
    slot, clock, told = draw(slots), Clock(), []
    moments = sorted(draw(st.lists(times, min_size=2, max_size=30)))
    life = 0
    for at in moments:
        restarts = life == 0 or draw(st.integers(0, 5)) == 0
        life += restarts
        seen = _told(draw(events()), slot, 10 * slot + life, at, "process_started" if restarts else None)
        if seen is not None:
            clock.first = at if clock.first is None else clock.first
            told.append(seen)
    if draw(st.booleans()) and told:
        told.append(EventSeen(slot, Event("train_finished", 0, 1e9, moments[-1], 10 * slot + life, None, {})))
        clock.last = moments[-1]
    return told, clock


def _told(seen: Observation, slot: int, life: int, at: float, kind: str | None) -> EventSeen | None:
    """The event as this life's at this time; None for one that would start or end the slot's time."""
    assert isinstance(seen, EventSeen)
    event = seen.event
    if kind is None and event.kind in ("process_started", "train_finished"):
        return None
    fields = {} if kind else event.fields
    return EventSeen(slot, Event(kind or event.kind, 0, 1e9 + at, at, life, event.incarnation, fields))


@settings(max_examples=100, deadline=None)
@given(life_stories())
def test_elapsed_is_what_a_clock_beside_it_says(story: tuple[list[Observation], Clock]) -> None:
    """Elapsed time is measured, not added up: a clock that knows only the first sight and the end agrees to the millisecond."""
    told, clock = story
    pod = new_pod()
    pod.fold(told)
    pod.advance(END)
    totals = pod.ledger.totals(pod.now_ns)
    assert abs(totals.elapsed - clock.elapsed() * SECOND) < MILLISECOND
    assert abs(sum(totals.states.values()) + totals.pending - clock.elapsed() * SECOND) < MILLISECOND
