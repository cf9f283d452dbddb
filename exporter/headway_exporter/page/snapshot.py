"""From copies of what the sidecar knows to what the API tells: pure, and checked like everything that is read from journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headway import __version__
from headway_exporter.page import gpus as strip
from headway_exporter.page.headline import headline, waiting
from headway_exporter.page.model import (
    API_VERSION,
    AtRisk,
    Bucket,
    Budget,
    Checkpoint,
    IncidentGlance,
    Incidents,
    PodGlance,
    Queue,
    Rank,
    Sign,
    SlotTimeline,
    Source,
    Status,
    Timeline,
    Whole,
)
from headway_exporter.page.notes import no_trainer, notes
from headway_exporter.report import fields, parse
from headway_exporter.report.merge import incidents as merged
from headway_exporter.report.model import Pod, Run
from headway_exporter.report.verdict import FRESH_SECONDS
from headway_exporter.state_files import pod_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.page.others import Word
    from headway_exporter.page.taking import Taken
    from headway_exporter.report.model import History, Incident

STALLED_SECONDS: Final = 120.0
STALLED_STEPS: Final = 10
OVERDUE_INTERVALS: Final = 3
"""As the alert HeadwayCheckpointStale has it, if nobody changed it."""


def own_pod(taken: Taken) -> Pod:
    """This pod as readers of its ledger would see it."""
    return parse.pod(taken.figures, fields.text(taken.pod_index), taken.wall)


def whole_run(taken: Taken, own: Pod, words: Mapping[str, Word]) -> Run:
    """The run as far as it is known: this pod, and the newest words of the others."""
    pods = [own, *(word.pod for word in words.values() if word.pod is not None)]
    return Run(
        name=fields.text(taken.run),
        pods=tuple(sorted(pods, key=lambda pod: pod_order(pod.index))),
        incidents=merged(taken.records),
        problems=(),
        read_wall=taken.wall,
    )


def status(taken: Taken, run: Run, own: Pod, words: Mapping[str, Word]) -> Status:
    """Everything but incidents and timelines."""
    found, told = notes(taken), taken.figures
    checkpoint = _checkpoint(taken, own)
    queue = _queue(told, taken.wall)
    at_risk = _at_risk(taken, own)
    outcomes = dict(taken.more.outcomes) | {"open": int(taken.more.incident_open)}
    if all(pod.state is None for pod in run.pods):
        top = waiting(no_trainer(taken), found)
    else:
        top = headline(run, outcomes, checkpoint, at_risk, queue, found, _stalled(taken, own))
    return Status(
        v=API_VERSION,
        headway_version=__version__,
        taken_wall=taken.wall,
        run=run.name,
        pod_index=own.index,
        node=own.node,
        level=top.level,
        fate=top.fate,
        headline=top.text,
        facts=top.facts,
        notes=found,
        state=own.state,
        state_since_wall=own.state_since_wall,
        started_wall=own.started_wall,
        step=own.step,
        high_water_step=own.high_water_step if own.step is not None else None,
        total_steps=own.total_steps,
        last_step_wall=taken.more.last_step_wall,
        step_seconds=own.baseline_step_seconds,
        slowest_rank_ratio=taken.more.slowest_rank_ratio,
        loss=own.loss,
        training_goodput=_goodput(own),
        infrastructure_goodput=own.infrastructure_goodput,
        at_risk=at_risk,
        checkpoint=checkpoint,
        queue=queue,
        restarts=own.restarts,
        budget={layer: Budget(one.limit, one.remaining) for layer, one in own.budget.items()},
        incidents=outcomes,
        rank_seconds=own.rank_seconds,
        elapsed_rank_seconds=own.elapsed_rank_seconds,
        pending_rank_seconds=own.pending_rank_seconds,
        unregained_rank_seconds=own.unregained_rank_seconds,
        ranks=_ranks(taken),
        gpus=strip.gpus(taken),
        whole=_whole(run, own, words, taken.wall) if words or (taken.state_dir and _of_many(run)) else None,
        sources=_sources(taken),
    )


def _of_many(run: Run) -> bool:
    """More pods than this one should be there, heard or not."""
    return (run.pods_expected or 1) > 1


def _goodput(pod: Pod) -> float | None:
    """Of one pod."""
    return Run("", (pod,), (), (), 0.0).training_goodput


def _stalled(taken: Taken, own: Pod) -> float | None:
    """Seconds since the last step, where that is far too long for a step: as the alert HeadwayTrainingStalled has it."""
    last, usual = taken.more.last_step_wall, own.baseline_step_seconds
    if last is None or own.state not in ("productive", "replay", "other"):
        return None
    silent = taken.wall - max(last, own.state_since_wall or last)
    return silent if silent > max(STALLED_SECONDS, STALLED_STEPS * (usual or 0.0)) else None


def _checkpoint(taken: Taken, own: Pod) -> Checkpoint:
    known = own.checkpoint
    age = None if known.committed_wall is None else max(taken.wall - known.committed_wall, 0.0)
    since = age if age is not None else None if own.started_wall is None else taken.wall - own.started_wall
    interval = known.interval_seconds
    return Checkpoint(
        durable_step=known.durable_step,
        committed_wall=known.committed_wall,
        age_seconds=age,
        interval_steps=known.interval_steps,
        interval_seconds=interval,
        overdue=interval is not None
        and since is not None
        and since > OVERDUE_INTERVALS * interval
        and not own.finished,
        last_write_seconds=known.last_write_seconds,
        requests=known.requests or 0,
        committed=known.saves.get("committed", 0),
        failed=known.saves.get("failed", 0),
        aborted=known.saves.get("aborted", 0),
        failed_since_commit=taken.more.saves_since_commit,
    )


def _at_risk(taken: Taken, own: Pod) -> AtRisk:
    if own.step is None:
        return AtRisk(None, None)
    durable, known = own.checkpoint.durable_step, own.checkpoint
    since = own.started_wall if durable is None else known.content_wall or known.committed_wall
    until = taken.wall if not own.finished else min(taken.more.last_step_wall or taken.wall, taken.wall)
    return AtRisk(max(own.step - (durable or 0), 0), None if since is None else max(until - since, 0.0))


def _queue(told: Mapping[str, Any], wall: float) -> Queue:
    known = fields.mapping(told.get("queue"))
    depth, oldest, up = fields.count(known.get("depth")), fields.wall(known.get("oldest_wall")), known.get("writer_up")
    waits = None if oldest is None or not depth else max(wall - oldest, 0.0)
    return Queue(depth, waits, up if isinstance(up, bool) else None)


def _ranks(taken: Taken) -> tuple[Rank, ...]:
    found = []
    for one in fields.objects(taken.figures.get("ranks"), 64):
        slot = fields.count(one.get("slot"))
        gpu = taken.more.slots[slot].gpu_uuid if slot in taken.more.slots else ""
        found.append(
            Rank(
                slot=slot,
                rank=fields.whole(one.get("rank")),
                alive=one.get("alive") is True,
                state=fields.optional_text(one.get("state")),
                step=fields.whole(one.get("step")),
                gpu_uuid=fields.optional_text(gpu),
            )
        )
    return tuple(found)


def _whole(run: Run, own: Pod, words: Mapping[str, Word], wall: float) -> Whole:
    unread = [
        PodGlance(fields.text(index), "", None, None, None, True, None, False)
        for index, word in words.items()
        if word.pod is None
    ]
    pods = [_pod(pod, wall, here=pod is own) for pod in run.pods] + unread
    return Whole(
        pods_expected=run.pods_expected,
        pods_heard=sum(not pod.silent for pod in pods),
        step=run.step,
        high_water_step=run.high_water_step if run.step is not None else None,
        durable_step=run.durable_step,
        training_goodput=run.training_goodput,
        infrastructure_goodput=run.infrastructure_goodput,
        pods=tuple(sorted(pods, key=lambda pod: pod_order(pod.pod_index))),
    )


def _pod(pod: Pod, wall: float, *, here: bool) -> PodGlance:
    silent = not pod.finished and wall - pod.written_wall > FRESH_SECONDS
    return PodGlance(
        pod_index=pod.index,
        node=pod.node,
        state=None if silent else pod.state,
        step=pod.step,
        heard_wall=pod.written_wall,
        silent=silent,
        training_goodput=_goodput(pod),
        here=here,
    )


def _sources(taken: Taken) -> tuple[Source, ...]:
    heard = dict(taken.more.source_wall)
    heard |= strip.measured(taken.measured, "headway_source_last_update_timestamp_seconds")
    worked = strip.measured(taken.measured, "headway_collector_success")
    names = [*heard, *(name for name in worked if name not in heard)]
    return tuple(Source(name, heard.get(name), worked.get(name) == 0.0) for name in names)


# Incidents.


def incidents(taken: Taken, run: Run, limit: int) -> Incidents:
    """The newest `limit` ones."""
    total = sum(taken.more.outcomes.values()) + int(taken.more.incident_open)
    newest = tuple(_incident(one) for one in reversed(run.incidents[-limit:]))
    return Incidents(API_VERSION, taken.wall, limit, max(total, len(newest)), newest)


def _incident(one: Incident) -> IncidentGlance:
    lead = one.lead
    return IncidentGlance(
        id=one.id,
        outcome=one.outcome,
        state=lead.state,
        recurring=one.recurring,
        opened_wall=one.opened_wall,
        closed_wall=one.closed_wall,
        cause=lead.cause,
        confidence=lead.confidence,
        alternatives=lead.alternatives,
        origin_rank=lead.origin.rank,
        origin_pod_index=lead.origin.pod_index,
        origin_node=lead.origin.node,
        origin_gpu_uuid=lead.origin.gpu_uuid,
        ambiguous=lead.ambiguous,
        decided_by=lead.decided_by,
        layer=lead.layer,
        escalated=lead.escalated,
        attempts=one.attempts,
        steps_lost=one.steps_lost,
        first_step_seconds=one.seconds_to_first_step,
        lost_rank_seconds=one.lost,
        evidence=tuple(Sign(sign.kind, sign.wall, sign.rank, sign.text) for sign in lead.evidence),
    )


# Timelines.


def timeline(taken: Taken, window: str) -> Timeline:
    """Of this pod's ranks; `window`: `hour` or `run`."""
    history = taken.times.whole() if window == "run" else taken.times.last_hour()
    if history is None:
        return Timeline(API_VERSION, taken.wall, window, taken.wall, 1.0, ())
    slots = tuple(
        SlotTimeline(int(slot.slot), slot.rank, tuple(Bucket(n, states) for n, states in slot.buckets))
        for slot in history.slots
    )
    return Timeline(API_VERSION, taken.wall, window, history.begin_wall, history.width_seconds, slots)


def drawn(run: Run, own: Pod, history: History | None) -> Run:
    """The run as a timeline of this pod draws it."""
    return replace(run, pods=(replace(own, history=history),))
