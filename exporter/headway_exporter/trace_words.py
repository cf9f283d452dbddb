"""The names by which traces and log records tell an incident, and values as the wire format can hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...]
Attributes = Mapping[str, Value]
Record = Mapping[str, Any]
"""A record of `incidents.jsonl`, or a part of one."""

ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "headway.run": "name of the run",
        "headway.pod_index": "pod whose sidecar tells it",
        "headway.node": "machine of that pod",
        "headway.incident.id": "the same on every pod",
        "headway.incident.revision": "0 for the first word, more for what was learnt later",
        "headway.incident.outcome": "recovered, abandoned or cancelled",
        "headway.incident.recurring": "reasons to call it recurring",
        "headway.incident.escalated": "whether an outer layer had to take over",
        "headway.incident.decided_by": "verdict: by all pods together; alone; timeout: the others' verdict did not come",
        "headway.incident.ambiguous": "whether it may as well have begun elsewhere",
        "headway.attempts": "attempts it took; nested ones count as one",
        "headway.layer": "outermost layer that restarted",
        "headway.cause": "why, one of the closed list of causes",
        "headway.confidence": "confirmed, likely or unknown",
        "headway.alternatives": "causes that may also explain it",
        "headway.origin.rank": "global rank where it began",
        "headway.origin.pod_index": "its pod",
        "headway.origin.node": "its machine",
        "headway.origin.gpu_uuid": "its GPU",
        "headway.world_size": "ranks in the whole group",
        "headway.mark_step": "highest step ever completed, at the failure",
        "headway.tip_step": "last step that the weights contained, at the failure",
        "headway.durable_step": "newest durable checkpoint at the failure",
        "headway.loaded_step": "step of the checkpoint that was loaded; 0: from scratch",
        "headway.rejected_steps": "checkpoints that were found bad on the way",
        "headway.steps_lost": "steps to do again",
        "headway.replay_check": "whether replayed steps had the losses of before",
        "headway.lost_rank_seconds": "seconds that this pod's ranks lost, from the failure until the mark was regained",
        "headway.evidence.kind": "which sort of sign",
        "headway.evidence.text": "the sign in words",
        "headway.evidence.signature": "what it has in common with others of its kind",
        "headway.evidence.rank": "global rank that it came from",
        "headway.evidence.slot": "its place in the pod",
        "process.exit.code": "exit code, negative for a signal",
        "exception.type": "class of the exception",
        "exception.message": "its message",
        "exception.stacktrace": "the end of its traceback",
    }
)
"""All attributes of spans, their events and log records; what is not known is left out."""

MOST_ITEMS: Final = 64
"""Items of a list that are told."""
_TEXT_LIMIT: Final = 8_192
_EXCEPTION: Final = re.compile(r"(?:rank \S+: )?([^\W\d][\w.]*)(?:: (.*))?", re.DOTALL)


def incident_attributes(record: Record) -> Attributes:
    """What the root span and the log record say of the incident as a whole."""
    origin = record.get("origin") or {}
    return clean(
        {
            "headway.run": record["run"],
            "headway.pod_index": record["pod_index"],
            "headway.node": record.get("node") or None,
            "headway.incident.id": record["id"],
            "headway.incident.revision": record.get("revision"),
            "headway.incident.outcome": record["outcome"],
            "headway.incident.recurring": record.get("recurring"),
            "headway.incident.escalated": record.get("escalated"),
            "headway.incident.decided_by": record.get("decided_by"),
            "headway.incident.ambiguous": record.get("ambiguous"),
            "headway.attempts": record.get("attempts"),
            "headway.layer": record.get("layer"),
            "headway.cause": record["cause"],
            "headway.confidence": record.get("confidence"),
            "headway.alternatives": record.get("alternatives"),
            **{f"headway.origin.{name}": origin.get(name) for name in ("rank", "pod_index", "node", "gpu_uuid")},
            "headway.world_size": record.get("world_size"),
            "headway.mark_step": record.get("mark_step"),
            "headway.durable_step": record.get("durable_step"),
            "headway.lost_rank_seconds": sum(
                seconds or 0.0 for seconds in (record.get("lost_rank_seconds") or {}).values()
            ),
        }
    )


def common_attributes(one: Record) -> dict[str, Any]:
    """What recoveries and tries both have."""
    return {
        "headway.layer": one.get("layer"),
        "headway.cause": one.get("cause"),
        "headway.confidence": one.get("confidence"),
        "headway.origin.rank": one.get("origin_rank"),
        "headway.loaded_step": one.get("loaded_step"),
    }


def sign_attributes(sign: Record) -> tuple[str, Attributes]:
    """Name and attributes of a sign; an exception goes by the names that OpenTelemetry gives it."""
    attributes = {
        "headway.evidence.kind": sign["kind"],
        "headway.evidence.text": sign.get("text"),
        "headway.evidence.signature": sign.get("signature") or None,
        "headway.evidence.rank": sign.get("rank"),
        "headway.evidence.slot": sign.get("slot"),
        "process.exit.code": sign.get("exit_code"),
    }
    name = f"headway.{sign['kind']}"
    if sign.get("signature") or sign.get("traceback"):
        kind, message = _exception(sign.get("text") or "")
        name = "exception"
        attributes |= {
            "exception.type": kind,
            "exception.message": message,
            "exception.stacktrace": sign.get("traceback") or None,
        }
    return sendable(name), clean(attributes)


def _exception(text: str) -> tuple[str | None, str]:
    """Type and message from `rank 1: ValueError: boom`."""
    found = _EXCEPTION.fullmatch(text)
    return (found[1], found[2] or "") if found else (None, text)


def clean(attributes: Mapping[str, Any]) -> Attributes:
    """What can be sent: no nulls, no numbers or texts that the wire format cannot hold."""
    values = {name: _value(value) for name, value in attributes.items()}
    return MappingProxyType({name: value for name, value in values.items() if value is not None})


def _value(value: Any) -> Value | None:
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value[:MOST_ITEMS]]
        if all(isinstance(item, int) for item in items):
            return tuple(int(item) for item in items if isinstance(item, int))
        return tuple(str(item) for item in items)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return sendable(str(value))


def sendable(text: str) -> str:
    """The text, cut, without what UTF-8 cannot hold (half a surrogate pair, as a host name of other bytes gives)."""
    return text[:_TEXT_LIMIT].encode("utf-8", "replace").decode()
