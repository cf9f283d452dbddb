"""The grid as tables, once: what stands in them, whatever format they are then written in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_trainer.experiment import published
from headway_trainer.experiment.measure import by_layer, by_layer_and_rank
from headway_trainer.experiment.plan import BACKOFF_SECONDS, FIRST_FAULT_AFTER, RANKS, RESTARTS
from headway_trainer.experiment.shapes import shapes, write_ratio
from headway_trainer.orchestrator import LONGEST_BACKOFF_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_trainer.experiment.measure import Figures, Pair, Row, Spread
    from headway_trainer.experiment.plan import Plan

NOTHING: Final = "-"
LAYER_WORDS: Final = {"in_process": "in process", "launcher": "launcher", "orchestrator": "orchestrator"}


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first `named` columns hold words, the others numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    named: int = 1


def tables(rows: Sequence[Row]) -> list[Table]:
    """What people read, in this order."""
    return [cells_table(rows), layers_table(rows), beside_table(rows), shapes_table(rows), definitions_table()]


def cells_table(rows: Sequence[Row]) -> Table:
    """A row for each cell; where two figures stand in a column, ours is left and the published formula's right."""
    header = (
        "cell",
        "recovery s\nmedian / p90 / max",
        "efficiency\nours / theirs",
        "training goodput\nours / theirs",
        "infrastructure\nours / theirs",
        "lost steps\nours / theirs",
        "write /\ninterval",
        "commits /\nsaves",
    )
    return Table("The grid: one fault schedule in every cell", header, tuple(_cell_row(row) for row in rows))


def _cell_row(row: Row) -> tuple[str, ...]:
    figures, name = row.figures, row.cell.name
    if figures is None:
        return (name, f"failed: {row.reason}", *[NOTHING] * 6)
    ratio = write_ratio(row)
    return (
        name,
        spread_text(figures.spread),
        _ratios(figures.efficiency),
        _ratios(figures.training_goodput),
        _ratios(figures.infrastructure_goodput),
        f"{_whole(figures.lost_steps.ours)} / {_whole(figures.lost_steps.theirs)}",
        NOTHING if ratio is None else f"{ratio:.2f}",
        f"{figures.committed} / {figures.requested}",
    )


def layers_table(rows: Sequence[Row]) -> Table:
    """Recoveries of all cells by who recovered and whom the fault struck."""
    found = [
        (
            LAYER_WORDS[layer],
            *_counted(by_layer(rows, layer)),
            *_counted(by_layer_and_rank(rows, layer, rank_zero=True)),
            *_counted(by_layer_and_rank(rows, layer, rank_zero=False)),
            f"{published.RECOVERY_SECONDS[layer]:g}",
        )
        for layer in RESTARTS
    ]
    header = (
        "recovered by",
        *("n", "seconds\nmedian / p90 / max"),
        *("n,\nrank 0", "rank 0\nmedian / p90 / max"),
        *("n,\nothers", "other ranks\nmedian / p90 / max"),
        "published",
    )
    return Table("Recovery, from the failure to the next step", header, tuple(found))


def beside_table(rows: Sequence[Row]) -> Table:
    """The published figures, and what the same formulas and ours give here, at the longest interval."""
    longest = max((row.cell.interval for row in rows), default=0)
    here = [row for row in rows if row.cell.interval == longest]
    found: list[tuple[str, ...]] = []
    for layer in RESTARTS:
        mine = [row.figures for row in here if row.figures and row.cell.restarts == layer]
        name = LAYER_WORDS[layer]
        found += [
            (
                f"training goodput, {name}",
                f"{published.TRAINING_GOODPUT[layer]:.1%}",
                *_range(mine, "training_goodput"),
            ),
            (
                f"infrastructure goodput, {name}",
                f"{published.INFRASTRUCTURE_GOODPUT[layer]:.1%}",
                *_range(mine, "infrastructure_goodput"),
            ),
        ]
    found.sort(key=lambda line: not line[0].startswith("training"))
    for saves, (low, high) in published.EFFICIENCY.items():
        mine = [row.figures for row in here if row.figures and row.cell.saves == saves]
        found.append((f"efficiency, {saves}", f"{low:.1%} to {high:.1%}", *_range(mine, "efficiency")))
    shorter = [row for row in rows if row.cell.interval < longest]
    for saves, ratio in published.SHORT_INTERVAL.items():
        mine = [row.figures for row in shorter if row.figures and row.cell.saves == saves]
        found += [
            (f"short interval, {saves}: efficiency", f"{ratio:.1%} *", *_range(mine, "efficiency")),
            (f"short interval, {saves}: training goodput", f"{ratio:.1%} *", *_range(mine, "training_goodput")),
        ]
    header = ("", "published", "published formula\non these runs", "our definition\non these runs")
    return Table("Beside the published figures", header, tuple(found))


def _range(cells: Sequence[Figures], name: str) -> tuple[str, str]:
    """Lowest and highest by the published formula, and by ours."""
    pairs: list[Pair] = [getattr(cell, name) for cell in cells]
    return _between([pair.theirs for pair in pairs]), _between([pair.ours for pair in pairs])


def _between(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    low, high = f"{min(known):.1%}", f"{max(known):.1%}"
    return low if low == high else f"{low} to {high}"


def shapes_table(rows: Sequence[Row]) -> Table:
    """Whether the shapes are there."""
    found = tuple((one.claim, one.verdict, one.figures or NOTHING) for one in shapes(rows))
    return Table("Does the shape reproduce?", ("shape", "here", "found"), found, named=3)


def definitions_table() -> Table:
    """Ours beside theirs."""
    return Table(
        "What is compared", ("figure", "our definition", "the published formula"), published.DEFINITIONS, named=3
    )


def notes(plan: Plan) -> list[str]:
    """What differs in the set-up, and how to read the tables."""
    return [
        f"Shapes compare, sizes do not. Here {RANKS} CPU ranks, gloo, a tiny model; theirs nodes of eight GPUs, NCCL, EFA.",
        f"{plan.steps} steps of at least {plan.step_seconds:g} s, mostly slept; theirs had 2,000 of a large model.",
        f"Storage: real writes that are slowed down to {plan.write_seconds:g} s for a checkpoint; theirs was FSx for Lustre.",
        "A save that finds two earlier ones unfinished waits. A process's first asynchronous save starts its writer, which takes seconds.",
        f"Faults, from seed {plan.seed}: {', '.join(map(str, plan.schedule())) or 'none'}.",
        f"Exceptions and SIGKILLs are 7:3 and come after step {FIRST_FAULT_AFTER}, as published; here each has its own part of the run.",
        "Rank 0 is struck as well; the published schedule leaves it out."
        if plan.rank_zero
        else "Rank 0 is left out, as published.",
        "in_process: NVRx's wrapper below ft_launcher, which recovers from the SIGKILLs. launcher: ft_launcher alone.",
        f"orchestrator: a failure ends the pod's processes; a supervisor starts them all again, after {_pauses(plan)}.",
        "No pod is scheduled and no image pulled. The launcher looks every 0.5 s whether a rank has died; theirs every 5 s.",
        "ours: the sidecar's own figures; theirs: the published formulas on the same runs' books.",
        "* At the short interval the source available to us gives one number for each way to save, not of which ratio.",
    ]


def _pauses(plan: Plan) -> str:
    kubernetes = (
        f"the pauses of Kubernetes' kubelet ({BACKOFF_SECONDS:g} s, doubled up to {LONGEST_BACKOFF_SECONDS:g} s)"
    )
    if plan.backoff_scale == 1:
        return kubernetes
    scale, first, longest = plan.backoff_scale, plan.backoff_seconds, plan.longest_backoff_seconds
    return f"{kubernetes} SHORTENED to {scale:g} of that ({first:g} s, doubled up to {longest:g} s)"


def spread_text(one: Spread | None) -> str:
    """Median, ninth tenth and longest, in seconds."""
    return NOTHING if one is None else f"{one.median:.1f} / {one.p90:.1f} / {one.maximum:.1f}"


def _counted(one: Spread | None) -> tuple[str, str]:
    return str(one.count if one else 0), spread_text(one)


def _ratios(pair: Pair) -> str:
    return " / ".join(NOTHING if value is None else f"{value:.1%}" for value in (pair.ours, pair.theirs))


def _whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
