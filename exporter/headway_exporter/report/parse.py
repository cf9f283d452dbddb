"""From the JSON of the state folder to the model: whatever has the wrong type is as good as missing.

The fields and what they mean are those of `records.record` and `summary.summary`, which write them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.labels import CAUSES, INCIDENT_OUTCOMES, RECOVERY_PHASES, STATES
from headway_exporter.report import fields
from headway_exporter.report.model import (
    Budget,
    Checkpoints,
    Distribution,
    Evidence,
    History,
    Later,
    Origin,
    Pod,
    Record,
    Recovery,
    SlotHistory,
    Try,
)
from headway_exporter.thresholds import told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.report.model import Setting

Json = Any
OPEN: Final = "open"
_CAUSES: Final = frozenset(CAUSES)
_OUTCOMES: Final = frozenset({*INCIDENT_OUTCOMES, OPEN})
_STATES: Final = frozenset(STATES)
_PHASES: Final = frozenset(RECOVERY_PHASES)
_CONFIDENCES: Final = frozenset({"confirmed", "likely", "unknown"})
MOST_RECOVERIES: Final = 100
MOST_EVIDENCE: Final = 50


class RecordError(ValueError):
    """What cannot be told apart from other incidents: it has no id or no time."""


def record(source: Mapping[str, Json], pod_index: str) -> Record:
    """A record of the pod.

    Raises:
        RecordError: the id or the time at which it opened is missing.
    """
    identity = fields.text(source.get("id"), 64)
    opened = fields.wall(source.get("opened_wall"))
    if not identity or opened is None:
        raise RecordError("it has no id or no time")
    recoveries = tuple(_recovery(one) for one in fields.objects(source.get("recoveries"), MOST_RECOVERIES))
    total = fields.whole(source.get("steps_lost"))  # records of older versions tell it of each recovery that they keep
    return Record(
        id=identity,
        pod_index=pod_index,
        revision=fields.count(source.get("revision")),
        written_wall=fields.wall(source.get("written_wall")),
        outcome=_one_of(source.get("outcome"), _OUTCOMES, OPEN),
        state=fields.text(source.get("state")),
        recurring=fields.texts(source.get("recurring")),
        opened_wall=opened,
        closed_wall=fields.wall(source.get("closed_wall")),
        layer=fields.optional_text(source.get("layer")),
        escalated=source.get("escalated") is True,
        attempts=fields.count(source.get("attempts")),
        cause=_one_of(source.get("cause"), _CAUSES, "unknown"),
        confidence=_one_of(source.get("confidence"), _CONFIDENCES, "unknown"),
        alternatives=_causes(source.get("alternatives")),
        origin=_origin(fields.mapping(source.get("origin"))),
        decided_by=fields.text(source.get("decided_by")) or "alone",
        ambiguous=source.get("ambiguous") is True,
        mark_step=fields.whole(source.get("mark_step")),
        durable_step=fields.whole(source.get("durable_step")),
        loads=_loads(source.get("loads")),
        world_size=fields.whole(source.get("world_size")),
        node=fields.text(source.get("node")),
        evidence=Later(partial(_all_evidence, source.get("evidence"))),
        recoveries=recoveries,
        recoveries_left_out=fields.count(source.get("recoveries_left_out")),
        steps_lost=sum(one.steps_lost or 0 for one in recoveries) if total is None else max(total, 0),
        lost_rank_seconds=_by_state(source.get("lost_rank_seconds")),
        trace_id=fields.text(source.get("trace_id"), 64),
    )


def pod(summary: Mapping[str, Json], index: str, written_wall: float) -> Pod:
    """A pod's summary."""
    steps = fields.mapping(summary.get("steps"))
    recovery = fields.mapping(summary.get("recovery_seconds"))
    return Pod(
        index=index,
        node=fields.text(summary.get("node")),
        written_wall=fields.wall(written_wall) or fields.wall(summary.get("written_wall")) or 0.0,
        started_wall=fields.wall(summary.get("started_wall")),
        state=fields.optional_text(summary.get("state")),
        state_since_wall=fields.wall(summary.get("state_since_wall")),
        finished=summary.get("finished") is True,
        step=fields.whole(summary.get("step")),
        high_water_step=fields.whole(summary.get("high_water_step")),
        total_steps=fields.whole(summary.get("total_steps")),
        loss=fields.number(summary.get("loss")),
        world_size=fields.whole(summary.get("world_size")),
        pods_expected=fields.whole(summary.get("pods_expected")),
        backend=fields.optional_text(summary.get("backend")),
        versions=_versions(summary.get("versions")),
        settings=_settings(summary.get("settings")),
        rank_seconds=_by_state(summary.get("rank_seconds")),
        elapsed_rank_seconds=fields.amount(summary.get("elapsed_rank_seconds")),
        pending_rank_seconds=fields.amount(summary.get("pending_rank_seconds")),
        unregained_rank_seconds=fields.amount(summary.get("unregained_rank_seconds")),
        infrastructure_goodput=_share(summary.get("infrastructure_goodput")),
        checkpoint=_checkpoints(fields.mapping(summary.get("checkpoint"))),
        budget={fields.text(name): _budget(fields.mapping(one)) for name, one in _named(summary.get("budget"))},
        restarts=fields.counts(summary.get("restarts")),
        phase_gap_seconds=fields.amounts(summary.get("phase_gap_seconds")),
        productive_steps=fields.count(steps.get("productive")),
        replayed_steps=fields.count(steps.get("replay")),
        lost_steps=fields.count(steps.get("lost")),
        baseline_step_seconds=fields.number(summary.get("baseline_step_seconds")),
        tokens=fields.number(summary.get("tokens")),
        lost_rank_seconds=fields.amount(summary.get("lost_rank_seconds")),
        first_step_seconds=_distribution(recovery.get("first_step")),
        high_water_seconds=_distribution(recovery.get("high_water")),
        recovery_phases=tuple(_phases(summary.get("recovery_phases"))),
        replay_checks=fields.counts(summary.get("replay_checks")),
        thresholds=told(fields.mapping(summary.get("thresholds"))),
        dropped=fields.counts(summary.get("dropped")),
        history=history(summary.get("history")),
    )


def _one_of(value: Json, allowed: frozenset[str], otherwise: str) -> str:
    return value if isinstance(value, str) and value in allowed else otherwise


def _causes(value: Json) -> tuple[str, ...]:
    return tuple(one for one in fields.texts(value) if one in _CAUSES)


def _named(value: Json, most: int = 100) -> list[tuple[str, Json]]:
    return list(fields.mapping(value).items())[:most]


def _origin(source: Mapping[str, Json]) -> Origin:
    return Origin(
        fields.whole(source.get("rank")),
        fields.optional_text(source.get("pod_index")),
        fields.optional_text(source.get("node")),
        fields.optional_text(source.get("gpu_uuid")),
    )


def _all_evidence(value: Json) -> tuple[Evidence, ...]:
    return tuple(_evidence(one) for one in fields.objects(value, MOST_EVIDENCE))


def _evidence(source: Mapping[str, Json]) -> Evidence:
    return Evidence(
        fields.text(source.get("kind")),
        fields.wall(source.get("wall")),
        fields.whole(source.get("slot")),
        fields.whole(source.get("rank")),
        fields.text(source.get("text")),
        fields.whole(source.get("exit_code")),
        fields.text(source.get("signature")),
        fields.lines(source.get("traceback")).strip(),
    )


def _recovery(source: Mapping[str, Json]) -> Recovery:
    return Recovery(
        opened_wall=fields.wall(source.get("opened_wall")),
        layer=fields.optional_text(source.get("layer")),
        cause=_one_of(source.get("cause"), _CAUSES, "unknown"),
        confidence=_one_of(source.get("confidence"), _CONFIDENCES, "unknown"),
        origin_rank=fields.whole(source.get("origin_rank")),
        attempts=fields.count(source.get("attempts")),
        tip_step=fields.whole(source.get("tip_step")),
        mark_step=fields.whole(source.get("mark_step")),
        loaded_step=fields.whole(source.get("loaded_step")),
        rejected_steps=_steps(source.get("rejected_steps")),
        steps_lost=fields.whole(source.get("steps_lost")),
        first_step_wall=fields.wall(source.get("first_step_wall")),
        high_water_wall=fields.wall(source.get("high_water_wall")),
        replay_check=fields.optional_text(source.get("replay_check")),
        tries=tuple(_try(one) for one in fields.objects(source.get("tries"), MOST_RECOVERIES)),
    )


def _try(source: Mapping[str, Json]) -> Try:
    return Try(
        opened_wall=fields.wall(source.get("opened_wall")),
        layer=fields.optional_text(source.get("layer")),
        cause=_one_of(source.get("cause"), _CAUSES, "unknown"),
        confidence=_one_of(source.get("confidence"), _CONFIDENCES, "unknown"),
        origin_rank=fields.whole(source.get("origin_rank")),
        alternatives=_causes(source.get("alternatives")),
        restarted_wall=fields.wall(source.get("restarted_wall")),
        loaded_step=fields.whole(source.get("loaded_step")),
        phases=_known(source.get("phases"), _PHASES),
    )


def _steps(value: Json) -> tuple[int, ...]:
    return tuple(step for one in fields.items(value, 1_000) if (step := fields.whole(one)) is not None)


def _loads(value: Json) -> dict[int, int]:
    found = {name: fields.count(one) for name, one in _named(value, 1_000)}
    return {int(name): loads for name, loads in found.items() if name.isascii() and name.isdigit() and len(name) < 16}


def _versions(value: Json) -> dict[str, str]:
    return {fields.text(name, 80): fields.text(one, 80) for name, one in _named(value) if isinstance(one, str)}


def _settings(value: Json) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for name, one in _named(value, 1_000):
        found = fields.text(one) if isinstance(one, str) else fields.number(one)
        if found is not None:
            settings[fields.text(name, 80)] = found
        elif isinstance(one, bool):
            settings[fields.text(name, 80)] = str(one).lower()
    return settings


def _known(value: Json, names: frozenset[str]) -> dict[str, float]:
    return {
        name: found for name, one in fields.mapping(value).items() if (found := fields.amount(one)) and name in names
    }


def _by_state(value: Json) -> dict[str, float]:
    return _known(value, _STATES)


def _share(value: Json) -> float | None:
    found = fields.number(value)
    return None if found is None else min(max(found, 0.0), 1.0)


def _budget(source: Mapping[str, Json]) -> Budget:
    return Budget(fields.number(source.get("limit")), fields.number(source.get("remaining")))


def _checkpoints(source: Mapping[str, Json]) -> Checkpoints:
    return Checkpoints(
        durable_step=fields.whole(source.get("durable_step")),
        committed_wall=fields.wall(source.get("committed_wall")),
        content_wall=fields.wall(source.get("content_wall")),
        saves=fields.counts(source.get("saves")),
        requests=fields.whole(source.get("requests")),
        interval_steps=fields.number(source.get("interval_steps")),
        interval_seconds=fields.number(source.get("interval_seconds")),
        last_write_seconds=fields.number(source.get("last_write_seconds")),
        bytes=fields.number(source.get("bytes")),
        contention=fields.number(source.get("contention")),
        blocking_seconds=_distribution(source.get("blocking_seconds")),
        write_seconds=_distribution(source.get("write_seconds")),
        load_seconds=_distribution(source.get("load_seconds")),
    )


def _distribution(value: Json) -> Distribution:
    source = fields.mapping(value)
    bounds = tuple(fields.number(one) for one in fields.items(source.get("bounds"), 1_000))
    counts = tuple(fields.count(one) for one in fields.items(source.get("counts"), 1_001))
    known = tuple(one for one in bounds if one is not None)
    if known != bounds or list(known) != sorted(set(known)) or len(counts) != len(known) + 1:
        return Distribution()
    return Distribution(known, counts, fields.amount(source.get("sum")))


def _phases(value: Json) -> list[tuple[str, str, float]]:
    rows = [one for one in fields.items(value, 1_000) if isinstance(one, list) and len(one) == 3]
    return [
        (fields.text(layer), phase, fields.amount(seconds))
        for layer, phase, seconds in rows
        if isinstance(phase, str) and phase in _PHASES
    ]


def history(value: Json) -> History | None:
    """The history in a pod's summary."""
    source = fields.mapping(value)
    begin, width = fields.wall(source.get("begin_wall")), fields.amount(source.get("width_seconds"))
    if begin is None or not width:
        return None
    slots = [_slot(name, fields.mapping(one)) for name, one in _named(source.get("slots"), 10_000)]
    return History(begin, width, tuple(sorted(slots, key=lambda slot: (len(slot.slot), slot.slot))))


def _slot(name: str, source: Mapping[str, Json]) -> SlotHistory:
    buckets = []
    for one in fields.items(source.get("buckets")):
        place = fields.whole(one[0]) if isinstance(one, list) and len(one) == 2 else None
        if place is not None and place >= 0 and (states := _by_state(one[1])):
            buckets.append((place, states))
    return SlotHistory(
        fields.text(name, 40), fields.whole(source.get("rank")), tuple(sorted(buckets, key=lambda x: x[0]))
    )
