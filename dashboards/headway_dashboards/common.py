"""Panels that several dashboards have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway_alerts.config import Config
from headway_dashboards import links, panels, words
from headway_dashboards.model import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway_dashboards.model import Query

GOODPUT_STEPS: Final = ((Config().objectives[0].ratio - 0.2, words.WARNING), (Config().objectives[0].ratio, words.GOOD))
"""Green where the objective is met that the alerts have by default."""
INCIDENT_ROWS: Final = {
    0: Value("no", words.NOTHING),
    2: Value("open", words.WARNING),
    1: Value("recurring", words.BAD),
    3: Value("often in one place", words.NOTICE),
}


def coloured(values: Mapping[int, Value]) -> dict[str, Any]:
    """For a column of a table: words, in their colours."""
    return {"mappings": panels.mappings(values), "custom.cellOptions": {"type": "color-text"}}


def state_timeline(queries: Sequence[Query], link: dict[str, Any], height: int = 7) -> Any:
    """What each pod was doing."""
    return panels.states(
        "What each pod was doing",
        "One line for each pod. Green is new work; yellow repeats lost steps; orange, rose and red are time lost to failures. A pod that "
        "stays yellow or orange while the step below does not rise is going in circles.",
        queries,
        words.STATES,
        height=height,
        link=link,
    )


def steps(queries: Sequence[Query], width: int = 12) -> Any:
    """Step and mark, where a rollback can be seen."""
    return panels.series(
        "Step, highest step and durable checkpoint",
        "The step falls below the highest one when a recovery returns to a checkpoint: the gap is work being repeated. The distance down "
        "to the durable checkpoint is what a failure would cost now.",
        queries,
        "none",
        width=width,
        colours={"step": words.GOOD, "highest step ever": words.FAINT, "durable checkpoint": words.CALM},
        decimals=0,
        link=links.TO_CHECKPOINTS,
    )


def incident_timeline(queries: Sequence[Query], link: dict[str, Any], width: int = 12) -> Any:
    """Open incident, and why it is called recurring."""
    return panels.states(
        "Incident open, and reasons to call it recurring",
        "An incident is open from the first evidence of a failure until a newer checkpoint is durable. A reason that turns red says that "
        "restarts do not help: see the alert's runbook. same_entity is no reason to wake anybody: failures keep beginning in one place.",
        queries,
        INCIDENT_ROWS,
        width=width,
        height=8,
        link=link,
    )


def alert_table(queries: Sequence[Query], width: int = 24, height: int = 6) -> Any:
    """What fires, with a link to the window around it."""
    times = {"unit": "dateTimeFromNow", "links": [links.TO_ALERTS_WINDOW]}
    return panels.table(
        "Alerts that fire now",
        "Those of Headway's rules, without notes on recoveries. A click on an alert opens the postmortem around it, from a quarter of "
        "an hour before it began.",
        queries,
        columns={"alertname": "Alert", "severity": "Severity", "run": "Run"},
        values=("Since", "Begin", "End"),
        hidden=("Begin", "End"),
        overrides=(
            panels.override("Alert", {"links": [links.TO_ALERTS_WINDOW]}),
            panels.override("Run", {"links": [links.TO_RUN]}),
            panels.override("Since", times),
        ),
        sort=(("Severity", False),),
        width=width,
        height=height,
        empty="no alert fires",
    )


def cause_table(title: str, description: str, queries: Sequence[Query]) -> Any:
    """Restarts by cause and layer."""
    return panels.table(
        title,
        description,
        queries,
        columns={"cause": "Cause", "layer": "Layer"},
        values=("Restarts",),
        sort=(("Restarts", True),),
        width=8,
        empty="none",
    )
