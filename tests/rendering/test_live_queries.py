"""Every panel's queries, asked of a live Prometheus that watched a faulty run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import pytest
from live import QUIET_RUN, RATE, RUN
from rendered import NAMES, filled, load, panels, queries

if TYPE_CHECKING:
    from live import Live

pytestmark = pytest.mark.slow

EMPTY: Final = {"Not in these numbers": "nothing was lost"}
"""The panels that rightly show nothing, and why."""


def answers(alive: Live, target: dict[str, Any]) -> list[dict[str, Any]]:
    """What Prometheus says to a query, as Grafana would ask it; without values that are no number."""
    expr = filled(target["expr"], RUN, alive.window, RATE)
    if target.get("instant", False):
        found = alive.at_the_end(expr)
        return [one for one in found if not math.isnan(float(one["value"][1]))]
    found = alive.over_time(expr)
    return [one for one in found if not all(math.isnan(float(value)) for _, value in one["values"])]


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_is_empty_but_those_that_should(alive: Live, name: str) -> None:
    """An empty panel reads as "all is well": it may be so only where that is known."""
    document = load(name)
    shown = {panel["title"]: any(answers(alive, one) for one in panel["targets"]) for panel in panels(document)}
    assert {title for title, full in shown.items() if not full} == EMPTY.keys() & shown.keys()
    for note in document["annotations"]["list"]:
        assert answers(alive, note), note["name"]


@pytest.mark.parametrize("name", NAMES)
def test_every_query_of_a_panel_has_an_answer(alive: Live, name: str) -> None:
    """One of several lines that never comes is as bad as an empty panel."""
    for panel in panels(load(name)):
        if panel["title"] not in EMPTY:
            silent = [one["expr"] for one in panel["targets"] if not answers(alive, one)]
            assert silent == [], panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_legends_name_labels_that_are_there(alive: Live, name: str) -> None:
    """A label that a query does not keep is an empty word in the legend, and two series with one name cannot be told apart."""
    for where, target in queries(load(name)):
        found = answers(alive, target)
        legend = target.get("legendFormat", "__auto")
        if legend == "__auto" or target["format"] == "table":
            continue
        names = []
        for one in found:
            text = legend
            for label, value in one["metric"].items():
                text = text.replace(f"{{{{{label}}}}}", value)
            assert "{{" not in text, where
            names.append(text)
        assert len(set(names)) == len(names), f"{where}: {names}"


def test_the_pictures_tell_the_story(alive: Live) -> None:
    """What the live data must show, or the checks above prove little: recovered, recurring, a rollback, an alert with its window."""

    def ask(name: str, title: str, at: int = 0) -> list[dict[str, Any]]:
        panel = next(one for one in panels(load(name)) if one["title"] == title)
        return answers(alive, panel["targets"][at])

    def values(series: list[dict[str, Any]]) -> dict[str, float]:
        return {",".join(one["metric"].values()): float(one["value"][1]) for one in series}

    assert values(ask("headway-run", "Incident")) == {RUN: 2}
    assert values(ask("headway-fleet", "Runs, the worst first", 1)) == {RUN: 2, QUIET_RUN: 0}
    assert (
        values(ask("headway-run", "Incidents by verdict"))[
            next(iter(values(ask("headway-run", "Incidents by verdict"))))
        ]
        == 2
    )
    mark, step = (ask("headway-run", "Step, highest step and durable checkpoint", at)[0]["values"] for at in (0, 1))
    at = {moment: float(value) for moment, value in mark}
    assert any(float(value) < at[moment] for moment, value in step if moment in at)
    alerts = ask("headway-fleet", "Alerts that fire now")
    assert {one["metric"]["alertname"] for one in alerts} >= {"HeadwayRecurringEntity", "HeadwayRecurringFailure"}
    begins = ask("headway-fleet", "Alerts that fire now", 1)
    assert all(float(one["value"][1]) / 1000 < alive.ended - 800 for one in begins)
    assert all(float(one["value"][1]) / 1000 > alive.began - 1000 for one in begins)


def test_exemplars_lead_to_traces(alive: Live) -> None:
    """The query that asks for them gets them, with the trace's id."""
    flagged = [target for name in NAMES for _, target in queries(load(name)) if target.get("exemplar")]
    assert flagged
    for target in flagged:
        expr = filled(target["expr"], RUN, alive.window, RATE)
        found = alive.get("query_exemplars", query=expr, start=f"{alive.began}", end=f"{alive.ended}")
        ids = [one["labels"]["trace_id"] for series in found for one in series["exemplars"]]
        assert len(ids) >= 2
        assert all(len(one) == 32 for one in ids)


def test_variables_find_runs_and_pods(alive: Live) -> None:
    """`label_values(series, label)` is the label's values among the series."""
    for name in NAMES:
        for variable in load(name)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            series, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            found = {one["metric"][label] for one in alive.at_the_end(filled(series, RUN))}
            assert found == ({"0", "1"} if label == "pod_index" else {RUN, QUIET_RUN})
