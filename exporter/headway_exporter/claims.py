"""What this pod claims about a failure, for the other pods: a pure function of the try that the failure is kept as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway.events import INTERRUPTIONS
from headway_exporter.gpu_evidence import ended_for_others
from headway_exporter.labels import CAUSES
from headway_exporter.origins import Claim, EvidenceClass, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.causes import Diagnosis
    from headway_exporter.recoveries import Try
    from headway_exporter.runinfo import RunInfo
    from headway_exporter.scene import Evidence, Marker

MOST_RECORDS: Final = 256
MOST_TEXT: Final = 512


def claim(one: Try, pod_index: str, info: RunInfo) -> Claim:
    """The claim, without the clock's error: that is known to who writes it down."""
    found = one.local
    first = min(one.seen_here, key=lambda item: item.at)
    items = found.evidence or (first,)
    kind = evidence_class(found, one.evidence)
    signature = next((item.signature for item in items if item.signature), "")
    return Claim(
        incident=one.exchange,
        pod_index=pod_index,
        evidence=kind,
        cause=found.cause,
        confidence=found.confidence,
        alternatives=found.alternatives,
        signature=signature[:MOST_TEXT] if kind == "direct" else "",
        origin_rank=found.origin,
        node=info.node,
        wall=min(item.wall for item in items),
        began_wall=first.wall - first.at + max((marker.began for marker in one.markers), default=first.at),
        standings=tuple(_standing(marker, one.evidence, first.at) for marker in one.markers if marker.rank is not None),
        records=tuple((rank, kind) for item in one.evidence for rank, kind in item.records if kind in INTERRUPTIONS)[
            :MOST_RECORDS
        ],
        pods_expected=info.pods_expected,
        dated=any(item.dated for item in items),
        pod_ended=one.expected_layer == "orchestrator",
    )


def absence(
    incident: str, pod_index: str, info: RunInfo, *, wall: float, began_wall: float, markers: Sequence[Marker]
) -> Claim:
    """That the pod was gone: what it claims of a failure that others know of, before its ranks start again and tell it themselves.

    `wall` is the last sign of the pod's processes, `began_wall` when they began what they were in; seconds since 1970.
    """
    return Claim(
        incident=incident,
        pod_index=pod_index,
        evidence="silence",
        cause="node_lost",
        confidence="likely",
        node=info.node,
        wall=wall,
        began_wall=began_wall,
        standings=tuple(_standing(marker, [], marker.progressed) for marker in markers if marker.rank is not None),
        pods_expected=info.pods_expected,
        pod_ended=True,
    )


def evidence_class(found: Diagnosis, evidence: list[Evidence]) -> EvidenceClass:
    """How much the pod's own diagnosis is worth to others."""
    if any(item.kind == "interruption" for item in found.evidence):
        return "recorded"
    if found.cause == "node_lost":
        return "silence"
    if found.vague:
        echoes = any(item.kind == "echo" for item in evidence)
        return "echo" if echoes else "none"
    return "echo" if ended_for_others(found.evidence) else "direct"


def _standing(marker: Marker, evidence: list[Evidence], at: float) -> Standing:
    own = [item for item in evidence if item.slot == marker.slot]
    raised = next((item for item in own if item.kind == "exception"), None)
    return Standing(
        rank=marker.rank or 0,
        initial_rank=marker.initial_rank,
        step=marker.step,
        step_age_seconds=round(at - marker.progressed, 3),
        sampled_age_seconds=None if marker.sampled is None else round(at - marker.sampled, 3),
        in_collective=marker.in_collective,
        phase=marker.phase,
        gpu_uuid=marker.gpu,
        echoes=any(item.kind == "echo" for item in own),
        raised=None if raised is None else _cause(raised),
        signature="" if raised is None else raised.signature[:MOST_TEXT],
    )


def _cause(raised: Evidence) -> str:
    return raised.category if raised.category in CAUSES else "app_exception"
