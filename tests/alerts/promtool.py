"""Series and expectations as Python data, judged by `promtool test rules` with the rules as they are rendered."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from headway_alerts import catalogue, render
from headway_alerts.config import Config
from headway_alerts.model import Alert, Group, Recording
from headway_exporter.labels import INCIDENT_OUTCOMES, LAYERS, STATES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUN = "demo"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

Series = dict[str, str]
"""A series as promtool writes it, to its values in promtool's notation."""


def one(name: str, pod: str = "0", run: str = RUN, **labels: str) -> str:
    """The text of one series."""
    inside = {"run": run, "pod_index": pod, **labels}
    return f"{name}{{{','.join(f'{key}={value!r}'.replace(chr(39), chr(34)) for key, value in inside.items())}}}"


@dataclass(frozen=True)
class Expected:
    """What a person reads when the alert fires."""

    severity: str
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def of(self, alert: str, since: float) -> dict[str, Any]:
        """As promtool expects it; the condition holds since then, in seconds."""
        begin, end = round(1000 * (since - 900)), round(1000 * (since + 2_700))
        return {
            "exp_labels": {"run": RUN, "severity": self.severity, **self.labels},
            "exp_annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"alerts/runbooks/{alert}.md",
                "dashboard": f"/d/headway-postmortem?var-run={RUN}&from={begin}&to={end}",
            },
        }


def state(name: str, pod: str = "0", values: str = "1x400", others: str = "0x400") -> Series:
    """The pod does this and nothing else."""
    return {one("headway_state", pod, state=each): values if each == name else others for each in (*STATES, "finished")}


def waiting(name: str, since: str, pod: str = "0") -> Series:
    """The pod makes no step meanwhile."""
    return {one("headway_waiting_since_timestamp_seconds", pod, state=name): since}


def healthy(pod: str = "0", *, minutes: int = 100) -> Series:
    """A pod with two ranks that makes a step a second and saves every minute; a sample every 15 s."""
    count = minutes * 4
    still, moving = f"x{count}", f"0+15x{count}"
    return {
        one("headway_run_start_timestamp_seconds", pod): "0" + still,
        one("headway_ranks", pod): "2" + still,
        **state("productive", pod, "1" + still, "0" + still),
        one("headway_state_since_timestamp_seconds", pod): "0" + still,
        one("headway_step", pod): moving,
        one("headway_last_step_timestamp_seconds", pod): moving,
        one("headway_step_duration_baseline_seconds", pod): "1" + still,
        one("headway_source_last_update_timestamp_seconds", pod, source="trainer"): moving,
        one("headway_checkpoint_durable_step", pod): moving,
        one("headway_checkpoint_durable_timestamp_seconds", pod): moving,
        one("headway_checkpoint_interval_seconds", pod): "60" + still,
        one("headway_checkpoint_last_write_seconds", pod): "10" + still,
        one("headway_checkpoint_saves_since_commit", pod): "0" + still,
        **{
            one("headway_checkpoint_saves_total", pod, outcome=outcome): "0" + still
            for outcome in ("committed", "failed", "aborted")
        },
        one("headway_async_queue_depth", pod): "0" + still,
        one("headway_async_writer_up", pod): "1" + still,
        **{one("headway_restarts_total", pod, layer=layer): "0" + still for layer in LAYERS},
        one("headway_incident_open", pod): "0" + still,
        one("headway_incident_attempts", pod): "0" + still,
        **{
            one("headway_incidents_total", pod, outcome=outcome, recurring=word): "0" + still
            for outcome in INCIDENT_OUTCOMES
            for word in ("false", "true")
        },
        **{one("headway_rank_seconds_total", pod, state=each): "0" + still for each in STATES},
        one("headway_rank_seconds_total", pod, state="productive"): f"0+30x{count}",
        one("headway_rank_elapsed_seconds_total", pod): f"0+30x{count}",
        one("headway_unregained_rank_seconds", pod): "0" + still,
        one("headway_counted_rank_seconds", pod): f"0+30x{count}",
        one("headway_unavailable_rank_seconds", pod): "0" + still,
    }


def without(series: Series, *names: str) -> Series:
    """The series of other metrics."""
    return {text: values for text, values in series.items() if text.partition("{")[0] not in names}


def firing(at: str, alert: str, *expected: Expected, since: float = 0) -> dict[str, Any]:
    """At this time exactly these alerts of the name fire, since then."""
    return {"eval_time": at, "alertname": alert, "exp_alerts": [one.of(alert, since) for one in expected]}


def ever_fired(at: str, alerts: Mapping[str, str], over: str = "7d") -> dict[str, Any]:
    """Up to this time exactly these alerts, with their severities, have fired for any time at all."""
    found = [
        {"labels": f'{{alertname="{name}",severity="{severity}"}}', "value": 1} for name, severity in alerts.items()
    ]
    expr = f'count by (alertname, severity) (count_over_time(ALERTS{{alertstate="firing"}}[{over}]))'
    return {"expr": expr, "eval_time": at, "exp_samples": found}


@dataclass(frozen=True)
class Test:
    """One test of promtool."""

    __test__ = False

    name: str
    series: Series
    alerts: list[dict[str, Any]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    interval: str = "15s"


def needed(groups: tuple[Group, ...], alert: str) -> tuple[Group, ...]:
    """The rules of one alert and those that it rests on: a hundred tests of all rules would take minutes."""
    rules = [rule for group in groups for rule in group.rules]
    wanted = {rule for rule in rules if isinstance(rule, Alert) and rule.name == alert}
    texts = [text for rule in wanted for text in (rule.expr, rule.summary, rule.description)]
    while texts:
        text = texts.pop()
        found = {rule for rule in rules if isinstance(rule, Recording) and rule.record in text} - wanted
        wanted |= found
        texts += [rule.expr for rule in found]
    kept = (replace(group, rules=tuple(rule for rule in group.rules if rule in wanted)) for group in groups)
    return tuple(group for group in kept if group.rules)


def judge(
    folder: Path, *tests: Test, config: Config | None = None, alert: str | None = None, groups: tuple[str, ...] = ("",)
) -> None:
    """Lets promtool decide, by all rules, by those of one alert, or by groups whose names end so; its words are the failure's."""
    config = config or Config()
    every = catalogue.groups(config) if alert is None else needed(catalogue.groups(config), alert)
    used = tuple(group for group in every if group.name.endswith(groups))
    (folder / "rules.yaml").write_text(render.rule_file(used, config))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": tests[0].interval,
        "group_eval_order": [group.name for group in used],
        "tests": [
            {
                "name": test.name,
                "interval": test.interval,
                "input_series": [{"series": series, "values": values} for series, values in test.series.items()],
                "alert_rule_test": test.alerts,
                "promql_expr_test": test.values,
            }
            for test in tests
        ],
    }
    (folder / "test.yaml").write_text(json.dumps(document))  # JSON is YAML, and much faster written
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
