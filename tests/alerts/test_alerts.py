"""Every alert: silent, firing with every word, resolved, and not fooled by what only looks like it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from alert_cases import CASES, Case, with_
from checkpoint_cases import CHECKPOINT_CASES
from health_cases import HEALTH_CASES
from promtool import RUN, Test, firing, judge, needs_promtool, one, state, waiting

from headway_alerts import catalogue
from headway_alerts.config import Config

if TYPE_CHECKING:
    from pathlib import Path

ALL = (*CASES, *CHECKPOINT_CASES, *HEALTH_CASES)


def began(case: Case) -> float:
    """Seconds from the start until the alert's condition holds."""
    wait = next(
        one.wait_seconds
        for one in catalogue.alerts(case.config)
        if (one.name, one.severity) == (case.alert, case.expected.severity)
    )
    return seconds(case.since) if case.since else seconds(case.fires) - wait


def seconds(text: str) -> float:
    """Of a time as promtool writes it: 1h2m3s."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))


@needs_promtool
@pytest.mark.parametrize("case", ALL, ids=[f"{case.alert}-{case.expected.severity}" for case in ALL])
def test_alert(tmp_path: Path, case: Case) -> None:
    """It comes when it should, says what it should, goes when it should, and stays away otherwise."""
    own = [
        firing(case.silent, case.alert),
        firing(case.fires, case.alert, case.expected, since=began(case)),
        firing(case.resolved, case.alert),
    ]
    near = [
        Test(name, series, [firing(at, case.alert) for at in (case.silent, case.fires)], interval=case.interval)
        for name, series in case.near.items()
    ]
    judge(
        tmp_path,
        Test(case.alert, case.series, own, interval=case.interval),
        *near,
        config=case.config,
        alert=case.alert,
    )


OTHER_WAYS = {
    "HeadwayTrainerSilent": {
        "nothing was ever heard": ({one("headway_ranks"): "0x100"}, "11m15s"),
        "of one pod, while another is heard": ({**with_(), one("headway_ranks", "1"): "0x100"}, "11m15s"),
    },
    "HeadwayAsyncBacklog": {
        "a queue that grows, each save young": (with_({one("headway_async_queue_depth"): "0x20 2x20 3x40"}), "12m45s")
    },
    "HeadwayCheckpointFailing": {
        "two restarts, each with its saves": (
            with_(
                {
                    one("headway_checkpoint_saves_since_commit"): "0x20 1x20 2x40",
                    one("headway_checkpoint_saves_total", outcome="aborted"): "0x20 1x20 2x40",
                    one("headway_restarts_total", layer="launcher"): "0x20 1x20 2x40",
                }
            ),
            "11m",
        )
    },
    "HeadwayRestartBudgetLow": {
        "two restarts within an hour, of six": (
            with_(
                {
                    one("headway_restart_budget_limit", layer="launcher"): "6x400",
                    one("headway_restart_budget_remaining", layer="launcher"): "6x20 5x20 4x60",
                    one("headway_restarts_total", layer="launcher"): "0x20 1x20 2x60",
                }
            ),
            "11m",
        )
    },
    "HeadwayPhaseOverdue": {"the first start-up": (state("init") | waiting("init", "0x400"), "32m")},
    "HeadwayRunUnwatched": {
        "no pod ever was a witness": ({one("headway_ranks", pod): "1x100" for pod in ("17", "18")}, "5m15s"),
    },
}
"""Alerts that have more than one reason to fire: series and time."""


@needs_promtool
@pytest.mark.parametrize("alert", OTHER_WAYS)
def test_other_ways_to_fire(tmp_path: Path, alert: str) -> None:
    """Each part of a condition with an "or" is there for a reason."""
    expr = f'count by (run) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
    tests = [
        Test(
            name,
            series,
            values=[{"expr": expr, "eval_time": at, "exp_samples": [{"labels": f'{{run="{RUN}"}}', "value": 1}]}],
        )
        for name, (series, at) in OTHER_WAYS[alert].items()
    ]
    judge(tmp_path, *tests, alert=alert)


def test_every_alert_has_its_case() -> None:
    """An alert without a test of its own is a wish; so is one without a near miss."""
    alerts = {(alert.name, alert.severity) for alert in catalogue.alerts(Config())}
    assert {(case.alert, case.expected.severity) for case in ALL} == alerts
    assert all(case.near for case in ALL)
