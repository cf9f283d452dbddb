"""The experiment as one HTML file in the postmortem's look: the picture, then the tables; no script, nothing from the network.

Style sheet and patterns are the postmortem's own, read from its package.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from headway import __version__
from headway_trainer.experiment import picture
from headway_trainer.experiment.plan import RESTARTS
from headway_trainer.experiment.shapes import shapes
from headway_trainer.experiment.table import LAYER_WORDS, Table, notes, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_trainer.experiment.measure import Row
    from headway_trainer.experiment.plan import Plan

STYLE: Final = """
svg.grid { display: block; width: 100%; min-width: 900px; height: auto; font-size: 12px; }
.scroll { overflow-x: auto; }
svg.grid text { fill: var(--ink); }
svg.grid .head { font-weight: 600; font-size: 13px; }
svg.grid .cell-name { font-size: 13px; }
svg.grid .tick-label { fill: var(--soft); font-size: 11.5px; }
svg.grid .share { font-size: 12px; font-variant-numeric: tabular-nums; }
svg.grid .failed { fill: var(--bad); }
.middle { text-anchor: middle; } .end { text-anchor: end; } .start { text-anchor: start; }
.rule { stroke: var(--line); } .parting { stroke: var(--soft); stroke-width: .7; }
.published { stroke: var(--soft); stroke-dasharray: 3 3; }
.median { stroke: var(--ink); stroke-width: 2; }
.ours { fill: var(--checkpoint_save); } .theirs { stroke: var(--restart); stroke-width: 3; }
.l-in_process { fill: var(--productive); stroke: var(--productive); }
.l-launcher { fill: var(--checkpoint_save); stroke: var(--checkpoint_save); }
.l-orchestrator { fill: var(--restart); stroke: var(--restart); } .hollow { fill: var(--page); stroke-width: 2; }
.legend svg { width: 16px; height: 14px; vertical-align: -2px; margin-right: 6px; }
td { white-space: pre-line; } table.numbers td { white-space: nowrap; } th, th.number { white-space: pre-line; }
td:first-child { white-space: normal; } td.failed { color: var(--bad); white-space: normal; }
"""


def html(plan: Plan, rows: Sequence[Row]) -> str:
    """The page."""
    looks = files("headway_exporter.report") / "templates"
    style, patterns = ((looks / name).read_text(encoding="utf-8") for name in ("style.css", "patterns.svg"))
    sections = "\n".join(_table(one) for one in tables(rows))
    differs = "".join(f"<li>{escape(note)}</li>" for note in notes(plan))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>Headway experiment</title>
<style>
{style}{STYLE}</style>
</head>
<body>
{patterns}
<header>
<h1>One fault schedule, several ways to save and to restart</h1>
<p class="soft small">Experiment by Headway {escape(__version__)}, beside a published benchmark's figures</p>
{_verdict(rows)}
</header>
<div class="scroll">{picture.picture(rows)}</div>
{_legend(rows)}
{sections}
<h2>What differs</h2>
<ul>{differs}</ul>
</body>
</html>
"""


def _verdict(rows: Sequence[Row]) -> str:
    wanted = shapes(rows)
    found = [one for one in wanted if one.holds is not None]
    missing = [one.claim for one in found if not one.holds]
    failed = sum(row.figures is None for row in rows)
    level = "bad" if failed else "attention" if missing else "good"
    headline = f"{len(found) - len(missing)} of {len(found)} published shapes are here, too"
    headline += f"; {len(wanted) - len(found)} more need cells that did not run" if len(found) < len(wanted) else ""
    headline += f"; {failed} of {len(rows)} cells failed" if failed else ""
    listed = "".join(f"<li>not here: {escape(claim)}</li>" for claim in missing)
    return f'<div class="verdict {level}"><p class="headline">{headline}</p><ul class="facts">{listed}</ul></div>'


def _legend(rows: Sequence[Row]) -> str:
    marks = [(picture.mark(layer, 8, 7), f"recovered by {LAYER_WORDS[layer]}") for layer in RESTARTS]
    marks += [
        (picture.mark("in_process", 8, 7, hollow=True), "hollow: rank 0 was struck"),
        ('<path d="M8 0v14" class="median"/>', "median of the cell"),
        ('<path d="M8 0v14" class="published"/>', "published recovery time"),
        *(
            (f'<rect width="14" height="12" class="s-{state}"/>', f"{state.replace('_', ' ')}: {meaning}")
            for state, meaning in picture.states(rows)
        ),
        ('<rect width="14" height="12" class="ours"/>', "our efficiency"),
        ('<path d="M8 0v14" class="theirs"/>', "the published formula's"),
    ]
    items = "".join(
        f'<li><svg viewBox="0 0 16 14" aria-hidden="true">{shape}</svg>{escape(text)}</li>' for shape, text in marks
    )
    return f'<ul class="legend">{items}</ul>'


def _table(one: Table) -> str:
    head = "".join(f"<th{_kind(one, number)}>{escape(text)}</th>" for number, text in enumerate(one.header))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_kind(one, number, text)}>{escape(text)}</td>" for number, text in enumerate(line))
        + "</tr>"
        for line in one.rows
    )
    numbers = ' class="numbers"' if one.named == 1 else ""
    table = f"<table{numbers}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{escape(one.title)}</h2>\n<div class="scroll">{table}</div>'


def _kind(one: Table, number: int, text: str = "") -> str:
    if text.startswith("failed: "):
        return ' class="failed"'
    return "" if number < one.named else ' class="number"'
