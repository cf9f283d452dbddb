"""The report as one HTML file: no script, nothing from the network, whatever a text in it says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from headway import __version__
from headway_exporter.labels import RECOVERY_PHASES
from headway_exporter.report import fields, units, words
from headway_exporter.report.picture import picture
from headway_exporter.report.saves import sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway_exporter.report.model import Incident, Recovery, Setting
    from headway_exporter.report.report import Report

LEVEL_WORDS: Final = {"good": "fine", "attention": "look at it", "bad": "act now"}
LEVEL_SIGNS: Final = {"good": "\u2713", "attention": "!", "bad": "\u2717"}
BAR: Final = 1_000
"""Units of width of a bar."""


def html(report: Report) -> str:
    """The page."""
    run = report.run
    drawn = picture(run)
    environment = _environment(gpus=run.on_gpus)
    return environment.get_template("page.html.jinja").render(
        vars(report),
        version=__version__,
        picture=drawn,
        most_marks=max((mark.count for mark in drawn.marks), default=1) if drawn is not None else 1,
        shown_ids={one.id for one in report.shown},
        in_order=report.in_order,
        numbers=report.numbers,
        backend=next((pod.backend for pod in run.pods if pod.backend), None),
        saves_told=list(sentences(report.saves)),
        time_bar=time_bar(report),
        phases_bar=phase_bar(report.phases),
    )


def _environment(*, gpus: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("headway_exporter.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cause_words": words.CAUSE_WORDS.__getitem__,
        "duration": together(units.duration),
        "plain": plain,
        "plural": units.plural,
        "rank_time": together(partial(units.rank_time, gpus=gpus)),
        "setting": setting,
        "share": together(units.share),
        "unbroken": unbroken,
        "utc": units.utc_words,
        "utc_short": lambda wall: units.utc(wall)[:16].replace("T", " "),
        "whole": units.whole,
        "words": lambda name: name.replace("_", " "),
    }
    environment.globals |= {
        "level_words": LEVEL_WORDS,
        "level_signs": LEVEL_SIGNS,
        "fate_words": words.FATE_WORDS,
        "layer_words": words.LAYER_WORDS,
        "reason_words": words.REASON_WORDS,
        "decision_words": words.DECISION_WORDS,
        "class_words": words.CLASSES,
        "cause_names": words.CAUSE_WORDS,
        "layer_and_cause": words.layer_and_cause,
        "first_step": first_step,
        "origin": origin_words,
        "phase_bar": recovery_bar,
        "since": since,
    }
    return environment


def together(function: Callable[..., str]) -> Callable[..., str]:
    """The same, with spaces at which no line is broken."""
    return lambda *arguments: function(*arguments).replace(" ", "\u00a0")


def unbroken(text: str) -> str:
    """A sentence in which no line is broken between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def plain(value: object) -> str:
    """A text of another module, without what could disturb the page."""
    return fields.text(value if isinstance(value, str) else str(value), 4_000)


def setting(value: Setting) -> str:
    """A setting as it was written."""
    return value if isinstance(value, str) else f"{value:g}"


def origin_words(incident: Incident) -> str:
    """Where it began: `rank 1, node-0`."""
    at = incident.lead.origin
    pod = "unknown" if at.pod_index is None else f"pod {at.pod_index}"
    where = pod if at.rank is None else f"rank {at.rank}"
    return f"{where}, {at.node}" if at.node else where


def first_step(incident: Incident) -> float | None:
    """Seconds until training went on for good: from the failure to the first step of the last recovery."""
    last = incident.lead.recoveries[-1:]
    if not last or last[0].first_step_wall is None:
        return None
    return max(last[0].first_step_wall - incident.opened_wall, 0.0)


def since(begin: float, wall: float) -> str:
    """When something was seen: `+1.2 s`."""
    return f"+{units.duration(wall - begin)}" if wall >= begin else f"-{units.duration(begin - wall)}"


def time_bar(report: Report) -> Markup:
    """All time of the run, as one bar."""
    rows = report.accounts.rows
    label = ", ".join(f"{row.name} {units.share(row.share)}" for row in rows)
    parts = [("s-" + row.name, row.share, f"{row.name.replace('_', ' ')}: {units.share(row.share)}") for row in rows]
    return _bar("bar", 30, parts, label)


def recovery_bar(recovery: Recovery) -> Markup:
    """The phases of a recovery, all its tries together."""
    total: dict[str, float] = {}
    for one in recovery.tries:
        for name, seconds in one.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    return phase_bar({name: total[name] for name in RECOVERY_PHASES if name in total})


def phase_bar(phases: dict[str, float]) -> Markup:
    """A bar, and under it its words."""
    whole = sum(phases.values())
    if whole <= 0:
        return Markup("")
    named = [(name, seconds, f"{name.replace('_', ' ')} {units.duration(seconds)}") for name, seconds in phases.items()]
    bar = _bar("phases", 14, [("p-" + name, seconds / whole, text) for name, seconds, text in named], "phases")
    legend = "".join(_legend(escape(name), escape(text)) for name, _, text in named)
    return Markup(f"{bar}<ul class='legend'>{legend}</ul>")  # noqa: S704 - its parts are escaped


def _legend(name: Markup, text: Markup) -> str:
    square = f'<svg viewBox="0 0 14 12" aria-hidden="true"><rect width="14" height="12" class="p-{name}"/></svg>'
    return f'<li><span class="swatch">{square}</span>{text}</li>'


def _bar(kind: str, height: int, parts: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Neighbouring rectangles; `parts` are class, share and title."""
    shapes: list[str] = []
    at = 0.0
    for name, share, title in parts:  # f-strings: a page has thousands of these, and Markup's own format is slow
        place = f'x="{at:.2f}" width="{share * BAR:.2f}" height="{height}"'
        shapes.append(f'<rect {place} class="{escape(name)}"><title>{escape(title)}</title></rect>')
        at += share * BAR
    head = f'<svg class="{escape(kind)}" viewBox="0 0 {BAR} {height}" preserveAspectRatio="none" role="img"'
    return Markup(f'{head} aria-label="{escape(label)}">{"".join(shapes)}</svg>')  # noqa: S704 - its parts are escaped
