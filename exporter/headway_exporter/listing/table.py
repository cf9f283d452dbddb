"""Incidents as a table that fits the terminal, and as the lines of JSON that they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.report import fields
from headway_exporter.terminal import cut, padded, shown_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headway_exporter.listing.briefs import Group

_GAP: Final = "  "
NARROW: Final = 100
"""With fewer columns than this times have no seconds."""
EVIDENCE: Final = "EVIDENCE"
LEAST_EVIDENCE: Final = 30
"""Columns that must be left for the evidence."""


@dataclass(frozen=True)
class Row:
    """An incident with its whole records: `(pod, record)`, the lead first."""

    group: Group
    sources: Sequence[tuple[str, Mapping[str, Any]]]

    @property
    def record(self) -> Mapping[str, Any]:
        """Of the pod whose word counts."""
        return self.sources[0][1] if self.sources else {}

    @property
    def recoveries(self) -> list[Mapping[str, Any]]:
        """From each failure to the step after it."""
        return list(fields.objects(self.record.get("recoveries")))


@dataclass(frozen=True)
class Column:
    """A column: its title, what stands in it, how wide it may get, and its place in the queue for room (0: always there)."""

    title: str
    value: Callable[[Row], str]
    widest: int
    queue: int = 0
    right: bool = False


def as_table(
    rows: Sequence[Row],
    width: int,
    words: Sequence[str] = (),
    *,
    settings: Sequence[str] = (),
    all_pods: bool = False,
) -> Iterator[str]:
    """A header and a line for each row, none of them wider than `width` columns; the evidence gets what is left over.

    `settings`: names of the configuration, each with a column of what was in force.
    """
    columns = [one for one in COLUMNS if all_pods or one.title != "POD"]
    taken = {EVIDENCE, *(one.title for one in COLUMNS)}
    after_cause = next(at for at, one in enumerate(columns, 1) if one.title == "CAUSE")
    columns[after_cause:after_cause] = [_of_setting(name) for name in dict.fromkeys(settings) if name not in taken]
    if width < NARROW:
        columns[0] = Column(columns[0].title, lambda row: _opened(row)[:-3], 16)
    cells = {one.title: [fields.text(one.value(row)) for row in rows] for one in columns} | {
        EVIDENCE: [_evidence(row, words) for row in rows]
    }
    widths = _widths(columns, cells, width)
    kept = [one for one in (*columns, _EVIDENCE) if one.title in widths]
    for texts in zip(*([one.title, *cells[one.title]] for one in kept), strict=True):
        parts = [padded(text, widths[one.title], right=one.right) for one, text in zip(kept, texts, strict=True)]
        yield cut(_GAP.join(parts).rstrip(), width)


def _widths(columns: Sequence[Column], cells: Mapping[str, Sequence[str]], width: int) -> dict[str, int]:
    """How wide each column gets that has room."""
    widths: dict[str, int] = {}
    left = width + len(_GAP)
    for one in sorted((*columns, _EVIDENCE), key=lambda column: column.queue):
        wanted = min(max(map(shown_width, [one.title, *cells[one.title]])), one.widest)
        if one is _EVIDENCE:
            wanted = min(wanted, LEAST_EVIDENCE)
        if one.queue == 0 or wanted + len(_GAP) <= left:
            widths[one.title] = wanted
            left -= wanted + len(_GAP)
    if EVIDENCE in widths and left > 0:
        widths[EVIDENCE] += left
    return widths


def as_record(row: Row) -> dict[str, Any]:
    """The lead's record with what all pods together know: `pods`, and the time lost in all of them."""
    group = row.group
    lost: Counter[str] = Counter()
    for _, source in row.sources:
        lost.update(fields.amounts(source.get("lost_rank_seconds")))
    return dict(row.record) | {
        "run": group.run,
        "outcome": group.outcome,
        "opened_wall": group.opened_wall,
        "closed_wall": group.closed_wall,
        "recurring": list(group.recurring),
        "attempts": group.attempts,
        "lost_rank_seconds": dict(lost),
        "pods": [one.pod_index for one in group.briefs],
    }


def _evidence(row: Row, words: Sequence[str]) -> str:
    """What was seen: the first text with one of the words in it, else the first of all."""
    parts = [
        text
        for one in fields.objects(row.record.get("evidence"))
        for text in (fields.text(one.get("text")), *_last_lines(fields.lines(one.get("traceback"))))
        if text
    ]
    sought = [word.strip('"*').lower() for word in words]
    return next((text for text in parts if any(word in text.lower() for word in sought)), parts[0] if parts else "")


def _last_lines(traceback: str) -> list[str]:
    return [line.strip() for line in reversed(traceback.splitlines()) if line.strip()]


def _opened(row: Row) -> str:
    return datetime.fromtimestamp(row.group.opened_wall, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _outcome(row: Row) -> str:
    return f"{row.group.outcome}{', recurring' if row.group.recurring else ''}"


def _cause(row: Row) -> str:
    doubt = "" if row.group.lead.confidence == "confirmed" else "?"
    return f"{row.group.lead.cause}{doubt}"


def _origin(row: Row) -> str:
    origin = row.group.lead.origin
    parts = [
        "" if origin.rank is None else f"rank {origin.rank}",
        "" if origin.node is None else origin.node,
        f"pod {origin.pod_index}" if origin.rank is None and origin.node is None and origin.pod_index else "",
    ]
    doubt = "?" if row.record.get("ambiguous") is True and any(parts) else ""
    return (" ".join(part for part in parts if part) or "-") + doubt


def _steps_lost(row: Row) -> str:
    """In all; records of older versions tell only of each recovery that they keep."""
    each = [
        fields.whole(one.get("steps_lost")) for one in ([row.record] if "steps_lost" in row.record else row.recoveries)
    ]
    known = [steps for steps in each if steps is not None]
    return str(sum(known)) if known else "-"


def _to_first_step(row: Row) -> str:
    """The longest of its recoveries."""
    times = [
        end - begin
        for one in row.recoveries
        if (begin := fields.wall(one.get("opened_wall"))) is not None
        and (end := fields.wall(one.get("first_step_wall"))) is not None
    ]
    return duration(max(times)) if times else "-"


def _lost(row: Row) -> str:
    return duration(sum(sum(fields.amounts(one.get("lost_rank_seconds")).values()) for _, one in row.sources))


def _of_setting(name: str) -> Column:
    """Asked for, so it comes before all that is left out where there is no room."""

    def value(row: Row) -> str:
        found = fields.mapping(row.record.get("settings")).get(name)
        if isinstance(found, float):
            return f"{found:g}"
        return "-" if found is None else str(found)

    return Column(name, value, 32, queue=1, right=True)


def duration(seconds: float) -> str:
    """At most six characters."""
    for limit, size, unit in ((100.0, 1.0, "s"), (6_000.0, 60.0, "m"), (360_000.0, 3_600.0, "h")):
        if seconds < limit:
            value = max(seconds, 0.0) / size
            return f"{value:.1f} {unit}" if value < 99.5 else f"{value:.0f} {unit}"
    return f"{min(seconds / 86_400, 99_999):.0f} d"


COLUMNS: Final = (
    Column("OPENED (UTC)", _opened, 19),
    Column("RUN", lambda row: row.group.run, 20),
    Column("POD", lambda row: row.group.lead.pod_index, 12),
    Column("OUTCOME", _outcome, 20),
    Column("CAUSE", _cause, 20),
    Column("LAYER", lambda row: row.group.lead.layer or "-", 12, queue=2),
    Column("ORIGIN", _origin, 28, queue=1),
    Column("TRIES", lambda row: str(row.group.attempts), 5, queue=5, right=True),
    Column("RESUMED", _to_first_step, 7, queue=4, right=True),
    Column("STEPS", _steps_lost, 7, queue=7, right=True),
    Column("LOST", _lost, 7, queue=3, right=True),
    Column("ID", lambda row: row.group.lead.id, 16, queue=8),
)
_EVIDENCE: Final = Column(EVIDENCE, lambda _: "", 200, queue=6)
