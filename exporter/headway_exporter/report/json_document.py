"""The report as JSON. Keys are stable: new ones may come, none changes its meaning while `version` stays.

    headway, version      "postmortem", 1
    run, read_wall, started_wall, last_wall, duration_seconds, fate, level, headline, facts
    step, total_steps, high_water_step, durable_step, world_size, pods, pods_expected, backend, versions, settings
    goodput               training, infrastructure: ratios, null when not known
    checkpoint            efficiency, durability, contention: ratios, null when not known; requests, committed
    rank_seconds          elapsed (without standby), standby, by (state, `unregained` and `pending`: they add up to elapsed)
    incidents             counts: total, recovered, over (ended and not cancelled), recurring, open, shown; lost_rank_seconds;
                          list: those that are shown, by time
    recovery              rates by class, times by layer, by cause and by both, phase_seconds; times are {n, p50, p90, p99, max} in seconds;
                          left_out: recoveries of which only the number is known
    offenders, actions, missing
    advice                as in `headway advise --format json`

Times named `_wall` are seconds since 1970, durations seconds, ratios 0 to 1.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.advice.text import plain_json
from headway_exporter.report.words import CAUSE_CLASS

if TYPE_CHECKING:
    from headway_exporter.report.figures import Spread
    from headway_exporter.report.model import Incident
    from headway_exporter.report.recovering import ClassRate, Times
    from headway_exporter.report.report import Report

VERSION: Final = 1


def json_text(report: Report) -> str:
    """The document, indented, with a newline at its end."""
    return json.dumps(document(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The document as Python objects."""
    run, books, verdict = report.run, report.accounts, report.verdict
    return {
        "headway": "postmortem",
        "version": VERSION,
        "run": run.name,
        "read_wall": run.read_wall,
        "started_wall": run.started_wall,
        "last_wall": run.last_wall,
        "duration_seconds": run.duration_seconds,
        "fate": verdict.fate,
        "level": verdict.level,
        "headline": verdict.headline,
        "facts": list(verdict.facts),
        "step": run.step,
        "total_steps": run.total_steps,
        "high_water_step": run.high_water_step,
        "durable_step": run.durable_step,
        "world_size": run.world_size,
        "pods": [{"pod_index": pod.index, "node": pod.node, "written_wall": pod.written_wall} for pod in run.pods],
        "pods_expected": run.pods_expected,
        "backend": next((pod.backend for pod in run.pods if pod.backend), None),
        "versions": dict(run.versions),
        "settings": dict(run.settings),
        "goodput": {"training": books.training_goodput, "infrastructure": books.infrastructure_goodput},
        "checkpoint": asdict(report.saves),
        "rank_seconds": {
            "elapsed": books.elapsed,
            "standby": books.standby,
            "by": {row.name: row.seconds for row in books.rows},
        },
        "incidents": {
            "total": len(run.incidents),
            "recovered": verdict.recovered,
            "over": verdict.closed,
            "recurring": verdict.recurring,
            "open": verdict.still_open,
            "shown": len(report.shown),
            "lost_rank_seconds": report.rate.lost,
            "list": [_incident(one, report.numbers[one.id]) for one in report.in_order],
        },
        "recovery": {
            "rates": [_rate(row) for row in (*report.rates, report.rate)],
            "by_layer": [_times(row) for row in (*report.by_layer, report.total)],
            "by_cause": [_times(row) for row in report.by_cause],
            "by_layer_and_cause": [{"layer": row.layer, **_times(row)} for row in report.by_layer_and_cause],
            "phase_seconds": report.phases,
            "left_out": report.left_out,
        },
        "offenders": [
            {"kind": one.kind, "name": one.name, "count": one.count, "causes": list(one.causes)}
            | {"lost_rank_seconds": one.lost, "notable": one.notable}
            for one in report.offenders
        ],
        "actions": [asdict(one) for one in report.actions],
        "advice": [plain_json(asdict(one)) for one in report.advice],
        "missing": [asdict(one) for one in run.problems],
    }


def _incident(one: Incident, number: int) -> dict[str, Any]:
    lead = one.lead
    return {
        "number": number,
        "id": one.id,
        "outcome": one.outcome,
        "recurring": list(one.recurring),
        "opened_wall": one.opened_wall,
        "closed_wall": one.closed_wall,
        "cause": lead.cause,
        "class": CAUSE_CLASS[lead.cause],
        "confidence": lead.confidence,
        "alternatives": list(lead.alternatives),
        "origin": asdict(lead.origin),
        "ambiguous": lead.ambiguous,
        "decided_by": lead.decided_by,
        "layer": lead.layer,
        "escalated": lead.escalated,
        "attempts": one.attempts,
        "steps_lost": one.steps_lost,
        "lost_rank_seconds": dict(one.lost_rank_seconds),
        "pods": list(one.pods),
        "evidence": [asdict(item) for item in lead.evidence],
        "recoveries": [asdict(item) for item in lead.recoveries],
        "trace_id": lead.trace_id,
    }


def _rate(row: ClassRate) -> dict[str, Any]:
    return {
        "class": row.name,
        "incidents": row.count,
        "recovered": row.recovered.good,
        "over": row.recovered.count,
        "share": row.recovered.share,
        "interval": list(row.recovered.interval),
        "cancelled": row.cancelled,
        "open": row.still_open,
        "recurring": row.recurring,
        "lost_rank_seconds": row.lost,
    }


def _times(row: Times) -> dict[str, Any]:
    return {
        "name": row.name,
        "first_step": _spread(row.first_step),
        "high_water": _spread(row.high_water),
        "failed_attempts": row.failed_attempts,
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {"n": spread.count, "p50": spread.p50, "p90": spread.p90, "p99": spread.p99, "max": spread.max}
