"""The timeline: what each rank's time went to, as shapes that a page can draw.

The pods' stretches have different begins and widths, so each row is resampled onto common columns. A column is a stack of the states'
shares. More ranks than there is room for are added up to pods, and these to groups of pods: a row then shows the mean of its ranks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.labels import STATES
from headway_exporter.report import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway_exporter.report.model import History, Pod, Run, SlotHistory

COLUMNS: Final = 400
HEIGHT: Final = 20
"""Of a row, in units in which shares are rounded."""
MOST_ROWS: Final = 64
PENDING: Final = "pending"
"""Time whose state only its end will tell; on the status page."""
ORDER: Final = tuple(
    sorted(
        (*STATES, PENDING),
        key=lambda name: (
            name in ("init", "detect", "restart", "down"),
            name not in ("productive", "replay"),
            (*STATES, PENDING).index(name),
        ),
    )
)
"""From the bottom of a column to its top: progress first, what is unavailable last."""
MOST_MARKS: Final = 40
"""Incidents that are marked one by one; more are counted by column."""

Column = dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A rank, a pod or several pods."""

    name: str
    paths: Mapping[str, str]
    """An SVG path for each state, in a space of COLUMNS x HEIGHT."""
    productive: float
    """Share of its time."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the time axis; `place` is a percentage of the width."""

    place: float
    utc: str
    since: str


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident, or several in one column."""

    place: float
    number: int | None
    """Of the incident, when it stands alone."""
    count: int
    id: str
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole timeline."""

    begin_wall: float
    end_wall: float
    rows: tuple[Row, ...]
    row_kind: str
    """What a row is: a rank, a pod, a group of pods."""
    states: tuple[str, ...]
    """Those that occur, in the order of the legend."""
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    date: str

    @property
    def most_marks(self) -> int:
        """Incidents in the column that has most."""
        return max((mark.count for mark in self.marks), default=1)


def picture(run: Run, first_number: int = 1, most_rows: int = MOST_ROWS) -> Picture | None:
    """The timeline, or None when no pod has any history.

    Args:
        run: whose.
        first_number: number of the first incident that it has.
        most_rows: rows that there is room for.
    """
    spans = [_span(pod.history) for pod in run.pods if pod.history is not None and pod.history.slots]
    if not spans:
        return None
    begin = min(one[0] for one in spans)
    end = max(max(one[1] for one in spans), begin + 1.0)
    kind, series = _series(run.pods, begin, end, most_rows)
    rows = tuple(_row(name, columns) for name, columns in series)
    seen = {state for row in rows for state in row.paths}
    return Picture(
        begin_wall=begin,
        end_wall=end,
        rows=rows,
        row_kind=kind,
        states=tuple(state for state in ORDER if state in seen),
        ticks=ticks(begin, end),
        marks=_marks(run, begin, end, first_number),
        date=units.utc(begin)[:10],
    )


def _span(history: History) -> tuple[float, float]:
    last = max((slot.buckets[-1][0] for slot in history.slots if slot.buckets), default=0)
    return history.begin_wall, history.begin_wall + (last + 1) * history.width_seconds


def _series(
    pods: Sequence[Pod], begin: float, end: float, most_rows: int
) -> tuple[str, list[tuple[str, list[Column]]]]:
    """What a row is, and each row's name and columns."""
    ranks = sum(len(pod.history.slots) for pod in pods if pod.history is not None)
    if ranks <= most_rows:
        return "rank", _by_rank(pods, begin, end)
    whole = [(pod.index, _pod_columns(pod.history, begin, end)) for pod in pods if pod.history is not None]
    size = -(-len(whole) // most_rows)
    if size == 1:
        return "pod", [(f"pod {index}", columns) for index, columns in whole]
    groups = [whole[at : at + size] for at in range(0, len(whole), size)]
    return f"{size} pods", [
        (f"pods {group[0][0]}\u2013{group[-1][0]}", _added([columns for _, columns in group])) for group in groups
    ]


def _by_rank(pods: Sequence[Pod], begin: float, end: float) -> list[tuple[str, list[Column]]]:
    rows = [
        ((slot.rank is None, slot.rank or 0), _rank_name(pod, slot), _resampled(slot.buckets, pod.history, begin, end))
        for pod in pods
        if pod.history is not None
        for slot in pod.history.slots
    ]
    rows.sort(key=lambda row: row[0])
    return [(name, columns) for _, name, columns in rows]


def _rank_name(pod: Pod, slot: SlotHistory) -> str:
    return f"rank {slot.rank}" if slot.rank is not None else f"pod {pod.index}, slot {slot.slot}"


def _pod_columns(history: History, begin: float, end: float) -> list[Column]:
    total: dict[int, Column] = defaultdict(dict)
    for slot in history.slots:
        for place, states in slot.buckets:
            bucket = total[place]
            for state, seconds in states.items():
                bucket[state] = bucket.get(state, 0.0) + seconds
    return _resampled(sorted(total.items()), history, begin, end)


def _added(rows: Sequence[list[Column]]) -> list[Column]:
    total: list[Column] = [{} for _ in range(COLUMNS)]
    for row in rows:
        for column, states in zip(total, row, strict=True):
            for state, seconds in states.items():
                column[state] = column.get(state, 0.0) + seconds
    return total


def _resampled(
    buckets: Sequence[tuple[int, Mapping[str, float]]], history: History, begin: float, end: float
) -> list[Column]:
    """Rank-seconds by column: those of a stretch are spread evenly over the columns that it covers."""
    columns: list[Column] = [{} for _ in range(COLUMNS)]
    scale = COLUMNS / (end - begin)
    for place, states in buckets:
        left = (history.begin_wall + place * history.width_seconds - begin) * scale
        right = left + history.width_seconds * scale
        for at in range(max(int(left), 0), min(math.ceil(right - 1e-9), COLUMNS)):
            part = (min(right, at + 1) - max(left, at)) / (right - left)
            column = columns[at]
            for state, seconds in states.items():
                column[state] = column.get(state, 0.0) + seconds * part
    return columns


def _row(name: str, columns: Sequence[Column]) -> Row:
    total: Counter[str] = Counter()
    for column in columns:
        total.update(column)
    everything = sum(total.values())
    return Row(name, _paths(columns), total["productive"] / everything if everything else 0.0)


def _paths(columns: Sequence[Column]) -> dict[str, str]:
    """Rectangles of each state; neighbours that look the same are one."""
    paths: dict[str, list[str]] = defaultdict(list)
    begin, current = 0, _stack(columns[0])
    for at in range(1, len(columns) + 1):
        stack = _stack(columns[at]) if at < len(columns) else None
        if stack != current:
            for state, bottom, height in current or ():
                paths[state].append(f"M{begin} {HEIGHT - bottom - height}h{at - begin}v{height}h{begin - at}z")
            begin, current = at, stack or ()
    return {state: "".join(paths[state]) for state in ORDER if state in paths}


def _stack(column: Column) -> tuple[tuple[str, int, int], ...]:
    """`(state, bottom, height)` of each state that is large enough to be seen; together they fill the row."""
    everything = sum(column.values())
    if everything <= 0:
        return ()
    stack, done, bottom = [], 0.0, 0
    for state in ORDER:
        done += column.get(state, 0.0)
        top = round(done / everything * HEIGHT)
        if top > bottom:
            stack.append((state, bottom, top - bottom))
            bottom = top
    return tuple(stack)


_STEPS: Final = (
    1, 2, 5, 10, 15, 30,
    60, 120, 300, 600, 900, 1_800,
    3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 432_000, 864_000, 1_728_000, 4_320_000, 8_640_000, 31_536_000,
)  # fmt: skip
"""Distances of ticks, in seconds."""


def ticks(begin: float, end: float, most: int = 7) -> tuple[Tick, ...]:
    """At most `most` ticks at round moments of UTC, with the time since the begin."""
    step = next((one for one in _STEPS if (end - begin) / one <= most), (end - begin) / most)
    first = math.ceil(begin / step) * step
    moments = [first + number * step for number in range(most + 1) if first + number * step < end]
    return tuple(
        Tick(100 * (wall - begin) / (end - begin), _clock(wall, step), f"+{units.duration(wall - begin)}")
        for wall in moments
    )


def _clock(wall: float, step: float) -> str:
    text = units.utc(wall)
    if step >= 86_400:
        return text[:10]
    return text[11:19] if step < 60 else text[11:16]


def _marks(run: Run, begin: float, end: float, first_number: int) -> tuple[Mark, ...]:
    inside = [
        (number, one) for number, one in enumerate(run.incidents, first_number) if begin <= one.opened_wall <= end
    ]
    if len(inside) <= MOST_MARKS:
        return tuple(
            Mark(
                100 * (one.opened_wall - begin) / (end - begin),
                number,
                1,
                one.id,
                f"incident {number}: {one.lead.cause}, {units.utc_words(one.opened_wall)}",
            )
            for number, one in inside
        )
    counted = Counter(
        min(int((one.opened_wall - begin) / (end - begin) * COLUMNS / 4), COLUMNS // 4 - 1) for _, one in inside
    )
    return tuple(
        Mark(100 * place * 4 / COLUMNS, None, count, "", units.plural(count, "incident"))
        for place, count in sorted(counted.items())
    )
