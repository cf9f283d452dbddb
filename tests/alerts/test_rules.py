"""The rules as they are rendered: names that exist, files that are up to date, and what every alert owes to its reader."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from promtool import needs_promtool

from headway_alerts import catalogue, promql, render
from headway_alerts.config import Config, Objective, parse
from headway_alerts.model import Alert, Group, Recording, RuleError

FOLDER = Path(__file__).parents[2] / "alerts"
CONFIG = Config()
GROUPS = catalogue.groups(CONFIG)
ALERTS = list(catalogue.alerts(CONFIG))
RECORDINGS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
RECORDED = {rule.record: rule.labels for rule in RECORDINGS}

DESIGNED = {
    "HeadwayRecovered": {"info"},
    "HeadwayRecurringFailure": {"critical"},
    "HeadwayRecurringEntity": {"warning"},
    "HeadwayRecoveryStuck": {"critical"},
    "HeadwayTrainingStalled": {"critical"},
    "HeadwayPhaseOverdue": {"warning"},
    "HeadwayRestartBudgetLow": {"warning"},
    "HeadwayReplayDivergence": {"critical"},
    "HeadwayCheckpointStale": {"warning"},
    "HeadwayCheckpointFailing": {"critical"},
    "HeadwayAsyncBacklog": {"warning"},
    "HeadwayAsyncWriterDown": {"critical"},
    "HeadwayCheckpointOverlapIncomplete": {"warning"},
    "HeadwayGoodputBurn": {"critical", "warning"},
    "HeadwayGpuHardwareFault": {"critical"},
    "HeadwayGpuMemoryFault": {"critical"},
    "HeadwayGpuLost": {"critical"},
    "HeadwayGpuThrottled": {"warning"},
    "HeadwayNvlinkDegraded": {"warning"},
    "HeadwayHostMemoryPressure": {"warning"},
    "HeadwayStorageLow": {"warning"},
    "HeadwayNicDown": {"warning"},
    "HeadwayTrainerSilent": {"warning"},
    "HeadwaySidecarDown": {"critical"},
    "HeadwayRunUnwatched": {"critical"},
}
"""Alerts that people's routes rely on, with their severities: a contract."""

EVERYTHING = parse({"objectives": [{"kind": "training", "ratio": 0.8}, {"kind": "infrastructure", "ratio": 0.8}]})


def finished(expr: str) -> str:
    """As the rules' own expressions."""
    return promql.finished("Mine", expr, "", RECORDED)


def test_committed_files_are_what_the_sources_say() -> None:
    """`headway rules --out alerts/rules` and `--format prometheusrule --out alerts` change nothing."""
    expected = {f"rules/{name}": text for name, text in render.rule_files(GROUPS, CONFIG).items()}
    expected["prometheusrule.yaml"] = render.manifest(GROUPS, CONFIG)
    for name, text in expected.items():
        assert (FOLDER / name).read_text() == text, f"alerts/{name}: render it anew"
    assert {f"rules/{path.name}" for path in (FOLDER / "rules").iterdir()} == expected.keys() - {"prometheusrule.yaml"}


def test_a_rule_file_says_only_where_it_comes_from() -> None:
    """A remark on the rules themselves goes stale unseen: one said of measured GPUs that nobody measures them yet."""
    for name, text in render.rule_files(GROUPS, CONFIG).items():
        remarks = [line for line in text.splitlines() if line.startswith("#")]
        assert remarks == render.HEADER.splitlines(), name


def test_the_manifest_has_the_rules_of_the_files() -> None:
    """Whoever uses the operator gets the same."""
    manifest = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    files = [yaml.safe_load(path.read_text())["groups"] for path in (FOLDER / "rules").iterdir()]
    by_name = {group["name"]: group for groups in files for group in groups}
    assert {group["name"]: group for group in manifest["spec"]["groups"]} == by_name


@needs_promtool
@pytest.mark.parametrize("config", [CONFIG, EVERYTHING, replace(EVERYTHING, selector='cluster="a",job=~"b|c"')])
def test_prometheus_takes_them(tmp_path: Path, config: Config) -> None:
    """Every expression and every template parses, with any selector."""
    (tmp_path / "rules.yaml").write_text(render.rule_file(catalogue.groups(config), config))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", "rules.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_severities_are_those_of_the_design() -> None:
    """No alert is missing, none has another severity."""
    found: dict[str, set[str]] = {}
    for alert in ALERTS:
        found.setdefault(alert.name, set()).add(alert.severity)
    assert found == DESIGNED


def test_recording_rules_are_named_by_the_convention() -> None:
    """`level:metric:operation`, the level what the result is grouped by, in groups called `.rules`."""
    for rule in RECORDINGS:
        level, metric, operation = rule.record.split(":")
        assert metric.startswith("headway_")
        assert operation
        assert rule.labels[: 1 + (level == "pod")] == {"run": ("run",), "pod": ("run", "pod_index")}[level]
        assert level == "pod" or "pod_index" not in rule.labels
    for group in GROUPS:
        assert group.name.endswith(".rules") == all(isinstance(rule, Recording) for rule in group.rules)


def test_what_dashboards_were_promised_is_recorded() -> None:
    """Names that other people's dashboards use."""
    assert {
        "run:headway_training_goodput:ratio",
        "run:headway_live_goodput:ratio_rate5m",
        "run:headway_infrastructure_goodput:ratio",
        "run:headway_step:max",
        "run:headway_steps_at_risk:max",
        "run:headway_checkpoint_exposure:seconds",
        "run:headway_mtbf:seconds",
    } <= RECORDED.keys()


def test_no_rule_knows_prometheus_own_labels() -> None:
    """A restarted pod has another name and address and is the same pod of the run."""
    for group in GROUPS:
        for rule in group.rules:
            assert not re.search(r"\b(pod|instance|job|node)\b\s*[,)=!]", rule.expr), rule.expr


def test_every_alert_is_one_for_each_run() -> None:
    """Labels that differ between pods would make an alert for each of them."""
    for alert in ALERTS:
        assert set(dict(alert.labels)) <= {"objective"}
        assert "$labels.run" in alert.summary
        assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description)) == {"run"}, alert.name


def test_every_alert_that_pages_outlives_a_missed_scrape() -> None:
    """What flaps is not believed."""
    for alert in ALERTS:
        window = re.search(r"\[\d+m\]", alert.expr) is not None and alert.severity == "info"
        assert alert.keep_seconds > 0 or window, alert.name


def test_every_message_says_what_to_do() -> None:
    """A summary of one line for the phone; a description with a full stop at its end."""
    for alert in ALERTS:
        bare = re.sub(r"\{\{.*?\}\}", "", alert.summary)
        assert len(bare) < 90, alert.name
        assert "\n" not in alert.summary + alert.description
        assert alert.description.endswith("."), alert.name


def test_promql_is_wrapped() -> None:
    """It is read at night, in a terminal."""
    for group in GROUPS:
        for rule in group.rules:
            assert max(map(len, rule.expr.splitlines())) <= 125, rule.expr


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("headway_steps > 0", "no metric headway_steps"),
        ("headway_step_duration_seconds", "no metric headway_step_duration_seconds"),
        ("headway_step_sum", "no metric headway_step_sum"),
        ('headway_step{rank="0"}', "headway_step has no label rank"),
        ('headway_state{state="evaluating"}', "has no state='evaluating'"),
        ('headway_state{state=~"eval|sleep"}', "has no state='eval|sleep'"),
        ("sum by (layer) (headway_step)", "has a label layer"),
        ("headway_step / on (run, instance) headway_step", "has a label instance"),
        ("run:headway_stepp:max > 0", "no recording rule run:headway_stepp:max"),
        ('run:headway_step:max{pod_index="0"}', "has no label pod_index"),
        ("headway_state{state}", "cannot read the matchers"),
    ],
)
def test_what_does_not_exist_cannot_be_rendered(expr: str, words: str) -> None:
    """A misspelt name would otherwise be an alert that never fires."""
    with pytest.raises(RuleError) as caught:
        finished(expr)
    assert words in str(caught.value)
    assert str(caught.value).startswith("Mine: ")


def test_names_in_messages_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with a hole in it helps nobody."""
    bad = Alert("Bad", "info", "headway_step", "text", "{{ query `headway_stepp` }}")
    monkeypatch.setattr("headway_alerts.pipeline.group", lambda _: Group("g", "alerts", (bad,)))
    with pytest.raises(RuleError, match="Bad: there is no metric headway_stepp"):
        catalogue.groups(CONFIG)


def test_the_selector_is_in_every_selection_of_a_raw_metric() -> None:
    """Forgotten once, it would mix two clusters."""
    groups = catalogue.groups(replace(EVERYTHING, selector='cluster="a"'))
    for group in groups:
        for rule in group.rules:
            texts = [rule.expr, *((rule.summary, rule.description) if isinstance(rule, Alert) else ())]
            for text in texts:
                raw = re.findall(r"(?<![\w:])headway_\w+(?![\w:])(\{[^{}]*\})?", text)
                assert all(found.startswith('{cluster="a"') for found in raw), text


def test_rendering_is_deterministic() -> None:
    """The same configuration gives the same bytes."""
    again = Config(objectives=(Objective("training", 0.8),))
    assert render.rule_file(catalogue.groups(again), again) == render.rule_file(GROUPS, CONFIG)
