"""`headway rules` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from headway_alerts.config import Config

FOLDER = Path(__file__).parents[2] / "alerts"


def rules(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Its output and exit code."""
    return subprocess.run(
        [sys.executable, "-m", "headway", "rules", *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_writes_the_committed_files(tmp_path: Path) -> None:
    """What people find in the repository is what they get."""
    assert rules("--out", str(tmp_path / "new" / "rules")).returncode == 0
    for path in (FOLDER / "rules").iterdir():
        assert (tmp_path / "new" / "rules" / path.name).read_text() == path.read_text()
    assert rules("--format", "prometheusrule", "--out", str(tmp_path)).returncode == 0
    assert (tmp_path / "prometheusrule.yaml").read_text() == (FOLDER / "prometheusrule.yaml").read_text()


def test_all_rules_in_one_file_on_standard_output() -> None:
    """For a pipe; with a selector from the environment."""
    done = rules(HEADWAY_RULES_SELECTOR='cluster="a"')
    document = yaml.safe_load(done.stdout)
    assert len(document["groups"]) > 5
    assert document["groups"][0]["rules"][0]["expr"] == 'max by (run, pod_index) (headway_ranks{cluster="a"})'


def test_own_thresholds(tmp_path: Path) -> None:
    """A file changes what it names; the option wins over its selector."""
    file = tmp_path / "mine.yaml"
    file.write_text('stalled_floor_seconds: 777\nselector: job="x"\n')
    done = rules("--config", str(file), "--selector", 'job="y"')
    assert "777" in done.stdout
    assert 'job="y"' in done.stdout
    assert 'job="x"' not in done.stdout


def test_links_can_be_followed_from_a_message() -> None:
    """To one's own wiki and Grafana, by option or variable; a slash at the end is not doubled."""
    done = rules("--runbook-base-url", "https://wiki/x/", HEADWAY_RULES_DASHBOARD_BASE_URL="https://grafana:3000")
    alerts = [rule for group in yaml.safe_load(done.stdout)["groups"] for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"https://wiki/x/{alert['alert']}.md"
        assert alert["annotations"]["dashboard"].startswith("https://grafana:3000/d/headway-postmortem?var-run=")


def test_a_bad_configuration_is_one_line(tmp_path: Path) -> None:
    """Which file, which option, what would do; nothing is written."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "objectives: [{kind: training, ratio: 0.9,\n"
        "  windows: [{severity: critical, long_seconds: 3600, short_seconds: 300, budget_share: 0.02}]}]\n"
    )
    done = rules("--config", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr
    assert "14.4 can never be reached" in done.stderr
    assert not (tmp_path / "out").exists()
    for text in ("a: [", "\tx"):
        file.write_text(text)
        done = rules("--config", str(file))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = rules("--config", str(tmp_path / "missing.yaml"))
    assert (done.returncode, done.stderr.count("missing.yaml")) == (2, 1)
    assert rules("--selector", "nonsense").returncode == 2
    assert rules(HEADWAY_RULES_FORMAT="nonsense").returncode == 2
    assert rules("--dashboard-base-url", "ftp://grafana").returncode == 2


def test_help_lists_what_a_configuration_may_hold() -> None:
    """Nobody need read the code for a name, or make a mistake to be told it."""
    text = " ".join(rules("--help").stdout.split())
    assert [one.name for one in fields(Config) if f" {one.name} (" not in text] == []
    assert "orchestrator 1800" in text


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The work failed: 1, and why."""
    (tmp_path / "file").touch()
    done = rules("--out", str(tmp_path / "file" / "rules"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write" in done.stderr


def test_it_writes_the_committed_example_for_alertmanager(tmp_path: Path) -> None:
    """With one's own receivers and pace on demand; the committed one is what comes without."""
    assert rules("--format", "alertmanager").stdout == (FOLDER / "alertmanager.yaml").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text("webhook_base_url: https://pager/hook/\nnotify_wait_seconds: 1\nnotify_interval_seconds: 3600\n")
    written = yaml.safe_load(rules("--format", "alertmanager", "--config", str(file)).stdout)
    urls = {one["webhook_configs"][0]["url"] for one in written["receivers"]}
    assert urls == {f"https://pager/hook/{name}" for name in ("page", "ticket", "channel")}
    assert (written["route"]["group_wait"], written["route"]["group_interval"]) == ("1s", "1h")
    file.write_text("webhook_base_url: pager\n")
    assert "webhook_base_url: expected an http" in rules("--config", str(file)).stderr


def test_rules_can_be_tried_in_seconds(tmp_path: Path) -> None:
    """A ratio shortens every wait and nothing else, and cannot make one longer; a note's length is an option too."""
    file = tmp_path / "mine.yaml"
    file.write_text("wait_ratio: 0.1\n")
    plain, quick = (yaml.safe_load(rules(*more).stdout) for more in ((), ("--config", str(file))))

    def by_alert(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
        found = [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]
        return {(rule["alert"], rule["labels"]["severity"]): rule for rule in found}

    for name, rule in by_alert(plain).items():
        other = by_alert(quick)[name]
        assert ("for" in rule) == ("for" in other)
        assert {**rule, "for": ""} == {**other, "for": ""}
    assert (by_alert(plain)["HeadwayTrainingStalled", "critical"]["for"]) == "30s"
    assert (by_alert(quick)["HeadwayTrainingStalled", "critical"]["for"]) == "3s"
    file.write_text("wait_ratio: 2\n")
    assert "wait_ratio: must be at most 1" in rules("--config", str(file)).stderr
    file.write_text("note_seconds: 20\n")
    note = by_alert(yaml.safe_load(rules("--config", str(file)).stdout))["HeadwayRecovered", "info"]
    assert "[20s]" in note["expr"]
    assert "in the last 20s" in note["annotations"]["summary"]
