"""An incident's record as a trace and as a log record; pure, nothing here knows OpenTelemetry's code.

    incident: process_killed   |----------------------------------------------------------------|   last sign of health to verdict
      recovery                 |-----------------------------------------------|                    ... to the mark regained
        try                    |------------------------------------|                               ... to its end
          detect               |-------|
          teardown                     |---|
          respawn, rendezvous, ...         |------------------------|
        catch_up                                                    |----------|

Spans cannot be changed once they are sent. What is learnt later, in a further revision of the record, is one more log record of the same
root span, and those spans that were not there before (the mark is regained after the verdict, perhaps). The id of the trace is that of the
record, and so the same on every pod; the ids of its spans follow from it, from the pod and from their place in the record, so that whoever
sends one again sends the same.

Where several pods settle together where an incident began, none tells of it before they have, or have waited for it in vain. A pod that
ends before that tells by its own guess. What it sent stays: the pod that the verdict names, if that is another, adds a root of its own in
the same trace, and the newest log record says which of them is right.

Wall time dates each failure; from there on a try's phases follow each other as long as they lasted. Times are nanoseconds since 1970.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.labels import RECOVERY_PHASES
from headway_exporter.trace_words import clean, common_attributes, incident_attributes, sendable, sign_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway_exporter.trace_words import Attributes, Record

Severity = Literal["INFO", "WARN", "ERROR"]

_MOST: Final = 64
"""Recoveries, tries of each, and signs that are told; records hold fewer."""
_NANOSECONDS: Final = 1_000_000_000
_NOWHERE: Final = (-1, -1)
_WHILE_AWAY: Final = tuple(phase for phase in RECOVERY_PHASES if phase != "catch_up")


@dataclass(frozen=True)
class Event:
    """Something that happened at one moment of a span."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """One span; ids are numbers, as OpenTelemetry's interfaces take them."""

    name: str
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[Event, ...] = ()
    error: str | None = None
    """Why it counts as failed; None: it does not."""


@dataclass(frozen=True)
class Trace:
    """The spans of one incident, parents before their children, the root first."""

    trace_id: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Log:
    """The incident in one sentence."""

    trace_id: int
    span_id: int
    time_ns: int
    observed_ns: int
    severity: Severity
    body: str
    attributes: Attributes


def awaits_verdict(record: Record) -> bool:
    """Whether the pods have yet to settle where the incident began, and so who tells of it; records of older versions do not say."""
    return record.get("decided_revision", 0) is None


def first_word(record: Record) -> bool:
    """Whether nobody was to tell of the incident before this revision: so all of it is to be told."""
    return awaits_verdict(record) or (record.get("revision") or 0) == record.get("decided_revision", 0)


def told_here(record: Record) -> bool:
    """Whether this pod is to tell of the incident: the one that all pods settled on, else the origin's, or pod 0 where nobody knows it.

    A pod that decides alone knows the pods of its own ranks only: a rank without one is another's, which tells of it. As with the
    counters, pod 0 then also tells of echoes whose origin it cannot know: a second root in the same trace.
    """
    if (record.get("pods_expected") or 1) <= 1:
        return True
    claimed = record.get("claimed_by")
    if claimed is not None:
        return bool(record["pod_index"] == claimed)
    origin = record.get("origin") or {}
    if origin.get("pod_index") is not None:
        return bool(record["pod_index"] == origin["pod_index"])
    return origin.get("rank") is None and record["pod_index"] == "0"


def trace(record: Record) -> Trace:
    """The record's trace.

    Raises:
        KeyError, TypeError, ValueError: it is no record.
    """
    return Trace(int(record["trace_id"], 16), _Story(record).spans())


def log(record: Record) -> Log:
    """The record's log record; its severity tells the verdict.

    Raises:
        KeyError, TypeError, ValueError: it is no record.
    """
    return Log(
        trace_id=int(record["trace_id"], 16),
        span_id=_span_id(record, "incident"),
        time_ns=_ns(record["opened_wall"] if record.get("closed_wall") is None else record["closed_wall"]),
        observed_ns=_ns(record["written_wall"]),
        severity=_severity(record),
        body=sendable(sentence(record)),
        attributes=incident_attributes(record),
    )


def sentence(record: Record) -> str:
    """What became of the incident, for people."""
    recurring = _recurring(record)
    facts = [
        f"{record['layer']} restart" if record.get("layer") else "no restart",
        _count(record.get("attempts") or 0, "attempt"),
        *_lost(record),
        *([f"recurring ({', '.join(recurring)})"] if recurring else []),
    ]
    again = f" (revision {record['revision']})" if record.get("revision") else ""
    return (
        f"incident {record['id']} of run {record['run']} {_outcome(record)}{again}: "
        f"{record['cause']} ({record['confidence']}) {_place(record)}; {', '.join(facts)}"
    )


def _outcome(record: Record) -> str:
    closed, opened = record.get("closed_wall"), record["opened_wall"]
    after = "" if closed is None else f" after {max(0.0, closed - opened):.1f} s"
    return f"{'was ' if record['outcome'] in ('abandoned', 'cancelled') else ''}{record['outcome']}{after}"


def _place(record: Record) -> str:
    origin = record.get("origin") or {}
    known = [
        f"{word} {origin[name]}" for name, word in (("rank", "rank"), ("node", "node")) if origin.get(name) is not None
    ]
    doubt = "perhaps " if record.get("ambiguous") else ""
    return f"{doubt}on {', '.join(known)}" if known else "of unknown origin"


def _lost(record: Record) -> list[str]:
    """In all; records of older versions tell only of each recovery that they keep."""
    kept = sum(recovery.get("steps_lost") or 0 for recovery in record.get("recoveries", ()))
    lost = record.get("steps_lost", kept)
    return [f"{_count(lost, 'step')} lost"] if lost else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _severity(record: Record) -> Severity:
    if _recurring(record) or record["outcome"] == "abandoned":
        return "ERROR"
    return "INFO" if record["outcome"] == "recovered" else "WARN"


def _recurring(record: Record) -> list[str]:
    """Reasons that make an incident recurring; that one place keeps failing is a matter of its own."""
    return [reason for reason in record.get("recurring") or () if reason != "same_entity"]


class _Story:
    """Makes the spans of one record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._recoveries = _dated(record.get("recoveries"))
        self._opened = _ns(record["opened_wall"])
        closed = record.get("closed_wall")
        self._closed = None if closed is None else _ns(closed)
        self._signs = _signs_by_try(record.get("evidence") or (), self._recoveries)

    def spans(self) -> tuple[Span, ...]:
        """Parents before their children."""
        root_id = _span_id(self._record, "incident")
        below = [
            span
            for number, recovery in enumerate(self._recoveries)
            for span in self._recovery(root_id, number, recovery)
        ]
        start = min((self._opened, *(span.start_ns for span in below)))
        end = max((self._opened, *(span.end_ns for span in below))) if self._closed is None else self._closed
        root = Span(
            f"incident: {sendable(self._record['cause'])}",
            root_id,
            None,
            start,
            max(start, end),
            incident_attributes(self._record),
            tuple(_event(sign) for sign in self._signs.get(_NOWHERE, ())),
            self._error(),
        )
        return (root, *below)

    def _error(self) -> str | None:
        outcome, recurring = self._record["outcome"], _recurring(self._record)
        if outcome == "recovered" and not recurring:
            return None
        return sendable(f"{outcome}, recurring: {', '.join(recurring)}" if recurring else outcome)

    def _recovery(self, parent: int, number: int, recovery: Record) -> list[Span]:
        own_id = _span_id(self._record, f"recovery {number}")
        until = self._end_of(number, recovery)
        tries = _tries(recovery)
        below = [
            span
            for place, one in enumerate(tries)
            for span in self._try(own_id, (number, place), one, until if one is tries[-1] else _begin(tries[place + 1]))
        ]
        came_back = max((span.end_ns for span in below), default=until)
        below += self._catch_up(own_id, number, recovery, came_back)
        start = min((_ns(recovery["opened_wall"]), *(span.start_ns for span in below)))
        end = max((until, *(span.end_ns for span in below)))
        error = None if recovery.get("first_step_wall") is not None else "no step was made after it"
        attributes = clean(
            {
                **common_attributes(recovery),
                "headway.attempts": recovery.get("attempts"),
                "headway.tip_step": recovery.get("tip_step"),
                "headway.mark_step": recovery.get("mark_step"),
                "headway.rejected_steps": recovery.get("rejected_steps"),
                "headway.steps_lost": recovery.get("steps_lost"),
                "headway.replay_check": recovery.get("replay_check"),
            }
        )
        return [Span("recovery", own_id, parent, start, max(start, end), attributes, error=error), *below]

    def _end_of(self, number: int, recovery: Record) -> int:
        """First step; without one, the next failure or the verdict."""
        if recovery.get("first_step_wall") is not None:
            return _ns(recovery["first_step_wall"])
        if number + 1 < len(self._recoveries):
            return _ns(self._recoveries[number + 1]["opened_wall"])
        return _ns(recovery["opened_wall"]) if self._closed is None else self._closed

    def _try(self, parent: int, place: tuple[int, int], one: Record, until: int) -> Iterator[Span]:
        """A try and its phases, laid end to end around the moment of failure."""
        key = f"recovery {place[0]} try {place[1]}"
        own_id = _span_id(self._record, key)
        seconds = one.get("phases") or {}
        lasted = [(phase, _lasted(seconds.get(phase))) for phase in _WHILE_AWAY]
        start = _begin(one)
        told = sum(nanoseconds for phase, nanoseconds in lasted if phase != "detect")
        end = start + sum(nanoseconds for _, nanoseconds in lasted) if told else max(_ns(one["opened_wall"]), until)
        failed = self._recoveries[place[0]].get("first_step_wall") is None or not self._is_last(place)
        yield Span(
            "try",
            own_id,
            parent,
            start,
            end,
            clean({**common_attributes(one), "headway.alternatives": one.get("alternatives")}),
            tuple(_event(sign) for sign in self._signs.get(place, ())),
            "it made no step" if failed else None,
        )
        for phase, nanoseconds in lasted:
            if nanoseconds:
                layer = clean({"headway.layer": one.get("layer")})
                yield Span(phase, _span_id(self._record, f"{key} {phase}"), own_id, start, start + nanoseconds, layer)
            start += nanoseconds

    def _is_last(self, place: tuple[int, int]) -> bool:
        return place[1] == len(_tries(self._recoveries[place[0]])) - 1

    def _catch_up(self, parent: int, number: int, recovery: Record, came_back: int) -> list[Span]:
        """From the first step on, as long as the last try's phases say (0: it broke down again), else until the mark was regained."""
        tries, regained = _tries(recovery), recovery.get("high_water_wall")
        lasted = (tries[-1].get("phases") or {}).get("catch_up") if tries else None
        if lasted is None and regained is not None:
            lasted = regained - came_back / _NANOSECONDS
        end = came_back + _lasted(lasted)
        if recovery.get("first_step_wall") is None or end <= came_back:
            return []
        layer = clean({"headway.layer": recovery.get("layer")})
        return [Span("catch_up", _span_id(self._record, f"recovery {number} catch_up"), parent, came_back, end, layer)]


def _dated(items: Sequence[Record] | None, wall: str = "opened_wall") -> list[Record]:
    """Those that say when they were; a journal's time that made no sense is null."""
    return [one for one in (items or ())[:_MOST] if one.get(wall) is not None]


def _tries(recovery: Record) -> list[Record]:
    return _dated(recovery.get("tries"))


def _begin(one: Record) -> int:
    """When a try's last sign of health was."""
    return _ns(one["opened_wall"]) - _lasted((one.get("phases") or {}).get("detect"))


def _signs_by_try(evidence: Sequence[Record], recoveries: Sequence[Record]) -> dict[tuple[int, int], list[Record]]:
    """Each sign with the last try that had begun by then; `_NOWHERE`: there is none."""
    begun = [
        (one["opened_wall"], (number, place))
        for number, recovery in enumerate(recoveries)
        for place, one in enumerate(_tries(recovery))
    ]
    found: dict[tuple[int, int], list[Record]] = {}
    for sign in _dated(evidence, "wall"):
        before = [place for wall, place in begun if wall <= sign["wall"]]
        first = (
            begun[0][1] if begun else _NOWHERE
        )  # some signs are dated back: a process died before its peers told of it
        place = before[-1] if before else first
        if (
            sign["kind"] in ("gpu", "nic")
            and before
            and len(before) < len(begun)
            and _went_on(recoveries[place[0]], sign)
        ):
            place = begun[len(before)][1]  # what came before a failure explains it, not the one that was over
        found.setdefault(place, []).append(sign)
    return found


def _went_on(recovery: Record, sign: Record) -> bool:
    """Whether a step had been made again before the sign came."""
    first_step = recovery.get("first_step_wall")
    return first_step is not None and first_step < sign["wall"]


def _event(sign: Record) -> Event:
    name, attributes = sign_attributes(sign)
    return Event(name, _ns(sign["wall"]), attributes)


def _span_id(record: Record, place: str) -> int:
    """64 bits, not all zero."""
    named = f"{record['trace_id']}\0{record['pod_index']}\0{place}"
    return int.from_bytes(hashlib.sha256(named.encode("utf-8", "replace")).digest()[:8], "big") or 1


def _ns(wall: float) -> int:
    return max(0, round(wall * _NANOSECONDS))


def _lasted(seconds: float | None) -> int:
    return max(0, round((seconds or 0.0) * _NANOSECONDS))
