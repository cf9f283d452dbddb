"""*Fleet*: every run in one table, the worst first, and what keeps coming back."""

from __future__ import annotations

from typing import Final

from headway_dashboards import common, links, panels, words
from headway_dashboards.model import Dashboard
from headway_dashboards.queries import fleet as queries
from headway_dashboards.queries import parts

_GOODPUT: Final = {
    "unit": "percentunit",
    "decimals": 1,
    "custom.cellOptions": {"type": "color-text"},
    "thresholds": panels.colour_steps(common.GOODPUT_STEPS, words.BAD),
}
_TO_RUN: Final = panels.override("Run", {"links": [links.TO_RUN]})

_ENTITY_WIDTHS: Final = {"Kind": 60, "Name": 350, "Incidents": 85}
"""Pixels: the name of a GPU is long."""

_NOW: Final = (
    panels.stat("Runs", "Runs that some sidecar reports.", queries.COUNT, "none"),
    panels.stat("Ranks alive", "Trainer processes that live, in all these runs.", queries.RANKS, "none"),
    panels.stat(
        "Goodput of all",
        "Training goodput of all these runs, each with the weight of its rank-time since it began.",
        queries.GOODPUT,
        "percentunit",
        decimals=1,
        steps=common.GOODPUT_STEPS,
        colour=words.BAD,
    ),
    panels.stat(
        "Open incidents",
        "Runs with a failure that no newer checkpoint has healed yet. Most heal by themselves.",
        queries.OPEN,
        "none",
        steps=((1, words.WARNING),),
        colour=words.GOOD,
    ),
    panels.stat(
        "Recurring",
        "Runs whose open incident comes back again and again: restarts do not help there.",
        queries.RECURRING,
        "none",
        steps=((1, words.BAD),),
        colour=words.GOOD,
    ),
    panels.stat(
        "Alerts that fire",
        "Warnings and critical ones; notes on recoveries are left out.",
        queries.ALERTS_FIRING,
        "none",
        steps=((1, words.WARNING),),
        colour=words.GOOD,
    ),
)

_RUNS = panels.table(
    "Runs, the worst first",
    "First those with a recurring incident, then those with an open one, then by training goodput. At risk: time to repeat what a failure "
    "would lose now. Recurred: incidents that needed several attempts. State and goodputs are a minute old at most. A click on a name "
    "opens the run.",
    queries.TABLE,
    columns={"run": "Run"},
    values=tuple(queries.COLUMNS),
    overrides=(
        _TO_RUN,
        panels.override("State", common.coloured(words.STATES)),
        panels.override("Incident", common.coloured(words.INCIDENT)),
        panels.override("Training", _GOODPUT),
        panels.override("Infrastructure", _GOODPUT),
        panels.override("At risk", {"unit": "s"}),
    ),
    sort=(("Incident", True), ("Training", False)),
    height=10,
    empty="-",
)

DASHBOARD: Final = Dashboard(
    uid="headway-fleet",
    title="Fleet",
    description="Every run: which one needs somebody, and what keeps coming back.",
    variables=(parts.DATASOURCE, queries.RUNS),
    panels=(
        *_NOW,
        _RUNS,
        common.alert_table(queries.ALERT_TABLE),
        panels.series(
            "Incidents closed, by whether they were recurring",
            "In the hour before each point, over all these runs. Recoveries that come and go are what resilience is for; recurring ones "
            "cost a person's time.",
            queries.OVER_TIME,
            "none",
            colours={"not recurring": words.GOOD, "recurring": words.BAD},
            stacked=True,
            decimals=0,
        ),
        panels.bars(
            "Restarts that led to a step, by layer",
            "Recoveries for each restart since the runs began. 100 %: every restart led on. Far less: the layer restarts in vain, and an "
            "outer one has to help.",
            queries.RECOVERED_BY_LAYER,
            "percentunit",
            width=12,
            most=1,
            decimals=0,
            colour=words.GOOD,
        ),
        panels.table(
            "Causes",
            "Incidents by their first cause, and restarts by theirs, since the runs began. More restarts than incidents: that cause takes "
            "several attempts.",
            queries.CAUSE_TABLE,
            columns={"cause": "Cause"},
            values=tuple(queries.CAUSES),
            sort=(("Incidents", True),),
            width=7,
            empty="-",
        ),
        panels.table(
            "Mean time between failures",
            "With the range in which it lies with 90 %, were failures to come at a constant rate. Few incidents make it wide: a difference "
            "inside of it means nothing.",
            queries.MTBF_TABLE,
            columns={"run": "Run"},
            values=tuple(queries.MTBF),
            overrides=(_TO_RUN,),
            sort=(("MTBF", False),),
            unit="s",
            width=8,
            empty="-",
        ),
        panels.table(
            "Ranks, nodes and GPUs that keep coming up",
            "Where at least two incidents of the last 24 hours began. A node or GPU near the top wants to be drained.",
            queries.ENTITIES,
            columns={"entity_kind": "Kind", "entity": "Name", "run": "Run"},
            values=("Incidents",),
            overrides=(
                _TO_RUN,
                *(panels.override(name, {"custom.width": width}) for name, width in _ENTITY_WIDTHS.items()),
            ),
            sort=(("Incidents", True),),
            width=9,
        ),
    ),
)
