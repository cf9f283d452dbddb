"""What was injected beside what the sidecar observed, and the checks that decide the demo's exit code. Pure but for `read_*`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headway_exporter.report.words import STATE_WORDS
from headway_trainer.faults import KINDS, FiredFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Resume:
    """An incarnation's start, as the trainer itself wrote it down: an account that owes nothing to the recorder."""

    wall: float
    resumed_after: int
    rejected: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One injected fault and what became of it.

    Attributes:
        fired: when and where it struck.
        recovery: the sidecar's record; None when it saw none.
        steps_lost: by the trainer's own account; None when training was never resumed.
        problems: in words, where observed and injected differ.
    """

    fired: FiredFault
    recovery: dict[str, Any] | None
    steps_lost: int | None
    problems: tuple[str, ...]


def compare(
    fired: Sequence[FiredFault], recoveries: Sequence[dict[str, Any]], resumes: Sequence[Resume]
) -> tuple[list[Row], list[str]]:
    """Pair each fault that restarts training with a recovery, in the order of time.

    Returns:
        A row for each of these faults, and what else is wrong (recoveries that nothing explains).
    """
    restarting = [one for one in fired if one.fault.outcome.restarts]
    padded = [*recoveries, *[None] * len(restarting)]
    rows = [_row(fault, recovery, resumes) for fault, recovery in zip(restarting, padded, strict=False)]
    surplus = [
        f"unexplained recovery: {one['cause']} at {_clock(one['opened_wall'])}" for one in recoveries[len(rows) :]
    ]
    return rows, surplus


def _row(fired: FiredFault, recovery: dict[str, Any] | None, resumes: Sequence[Resume]) -> Row:
    resume = next((one for one in resumes if one.wall > fired.wall), None)
    steps_lost = None if resume is None else fired.step - 1 - resume.resumed_after
    problems = []
    if resume is None:
        problems.append("training was not resumed")
    elif len(resume.rejected) != KINDS[fired.fault.kind].checkpoint_rejected:
        problems.append(f"checkpoints rejected on resume: {list(resume.rejected) or 'none'}")
    if recovery is None:
        problems.append("not observed")
    else:
        expected = {
            "layer": fired.fault.outcome.layer,
            "cause": fired.fault.outcome.cause,
            "origin_rank": None if fired.fault.kind == "pod_loss" else fired.rank,
            "steps_lost": steps_lost,
        }
        problems += [
            f"{name.replace('_', ' ')}: {recovery[name]} observed, {value} injected"
            for name, value in expected.items()
            if recovery[name] != value
        ]
        if recovery["seconds_to_first_step"] is None:
            problems.append("no step followed")
    return Row(fired, recovery, steps_lost, tuple(problems))


def verdicts(status: dict[str, Any]) -> tuple[str, list[str]]:
    """The sidecar's verdicts in a line, and those that are not what the demo should come to: all recovered, none recurring."""
    incidents = status["incidents"]
    counted = Counter("recurring" if one["recurring"] else one["state"] for one in incidents)
    line = ", ".join(f"{count} {word}" for word, count in counted.items()) or "none"
    problems = [
        f"incident of {_clock(one['opened_wall'])}: {one['state']}, recurring: {', '.join(one['recurring']) or 'no'}"
        for one in incidents
        if one["recurring"] or one["state"] != "recovered"
    ]
    return f"incidents: {line}", problems


def read_resumes(path: Path) -> list[Resume]:
    """`history.jsonl` of a run's output folder."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [Resume(entry["wall"], entry["resumed_after"], tuple(entry["rejected"])) for entry in entries]


def read_results(output: Path) -> list[dict[str, Any]]:
    """`result-<rank>.json` of every rank, by rank."""
    return [json.loads(path.read_text()) for path in sorted(output.glob("result-*.json"))]


def recoveries_table(rows: Sequence[Row]) -> Table:
    """Injected on the left, observed on the right."""
    table = Table(
        title="What was injected, and what the sidecar made of it",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 2, 0, 0),
    )
    for title in ("time", "injected", "layer", "cause", "origin"):
        table.add_column(title, overflow="fold")
    table.add_column("steps\nlost", justify="right")
    table.add_column("to first\nstep", justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(_clock(row.fired.wall), str(row.fired.fault), *_observed(row), _tick(not row.problems))
    return table


def _observed(row: Row) -> tuple[str, str, str, str, str]:
    recovery = row.recovery
    if recovery is None:
        return ("-", "-", "-", "-", "-")
    seconds = recovery["seconds_to_first_step"]
    return (
        str(recovery["layer"]),
        str(recovery["cause"]),
        "pod" if recovery["origin_rank"] is None else f"rank {recovery['origin_rank']}",
        str(recovery["steps_lost"]),
        "-" if seconds is None else f"{seconds:.1f} s",
    )


def time_table(status: dict[str, Any]) -> Table:
    """Where the time of all ranks went, in percent, largest first."""
    elapsed = status["elapsed_rank_seconds"]
    table = Table(
        title="Where the time went", title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 2, 0, 0)
    )
    table.add_column("state")
    table.add_column("share", justify="right")
    table.add_column("rank-seconds", justify="right")
    table.add_column("meaning", style="dim")
    for state, seconds in sorted(status["rank_seconds"].items(), key=lambda item: -item[1]):
        if seconds > 0:
            table.add_row(state, f"{100 * seconds / elapsed:.1f} %", f"{seconds:.1f}", STATE_WORDS.get(state, ""))
    return table


def same_result(reference: Sequence[dict[str, Any]], broken: Sequence[dict[str, Any]]) -> list[str]:
    """In what the two runs differ; empty when loss and weights are bit-equal on every rank."""
    if not reference or len(reference) != len(broken):
        return [f"{len(reference)} ranks finished undisturbed, {len(broken)} after the faults"]
    return [
        f"rank {rank}: {key} is {after[key]}, undisturbed {before[key]}"
        for rank, (before, after) in enumerate(zip(reference, broken, strict=True))
        for key in before
        if before[key] != after[key]
    ]


def check_line(good: bool, text: str) -> Text:
    """A line with a tick or a cross."""
    return Text.assemble("  ", _tick(good), " ", text)


def _tick(good: bool) -> Text:
    return Text("ok", style="bold green") if good else Text("WRONG", style="bold red")


def _clock(wall: float) -> str:
    return datetime.fromtimestamp(wall).strftime("%H:%M:%S")
