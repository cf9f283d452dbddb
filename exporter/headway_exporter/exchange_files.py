"""Claims and verdicts as the JSON of their files, read as what a stranger may have written: every value is checked and bounded."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any, Final, Literal, get_args

from headway_exporter.causes import Confidence
from headway_exporter.labels import CAUSES
from headway_exporter.origins import Claim, EvidenceClass, OriginVerdict, Standing
from headway_exporter.scene import IN_PHASE
from headway_exporter.state_files import VERSION, StateFileError

MOST_BYTES: Final = 64 << 10
MOST_STANDINGS: Final = 64
MOST_RECORDS: Final = 256
MOST_TEXT: Final = 512
_MOST_NUMBER: Final = 1e15

Kind = Literal["claim", "verdict"]


def claim_content(claim: Claim, written_wall: float) -> bytes:
    """The file of a claim; what tells one GPU or exception from another is left out where it does not fit."""
    content = _content("claim", asdict(claim), written_wall)
    if len(content) <= MOST_BYTES:
        return content
    bare = tuple(replace(one, signature="", gpu_uuid="") for one in claim.standings[:MOST_STANDINGS])
    return _content("claim", asdict(replace(claim, standings=bare)), written_wall)


def verdict_content(verdict: OriginVerdict, incident: str, resolved_by: str, written_wall: float) -> bytes:
    """The file of a verdict."""
    return _content("verdict", {"incident": incident, "resolved_by": resolved_by} | asdict(verdict), written_wall)


def _content(kind: Kind, fields: dict[str, Any], written_wall: float) -> bytes:
    document = {"v": VERSION, "kind": kind, "written_wall": written_wall} | fields
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def parse_claim(content: bytes, incident: str, pod_index: str, place: str) -> Claim:
    """The claim of that pod about that incident.

    Raises:
        StateFileError: it is damaged, of a newer version, or of another pod or incident.
    """
    fields = _document(content, "claim", incident, place)
    if fields.raw.get("pod_index") != pod_index:
        raise StateFileError("foreign", f"{place}: the claim of another pod")
    try:
        return Claim(
            incident=incident,
            pod_index=pod_index,
            standings=tuple(map(_standing, fields.objects("standings", MOST_STANDINGS))),
            records=tuple(fields.records()),
            wall=fields.number("wall"),
            began_wall=fields.number("began_wall"),
            origin_rank=fields.whole("origin_rank"),
            node=fields.text("node"),
            pods_expected=fields.whole("pods_expected"),
            dated=fields.raw.get("dated") is not False,
            pod_ended=fields.raw.get("pod_ended") is True,
            offset_seconds=fields.number("offset_seconds"),
            uncertainty_seconds=abs(fields.number("uncertainty_seconds")),
            **fields.finding(),
        )
    except (TypeError, ValueError) as error:
        raise StateFileError("corrupt", f"{place}: no claim ({error})") from error


def parse_verdict(content: bytes, incident: str, place: str) -> OriginVerdict:
    """The verdict on that incident.

    Raises:
        StateFileError: it is damaged, of a newer version, or of another incident.
    """
    fields = _document(content, "verdict", incident, place)
    try:
        if not fields.text("claimed_by"):
            raise ValueError("nobody counts it")  # noqa: TRY301 - one place that names the file
        return OriginVerdict(
            rank=fields.whole("rank"),
            pod_index=fields.text("pod_index") if fields.raw.get("pod_index") is not None else None,
            node=fields.text("node"),
            gpu_uuid=fields.text("gpu_uuid"),
            ambiguous=fields.raw.get("ambiguous") is True,
            claimed_by=fields.text("claimed_by"),
            pod_ended=fields.raw.get("pod_ended") is True,
            **fields.finding(),
        )
    except (TypeError, ValueError) as error:
        raise StateFileError("corrupt", f"{place}: no verdict ({error})") from error


def _document(content: bytes, kind: Kind, incident: str, place: str) -> _Fields:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateFileError("corrupt", f"{place}: no {kind}, or only a part of one") from error
    if not isinstance(document, dict):
        raise StateFileError("corrupt", f"{place}: no {kind}")
    version = document.get("v")
    if isinstance(version, int) and version > VERSION:
        raise StateFileError("newer", f"{place}: of version {str(version)[:20]}, this Headway knows {VERSION}")
    if version != VERSION or document.get("kind") != kind:
        raise StateFileError("corrupt", f"{place}: no {kind}")
    if document.get("incident") != incident:
        raise StateFileError("foreign", f"{place}: of another incident")
    return _Fields(document)


class _Fields:
    """Values of a JSON object by name; the wrong type is a ValueError, a text too long is cut."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def finding(self) -> dict[str, Any]:
        """What claims and verdicts have in common."""
        return {
            "evidence": self.one_of("evidence", get_args(EvidenceClass)),
            "cause": self.one_of("cause", CAUSES),
            "confidence": self.one_of("confidence", get_args(Confidence)),
            "alternatives": tuple(cause for cause in self.items("alternatives", len(CAUSES)) if cause in CAUSES),
            "signature": self.text("signature"),
        }

    def text(self, name: str) -> str:
        value = self.raw.get(name, "")
        if not isinstance(value, str):
            raise ValueError(f"{name} is no text")  # noqa: TRY004 - whatever is wrong with a file is one kind of error
        return value[:MOST_TEXT].encode("utf-8", "replace").decode()

    def number(self, name: str) -> float:
        value = self.optional_number(name)
        if value is None:
            raise ValueError(f"{name} is missing")
        return value

    def optional_number(self, name: str) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < _MOST_NUMBER:
            raise ValueError(f"{name} is no number")
        return float(value)

    def whole(self, name: str) -> int | None:
        value = self.optional_number(name)
        if value is not None and not value.is_integer():
            raise ValueError(f"{name} is no whole number")
        return None if value is None else int(value)

    def one_of(self, name: str, known: tuple[str, ...]) -> Any:
        value = self.raw.get(name)
        if value not in known:
            raise ValueError(f"{name} is none of those known")
        return value

    def items(self, name: str, most: int) -> list[Any]:
        value = self.raw.get(name, [])
        if not isinstance(value, list):
            raise ValueError(f"{name} is no list")  # noqa: TRY004 - as above
        return value[:most]

    def objects(self, name: str, most: int) -> list[_Fields]:
        found = self.items(name, most)
        if not all(isinstance(item, dict) for item in found):
            raise ValueError(f"{name} is no list of objects")
        return [_Fields(item) for item in found]

    def records(self) -> list[tuple[int, str]]:
        """NVRx's."""
        pairs = [item for item in self.items("records", MOST_RECORDS) if isinstance(item, list) and len(item) == 2]
        return [(rank, kind[:64]) for rank, kind in pairs if type(rank) is int and isinstance(kind, str)]


def _standing(fields: _Fields) -> Standing:
    rank = fields.whole("rank")
    if rank is None:
        raise ValueError("a standing without a rank")
    sampled = fields.optional_number("sampled_age_seconds")
    inside = fields.raw.get("in_collective")
    phase, raised = fields.raw.get("phase"), fields.raw.get("raised")
    return Standing(
        rank=rank,
        initial_rank=fields.whole("initial_rank"),
        step=fields.whole("step"),
        step_age_seconds=fields.number("step_age_seconds"),
        sampled_age_seconds=None if sampled is None or not math.isfinite(sampled) else sampled,
        in_collective=inside if isinstance(inside, bool) else None,
        phase=phase if isinstance(phase, str) and phase in IN_PHASE else None,
        gpu_uuid=fields.text("gpu_uuid"),
        echoes=fields.raw.get("echoes") is True,
        raised=raised if isinstance(raised, str) and raised in CAUSES else None,
        signature=fields.text("signature"),
    )
