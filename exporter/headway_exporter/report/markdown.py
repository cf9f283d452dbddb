"""The report as Markdown: short enough for a pull request or a ticket; the HTML report has all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headway_exporter.report import units, words
from headway_exporter.report.environment import LEVEL_WORDS, origin_words, plain, since
from headway_exporter.report.recovering import phases
from headway_exporter.report.saves import sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headway_exporter.report.figures import Spread
    from headway_exporter.report.model import Incident, Recovery
    from headway_exporter.report.recovering import ClassRate, Times
    from headway_exporter.report.report import Report

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]()!|~$])")
MOST_CELL: Final = 120
MOST_ROWS: Final = 50
MOST_TOLD: Final = 10
"""Incidents with their evidence, unless all are asked for."""
MOST_EVIDENCE: Final = 6
MOST_RECOVERIES: Final = 3


def markdown(report: Report) -> str:
    """The document, with a newline at its end."""
    parts = (_head, _actions, _time, _incidents, _told, _recovery, _offenders, _advice, _missing)
    return "\n".join(line for part in parts for line in part(report)).strip() + "\n"


def escaped(text: str, limit: int = 2_000) -> str:
    """The text as it is, whatever characters are in it: no markup, no HTML, no link, no mention of people or issues."""
    shown = text if len(text) <= limit else f"{text[: limit - 1]}…"
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        shown = shown.replace(raw, safe)
    shown = _MARKUP.sub(r"\\\1", shown)
    for raw, safe in (("#", "\\#\u200b"), ("@", "@\u200b"), ("://", ":\u200b//"), ("www.", "www\u200b.")):
        shown = shown.replace(raw, safe)
    return shown


def fenced(text: str) -> list[str]:
    """The text as a block of code, behind a fence that is longer than any in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [f"{fence}text", *text.split("\n"), fence]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: int) -> list[str]:
    """A table whose last `right` columns are numbers."""
    rule = ["---"] * (len(titles) - right) + ["---:"] * right
    return [_line(titles), _line(rule), *(_line(row) for row in rows), ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(report: Report) -> Iterator[str]:
    run, verdict = report.run, report.verdict
    yield f"# Run {escaped(run.name, MOST_CELL)}: {LEVEL_WORDS[verdict.level]}"
    yield ""
    yield f"**{escaped(verdict.headline)}**"
    yield ""
    yield from (f"- {escaped(fact)}" for fact in verdict.facts)
    size = f"{units.plural(len(run.pods), 'pod')}, {units.whole(run.world_size)} ranks"
    yield f"- {units.utc(run.started_wall)} to {units.utc(run.last_wall)} ({units.duration(run.duration_seconds)}), {size}."
    training, available = report.accounts.training_goodput, report.accounts.infrastructure_goodput
    goodput = f"Training goodput {units.share(training)}, infrastructure goodput {units.share(available)}"
    yield f"- {goodput}; {_lost(report, report.rate.lost)} lost to incidents."
    yield ""


def _lost(report: Report, seconds: float) -> str:
    return escaped(units.rank_time(seconds, gpus=report.run.on_gpus))


def _actions(report: Report) -> Iterator[str]:
    if report.actions:
        yield "## What to do next"
        yield ""
        for number, action in enumerate(report.actions, 1):
            yield f"{number}. **{escaped(action.title)}.** {escaped(action.text)}"
        yield ""


def _time(report: Report) -> Iterator[str]:
    yield "## Where the time went"
    yield ""
    rows = [
        (escaped(row.name), row.meaning, units.share(row.share), _lost(report, row.seconds))
        for row in report.accounts.rows
    ]
    yield from _table(("what", "meaning", "share", "time"), rows, 2)
    told = [f"- {escaped(one)}" for one in sentences(report.saves)]
    yield from [*told, ""] if told else []


def _incidents(report: Report) -> Iterator[str]:
    if not report.shown:
        return
    yield "## Incidents"
    yield ""
    rows = report.shown if len(report.shown) == len(report.run.incidents) > MOST_ROWS else report.shown[:MOST_ROWS]
    if len(rows) < len(report.run.incidents):
        yield f"The worst {len(rows)} of {units.whole(len(report.run.incidents))}; every number below counts them all."
        yield ""
    titles = ("no.", "began", "cause", "origin", "outcome", "attempts", "steps lost", "time lost", "to first step")
    numbers = report.numbers
    yield from _table(titles, (_row(report, one, numbers[one.id]) for one in rows), 4)


def _row(report: Report, one: Incident, number: int) -> tuple[str, ...]:
    return (
        str(number),
        units.utc(one.opened_wall),
        words.CAUSE_WORDS[one.lead.cause],
        escaped(origin_words(one), MOST_CELL),
        f"**{_outcome(one)}**",
        units.whole(one.attempts),
        units.whole(one.steps_lost),
        _lost(report, one.lost),
        units.duration(one.seconds_to_first_step),
    )


def _outcome(one: Incident) -> str:
    return f"{one.outcome}, recurring" if one.recurring else one.outcome


def _told(report: Report) -> Iterator[str]:
    """What was seen of the worst ones."""
    numbers = report.numbers
    for one in report.shown[:MOST_TOLD]:
        lead = one.lead
        yield f"### {numbers[one.id]}: {words.CAUSE_WORDS[lead.cause]}, {escaped(origin_words(one), MOST_CELL)}"
        yield ""
        decided = escaped(words.DECISION_WORDS.get(lead.decided_by, lead.decided_by))
        yield f"- {_outcome(one)}, decided by {decided}, confidence {lead.confidence}"
        yield from (f"- {_took(recovery)}" for recovery in lead.recoveries[:MOST_RECOVERIES])
        yield from (f"- recurring: {escaped(words.REASON_WORDS.get(reason, reason))}" for reason in one.recurring)
        for item in lead.evidence[:MOST_EVIDENCE]:
            rank = "" if item.rank is None else f", rank {item.rank}"
            when = "" if item.wall is None else f" {since(one.opened_wall, item.wall)}"
            yield f"- saw {escaped(item.kind)}{rank}{when}: {escaped(item.text, 300)}"
        yield ""
        for item in lead.evidence[:MOST_EVIDENCE]:
            if item.traceback:
                yield from ("<details><summary>traceback</summary>", "", *fenced(item.traceback), "", "</details>", "")


def _took(recovery: Recovery) -> str:
    """What one recovery went through, its tries taken together."""
    layer = words.LAYER_WORDS.get(recovery.layer or "", "no restart")
    loaded = "" if recovery.loaded_step is None else f" from step {units.whole(recovery.loaded_step)}"
    spent = ", ".join(
        f"{phase.replace('_', ' ')} {units.duration(seconds)}" for phase, seconds in phases([recovery]).items()
    )
    return (
        f"{layer}{loaded}, {units.duration(recovery.seconds_to_first_step)} to the first step: {spent or units.UNKNOWN}"
    )


def _recovery(report: Report) -> Iterator[str]:
    if not report.run.incidents:
        return
    yield "## Recovery"
    yield ""
    titles = ("class of cause", "recovered", "95 % sure within", "recurring", "time lost")
    yield from _table(titles, (_rate(report, row) for row in (*report.rates, report.rate)), 3)
    yield "Times count from the first sign of the failure: how long it went unnoticed before is *detect*."
    if report.left_out:
        some = units.plural(report.left_out, "recovery is", "recoveries are")
        yield f"{some} in none of these numbers: of an incident with many, records keep the first and the last."
    yield ""
    spreads = [f"{what}: {one}" for what in ("to first step", "to mark") for one in ("n", "p50", "p90", "p99", "max")]
    layers = ((words.LAYER_WORDS.get(row.name, row.name), row) for row in (*report.by_layer, report.total))
    causes = ((words.CAUSE_WORDS[row.name], row) for row in report.by_cause)
    both = ((words.layer_and_cause(row.layer, row.name), row) for row in report.by_layer_and_cause)
    for what, rows in (("layer", layers), ("cause", causes), ("layer and cause", both)):
        yield from _table((what, *spreads, "failed attempts"), (_times(name, row) for name, row in rows), 11)


def _rate(report: Report, row: ClassRate) -> tuple[str, ...]:
    low, high = row.recovered.interval
    return (
        words.CLASSES.get(row.name, row.name),
        f"{units.whole(row.recovered.good)} of {units.whole(row.recovered.count)}",
        f"{units.share(low)} to {units.share(high)}" if row.recovered.count else units.UNKNOWN,
        units.whole(row.recurring),
        _lost(report, row.lost),
    )


def _times(name: str, row: Times) -> tuple[str, ...]:
    return (name, *_spread(row.first_step), *_spread(row.high_water), units.whole(row.failed_attempts))


def _spread(spread: Spread) -> tuple[str, ...]:
    return (
        units.whole(spread.count),
        *(units.duration(one) for one in (spread.p50, spread.p90, spread.p99, spread.max)),
    )


def _offenders(report: Report) -> Iterator[str]:
    if report.offenders:
        yield "## Repeat offenders"
        yield ""
        rows = [
            (one.kind, escaped(one.name, MOST_CELL), units.whole(one.count), one.marked) for one in report.offenders
        ]
        yield from _table(("what", "which", "how often", "marked"), rows, 2)


def _advice(report: Report) -> Iterator[str]:
    if report.advice:
        yield "## Settings"
        yield ""
        for one in report.advice:
            yield f"- **{escaped(plain(one.title))}** {escaped(plain(one.text))}"
            yield f"  - confidence {one.confidence}: {escaped(plain(one.because))}"
            yield from (f"  - set {escaped(plain(what))}: {escaped(plain(where))}" for what, where in one.settings)
            if one.known:
                yield f"  - from {escaped(plain(' · '.join(map(str, one.known))))}"
        yield ""


def _missing(report: Report) -> Iterator[str]:
    if report.run.problems:
        yield "## What is missing"
        yield ""
        yield from (f"- {escaped(one.what)}: {escaped(one.message)}" for one in report.run.problems[:MOST_ROWS])
        yield ""
