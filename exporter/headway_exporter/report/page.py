"""The report as one HTML file: no script, nothing from the network, whatever a text in it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway import __version__
from headway_exporter.report.bars import phase_bar, time_bar
from headway_exporter.report.environment import environment
from headway_exporter.report.picture import picture
from headway_exporter.report.saves import sentences

if TYPE_CHECKING:
    from headway_exporter.report.report import Report


def html(report: Report) -> str:
    """The page."""
    run = report.run
    drawn = picture(run)
    return (
        environment(gpus=run.on_gpus)
        .get_template("page.html.jinja")
        .render(
            vars(report),
            version=__version__,
            picture=drawn,
            shown_ids={one.id for one in report.shown},
            in_order=report.in_order,
            numbers=report.numbers,
            backend=next((pod.backend for pod in run.pods if pod.backend), None),
            saves_told=list(sentences(report.saves)),
            time_bar=time_bar(report.accounts),
            phases_bar=phase_bar(report.phases),
        )
    )
