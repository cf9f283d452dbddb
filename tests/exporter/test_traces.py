"""An incident's record as spans and as a log record: what a reader of traces can rely on."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from incident_record import T, one_try, record, recovery, sign
from incident_tale import Tale

from headway_exporter import records
from headway_exporter.labels import RECOVERY_PHASES
from headway_exporter.trace_words import ATTRIBUTES
from headway_exporter.traces import Span, Trace, log, sentence, told_here, trace

SECOND = 1_000_000_000


def seconds(span: Span) -> tuple[float, float]:
    """Start and end, from the opening on."""
    return (span.start_ns - round(T * SECOND)) / SECOND, (span.end_ns - round(T * SECOND)) / SECOND


def tree(told: Trace) -> list[tuple[str, str | None, tuple[float, float]]]:
    """Name, parent's name and times of each span."""
    names = {span.span_id: span.name for span in told.spans}
    return [(span.name, names.get(span.parent_id or 0), seconds(span)) for span in told.spans]


def test_spans_lie_where_the_time_went() -> None:
    """Each span is inside its parent's story, phases follow each other, and the times are those of the record."""
    assert tree(trace(record())) == [
        ("incident: app_exception", None, (-1.5, 30.0)),
        ("recovery", "incident: app_exception", (-1.5, 20.0)),
        ("try", "recovery", (-1.5, 4.0)),
        ("detect", "try", (-1.5, 0.0)),
        ("teardown", "try", (0.0, 0.5)),
        ("init", "try", (0.5, 4.0)),
        ("try", "recovery", (4.0, 14.0)),
        ("teardown", "try", (4.0, 5.0)),
        ("respawn", "try", (5.0, 10.0)),
        ("rendezvous", "try", (10.0, 11.0)),
        ("init", "try", (11.0, 12.5)),
        ("load", "try", (12.5, 12.75)),
        ("first_step", "try", (12.75, 14.0)),
        ("catch_up", "recovery", (14.0, 20.0)),
    ]


def test_catching_up_is_known_from_the_mark_alone() -> None:
    """A record without that phase still tells when the mark was regained."""
    plain = recovery(tries=[one_try(T, "launcher", {"detect": 1.0, "teardown": 14.0})])
    assert tree(trace(record(recoveries=[plain])))[-1] == ("catch_up", "recovery", (14.0, 20.0))


def test_ids_follow_from_the_record_and_the_pod() -> None:
    """Sent again it is the same trace, span by span; another pod's spans of the same incident are others."""
    first, again, other = trace(record()), trace(record()), trace(record(pod_index="1"))
    assert first == again
    ids = [span.span_id for span in first.spans]
    assert len(set(ids)) == len(ids)
    assert all(0 < one < 1 << 64 for one in ids)
    assert first.trace_id == other.trace_id == int("0af7651916cd43dd8448eb211c80319c", 16)
    assert not {span.span_id for span in other.spans} & set(ids)


def test_a_later_revision_belongs_to_the_same_root() -> None:
    """Spans cannot be changed, so what is learnt later must point at those that were sent."""
    root = trace(record()).spans[0]
    later = log(record(revision=2, cause="host_oom", recoveries=[]))
    assert (later.trace_id, later.span_id) == (trace(record()).trace_id, root.span_id)
    assert "(revision 2)" in later.body


def test_evidence_is_with_the_try_that_it_ended() -> None:
    """An exception goes by OpenTelemetry's names, anything else by its kind, at the time when it was seen."""
    first, second = (span for span in trace(record()).spans if span.name == "try")
    [exception] = first.events
    assert (exception.name, exception.time_ns) == ("exception", round(T * SECOND))
    assert exception.attributes["exception.type"] == "ValueError"
    assert exception.attributes["exception.message"] == "loss: 7"
    assert str(exception.attributes["exception.stacktrace"]).startswith("File train.py")
    death, ended = second.events
    assert (death.name, ended.name) == ("headway.death", "headway.exit")
    assert ended.attributes["process.exit.code"] == -9
    assert ended.attributes["headway.evidence.rank"] == 1


def test_evidence_that_is_dated_back_is_with_the_first_try() -> None:
    """A process was dead before its peers told of it; and without any try the incident itself has the evidence."""
    early = [sign("death", T - 0.5, "process of rank 1 died")]
    spans = trace(record(evidence=early)).spans
    assert [span.name for span in spans if span.events] == ["try"]
    assert len(trace(record(evidence=early, recoveries=[])).spans[0].events) == 1


@pytest.mark.parametrize(
    ("changes", "error", "severity"),
    [
        ({}, None, "INFO"),
        ({"recurring": ["same_entity"]}, None, "INFO"),
        ({"recurring": ["no_progress", "same_step"]}, "recovered, recurring: no_progress, same_step", "ERROR"),
        ({"outcome": "abandoned"}, "abandoned", "ERROR"),
        ({"outcome": "cancelled"}, "cancelled", "WARN"),
        ({"outcome": "cancelled", "recurring": ["no_progress"]}, "cancelled, recurring: no_progress", "ERROR"),
    ],
)
def test_the_verdict_shows_in_status_and_severity(changes: dict[str, Any], error: str | None, severity: str) -> None:
    """A search for errors must find what did not recover for good, and nothing else."""
    told = record(**changes)
    assert trace(told).spans[0].error == error
    assert log(told).severity == severity


def test_tries_and_recoveries_without_a_step_are_errors() -> None:
    """The try that was in vain is found by its status."""
    spans = trace(record()).spans
    assert [span.error is not None for span in spans if span.name in ("recovery", "try")] == [False, True, False]
    gone = recovery(first_step_wall=None, high_water_wall=None, tries=[one_try(T, "", {})])
    told = trace(record(outcome="abandoned", recoveries=[gone]))
    assert [(span.name, seconds(span), span.error is not None) for span in told.spans] == [
        ("incident: app_exception", (0.0, 30.0), True),
        ("recovery", (0.0, 30.0), True),
        ("try", (0.0, 30.0), True),
    ]


def test_the_log_record_is_one_sentence() -> None:
    """What a person reads first: what became of it, why, where, at what price."""
    told = log(record())
    assert told.body == (
        "incident 9f86d081884c7d65 of run demo recovered after 30.0 s: app_exception (confirmed) on rank 1, node n1; "
        "launcher restart, 1 attempt, 19 steps lost"
    )
    assert (told.time_ns, told.observed_ns) == (round((T + 30) * SECOND), round((T + 31) * SECOND))
    nobody = {"rank": None, "pod_index": None, "node": None, "gpu_uuid": None}
    vague = record(
        outcome="abandoned",
        cause="unknown",
        confidence="unknown",
        origin=nobody,
        layer=None,
        attempts=0,
        recoveries=[],
        recurring=["no_progress"],
        closed_wall=None,
    )
    assert sentence(vague) == (
        "incident 9f86d081884c7d65 of run demo was abandoned: unknown (unknown) of unknown origin; "
        "no restart, 0 attempts, recurring (no_progress)"
    )


def test_every_attribute_is_documented_and_used() -> None:
    """The table is what people build their searches on."""
    full = record(origin={"rank": 1, "pod_index": "0", "node": "n1", "gpu_uuid": "GPU-7"})
    used = {name for span in trace(full).spans for name in span.attributes}
    used |= {name for span in trace(full).spans for event in span.events for name in event.attributes}
    assert used == set(ATTRIBUTES)
    assert set(log(full).attributes) <= set(ATTRIBUTES)


@pytest.mark.parametrize(
    ("own", "rank", "pod", "pods", "told"),
    [
        ("0", 1, None, 1, True),
        ("host-a", None, None, None, True),
        ("1", 9, "1", 4, True),
        ("0", 9, "1", 4, False),
        ("0", 9, None, 4, False),
        ("0", None, None, 4, True),
        ("1", None, None, 4, False),
    ],
)
def test_one_pod_tells_of_an_incident(
    own: str, rank: int | None, pod: str | None, pods: int | None, told: bool
) -> None:
    """All pods have the incident; its trace must not arrive once from each."""
    where = {"rank": rank, "pod_index": pod, "node": None, "gpu_uuid": None}
    assert told_here(record(pod_index=own, origin=where, pods_expected=pods)) is told


def test_pods_that_decide_alone_tell_once() -> None:
    """Each folds its own journals: the pod where it began tells of it, one that heard an echo does not; both name the same trace."""
    origin, echo = (Tale(pod_index=str(pod), first_rank=2 * pod, world_size=6, pods_expected=3) for pod in (1, 2))
    origin.tell("fail 1, in_process 8, steps 9-12, commit 12")
    echo.tell("echo 1, in_process 8, steps 9-12, commit 12")
    first, second = (records.record(tale.pod, tale.incidents[-1], T) for tale in (origin, echo))
    assert (told_here(first), told_here(second)) == (True, False)
    assert trace(first).trace_id == trace(second).trace_id


def test_what_no_wire_format_holds_is_left_out() -> None:
    """Half a surrogate pair, numbers beyond 64 bits and what is no number must not cost the whole trace."""
    told = trace(record(node="n\udcff", mark_step=1 << 70, lost_rank_seconds={"detect": math.inf}, cause="a\ud800"))
    attributes = told.spans[0].attributes
    assert attributes["headway.node"] == "n?"
    assert told.spans[0].name == "incident: a?"
    assert not {"headway.mark_step", "headway.lost_rank_seconds"} & set(attributes)


def test_times_that_are_not_known_are_left_out() -> None:
    """A journal with a time of no sense gives a record with null for it."""
    nowhere = [
        recovery(opened_wall=None),
        recovery(tries=[one_try(T, "launcher", {"detect": None}) | {"opened_wall": None}]),
    ]
    told = trace(
        record(
            recoveries=nowhere,
            evidence=[sign("exit", T, "rank 1") | {"wall": None}],
            closed_wall=None,
            lost_rank_seconds={"detect": None},
        )
    )
    assert [span.name for span in told.spans] == ["incident: app_exception", "recovery", "catch_up"]


@pytest.mark.parametrize(
    "story",
    [
        "fail 1, in_process 8, steps 9-12, commit 12",
        "kill 1, launcher 8, steps 9-12, commit 12",
        "fail 1, in_process 8, fail 1, wait 20, in_process 8, kill 0, launcher 8, steps 9-20, commit 20",
        "fail 1, in_process 8, steps 9-9, kill 1, launcher 8, steps 9-12, commit 12, gone, orchestrator 8, steps 9-30, finish",
    ],
)
def test_the_spans_phases_are_those_of_the_metrics(story: str) -> None:
    """What the folded pod counts as `headway_recovery_phase_seconds_total` is what its traces show, second by second."""
    pod = Tale().tell(story).pod
    shown: Counter[tuple[str, str]] = Counter()
    for incident in pod.failures.incidents:
        told = trace(records.record(pod, incident, T))
        for span in told.spans:
            if span.name in RECOVERY_PHASES:
                shown[str(span.attributes["headway.layer"]), span.name] += span.end_ns - span.start_ns
    counted = {key: amount for key, amount in pod.failures.phases.items() if amount}
    assert {key: amount / SECOND for key, amount in shown.items()} == pytest.approx(counted, abs=1e-6)
    assert counted


AMOUNT = st.floats(0, 1e5)


@given(
    st.lists(st.dictionaries(st.sampled_from(RECOVERY_PHASES), AMOUNT), min_size=1, max_size=4),
    st.one_of(st.none(), AMOUNT),
    st.one_of(st.none(), AMOUNT),
    AMOUNT,
)
@settings(deadline=None)
def test_spans_never_end_before_they_start(
    tries: list[dict[str, float]], first_step: float | None, regained: float | None, closed: float
) -> None:
    """Whatever the times, also after a step of the wall clock: parents come first and time goes forward."""
    walls = {"first_step_wall": first_step, "high_water_wall": regained}
    made = recovery(
        tries=[one_try(T + 10 * place, "launcher", phases) for place, phases in enumerate(tries)],
        **{name: None if wall is None else T - 100 + wall for name, wall in walls.items()},
    )
    told = trace(record(recoveries=[made], closed_wall=T - 50 + closed))
    seen: set[int] = set()
    for span in told.spans:
        assert 0 <= span.start_ns <= span.end_ns
        assert span.parent_id is None or span.parent_id in seen
        seen.add(span.span_id)
    for span in (one for one in told.spans if one.name == "try"):
        own = [one for one in told.spans if one.parent_id == span.span_id]
        assert all(before.end_ns == after.start_ns for before, after in pairwise(own))
        if own:
            assert own[0].start_ns >= span.start_ns
            assert own[-1].end_ns <= span.end_ns
