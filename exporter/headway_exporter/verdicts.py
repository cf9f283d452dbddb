"""Does a failure keep coming back? Reasons to say so of an open incident, and who is the origin of one incident after the other.

Pure functions of incidents and thresholds. The reasons that count attempts may be taken back as long as no step was made: when an outer
layer takes over, the failed tries of the inner ones turn out to be one attempt.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headway_exporter.incidents import Incident
    from headway_exporter.runinfo import RunInfo
    from headway_exporter.thresholds import Thresholds

MOST_RANKS: Final = 1 << 20
"""Ranks beyond this are no ranks, whatever a journal says."""


class Entity(NamedTuple):
    """One rank, node or GPU."""

    kind: str
    name: str


def reasons(incident: Incident, limits: Thresholds) -> frozenset[str]:
    """Why the incident is recurring, as it stands."""
    attempts = incident.attempts_now.count
    loads = max(incident.loads.values(), default=0)
    holds = {
        "no_progress": attempts - incident.settled_at_mark >= limits.no_progress_attempts,
        "no_durable_progress": attempts - incident.settled_at_commit >= limits.no_durable_progress_attempts,
        "same_fingerprint": _alike(incident) >= limits.same_fingerprint_failures,
        "same_checkpoint": loads >= limits.same_checkpoint_loads,
        "same_step": _reloads_before_same_step(incident, limits) >= limits.same_step_reloads,
    }
    return frozenset(reason for reason, true in holds.items() if true)


def _alike(incident: Incident) -> int:
    """Failures with the commonest fingerprint since the mark last rose."""
    since = [one.diagnosis.fingerprint for one in incident.recent if one.mark_changes == incident.mark_changes]
    return max(Counter(found for found in since if found is not None).values(), default=0)


def _reloads_before_same_step(incident: Incident, limits: Thresholds) -> int:
    """Reloads between the last failures, as far back as they were at the step of the newest."""
    newest = incident.current
    count = -1
    for one in reversed(incident.recent):
        if not one.reloaded or abs(one.tip - newest.tip) > limits.same_step_tolerance_steps:
            break
        count += 1
    return max(count, 0)


def repeat_offenders(incidents: Iterable[Incident], now: float, info: RunInfo, limits: Thresholds) -> dict[Entity, int]:
    """Who was the origin of several incidents lately, most of them first; `now` is CLOCK_MONOTONIC seconds."""
    recent = (one for one in incidents if now - one.opened <= limits.same_entity_window_seconds)
    counts = Counter(entity for incident in recent for entity in _entities(incident, info))
    often = [(entity, count) for entity, count in counts.items() if count >= limits.same_entity_incidents]
    return dict(sorted(often, key=lambda item: (-item[1], item[0]))[: limits.same_entity_shown])


def _entities(incident: Incident, info: RunInfo) -> Iterator[Entity]:
    """The entities that the incident began on; a kind with a single member tells nothing."""
    telling = incident.telling
    diagnosis, verdict = telling.diagnosis, telling.verdict
    if (
        diagnosis.confidence == "unknown"
        or incident.state == "cancelled"
        or (verdict is not None and verdict.ambiguous)
    ):
        return
    ranks = MOST_RANKS if info.world_size is None else info.world_size
    origin = diagnosis.origin
    placed = origin is not None and ranks > 1 and 0 <= origin < ranks
    local = next((marker for marker in telling.markers if marker.rank == origin), None) if placed else None
    gpu, node = ("" if local is None else local.gpu), ("" if local is None else incident.node)
    if verdict is not None:
        gpu, node = verdict.gpu_uuid, verdict.node
    if placed:
        yield Entity("rank", str(origin))
    if gpu:
        yield Entity("gpu", gpu)
    if node and (info.pods_expected or 1) > 1:
        yield Entity("node", node)
