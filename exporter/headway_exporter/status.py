"""`/status.json`: the pod at a glance, for the terminal view and for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway_exporter.labels import LAYERS, OUTCOMES
from headway_exporter.observations import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.incidents import Incident
    from headway_exporter.pod import Pod
    from headway_exporter.recoveries import Recovery


def status(pod: Pod, dropped: Mapping[str, int]) -> dict[str, Any]:
    """A JSON object; what is not known is null. Times are seconds since 1970, durations seconds."""
    totals = pod.ledger.totals(pod.now_ns)
    checkpoints = pod.checkpoints
    alive = pod.alive
    total_steps = pod.info.settings.get("total_steps")
    document = {
        "run": pod.run,
        "pod_index": pod.pod_index,
        "step": pod.steps.step,
        "high_water_step": pod.mark,
        "total_steps": None if total_steps is None else int(total_steps),
        "loss": pod.steps.loss,
        "state": pod.state,
        "state_since_wall": pod.state_since_wall,
        "training_goodput": totals.training_goodput,
        "infrastructure_goodput": totals.infrastructure_goodput,
        "checkpoint": {
            "durable_step": checkpoints.durable_step,
            "committed_wall": checkpoints.committed_wall,
            "content_wall": checkpoints.content_wall,
            "saves": {outcome: checkpoints.outcomes[outcome] for outcome in OUTCOMES},
            "requests": checkpoints.requests,
        },
        "queue": {
            "depth": max((slot.depth for slot in alive), default=0),
            "oldest_wall": min((slot.oldest_wall for slot in alive if slot.oldest_wall is not None), default=None),
            "writer_up": pod.writer_up,
        },
        "restarts": {layer: pod.failures.restarts[layer] for layer in LAYERS},
        "rank_seconds": {state: amount / NANOSECONDS for state, amount in totals.states.items()},
        "elapsed_rank_seconds": totals.elapsed / NANOSECONDS,
        "pending_rank_seconds": totals.pending / NANOSECONDS,
        "unregained_rank_seconds": totals.unregained / NANOSECONDS,
        "recoveries": [_recovery(recovery) for recovery in pod.failures.recoveries],
        "incidents": [_incident(pod, incident) for incident in pod.failures.incidents],
        "ranks": [
            {
                "slot": slot.number,
                "rank": slot.rank,
                "life": slot.life,
                "alive": slot.alive,
                "step": slot.step,
                "state": pod.ledger.slot(slot.number).state or ("finished" if slot.finished else None),
                "incarnation": slot.incarnation,
            }
            for slot in sorted(pod.slots.values(), key=lambda slot: slot.number)
        ],
        "finished": pod.finished,
        "dropped": dict(dropped),
    }
    return {name: plain(value) for name, value in document.items()}


def _recovery(recovery: Recovery) -> dict[str, Any]:
    diagnosis = recovery.diagnosis
    notes = [f"checkpoint of step {step} was rejected" for step in recovery.rejected]
    return {
        "opened_wall": recovery.opened_wall,
        "layer": recovery.layer,
        "cause": diagnosis.cause,
        "origin_rank": diagnosis.origin,
        "evidence": [item.text for item in recovery.evidence] + notes,
        "tip_step": recovery.tip,
        "loaded_step": recovery.loaded,
        "steps_lost": recovery.steps_lost,
        "seconds_to_first_step": None if recovery.closed is None else recovery.closed - recovery.opened,
        "attempts": recovery.try_count,
        "replay_check": recovery.replay_check,
    }


def _incident(pod: Pod, incident: Incident) -> dict[str, Any]:
    telling = incident.telling
    diagnosis, verdict = telling.diagnosis, telling.verdict
    return {
        "opened_wall": incident.opened_wall,
        "closed_wall": incident.closed_wall,
        "state": incident.state.value,
        "attempts": incident.attempts_now.count,
        "escalated": incident.escalated,
        "layer": incident.layer,
        "recurring": sorted(pod.failures.recurring(incident)),
        "cause": diagnosis.cause,
        "origin_rank": diagnosis.origin,
        "origin_pod_index": None if verdict is None else verdict.pod_index,
        "origin_node": verdict.node or None if verdict is not None else None,
        "decided_by": telling.decided_by,
        "ambiguous": verdict is not None and verdict.ambiguous,
        "confidence": diagnosis.confidence,
        "alternatives": list(diagnosis.alternatives),
        "evidence": [item.text for item in diagnosis.evidence],
        "high_water_step": incident.mark,
        "durable_step": incident.durable,
        "loads": {str(step): count for step, count in incident.loads.items()},
    }


def plain(value: Any) -> Any:
    """The value without the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
