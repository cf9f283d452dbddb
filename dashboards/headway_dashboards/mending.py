"""What grafanalib 0.7.1 writes, made into what Grafana reads.

Its raw output has the shape of Grafana 5 to 8: thresholds whose base is the text "null" (everything looks red), options of bar gauges
where nothing looks for them, data sources as texts, at most 100 points a panel, no flag for exemplars, and many fields that are long
gone. All of it is put right here and nowhere else; a panel keeps only what today's Grafana knows.
"""

from __future__ import annotations

import json
from typing import Any, Final

from grafanalib._gen import DashboardEncoder

SCHEMA_VERSION: Final = 39
"""Grafana 10.4 and newer read it; a newer one brings it up to date when it loads it."""
PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}

_DASHBOARD: Final = (
    "annotations",
    "description",
    "editable",
    "graphTooltip",
    "links",
    "panels",
    "refresh",
    "tags",
    "templating",
    "time",
    "timezone",
    "title",
    "uid",
)
_PANEL: Final = ("id", "type", "title", "description", "gridPos", "fieldConfig", "options", "transformations")
_ROW: Final = ("id", "type", "title", "gridPos", "collapsed", "panels")
_TARGET: Final = ("refId", "expr", "format", "instant")
_VARIABLE: Final = ("name", "label", "type", "hide")
_LINK: Final = (
    "title",
    "type",
    "tags",
    "icon",
    "tooltip",
    "url",
    "asDropdown",
    "includeVars",
    "keepTime",
    "targetBlank",
)


def plain(dashboard: Any) -> dict[str, Any]:
    """What grafanalib writes, as plain data."""
    document: dict[str, Any] = json.loads(json.dumps(dashboard.to_json_data(), cls=DashboardEncoder))
    return document


def mended(document: dict[str, Any]) -> dict[str, Any]:
    """A dashboard that Grafana shows as it is meant."""
    found = _only(document, _DASHBOARD)
    found["schemaVersion"] = SCHEMA_VERSION
    found["panels"] = [_panel(one) for one in document["panels"]]
    found["links"] = [_only(one, _LINK) for one in document["links"]]
    found["templating"] = {"list": [_variable(one) for one in document["templating"]["list"]]}
    return found


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    if panel["type"] == "row":
        return {**_only(panel, _ROW), "panels": [_panel(one) for one in panel["panels"]]}
    if panel["type"] == "text":
        return {**_only(panel, _PANEL), "fieldConfig": {"defaults": {}, "overrides": []}}
    shaped = _bar_gauge(panel) if panel["type"] == "bargauge" else panel
    found = _only(shaped, _PANEL)
    found["datasource"] = dict(PROMETHEUS)
    found["targets"] = [_target(one) for one in panel["targets"]]
    found["fieldConfig"] = _field_config(shaped)
    found["options"] = _options(shaped)
    if not found["transformations"]:
        del found["transformations"]
    return found


def _target(target: dict[str, Any]) -> dict[str, Any]:
    found = _only(target, _TARGET)
    found |= {
        "datasource": dict(PROMETHEUS),
        "range": not target["instant"],
        "exemplar": target["metric"] == "exemplars",
    }
    found["editorMode"] = "code"
    found["legendFormat"] = target["legendFormat"] or "__auto"
    return found


def _field_config(panel: dict[str, Any]) -> dict[str, Any]:
    config = panel["fieldConfig"]
    defaults = _without_empty(config["defaults"])
    steps = config["defaults"]["thresholds"]["steps"]
    defaults["thresholds"] = {"mode": "absolute", "steps": [_step(at, one) for at, one in enumerate(steps)]}
    custom = _without_empty(defaults.pop("custom", {}))
    if "displayMode" in custom:  # of a table
        custom["cellOptions"] = {"type": custom.pop("displayMode")}
    if "scaleDistribution" in custom:
        custom["scaleDistribution"] = {"type": custom["scaleDistribution"]["type"]}
    if custom:
        defaults["custom"] = custom
    return {"defaults": defaults, "overrides": config.get("overrides", [])}


def _step(at: int, step: dict[str, Any]) -> dict[str, Any]:
    """The base of a scale is null, not a text."""
    return {"color": step["color"], "value": None if at == 0 else step["value"]}


def _options(panel: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = dict(panel["options"])
    if "legend" in options:
        legend = dict(options["legend"])
        shown = legend["displayMode"] != "hidden"
        options["legend"] = {"calcs": [], **legend, "displayMode": "list", "showLegend": shown}
    if panel["type"] == "state-timeline":
        options["tooltip"] = {**options["tooltip"], "sort": "none"}
    if panel["type"] == "stat":
        options |= {"wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"}
    if panel["type"] == "table":
        options |= {"cellHeight": "sm"}
    return options


def _bar_gauge(panel: dict[str, Any]) -> dict[str, Any]:
    """Since Grafana 7 its values are described like those of any other panel."""
    old = panel["options"]["fieldOptions"]
    defaults = {**old["defaults"], **panel["fieldConfig"]["defaults"]}
    defaults.pop("title", None)
    options = {
        "displayMode": panel["options"]["displayMode"],
        "orientation": panel["options"]["orientation"],
        "reduceOptions": {"calcs": old["calcs"], "fields": "", "values": old["values"]},
        "showUnfilled": True,
        "valueMode": "text",
        "namePlacement": "left",
        "sizing": "manual",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 24,
        "legend": {"calcs": [], "displayMode": "hidden", "placement": "bottom"},
    }
    return {**panel, "options": options, "fieldConfig": {**panel["fieldConfig"], "defaults": defaults}}


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    found = _only(variable, _VARIABLE)
    if variable["type"] == "datasource":
        name = variable["current"]["value"]
        return {**found, "query": variable["query"], "current": {"text": name, "value": name}, "refresh": 1}
    found |= {key: variable[key] for key in ("includeAll", "multi", "refresh", "sort")}
    found["datasource"] = dict(PROMETHEUS)
    found["definition"] = variable["query"]
    found["query"] = {"query": variable["query"], "refId": "variable"}
    if variable["includeAll"]:
        found |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return found


def _only(mapping: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: mapping[key] for key in keys if key in mapping}


def _without_empty(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value not in (None, "", [], {})}
