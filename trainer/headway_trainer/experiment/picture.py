"""The grid as one picture: each cell's recoveries, where its time went, and its efficiency, on a common row. An SVG text; pure.

Colours are those of the postmortem's style sheet, which the page brings along. Nothing is told by colour alone: layers differ in shape,
faults of rank 0 are hollow, and every mark has a title.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from headway_exporter.report.words import STATE_WORDS
from headway_trainer.experiment import published
from headway_trainer.experiment.plan import RESTARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headway_trainer.experiment.measure import Figures, Recovery, Row

WIDTH: Final = 1120
ROW: Final = 34
TOP: Final = 58
BOTTOM: Final = 30
NAMES: Final = 190
RECOVERY: Final = (200, 590)
"""Left and right edge of a panel, in pixels."""
TIME: Final = (635, 845)
EFFICIENCY: Final = (905, 1066)
TICKS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 300)
ORDER: Final = (
    *("productive", "replay", "checkpoint_save", "checkpoint_load", "data_wait", "eval", "other", "standby", "pending"),
    *("init", "detect", "restart", "down"),
)
"""Of a bar, from left to right: progress first, what is unavailable last."""


def picture(rows: Sequence[Row]) -> str:
    """An `<svg>` element; one row for each cell, in the given order."""
    height = TOP + ROW * len(rows) + BOTTOM
    body = [*_axes(rows, height), *(part for number, row in enumerate(rows) for part in _row(row, TOP + ROW * number))]
    return (
        f'<svg class="grid" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Recovery seconds, shares of time and efficiency of '
        f'each cell; the tables below hold the same figures">{"".join(body)}</svg>'
    )


def states(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The states that occur, with what they mean, in a bar's order: for a legend."""
    seen = {state for row in rows if row.figures for state in row.figures.shares}
    return [(state, STATE_WORDS.get(state, "not closed yet")) for state in ORDER if state in seen]


def mark(layer: str, x: float, y: float, *, hollow: bool = False, title: str = "") -> str:
    """A recovery by this layer: a circle, a square or a triangle."""
    shape = {
        "in_process": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
        "launcher": f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        "orchestrator": f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 9.5h-11z"',
    }[layer]
    return f'{shape} class="l-{layer}{" hollow" if hollow else ""}"><title>{escape(title)}</title></{shape[1:].split()[0]}>'


def place(seconds: float) -> float:
    """Where a time is on the logarithmic axis, in pixels."""
    low, high = math.log(TICKS[0]), math.log(TICKS[-1])
    share = (math.log(max(seconds, TICKS[0])) - low) / (high - low)
    return RECOVERY[0] + min(share, 1.0) * (RECOVERY[1] - RECOVERY[0])


def _axes(rows: Sequence[Row], height: int) -> Iterator[str]:
    foot = height - BOTTOM
    yield _text(RECOVERY[0], 14, "Recovery: seconds to the next step", "head")
    yield _text(TIME[0], 14, "Where the time of all ranks went", "head")
    yield _text(EFFICIENCY[0], 14, "Efficiency of saving", "head")
    for tick in TICKS:
        yield _line(place(tick), TOP - 6, place(tick), foot, "rule")
        yield _text(place(tick), foot + 16, f"{tick:g}", "tick-label middle")
    for layer in RESTARTS:
        seconds = published.RECOVERY_SECONDS[layer]
        yield _line(place(seconds), 36, place(seconds), foot, "published")
        anchor = {"in_process": "end", "launcher": "start", "orchestrator": "middle"}[layer]
        yield _text(place(seconds), 30, f"{layer} {seconds:g}", f"tick-label {anchor}")
    for left, right in (TIME, EFFICIENCY):
        for percent in (0, 50, 100):
            x = left + (right - left) * percent / 100
            yield _line(x, TOP - 6, x, foot, "rule")
            yield _text(x, foot + 16, f"{percent} %", "tick-label middle")
    for number in range(len(rows)):
        if number and rows[number].cell.interval != rows[number - 1].cell.interval:
            yield _line(0, TOP + ROW * number - 3, WIDTH, TOP + ROW * number - 3, "parting")


def _row(row: Row, top: int) -> Iterator[str]:
    middle = top + ROW / 2 - 2
    yield _text(NAMES, middle + 4, row.cell.name, "cell-name end")
    if row.figures is None:
        yield _text(RECOVERY[0], middle + 4, f"failed: {row.reason[:120]}", "failed")
        return
    yield from _recoveries(row.figures, middle)
    yield from _bar(row.figures.shares, top + 6)
    yield from _efficiency(row.figures, top + 6)


def _recoveries(figures: Figures, middle: float) -> Iterator[str]:
    found = figures.spread
    if found is not None:
        x = place(found.median)
        yield f'<path d="M{x:.1f} {middle - 11:.1f}v22" class="median"><title>median {found.median:.1f} s</title></path>'
    for number, one in enumerate(figures.recoveries):
        if one.seconds is not None:
            apart = 4 * (number % 3 - 1)  # so that equal ones are not drawn over each other
            yield mark(one.layer, place(one.seconds), middle + apart, hollow=one.origin_rank == 0, title=_told(one))


def _told(one: Recovery) -> str:
    whose = "" if one.origin_rank is None else f", rank {one.origin_rank}"
    return f"{one.seconds:.1f} s, {one.layer}: {one.cause}{whose}"


def _bar(shares: Mapping[str, float], top: float) -> Iterator[str]:
    left, right = TIME
    x = float(left)
    for state in ORDER:
        width = shares.get(state, 0.0) * (right - left)
        if width > 0:
            yield (
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="20" class="s-{state}">'
                f"<title>{state}: {shares[state]:.1%}</title></rect>"
            )
            x += width


def _efficiency(figures: Figures, top: float) -> Iterator[str]:
    left, right = EFFICIENCY
    ours, theirs = figures.efficiency.ours, figures.efficiency.theirs
    if ours is not None:
        width = ours * (right - left)
        yield f'<rect x="{left}" y="{top}" width="{width:.1f}" height="20" class="ours"><title>ours: {ours:.1%}</title></rect>'
        yield _text(right + 6, top + 14, f"{ours:.0%}", "share")
    if theirs is not None:
        x = left + max(theirs, 0.0) * (right - left)
        yield f'<path d="M{x:.1f} {top - 3}v26" class="theirs"><title>published formula: {theirs:.1%}</title></path>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" class="{kind}"/>'
