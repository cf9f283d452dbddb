"""The experiment as files: Markdown, CSV (a line a cell, plain numbers in base units) and JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.experiment import published
from headway_trainer.experiment.measure import by_layer
from headway_trainer.experiment.plan import RESTARTS
from headway_trainer.experiment.shapes import shapes
from headway_trainer.experiment.table import Table, notes, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_trainer.experiment.measure import Row, Spread
    from headway_trainer.experiment.plan import Plan


def markdown(plan: Plan, rows: Sequence[Row]) -> str:
    """The tables and notes."""
    parts = ["# Experiment\n"]
    for one in tables(rows):
        parts += [f"## {one.title}\n", markdown_table(one)]
    parts += ["## What differs\n", "\n".join(f"- {note}" for note in notes(plan)) + "\n"]
    return "\n".join(parts)


def markdown_table(one: Table) -> str:
    """Without its title."""
    lines = [one.header, tuple("---" if number < one.named else "--:" for number in range(len(one.header))), *one.rows]
    return "".join("| " + " | ".join(_flat(text) for text in line) + " |\n" for line in lines)


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


CSV_HEADER: Final = (
    *("saves", "restarts", "interval_steps", "state", "reason", "recoveries"),
    *("recovery_median_seconds", "recovery_p90_seconds", "recovery_max_seconds"),
    *("efficiency_ratio", "efficiency_published_formula_ratio"),
    *("training_goodput_ratio", "training_goodput_published_formula_ratio"),
    *("infrastructure_goodput_ratio", "infrastructure_goodput_published_formula_ratio"),
    *("lost_steps", "lost_steps_published_formula"),
    *(
        "wall_seconds",
        "interval_seconds",
        "storage_seconds",
        "write_seconds",
        "saves_requested",
        "saves_committed",
        "faults",
    ),
)


def csv_text(rows: Sequence[Row]) -> str:
    """A line for each cell; base units, empty where nothing is known."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row in rows:
        writer.writerow(_csv_line(row))
    return file.getvalue()


def _csv_line(row: Row) -> list[Any]:
    cell, one = row.cell, row.figures
    head = [cell.saves, cell.restarts, cell.interval]
    if one is None:
        return [*head, "failed", row.reason, *[None] * (len(CSV_HEADER) - 5)]
    found = one.spread
    pairs = (one.efficiency, one.training_goodput, one.infrastructure_goodput, one.lost_steps)
    return [
        *(*head, "done", None, len(one.recoveries)),
        *((found.median, found.p90, found.maximum) if found else (None, None, None)),
        *(value for pair in pairs for value in (pair.ours, pair.theirs)),
        *(
            one.wall_seconds,
            one.interval_seconds,
            one.storage_seconds,
            one.write_seconds,
            one.requested,
            one.committed,
            one.struck,
        ),
    ]


def json_text(plan: Plan, rows: Sequence[Row]) -> str:
    """Everything, in base units; keys are stable while `version` is 1."""
    document = {
        "headway": "experiment",
        "version": 1,
        "plan": plan.settings(),
        "schedule": [str(fault) for fault in plan.schedule()],
        "cells": [_json_cell(row) for row in rows],
        "recovery_by_layer": {layer: _json_spread(by_layer(rows, layer)) for layer in RESTARTS},
        "shapes": [asdict(one) for one in shapes(rows)],
        "published": {
            "recovery_seconds": published.RECOVERY_SECONDS,
            "training_goodput": published.TRAINING_GOODPUT,
            "infrastructure_goodput": published.INFRASTRUCTURE_GOODPUT,
            "efficiency": published.EFFICIENCY,
            "short_interval": published.SHORT_INTERVAL,
        },
        "notes": notes(plan),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _json_cell(row: Row) -> dict[str, Any]:
    name = {"cell": row.cell.name, **asdict(row.cell)}
    if row.figures is None:
        return {**name, "state": "failed", "reason": row.reason}
    return {**name, "state": "done", **asdict(row.figures), "recovery": _json_spread(row.figures.spread)}


def _json_spread(one: Spread | None) -> dict[str, float] | None:
    return None if one is None else {"n": one.count, "p50": one.median, "p90": one.p90, "max": one.maximum}
