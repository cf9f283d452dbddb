"""Which of the published shapes this grid has: orders and ratios, never sizes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headway_trainer.experiment.measure import by_layer
from headway_trainer.experiment.plan import RESTARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway_trainer.experiment.measure import Figures, Row

MUCH: Final = 0.5
"""Async is much better than sync when it loses at most this share of what sync loses."""
COLLAPSE: Final = 0.75
"""An efficiency has collapsed when it is at most this share of what it was at the long interval."""
SLOW: Final = 0.9
"""A write takes as long as the interval from this ratio of the two on, which is to within a tenth."""


@dataclass(frozen=True)
class Shape:
    """Something that the published figures show.

    Attributes:
        claim: what.
        holds: whether it does here; None when the cells that ran cannot tell.
        figures: what was found, in words.
    """

    claim: str
    holds: bool | None
    figures: str

    @property
    def verdict(self) -> str:
        """In a word."""
        return {True: "yes", False: "NO", None: "not run"}[self.holds]


def shapes(rows: Sequence[Row]) -> list[Shape]:
    """All of them, in the order of the published figures."""
    return [
        _recovery(rows),
        _goodput(rows, "infrastructure"),
        _goodput(rows, "training"),
        _async_over_sync(rows),
        *(_collapse(rows, saves) for saves in ("sync", "async")),
        _rank_zero(rows),
    ]


def _recovery(rows: Sequence[Row]) -> Shape:
    spreads = [(layer, by_layer(rows, layer)) for layer in RESTARTS]
    medians = [one.median for _, one in spreads if one is not None]
    told = ", ".join(f"{layer} {one.median:.1f} s" for layer, one in spreads if one is not None)
    known = len(medians) == len(RESTARTS)
    return Shape(
        "recovery: in_process < launcher < orchestrator (medians by the layer that recovered)",
        _rising(medians) if known else None,
        told,
    )


def _goodput(rows: Sequence[Row], which: str) -> Shape:
    """In the cells of one way to save and one interval that ran with all three; the first such ones."""
    claim = f"{which} goodput: in_process > launcher > orchestrator"
    for saves, interval in sorted(
        {(row.cell.saves, row.cell.interval) for row in rows}, key=lambda key: (key[0], -key[1])
    ):
        cells = {
            row.cell.restarts: row.figures for row in rows if (row.cell.saves, row.cell.interval) == (saves, interval)
        }
        found = [_our_goodput(cells.get(layer), which) for layer in RESTARTS]
        ratios = [one for one in found if one is not None]
        if len(ratios) == len(RESTARTS):
            told = ", ".join(f"{layer} {ratio:.1%}" for layer, ratio in zip(RESTARTS, ratios, strict=True))
            return Shape(claim, _rising(ratios[::-1]), f"{saves}, every {interval} steps: {told}")
    return Shape(claim, None, "")


def _our_goodput(figures: Figures | None, which: str) -> float | None:
    if figures is None:
        return None
    return (figures.training_goodput if which == "training" else figures.infrastructure_goodput).ours


def _async_over_sync(rows: Sequence[Row]) -> Shape:
    """Where there is time to write: at the longest interval, if a write takes less than that."""
    longest = max((row.cell.interval for row in rows), default=0)
    pairs = list(_pairs([row for row in rows if row.cell.interval == longest and (write_ratio(row) or 0.0) < SLOW]))
    told = "; ".join(f"{layer}: {one:.1%} against {other:.1%}" for layer, one, other in pairs)
    good = all(1 - one <= MUCH * (1 - other) for _, one, other in pairs)
    return Shape(
        f"efficiency: async far above sync (it loses at most {MUCH:.0%} of what sync loses)",
        good if pairs else None,
        told,
    )


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[str, float, float]]:
    """Way to restart, efficiency with async saves, and with sync ones."""
    by_name = {(row.cell.saves, row.cell.restarts): _efficiency(row) for row in rows}
    for layer in RESTARTS:
        one, other = by_name.get(("async", layer)), by_name.get(("sync", layer))
        if one is not None and other is not None:
            yield layer, one, other


def _collapse(rows: Sequence[Row], saves: str) -> Shape:
    """Of the cells where a write takes as long as the interval, beside the same ones at the longest interval."""
    claim = f"efficiency of {saves} saves collapses when a write takes as long as the interval"
    mine = [row for row in rows if row.cell.saves == saves]
    longest = {row.cell.restarts: row for row in sorted(mine, key=lambda row: row.cell.interval)}
    found = []
    for row in mine:
        short, long = _efficiency(row), _efficiency(longest[row.cell.restarts])
        ratio = write_ratio(row)
        if (
            row is not longest[row.cell.restarts]
            and short is not None
            and long is not None
            and ratio is not None
            and ratio >= SLOW
        ):
            found.append(
                (short, long, f"{row.cell.restarts}: {long:.1%} to {short:.1%} (write / interval {ratio:.1f})")
            )
    good = all(short <= COLLAPSE * long for short, long, _ in found)
    return Shape(claim, good if found else None, "; ".join(text for *_, text in found))


def _rank_zero(rows: Sequence[Row]) -> Shape:
    recoveries = [one for row in rows if row.figures for one in row.figures.recoveries if one.origin_rank == 0]
    good = sum(one.seconds is not None for one in recoveries)
    told = f"{good} of {len(recoveries)}" if recoveries else ""
    return Shape("failures of rank 0 are recovered from as well", good == len(recoveries) if recoveries else None, told)


def write_ratio(row: Row) -> float | None:
    """What the storage takes for a checkpoint over the time of the steps between two."""
    return None if row.figures is None else row.figures.storage_seconds / row.figures.interval_seconds


def _efficiency(row: Row) -> float | None:
    return None if row.figures is None else row.figures.efficiency.ours


def _rising(values: Sequence[float]) -> bool:
    return all(one < other for one, other in pairwise(values))
