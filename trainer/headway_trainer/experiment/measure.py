"""A cell's result as a row of figures. Pure.

Ours are read from the sidecar's summary as they stand there. The published ones are `published`'s formulas on the same books: rank 0's
time by state, which the sidecar's history adds up to, and the recoveries that it saw.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway_trainer.experiment import published
from headway_trainer.experiment.published import RankZero

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headway_trainer.experiment.kept import Result
    from headway_trainer.experiment.plan import Cell


@dataclass(frozen=True)
class Recovery:
    """From a failure to the next step.

    Attributes:
        layer: who recovered.
        cause: by the sidecar.
        origin_rank: where it began, by the sidecar; None when it could not tell.
        seconds: to the first step; None when none followed.
    """

    layer: str
    cause: str
    origin_rank: int | None
    seconds: float | None


@dataclass(frozen=True)
class Spread:
    """Of some durations in seconds."""

    count: int
    median: float
    p90: float
    """By nearest rank: the smallest that at least nine tenths do not exceed."""
    maximum: float


@dataclass(frozen=True)
class Pair:
    """The same thing by our definition and by the published formula; None: not known."""

    ours: float | None
    theirs: float | None


@dataclass(frozen=True)
class Figures:
    """What a cell came to. Times are seconds, ratios 0 to 1."""

    recoveries: tuple[Recovery, ...]
    efficiency: Pair
    training_goodput: Pair
    infrastructure_goodput: Pair
    lost_steps: Pair
    wall_seconds: float
    """Rank 0's."""
    interval_seconds: float
    """Steps between two checkpoints times the mean step."""
    storage_seconds: float
    """Time that the storage takes for one checkpoint."""
    write_seconds: float | None
    """Mean time from taking a save to having it written, the start of a writer process included; None when none was written."""
    requested: int
    committed: int
    struck: int
    """Faults that were injected."""
    shares: Mapping[str, float]
    """Of all ranks' time, by state; they add up to 1."""

    @property
    def spread(self) -> Spread | None:
        """Of its recoveries to the first step."""
        return spread(self.recoveries)


@dataclass(frozen=True)
class Row:
    """A cell: its figures, or why it has none."""

    cell: Cell
    figures: Figures | None
    reason: str = ""


def row(cell: Cell, result: Result) -> Row:
    """The row of a kept result; one that lacks what a summary holds is a failed cell, not an error."""
    if result.get("state") != "done":
        return Row(cell, None, str(result.get("reason", "its result says nothing")))
    try:
        struck, storage = len(result["fired"]), float(result["storage_seconds"])
        return Row(cell, figures(cell, result["summary"], struck=struck, storage_seconds=storage))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return Row(cell, None, f"its result cannot be read: {type(error).__name__}: {error}")


def figures(cell: Cell, summary: Mapping[str, Any], *, struck: int, storage_seconds: float) -> Figures:
    """What the sidecar's summary says, beside the published formulas.

    Raises:
        KeyError, TypeError, ValueError, ZeroDivisionError: it is no summary of a run that trained.
    """
    recoveries = tuple(
        Recovery(one["layer"], one["cause"], one["origin_rank"], one["seconds_to_first_step"])
        for one in summary["recoveries"]
    )
    view = rank_zero(summary)
    saves = summary["checkpoint"]
    seconds = [one.seconds for one in recoveries if one.seconds is not None]
    tips = [one["tip_step"] for one in summary["recoveries"] if one["tip_step"] is not None]
    return Figures(
        recoveries=recoveries,
        efficiency=Pair(saves["efficiency"], published.training_efficiency(view)),
        training_goodput=Pair(summary["training_goodput"], published.training_goodput(view)),
        infrastructure_goodput=Pair(summary["infrastructure_goodput"], published.infrastructure_goodput(view, seconds)),
        lost_steps=Pair(summary["steps"]["lost"], published.lost_steps(tips, cell.interval)),
        wall_seconds=view.wall_seconds,
        interval_seconds=cell.interval * view.step_seconds,
        storage_seconds=storage_seconds,
        write_seconds=_mean(saves["write_seconds"]),
        requested=saves["requests"],
        committed=saves["saves"]["committed"],
        struck=struck,
        shares=_shares(summary),
    )


def rank_zero(summary: Mapping[str, Any]) -> RankZero:
    """Rank 0's view, from its own books; the number of steps is that of the rank with most, which differs by one at a failure.

    Raises:
        ValueError: rank 0 has no history, or made no step.
    """
    seconds: Counter[str] = Counter()
    for slot in summary["history"]["slots"].values():
        if slot["rank"] == 0:
            for _, states in slot["buckets"]:
                seconds.update(states)
    steps = summary["steps"]["productive"] + summary["steps"]["replay"]
    if not seconds or not steps:
        raise ValueError("rank 0 made no step")
    return RankZero(
        wall_seconds=sum(seconds.values()),
        step_seconds=(seconds["productive"] + seconds["replay"]) / steps,
        blocked_seconds=seconds["checkpoint_save"],
        final_step=summary["step"],
    )


def spread(recoveries: Iterable[Recovery]) -> Spread | None:
    """None when no step followed any of them."""
    seconds = sorted(one.seconds for one in recoveries if one.seconds is not None)
    if not seconds:
        return None
    nearest = seconds[math.ceil(0.9 * len(seconds)) - 1]
    return Spread(len(seconds), statistics.median(seconds), nearest, seconds[-1])


def by_layer_and_rank(rows: Sequence[Row], layer: str, *, rank_zero: bool) -> Spread | None:
    """Recoveries by one layer from failures of rank 0, or of all others, in all cells."""
    found = (one for each in rows if each.figures for one in each.figures.recoveries)
    return spread(
        one
        for one in found
        if one.layer == layer and one.origin_rank is not None and (one.origin_rank == 0) == rank_zero
    )


def by_layer(rows: Sequence[Row], layer: str) -> Spread | None:
    """Recoveries by one layer in all cells, whoever failed."""
    return spread(one for each in rows if each.figures for one in each.figures.recoveries if one.layer == layer)


def _mean(histogram: Mapping[str, Any]) -> float | None:
    count = sum(histogram["counts"])
    return histogram["sum"] / count if count else None


def _shares(summary: Mapping[str, Any]) -> dict[str, float]:
    seconds = summary["rank_seconds"] | {"pending": summary["pending_rank_seconds"]}
    whole = sum(seconds.values())
    return {state: amount / whole for state, amount in seconds.items() if amount > 0}
