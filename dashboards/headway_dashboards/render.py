"""Dashboards as JSON, the way Grafana takes them. The same sources give the same bytes."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

from grafanalib import core

from headway_dashboards import checks, layout, mending

if TYPE_CHECKING:
    from headway_dashboards.model import Dashboard, Note, Variable

TAG: Final = "headway"
DEFAULT_DATASOURCE: Final = "default"


def json_files(
    dashboards: tuple[Dashboard, ...], *, datasource: str = DEFAULT_DATASOURCE, selector: str = ""
) -> dict[str, str]:
    """File name to content.

    Args:
        dashboards: what to write.
        datasource: name of the Prometheus data source that is chosen at first.
        selector: matchers for every raw metric, may be empty.

    Raises:
        headway_alerts.model.RuleError: a query names something that does not exist.
    """
    return {f"{one.uid}.json": _text(document(one, datasource, selector)) for one in dashboards}


def document(dashboard: Dashboard, datasource: str = DEFAULT_DATASOURCE, selector: str = "") -> dict[str, Any]:
    """One dashboard as plain data."""
    found = mending.mended(mending.plain(_raw(dashboard, datasource, selector)))
    found["annotations"] = {"list": [_note(one) for one in dashboard.notes]}
    for target, where in _expressions(found):
        target["expr"] = checks.finished(f"{dashboard.title} / {where}", target["expr"], selector)
    return found


def _raw(dashboard: Dashboard, datasource: str, selector: str) -> Any:
    """As grafanalib has it."""
    variables = [_variable(one, dashboard.title, datasource, selector) for one in dashboard.variables]
    return core.Dashboard(
        title=f"Headway / {dashboard.title}",
        uid=dashboard.uid,
        description=dashboard.description,
        tags=[TAG],
        timezone="browser",
        refresh="30s",
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        time=core.Time(dashboard.window, "now"),
        panels=layout.placed(copy.deepcopy(dashboard.panels)),
        links=[core.DashboardLink(title="Headway", tags=[TAG], includeVars=True, keepTime=True)],
        templating=core.Templating(variables),
    )


def _variable(variable: Variable, where: str, datasource: str, selector: str) -> Any:
    if not variable.query:
        return core.Template(
            name=variable.name, label=variable.label, type="datasource", query="prometheus", default=datasource
        )
    return core.Template(
        name=variable.name,
        label=variable.label,
        query=checks.finished(f"{where} / {variable.label}", variable.query, selector),
        includeAll=variable.several,
        multi=variable.several,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_ALPHA_ASC,
    )


def _note(note: Note) -> dict[str, Any]:
    return {
        "name": note.name,
        "datasource": dict(mending.PROMETHEUS),
        "enable": True,
        "hide": False,
        "iconColor": note.colour,
        "expr": note.query.expr,
        "titleFormat": note.title,
        "step": "15s",
    }


def _expressions(document: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Everything with an expression in it, and what to call it."""
    every = [one for panel in document["panels"] for one in (panel, *panel.get("panels", []))]
    panels = [(target, panel["title"]) for panel in every for target in panel.get("targets", [])]
    return [*panels, *((note, note["name"]) for note in document["annotations"]["list"])]


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
