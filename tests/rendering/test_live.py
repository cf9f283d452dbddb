"""Every panel's queries, asked of a live Prometheus that watched a faulty run; then every panel, drawn by Grafana's own components.

All in one file, which one process runs: the run behind it takes more than a minute, and two cores to itself.
"""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest
from draw import CHROMIUM, NPM, Easel, build, easel
from live import QUIET_RUN, RATE, RUN
from rendered import FOLDER, NAMES, filled, load, panels, queries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from live import Live

pytestmark = pytest.mark.slow

in_a_browser = pytest.mark.skipif(CHROMIUM is None or NPM is None, reason="chromium or npm is not installed")

EMPTY: Final = {"Not in these numbers": "nothing was lost", "Left out and contradicted": "nothing was lost"}
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
    (exposure,), (age,) = (values(ask("headway-checkpoints", title)).values() for title in ("Exposure", "Age"))
    assert exposure >= age
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


# Drawn.


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that draws, built."""
    return build(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def stand(page: Path) -> Iterator[Easel]:
    """The page with the committed dashboards."""
    with easel(page) as found:
        yield found


def by_title(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured of each panel."""
    return {one["title"]: one for one in measured["panels"]}


@in_a_browser
@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_drawn(name: str, alive: Live, stand: Easel, tmp_path: Path) -> None:
    """No complaint on the console, no title or value cut off, no empty picture; each says what its JSON says."""
    measured = stand.draw(name, alive, tmp_path / "picture.png")
    assert measured["complaints"] == []
    found = by_title(measured)
    for panel in panels(load(name)):
        one = found[panel["title"]]
        assert one["shown"] == panel["title"]
        assert one["cut"] == [], panel["title"]
        empty = panel["fieldConfig"]["defaults"]["noValue"]
        if panel["title"] in EMPTY:
            assert empty in one["text"], panel["title"]
        else:
            assert "No data" not in one["text"], panel["title"]
            assert one["painted"], panel["title"]
            assert len(one["text"]) > len(panel["title"]) or one["canvases"], panel["title"]


@in_a_browser
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_values_are_words_where_they_should_be(theme: str, alive: Live, stand: Easel, tmp_path: Path) -> None:
    """A number that stands for a state is shown as its name, and units are applied, in both of Grafana's themes."""
    run = by_title(stand.draw("headway-run", alive, tmp_path / "picture.png", theme))
    assert "recurring" in run["Incident"]["text"]
    assert run["Training goodput"]["text"].endswith("%")
    assert "productive" in run["What each pod was doing"]["text"]
    fleet = by_title(stand.draw("headway-fleet", alive, tmp_path / "fleet.png", theme))["Runs, the worst first"]["text"]
    assert fleet.index("testrun") < fleet.index("quiet")
    assert "recurring" in fleet


@in_a_browser
def test_what_is_wrong_is_seen(alive: Live, page: Path, tmp_path: Path) -> None:
    """The checks above can fail: broken PromQL, a query without an answer, a title that is too long, a base threshold of "null"."""
    shutil.copytree(FOLDER, tmp_path / "dashboards")
    file = tmp_path / "dashboards" / "headway-run.json"
    document = json.loads(file.read_text())
    shown = panels(document)
    shown[0]["title"] = "A title that is far too long for the narrow panel that it is on"
    shown[1]["targets"][0]["expr"] = "sum by ("
    shown[7]["targets"] = [{**shown[7]["targets"][0], "expr": "headway_nonsense"}]
    file.write_text(json.dumps(document))
    with easel(page, tmp_path / "dashboards") as stand:
        measured = stand.draw("headway-run", alive, tmp_path / "picture.png")
    found = by_title(measured)
    assert found[shown[0]["title"]]["cut"]
    assert any("Incident" in one and "parse error" in one for one in measured["complaints"])
    assert "No data" in found[shown[7]["title"]]["text"]
