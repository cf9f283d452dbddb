"""Bars: neighbouring rectangles whose widths are shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from headway_exporter.labels import RECOVERY_PHASES
from headway_exporter.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.report.accounts import Accounts
    from headway_exporter.report.model import Recovery

BAR: Final = 1_000
"""Units of width of a bar."""
NO_STEP: Final = "without_a_step"
"""In place of the phase `first_step` where there was none, or is none yet."""


def time_bar(accounts: Accounts) -> Markup:
    """All time of the run, as one bar."""
    rows = accounts.rows
    label = ", ".join(f"{row.name} {units.share(row.share)}" for row in rows)
    parts = [("s-" + row.name, row.share, f"{row.name.replace('_', ' ')}: {units.share(row.share)}") for row in rows]
    return _bar("bar", 30, parts, label)


def recovery_bar(recovery: Recovery) -> Markup:
    """The phases of a recovery, all its tries together."""
    total: dict[str, float] = {}
    for one in recovery.tries:
        for name, seconds in one.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    return phase_bar({_reached(recovery, name): total[name] for name in RECOVERY_PHASES if name in total})


def _reached(recovery: Recovery, phase: str) -> str:
    """The phase's name; what has no first step at its end is not drawn in the colour of training."""
    return NO_STEP if phase == "first_step" and recovery.first_step_wall is None else phase


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
