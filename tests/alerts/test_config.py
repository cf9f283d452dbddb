"""The configuration: what it computes, and what it refuses with a word of advice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headway_alerts import catalogue
from headway_alerts.config import BurnWindow, Config, ConfigError, Objective, duration, load, parse

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400


def test_burn_factors_are_computed_from_objective_and_windows() -> None:
    """2 % of 30 days' budget in an hour is 14.4 times too fast: at 99 % that is a goodput below 85.6 %."""
    window = BurnWindow("critical", 3_600, 300, 0.02)
    objective = Objective("training", 0.99, 30 * DAY, (window,))
    assert objective.factor(window) == pytest.approx(14.4)
    assert objective.most_factor == pytest.approx(100)
    assert objective.least_goodput(window) == pytest.approx(0.856)


def test_a_factor_that_can_never_be_reached_is_refused() -> None:
    """At an objective of 90 % a run that stands still burns ten times too fast: an alert at 14.4 would be a lie."""
    with pytest.raises(ConfigError, match=r"14\.4 can never be reached.* 10 .*budget_share below 0\.0139"):
        Objective("training", 0.9, 30 * DAY, (BurnWindow("critical", 3_600, 300, 0.02),))


def test_the_largest_factor_itself_can_not_be_exceeded() -> None:
    """Its goodput would have to be below 0."""
    with pytest.raises(ConfigError, match="never"):
        Objective("training", 0.5, 7_200, (BurnWindow("critical", 3_600, 300, 1.0),))


def test_a_factor_below_one_is_refused() -> None:
    """It would fire although the objective is met."""
    with pytest.raises(ConfigError, match="although the objective is met"):
        Objective("training", 0.8, 30 * DAY, (BurnWindow("warning", 3 * DAY, 3_600, 0.05),))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"stalled_flor_seconds": 3}, "there is no 'stalled_flor_seconds'"),
        ({"stalled_floor_seconds": "long"}, "stalled_floor_seconds: expected a number"),
        ({"stalled_floor_seconds": True}, "stalled_floor_seconds: expected a number"),
        ({"stalled_floor_seconds": -1}, "stalled_floor_seconds: must be above 0"),
        ({"stalled_floor_seconds": float("nan")}, "stalled_floor_seconds: must be above 0"),
        ({"overlap_ratio": 80}, "overlap_ratio: must be at most 1"),
        ({"selector": "job=headway"}, "selector: expected matchers"),
        ({"selector": '{job="a"}'}, "selector: expected matchers"),
        ({"selector": 'job="a"} or vector(1) or headway_step{x="'}, "selector: expected matchers"),
        ({"runbook_base_url": "the wiki"}, "runbook_base_url: expected an http"),
        ({"runbook_base_url": "javascript:alert(1)"}, "runbook_base_url: expected an http"),
        ({"dashboard_base_url": "https://{{ $labels.run }}"}, "dashboard_base_url: expected an http"),
        ({"recovery_budget_seconds": {"gpu": 3}}, "recovery_budget_seconds: expected exactly in_process"),
        ({"recovery_budget_seconds": {"launcher": "x"}}, "recovery_budget_seconds.launcher: expected a number"),
        ({"recovery_budget_seconds": 3}, "recovery_budget_seconds: expected names"),
        ({"phase_budget_seconds": {"eval": 0}}, "phase_budget_seconds.eval: must be above 0"),
        ({"objectives": {}}, "objectives: expected a list"),
        ({"objectives": [{"kind": "training"}]}, "needs ratio"),
        ({"objectives": [{"kind": "both", "ratio": 0.5}]}, "expected one of training, infrastructure"),
        ({"objectives": [{"kind": "training", "ratio": 1}]}, "between 0 and 1"),
        ({"objectives": [{"kind": "training", "ratio": 0.8}] * 2}, "at most one of each kind"),
        ({"objectives": [{"kind": "training", "ratio": 0.8, "windows": [{"severity": "critical"}]}]}, "a window needs"),
        ({"objectives": [{"kind": "training", "ratio": 0.8, "windows": []}]}, "at least one window"),
        (["selector"], "expected names with values"),
    ],
)
def test_what_cannot_be_used_is_named(document: object, words: str) -> None:
    """One line that says which option, and what would do."""
    with pytest.raises(ConfigError) as caught:
        parse(document)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("selector", ['job="headway"', 'a="x,y", b=~"c.*"', r'a!~"x\"y"'])
def test_selectors_that_are_fine(selector: str) -> None:
    """A comma inside of quotes parts nothing."""
    assert parse({"selector": selector}).selector == selector


def test_a_file_overrides_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """Partial budgets too."""
    file = tmp_path / "rules.yaml"
    file.write_text(
        "stalled_floor_seconds: 300\nrecovery_budget_seconds: {launcher: 1200}\n"
        "objectives: [{kind: infrastructure, ratio: 0.95, period_seconds: 604800,\n"
        "  windows: [{severity: warning, long_seconds: 3600, short_seconds: 300, budget_share: 0.02}]}]\n"
    )
    config = load(file)
    assert config.stalled_floor_seconds == 300
    assert config.recovery_budget_seconds == {"in_process": 300, "launcher": 1200, "orchestrator": 1800}
    assert config.stalled_steps == Config().stalled_steps
    assert [alert.labels for alert in catalogue.alerts(config) if alert.name == "HeadwayGoodputBurn"] == [
        (("objective", "infrastructure"),)
    ]


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """A file with nothing but comments is no mistake."""
    file = tmp_path / "rules.yaml"
    file.write_text("# nothing yet\n")
    assert load(file) == Config()


def test_a_run_without_objectives_has_no_burn_alert() -> None:
    """Nobody has to have one."""
    config = replace(Config(), objectives=())
    assert "HeadwayGoodputBurn" not in {alert.name for alert in catalogue.alerts(config)}


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30s"), (90, "90s"), (300, "5m"), (5_400, "90m"), (7_200, "2h"), (DAY, "1d")]
)
def test_durations_as_promql_writes_them(seconds: float, text: str) -> None:
    """The largest unit that leaves no rest."""
    assert duration(seconds) == text
