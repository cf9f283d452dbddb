"""The rendered dashboards: as committed, valid for Grafana's own types, parsable, and readable for whoever opens them at night."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from rendered import FOLDER, NAMES, answered, filled, load, needs_promtool, panels, queries, unfolded

from headway_alerts.model import RuleError
from headway_dashboards import catalogue, mending, render, run
from headway_dashboards.model import Query, Variable
from headway_dashboards.panels import stat
from headway_dashboards.queries import fleet, postmortem
from headway_dashboards.words import STATE_COLOURS, UNMEASURED
from headway_exporter.labels import STATES

if TYPE_CHECKING:
    from pathlib import Path

register_default_plugins()
with warnings.catch_warnings():  # Grafana's next format, dashboardv2, is what it would rather have
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.models.dashboard import Dashboard as TypedDashboard


def test_rendering_again_changes_nothing() -> None:
    """What people import is what the sources say; no file is left over from a dashboard that is gone."""
    files = render.json_files(catalogue.dashboards())
    assert {path.name for path in FOLDER.iterdir()} == set(files)
    for name, content in files.items():
        assert (FOLDER / name).read_text() == content, f"{name}: run `headway dashboards --out dashboards/json`"


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_through_grafanas_types(name: str) -> None:
    """A field that Grafana does not know, or that has another type there, would be dropped without a word."""
    document = load(name)
    typed = json.loads(json.dumps(TypedDashboard.from_json(document), cls=JSONEncoder))
    assert list(_missing(document, typed, name)) == []


def _missing(given: Any, typed: Any, where: str) -> Any:
    """What of the given JSON is not in the other one, or is different there."""
    if isinstance(given, dict) and isinstance(typed, dict):
        for key, value in given.items():
            if key not in typed:
                if value is not None:  # nothing, written out
                    yield f"{where}.{key}: unknown to Grafana"
            else:
                yield from _missing(value, typed[key], f"{where}.{key}")
    elif isinstance(given, list) and isinstance(typed, list):
        if len(given) != len(typed):
            yield f"{where}: {len(given)} became {len(typed)}"
        for at, (one, other) in enumerate(zip(given, typed, strict=False)):
            yield from _missing(one, other, f"{where}[{at}]")
    elif given != typed:
        yield f"{where}: {given!r} became {typed!r}"


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("panels", 7),
        ("panels", 7, "targets", 0),
        ("panels", 7, "options"),
        ("panels", 7, "fieldConfig", "defaults"),
    ],
    ids=lambda path: ".".join(map(str, path)) or "dashboard",
)
def test_the_round_trip_finds_an_unknown_field(path: tuple[str | int, ...]) -> None:
    """The check can fail, wherever the field is."""
    document = load("headway-run")
    at: Any = document
    for key in path:
        at = at[key]
    at["hideControls"] = True
    typed = json.loads(json.dumps(TypedDashboard.from_json(document), cls=JSONEncoder))
    assert len(list(_missing(document, typed, "run"))) == 1


def test_raw_output_needs_the_mending() -> None:
    """Should grafanalib learn to write what Grafana reads, the mending can go."""
    raw = mending.plain(render._raw(run.DASHBOARD, "default", ""))
    assert raw["panels"][2]["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] == "null"
    with pytest.raises(TypeError):
        TypedDashboard.from_json(raw)


@pytest.mark.parametrize("name", NAMES)
def test_expressions_parse(name: str) -> None:
    """By a parser that is not ours."""
    count = 0
    for where, target in queries(load(name)):
        try:
            promql_parser.parse(filled(target["expr"]))
        except ValueError as error:
            pytest.fail(f"{where}: {error}\n{target['expr']}")
        count += 1
    assert count > 15


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_can_be_read(name: str) -> None:
    """A unit, a description of its own, a title that is not cut off, no two titles alike."""
    shown = panels(load(name))
    for panel in shown:
        where = panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults.get("unit"), where
        assert panel["description"].endswith("."), where
        assert len(panel["description"]) > 20, where
        assert len(where) <= 7 * panel["gridPos"]["w"], where
        assert panel["datasource"] == mending.PROMETHEUS, where
        assert all(one["datasource"] == mending.PROMETHEUS for one in panel["targets"]), where
        assert defaults["thresholds"]["steps"][0]["value"] is None, where
    titles = [panel["title"] for panel in shown]
    assert len(set(titles)) == len(titles)


def test_good_news_is_not_a_missing_measurement() -> None:
    """A panel that shows errors only when there are some is empty on a healthy machine, and must not say that nobody looks."""
    found = panels(load("headway-health"))
    quiet = [one for one in found if all("> 0" in target["expr"] for target in one["targets"])]
    assert len(quiet) >= 4
    said = {one["title"]: one["fieldConfig"]["defaults"]["noValue"] for one in quiet}
    assert [title for title, words in said.items() if words == UNMEASURED] == []


@pytest.mark.parametrize("name", NAMES)
def test_series_have_names(name: str) -> None:
    """Where a panel has several series, a legend that is raw PromQL tells nobody anything."""
    for panel in panels(load(name)):
        if panel["type"] in ("timeseries", "state-timeline", "bargauge"):
            for target in panel["targets"]:
                assert target["legendFormat"] != "__auto", panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_neither_overlap_nor_leave_holes(name: str) -> None:
    """Each line is full, each place taken once."""
    taken: set[tuple[int, int]] = set()
    for panel in unfolded(load(name)):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert max(x for x, _ in taken) == 23
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


def test_ids_are_stable_and_unique() -> None:
    """Links that people saved lead on after a new version: the address of a dashboard is a name, not a number."""
    documents = [load(name) for name in NAMES]
    assert [one["uid"] for one in documents] == NAMES
    for one in documents:
        ids = [panel["id"] for panel in unfolded(one)]
        assert len(set(ids)) == len(ids)


def test_links_lead_somewhere() -> None:
    """Every address inside of Grafana is one of these dashboards, and names only variables which that one has."""
    variables = {name: {one["name"] for one in load(name)["templating"]["list"]} for name in NAMES}
    count = 0
    for name in NAMES:
        text = (FOLDER / f"{name}.json").read_text()
        for target, query in re.findall(r'"url": "/d/([\w-]+)\?([^"]*)"', text):
            given = set(re.findall(r"var-(\w+)=", query)) | set(re.findall(r"\$\{(\w+):queryparam\}", query))
            assert given <= variables[target], f"{name} to {target}: {given}"
            own = set(re.findall(r"\$\{(\w+):queryparam\}", query))
            assert own <= variables[name], f"{name}: {own}"
            count += 1
    assert count > 20


def test_alerts_lead_to_their_window() -> None:
    """The postmortem opens around the alert, not around now; the columns that say when are there, and hidden."""
    table = next(one for one in panels(load("headway-fleet")) if one["title"] == "Alerts that fire now")
    renamed = set(table["transformations"][-1]["options"]["renameByName"].values())
    hidden = {
        one["matcher"]["options"]
        for one in table["fieldConfig"]["overrides"]
        if {"id": "custom.hidden", "value": True} in one["properties"]
    }
    address = json.dumps(table)
    for column in ("Begin", "End"):
        assert f"${{__data.fields.{column}.numeric}}" in address
        assert column in renamed & hidden


def test_every_state_has_its_colour() -> None:
    """A state that the ledger learns would show as a bare number."""
    assert set(STATE_COLOURS) == {*STATES, "finished"}
    assert len(set(STATE_COLOURS.values())) == len(STATE_COLOURS)


@pytest.mark.parametrize(
    "expr",
    [
        "headway_nonsense",
        'headway_state{run="$run",state="dancing"}',
        "sum by (colour) (headway_step)",
        "sum by (alertname) (run:headway_step:max)",
        "run:headway_nonsense:max",
        'run:headway_step:max{pod_index="0"}',
    ],
)
def test_a_query_that_names_what_does_not_exist_is_refused(expr: str) -> None:
    """It would be an empty panel, and nobody would know why; the message says where."""
    wrong = replace(run.DASHBOARD, panels=(stat("Speed", "It says.", (Query(expr),), "none", width=24),))
    with pytest.raises(RuleError, match="Run / Speed: "):
        render.document(wrong)
    variable = Variable("pod", "Pod", f"label_values({expr}, pod_index)")
    with pytest.raises(RuleError, match="Run / Pod: "):
        render.document(replace(run.DASHBOARD, variables=(variable,)))


def test_selector_reaches_every_raw_metric() -> None:
    """Two clusters in one Prometheus: no query may look at both."""
    for one in catalogue.dashboards():
        for where, target in queries(render.document(one, selector='cluster="a"')):
            for found in re.findall(r"(?<![\w:])headway_\w+(?![\w:])\{?[^}]*", target["expr"]):
                assert 'cluster="a"' in found, where


@needs_promtool
@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(1, 1 / 4.744, 1 / 0.05129), (5, 5 / 10.513, 5 / 1.9701), (20, 20 / 29.062, 20 / 13.255)],
)
def test_range_of_the_mean_time_between_failures(failures: int, least: float, most: float, tmp_path: Path) -> None:
    """As textbooks' tables of the chi-square distribution have it (times the mean of 100 s), to 2 %, and to 30 % for a single failure."""
    labels = '{run="demo"'
    series = {
        f'run:headway_incidents_total:max{labels},outcome="recovered",recurring="false"}}': str(failures),
        f"run:headway_incident_open:max{labels}}}": "0",
        f"run:headway_mtbf:seconds{labels}}}": "100",
    }
    for name, expected in (("At least", least), ("At most", most)):
        near = f"abs(({filled(fleet.MTBF[name])}) / {100 * expected} - 1) < bool {0.3 if failures == 1 else 0.02}"
        answered(tmp_path, series, near, {'{run="demo"}': 1})


OLD, NEW = '{instance="10.0.0.1:9838",', '{instance="10.0.0.2:9838",'
"""The pod is replaced after half an hour, and its counters go on at another address."""


@needs_promtool
@pytest.mark.parametrize(
    ("queries", "series", "expected"),
    [
        (postmortem.LOST_STEPS, {"headway_steps_lost_total%s}": ("400x30", "_x34 419x25")}, {'{run="demo"}': 19}),
        (
            postmortem.NOT_PRODUCTIVE,
            {
                'headway_rank_seconds_total%s,state="restart"}': ("900x30", "_x34 960x25"),
                'headway_rank_seconds_total%s,state="down"}': ("50x30", "_x34 290x25"),
            },
            {"{}": 300},
        ),
        (
            postmortem.CAUSES,
            {
                'headway_restart_causes_total%s,layer="launcher",cause="nvlink"}': ("7x30", "_x34 7x25"),
                'headway_restart_causes_total%s,layer="orchestrator",cause="node_lost"}': ("_x30", "_x40 1x19"),
            },
            {'{layer="orchestrator",cause="node_lost"}': 1},
        ),
        (
            postmortem.ORIGINS,
            {'headway_rank_failures_total%s,rank="3"}': ("5x30", "_x34 6x25")},
            {'{pod_index="0",rank="3"}': 1},
        ),
        (
            postmortem.PHASES,
            {'headway_recovery_phase_seconds_total%s,layer="orchestrator",phase="detect"}': ("80x30", "_x34 110x25")},
            {'{phase="detect"}': 30},
        ),
        (
            postmortem.VALID,
            {'headway_replay_checks_total%s,result="valid"}': ("5x30", "_x34 6x25")},
            {'{result="valid"}': 1},
        ),
        # Without a state folder they begin anew.
        (postmortem.LOST_STEPS, {"headway_steps_lost_total%s}": ("400x30", "_x34 0x5 12x20")}, {'{run="demo"}': 12}),
    ],
    ids=["lost steps", "lost time", "causes", "origins", "phases", "replays", "counters that begin anew"],
)
def test_a_postmortem_of_a_pod_that_was_replaced(
    queries: tuple[Query, ...], series: dict[str, tuple[str, str]], expected: dict[str, float], tmp_path: Path
) -> None:
    """The window is of an outage: only what was counted in it is shown, not all that the new pod remembers of the run."""
    both = {
        name % f'{where}run="demo",pod_index="0"': values[at]
        for name, values in series.items()
        for at, where in enumerate((OLD, NEW))
    }
    (query,) = queries
    answered(tmp_path, both, filled(query.expr, window="40m"), expected, "55m")
