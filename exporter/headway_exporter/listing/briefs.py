"""What the filters need of a record, and the incident that several pods' records are of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headway_exporter.report import fields
from headway_exporter.report.merge import BEST_OUTCOME, age, trust
from headway_exporter.report.model import Origin
from headway_exporter.state_files import VERSION, StateFileError, parse_record, pod_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_HEAD_ENDS: Final = b',"settings":{'
"""In a record as it is written, all that filters need comes before this. Inside a text it cannot occur: quotes are escaped there."""
_DECODER: Final = json.JSONDecoder()


class Place(NamedTuple):
    """Where a record is to be read again; an open one is kept itself."""

    path: Path
    offset: int
    source: Mapping[str, Any] | None = None


class Brief(NamedTuple):
    """A record without its long parts. Times are seconds since 1970."""

    place: Place
    document: int
    """Its number in the full-text index."""
    pod_index: str
    id: str
    revision: int
    written_wall: float | None
    outcome: str
    opened_wall: float
    closed_wall: float | None
    layer: str
    cause: str
    confidence: str
    recurring: tuple[str, ...]
    attempts: int
    origin: Origin
    node: str
    decided_by: str
    settings: Mapping[str, Any]
    """Configuration in force; empty unless the whole record was parsed, as are the following."""
    lost: float
    """Rank-seconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """One incident of a run: a brief of each pod that saw it."""

    run: str
    briefs: tuple[Brief, ...]
    """By pod index."""
    lead: Brief
    """The one whose word counts, see `merge`."""
    outcome: str
    opened_wall: float
    closed_wall: float | None
    recurring: tuple[str, ...]
    attempts: int
    lost: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node where it began; where nobody knows that, those that saw it."""
        return (self.lead.origin.node,) if self.lead.origin.node else tuple(one.node for one in self.briefs if one.node)


def parse(line: bytes, place: str, *, whole: bool) -> dict[str, Any] | StateFileError:
    """The record in the line, or what is wrong with it; unless `whole`, only up to the configuration, which is several times faster."""
    if not whole and (end := line.find(_HEAD_ENDS)) > 0 and line.endswith(b"}\n"):
        try:
            head, _ = _DECODER.raw_decode(str(line[:end] + b"}", "utf-8"))
        except (ValueError, RecursionError):
            head = None
        if isinstance(head, dict) and head.get("v") == VERSION and "opened_wall" in head:
            return head
    return parse_record(line, place)


def brief(source: Mapping[str, Any], pod_index: str, place: Place, document: int) -> Brief | None:
    """The brief of a record; None when it has no id or no time. Texts are as they are in it: not fit for a terminal.

    This is done for every record of every run, so what has its proper type is taken without much ado.
    """
    get = source.get
    identity, opened = get("id"), _wall(get("opened_wall"))
    if type(identity) is not str or not identity or opened is None:
        return None
    outcome, confidence = get("outcome"), get("confidence")
    return Brief(
        place,
        document,
        pod_index,
        identity,
        _count(get("revision")),
        _wall(get("written_wall")),
        outcome if type(outcome) is str and outcome in BEST_OUTCOME else "open",
        opened,
        _wall(get("closed_wall")),
        _text(get("layer")),
        _text(get("cause")) or "unknown",
        confidence if confidence in ("confirmed", "likely") else "unknown",
        fields.texts(get("recurring")) if get("recurring") else (),
        _count(get("attempts")),
        _origin(fields.mapping(get("origin"))),
        _text(get("node")),
        _text(get("decided_by")),
        fields.mapping(get("settings")),
        sum(fields.amounts(get("lost_rank_seconds")).values()) if "lost_rank_seconds" in source else 0.0,
    )


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _wall(value: Any) -> float | None:
    return value if type(value) is float and fields.FIRST_WALL < value < fields.LAST_WALL else fields.wall(value)


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < fields.MOST_NUMBER else fields.count(value)


def _origin(source: Mapping[str, Any]) -> Origin:
    get = source.get
    return Origin(
        None if (rank := get("rank")) is None else _count(rank),
        _text(get("pod_index")) or None,
        _text(get("node")) or None,
        _text(get("gpu_uuid")) or None,
    )


def groups(run: str, briefs: Iterable[Brief], *, all_pods: bool = False) -> list[Group]:
    """The incidents that the briefs are of, in no order: one for each id or, with `all_pods`, for each id and pod."""
    newest: dict[tuple[str, str], Brief] = {}
    for one in briefs:
        key = (one.id, one.pod_index)
        known = newest.get(key)
        if known is None or age(one) > age(known):
            newest[key] = one
    if all_pods:
        return [_group(run, [one]) for one in newest.values()]
    by_id: dict[str, list[Brief]] = {}
    for one in newest.values():
        by_id.setdefault(one.id, []).append(one)
    return [_group(run, some) for some in by_id.values()]


def _group(run: str, briefs: list[Brief]) -> Group:
    if len(briefs) == 1:
        lead = briefs[0]
        return Group(
            run,
            (lead,),
            lead,
            lead.outcome,
            lead.opened_wall,
            lead.closed_wall,
            lead.recurring,
            lead.attempts,
            lead.lost,
        )
    briefs = sorted(briefs, key=lambda one: pod_order(one.pod_index))
    outcome = min((one.outcome for one in briefs), key=BEST_OUTCOME.__getitem__)
    closed = [one.closed_wall for one in briefs if one.closed_wall is not None and one.outcome == outcome]
    return Group(
        run=run,
        briefs=tuple(briefs),
        lead=min(briefs, key=trust),
        outcome=outcome,
        opened_wall=min(one.opened_wall for one in briefs),
        closed_wall=max(closed, default=None),
        recurring=tuple(sorted({reason for one in briefs for reason in one.recurring})),
        attempts=max(one.attempts for one in briefs),
        lost=sum(one.lost for one in briefs),
    )
