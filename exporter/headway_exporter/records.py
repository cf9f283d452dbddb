"""Records: what is kept of an incident for good, a line of `incidents.jsonl` that needs nothing else to be understood.

A record is written when its incident has a verdict, and again, whole, under the next revision whenever more is known of it: the launcher's
line came late, the mark was regained, the replay was checked, somebody came back after all. It is a function of the incident alone, of
nothing that goes on by itself, so it is written again only because something happened. Values are JSON's: a number that has none there
is null. It stays below `MOST_BYTES` whatever the journals held: one that would not is made with less detail.
"""

from __future__ import annotations

import hashlib
import json
import math
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway_exporter import gpu_evidence, losses
from headway_exporter.incident_ids import trace_id
from headway_exporter.incidents import CLOSED
from headway_exporter.observations import NANOSECONDS
from headway_exporter.scene import Evidence, standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headway_exporter.causes import Diagnosis
    from headway_exporter.incidents import Incident
    from headway_exporter.pod import Pod
    from headway_exporter.recoveries import Recovery, Try
    from headway_exporter.scene import Marker

VERSION: Final = 1
MOST_BYTES: Final = 256 << 10
MOST_REVISIONS: Final = 100
"""An incident of which more becomes known for ever is not told anew for ever."""
NEWS_SECONDS: Final = 600.0
"""Time after the verdict in which something may still become known of an incident that another one has followed."""
_MOST_WHOLE: Final = 1 << 63
_MADE_WHEN_WRITTEN: Final = ("revision", "written_wall")


@dataclass(frozen=True)
class _Detail:
    """How much a record tells."""

    evidence: int
    characters: int
    """Of each text."""
    traceback_characters: int
    kept: int
    """Recoveries, and tries of each."""
    named: int
    """Settings, versions, loads."""


_DETAILS: Final = (_Detail(64, 400, 2_000, 8, 64), _Detail(32, 160, 1_000, 4, 64), _Detail(8, 100, 500, 2, 16))


def record(pod: Pod, incident: Incident, wall: float, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The incident as it is known at `wall` (seconds since 1970), in JSON's types. The format is `VERSION` 1 of a line of the file.

    With as much detail as fits into `most_bytes`, and never less than the least.
    """
    for detail in _DETAILS:
        made = _record(pod, incident, wall, detail)
        if len(_encoded(made)) <= most_bytes:
            break
    return made


def due(pod: Pod) -> list[dict[str, Any]]:
    """Records of incidents with a verdict that say something else than when they were last written, oldest first.

    Each stays due until `written` is told of it.
    """
    found, wall = [], pod.wall_of(pod.now)
    for incident in pod.failures.incidents:
        if incident.state not in CLOSED or incident.at_rest or incident.revision >= MOST_REVISIONS:
            continue
        known = fingerprint(incident)
        if known == incident.looked_at:
            incident.at_rest = _nothing_can_come(pod, incident)
            for recovery in incident.recoveries if incident.at_rest else ():
                recovery.let_go()
            continue
        made = record(pod, incident, wall)
        if _checksum(made) == incident.written:
            incident.looked_at = known
        else:
            found.append(made)
    return found


def written(pod: Pod, record: Mapping[str, Any]) -> None:
    """The record is on disk."""
    for incident in pod.failures.incidents:
        if incident.id == record["id"]:
            incident.written = _checksum(record)
            incident.decided_revision = record["decided_revision"]
            incident.revision = record["revision"] + 1


def _nothing_can_come(pod: Pod, incident: Incident) -> bool:
    """It closed a while ago, others came after it, and whoever trained again has regained its mark: no need to look any more."""
    if incident is pod.failures.incidents[-1] or pod.now - (incident.closed or pod.now) < NEWS_SECONDS:
        return False
    return all(one.regained is not None or one.closed is None for one in incident.recoveries)


def fingerprint(incident: Incident) -> str:
    """Changes whenever the record may; far cheaper than the record."""
    what = [
        (incident.state.value, incident.layer, incident.attempts_now.count, incident.durable, incident.mark),
        (sorted(incident.lost.items()), sorted(incident.recurred), sum(incident.loads.values())),
        *((one.closed, one.regained, one.replay_check, one.rejected, one.try_count) for one in incident.recoveries),
        *(
            (
                len(one.evidence),
                len(one.gpu),
                len(one.nics),
                one.layer,
                one.loaded,
                list(one.phases.values()),
                one.diagnosis.origin,
                one.decided_by,
                _answer(one.diagnosis),
            )
            for recovery in incident.recoveries
            for one in recovery.tries
        ),
    ]
    return hashlib.sha256(repr(what).encode("utf-8", "replace")).hexdigest()[:16]


def _checksum(made: Mapping[str, Any]) -> str:
    content = {name: value for name, value in made.items() if name not in _MADE_WHEN_WRITTEN}
    return hashlib.sha256(_encoded(content)).hexdigest()[:16]


def _encoded(made: Mapping[str, Any]) -> bytes:
    return json.dumps(made, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


# The parts of a record.


def _record(pod: Pod, incident: Incident, wall: float, detail: _Detail) -> dict[str, Any]:
    telling, found = incident.telling, incident.circumstances
    diagnosis = telling.diagnosis
    closed = incident.state in CLOSED
    lost = incident.lost if closed else losses.so_far(pod, incident, pod.now_ns)
    kept = _ends(incident.recoveries, detail.kept)
    return {
        "v": VERSION,
        "kind": "incident",
        "run": pod.run,
        "pod_index": pod.pod_index,
        "id": incident.id,
        "revision": incident.revision,
        "written_wall": _number(wall),
        "outcome": incident.state.value if closed else "open",
        "state": incident.state.value,
        "recurring": sorted(pod.failures.recurring(incident)),
        "opened_wall": _number(incident.opened_wall),
        "closed_wall": _number(incident.closed_wall),
        "layer": incident.layer,
        "escalated": incident.escalated,
        "attempts": incident.attempts_now.count,
        **_answer(diagnosis),
        "origin": _origin(pod, incident, diagnosis),
        "decided_by": telling.decided_by
        or "alone",  # as long as there is no decided_revision: the verdict may come yet
        "decided_revision": _decided_revision(incident),
        "claimed_by": None if telling.verdict is None else telling.verdict.claimed_by or None,
        "ambiguous": telling.verdict is not None and telling.verdict.ambiguous,
        "mark_step": _whole(incident.mark),
        "durable_step": _whole(incident.durable),
        "loads": _loads(incident, detail),
        "world_size": None if found is None else _whole(found.world_size),
        "pods_expected": None if found is None else _whole(found.pods_expected),
        "node": incident.node,
        "versions": {} if found is None else _named(found.versions, detail),
        "settings": {} if found is None else _named(found.settings, detail),
        "evidence": _all_evidence(incident, detail),
        "steps_lost": _whole(incident.steps_lost),
        "recoveries": [_recovery(pod, incident, one, detail) for one in kept],
        "recoveries_left_out": incident.left_out + len(incident.recoveries) - len(kept),
        "lost_rank_seconds": {state: _seconds(lost.get(state, 0)) for state in losses.STATES},
        "trace_id": trace_id(pod.run, incident.id),
    }


def _decided_revision(incident: Incident) -> int | None:
    """The first revision of which every pod knows who is to tell of it; None: this one does not wait for that."""
    if incident.decided_revision is None and incident.decided:
        return incident.revision
    return incident.decided_revision


def _recovery(pod: Pod, incident: Incident, recovery: Recovery, detail: _Detail) -> dict[str, Any]:
    found = recovery.diagnosis
    now = None if incident.state in CLOSED else pod.now
    return {
        "opened_wall": _number(incident.wall_of(recovery.opened)),
        "layer": recovery.layer,
        "cause": found.cause,
        "confidence": found.confidence,
        "origin_rank": _whole(found.origin),
        "attempts": recovery.try_count,
        "tip_step": _whole(recovery.tip),
        "mark_step": _whole(recovery.mark),
        "loaded_step": _whole(recovery.loaded),
        "rejected_steps": [step for step in recovery.rejected if _whole(step) is not None],
        "steps_lost": _whole(recovery.steps_lost),
        "first_step_wall": _number(recovery.closed_wall),
        "high_water_wall": _number(recovery.regained_wall),
        "replay_check": recovery.replay_check,
        "tries": [_try(incident, one, now) for one in _ends(recovery.tries, detail.kept)],
    }


def _try(incident: Incident, one: Try, now: float | None) -> dict[str, Any]:
    """`now`: its incident is open, so the phases of a try under way are told as far as they have come."""
    phases = one.phases or ({} if now is None else deepcopy(one.timeline).durations(max(now, one.timeline.failed)))
    first = one.evidence[0] if one.evidence else None
    return {
        "opened_wall": None if first is None else _number(incident.wall_of(first.at)),
        "layer": one.layer,
        "origin_rank": _whole(one.diagnosis.origin),
        **_answer(one.diagnosis),
        "restarted_wall": _number(one.restarted_wall),
        "loaded_step": _whole(one.loaded),
        "phases": {phase: _number(seconds) for phase, seconds in phases.items()},
    }


def _answer(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "cause": diagnosis.cause,
        "confidence": diagnosis.confidence,
        "alternatives": list(diagnosis.alternatives),
    }


def _origin(pod: Pod, incident: Incident, diagnosis: Diagnosis) -> dict[str, Any]:
    """Where it began: as all pods settled it; without that pod, node and GPU are known of the pod's own ranks."""
    rank, settled = diagnosis.origin, incident.telling.verdict
    if settled is not None:
        return {
            "rank": _whole(rank),
            "pod_index": settled.pod_index,
            "node": settled.node or None,
            "gpu_uuid": settled.gpu_uuid or None,
        }
    here = next((one for one in _markers(incident) if rank is not None and one.rank == rank), None)
    pods = None if incident.circumstances is None else incident.circumstances.pods_expected
    ours = here is not None or (pods or 1) <= 1
    return {
        "rank": _whole(rank),
        "pod_index": pod.pod_index if ours else None,
        "node": (incident.node or None) if ours else None,
        "gpu_uuid": None if here is None else here.gpu or None,
    }


def _markers(incident: Incident) -> tuple[Marker, ...]:
    return incident.telling.markers


def _all_evidence(incident: Incident, detail: _Detail) -> list[dict[str, Any]]:
    """The first and the last signs, in the order of time; a part of the room is for what happened to GPUs and network cards."""
    tries = [one for recovery in incident.recoveries for one in recovery.tries]
    hardware = [(item, one) for one in tries for item in [*gpu_evidence.telling(one.gpu, one.evidence), *one.nics]]
    told = sorted(((item, one) for one in tries for item in [*_standing(one), *one.evidence]), key=_at)
    hardware = list(_ends(sorted(hardware, key=_at), detail.evidence // 4))
    both = sorted([*_ends(told, detail.evidence - len(hardware)), *hardware], key=_at)
    return [_evidence(incident, item, one, detail) for item, one in both]


def _standing(one: Try) -> list[Evidence]:
    """Of a hang: what its origin follows from, for monitors kill victims and culprit alike."""
    first = next(iter(one.seen_here), None)
    if first is None or one.diagnosis.cause not in gpu_evidence.HANGS or len(one.markers) < 2:
        return []
    return [Evidence("standing", first.at, first.wall, standing(one.markers, first.at))]


def _at(sign: tuple[Evidence, Try]) -> float:
    return sign[0].at


def _evidence(incident: Incident, item: Evidence, one: Try, detail: _Detail) -> dict[str, Any]:
    rank = next((marker.rank for marker in one.markers if marker.slot == item.slot), None)
    return {
        "kind": item.kind,
        "wall": _number(incident.wall_of(item.at)),
        "slot": _whole(item.slot),
        "rank": _whole(rank),
        "text": item.text[: detail.characters],
        "exit_code": _whole(item.exit_code),
        "signature": item.signature[: detail.characters],
        "traceback": item.traceback[-detail.traceback_characters :],
        "path": item.path or None,
        "bytes": _whole(item.size_bytes),
    }


def _loads(incident: Incident, detail: _Detail) -> dict[str, int]:
    known = [(step, count) for step, count in incident.loads.items() if _whole(step) is not None]
    return {str(step): count for step, count in _ends(known, detail.named)}


def _named(values: Mapping[str, Any], detail: _Detail) -> dict[str, Any]:
    """Names and values of a configuration, cut."""
    cut = ((name[: detail.characters], value) for name, value in list(values.items())[: detail.named])
    return {name: value[: detail.characters] if isinstance(value, str) else _plain(value) for name, value in cut}


# Values that JSON has.


def _ends(items: Iterable[Any], most: int) -> Sequence[Any]:
    """The first and the last of them, when there are more than `most`."""
    listed = list(items)
    half = most // 2
    return listed if len(listed) <= most else [*listed[:half], *listed[-(most - half) :]]


def _plain(value: Any) -> Any:
    return _number(value) if isinstance(value, float) else _whole(value)


def _number(value: float | None) -> float | None:
    return value if value is not None and abs(value) < _MOST_WHOLE and math.isfinite(value) else None


def _whole(value: int | None) -> int | None:
    """A journal may hold numbers of thousands of digits."""
    return value if value is not None and -_MOST_WHOLE <= value < _MOST_WHOLE else None


def _seconds(nanoseconds: int) -> float | None:
    whole = _whole(nanoseconds)
    return None if whole is None else whole / NANOSECONDS
