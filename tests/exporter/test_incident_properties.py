"""Whatever the journals say, in whatever order: nothing breaks, nothing counts twice, and the answer is always the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.events import INTERRUPTIONS, Event
from headway.ring import StepRecord
from headway_exporter import collectors, records
from headway_exporter.labels import CAUSES, INCIDENT_OUTCOMES, LAYERS, REASONS, RECOVERY_PHASES
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import DeathSeen, EventSeen, GpuSeen, Observation, PodStatusSeen, StepSeen
from headway_exporter.pod import Pod
from headway_exporter.schema import METRICS
from headway_exporter.status import status

SLOTS = st.sampled_from([0, 1, 2])
LIVES = st.sampled_from([1, 2, 3])
STEPS = st.integers(0, 12)
RECORDS = st.lists(st.fixed_dictionaries({"rank": st.integers(-1, 9), "kind": st.sampled_from(INTERRUPTIONS)}))
SLOT_EVENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "process_started": st.fixed_dictionaries(
        {"rank": st.integers(0, 3), "attempt": st.integers(0, 2), "world_size": st.integers(1, 4)},
        optional={"pods_expected": st.integers(1, 2), "gpu_uuid": st.sampled_from(["a", "b"])},
    ),
    "train_entered": st.fixed_dictionaries(
        {"rank": st.integers(0, 3)}, optional={"mode": st.sampled_from(["active", "inactive"])}
    ),
    "fault_caught": st.fixed_dictionaries(
        {"type": st.sampled_from(["ValueError", "SystemExit"]), "collective": st.booleans()},
        optional={"category": st.sampled_from(["cuda_oom", "nonsense"]), "message": st.text(max_size=5)},
    ),
    "interruption": st.fixed_dictionaries({"records": RECORDS}),
    "checkpoint": st.fixed_dictionaries(
        {"stage": st.sampled_from(["requested", "committed", "loaded", "rejected"]), "step": STEPS},
        optional={"seconds": st.floats(-5, 50)},
    ),
    "phase": st.fixed_dictionaries(
        {"name": st.sampled_from(["init", "rendezvous", "checkpoint_load"]), "edge": st.sampled_from(["begin", "end"])}
    ),
    "signal": st.just({"signal": 15}),
    "finalized": st.just({}),
    "sample": st.fixed_dictionaries({"collective": st.booleans(), "oom_kills": st.integers(0, 3)}),
    "operator_rollback": st.fixed_dictionaries({"step": STEPS}),
    "nccl_trace": st.fixed_dictionaries({}, optional={"path": st.text(max_size=5), "bytes": st.integers(-1, 10**30)}),
    "train_finished": st.just({}),
    "process_exited": st.just({}),
}
LAUNCHER_EVENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "launcher_started": st.just({}),
    "worker_exited": st.fixed_dictionaries({"local_rank": SLOTS, "exit_code": st.sampled_from([-15, -10, -9, 0, 1])}),
    "heartbeat_missed": st.fixed_dictionaries({}, optional={"local_rank": SLOTS, "waited_seconds": st.floats(0, 90)}),
    "worker_group_failed": st.just({"restarts_left": 2, "restarts_limit": 3}),
    "launcher_exited": st.fixed_dictionaries({"exit_code": st.sampled_from([-15, 0, 1])}),
    "signal": st.just({"signal": 15}),
}
GPUS = st.builds(
    GpuSeen,
    uuid=st.sampled_from(["a", "b", "c"]),
    kind=st.sampled_from(["xid", "xid", "ecc", "nvlink", "lost", "back", "remap"]),
    mono=st.just(0.0),
    wall=st.just(0.0),
    xid=st.sampled_from([13, 31, 45, 63, 74, 79, 94, 119, 4242]),
    text=st.text(max_size=5),
    parts=st.sampled_from([(), ("b",)]),
)


TOLD = st.builds(
    PodStatusSeen,
    st.sampled_from(["heard", "container", "disruption"]),
    mono=st.just(0.0),
    wall=st.sampled_from([-300.0, -1.0, 0.0]),
    happening=st.sampled_from(["a", "b", "c"]),
    reason=st.sampled_from(["completed", "error", "oom_killed", "preempted", "other"]),
    cause=st.sampled_from([None, "host_oom", "preempted", "node_lost"]),
    sure=st.booleans(),
    exit_code=st.sampled_from([None, -15, -9, 0, 1]),
)


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """One sight, at second 0; the sequence dates it."""
    what = draw(st.sampled_from(["step", "step", "death", "slot", "slot", "slot", "launcher", "gpu", "orchestrator"]))
    if what == "gpu":
        return draw(GPUS)
    slot, life = draw(SLOTS), draw(LIVES)
    if what == "step":
        return StepSeen(slot, life, StepRecord(0, draw(STEPS), 0, draw(st.integers(0, 10**9))))
    if what == "death":
        return DeathSeen(slot, life, 0.0, draw(st.sampled_from(["lock", "found", "replaced", "silence"])))
    if what == "orchestrator":
        return draw(TOLD)
    events = SLOT_EVENTS if what == "slot" else LAUNCHER_EVENTS
    kind = draw(st.sampled_from(sorted(events)))
    incarnation = draw(st.sampled_from([None, "a", "b", "c"]))
    return EventSeen(slot if what == "slot" else None, Event(kind, 0, 0.0, 0.0, life, incarnation, draw(events[kind])))


def at(seen: Observation, mono: float) -> Observation:
    """The sight, dated."""
    if isinstance(seen, StepSeen):
        start = round(mono * 1e9)
        record = seen.record
        return StepSeen(seen.slot, seen.life, StepRecord(0, record.step, start, record.duration_ns))
    if isinstance(seen, DeathSeen):
        return DeathSeen(seen.slot, seen.life, mono, seen.by)
    if isinstance(seen, GpuSeen):
        return replace(seen, mono=max(0.0, mono - seen.xid % 7), wall=mono)  # some are told late
    if isinstance(seen, PodStatusSeen):
        return replace(seen, mono=mono, wall=mono + seen.wall)
    event = seen.event
    return EventSeen(seen.slot, Event(event.kind, 0, mono, mono, event.life, event.incarnation, event.fields))


SEQUENCES = st.lists(st.tuples(observations(), st.sampled_from([0.0, 0.01, 1.0, 30.0, 4000.0])), max_size=40)
TALE = list[tuple[Observation, float]]


def tell(pod: Pod, seen: Observation, mono: float) -> None:
    pod.set_clock(mono, mono)
    pod.fold([at(seen, mono)])
    pod.advance(mono)


def counters(pod: Pod) -> dict[tuple[str, ...], float]:
    """Every counter of restarts and incidents."""
    samples = [*collectors.restarts(pod), *collectors.incidents(pod)]
    return {
        (name, *labels): float(value)
        for name, labels, value in samples
        if METRICS[name].type == "counter" and isinstance(value, (int, float))
    }


@settings(max_examples=150, deadline=None)
@given(SEQUENCES)
def test_any_sequence_of_evidence(sequence: TALE) -> None:
    """It is folded without an exception; each closure counts once; counters never fall; labels stay in their closed sets."""
    pod, mono = Pod("run", "0"), 100.0
    before = counters(pod)
    for seen, pause in sequence:
        mono += pause
        tell(pod, seen, mono)
        now = counters(pod)
        assert all(now.get(key, 0.0) >= value for key, value in before.items())  # a rank that moved away had none
        before = now
    assert pod.dropped["malformed"] == 0
    failures = pod.failures
    closed = [one for one in failures.incidents if one.closed is not None]
    assert sum(failures.outcomes.values()) == len(closed)
    assert sum(failures.incident_causes.values()) <= len(closed)  # another pod counts those that began there
    assert all(outcome in INCIDENT_OUTCOMES for outcome, _ in failures.outcomes)
    assert all(layer in LAYERS and cause in CAUSES for layer, cause in (*failures.causes, *failures.incident_causes))
    assert all(layer in LAYERS and phase in RECOVERY_PHASES for layer, phase in failures.phases)
    assert all(failures.recurring(one) <= set(REASONS) - {"same_entity"} for one in failures.incidents)
    json.dumps(status(pod, {}), allow_nan=False)
    for one in failures.incidents:
        json.dumps(records.record(pod, one, mono), allow_nan=False)
    again = Pod("run", "0")
    recall(again, json.loads(json.dumps(encoder().encode(pod))))
    assert counters(again) == counters(pod)


@settings(max_examples=40, deadline=None)
@given(SEQUENCES)
def test_a_replay_gives_the_same_answer(sequence: TALE) -> None:
    """The fold reads no clock and rolls no dice: a recorded journal replays to the same books."""
    documents = []
    for _ in range(2):
        pod, mono = Pod("run", "0"), 100.0
        for seen, pause in sequence:
            mono += pause
            tell(pod, seen, mono)
        documents.append((json.dumps(status(pod, {})), counters(pod)))
    assert documents[0] == documents[1]


@settings(max_examples=60, deadline=None)
@given(SEQUENCES)
def test_phases_add_up(sequence: TALE) -> None:
    """Phases of recoveries are exclusive: together they never exceed the time that there was."""
    pod, mono = Pod("run", "0"), 100.0
    for seen, pause in sequence:
        mono += pause
        tell(pod, seen, mono)
    assert all(seconds >= 0 for seconds in pod.failures.phases.values())
    assert sum(pod.failures.phases.values()) <= mono - 100.0 + 1.0 + 1e-6  # a step may end up to 1 s after its line
