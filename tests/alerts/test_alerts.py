"""Every alert: silent, firing with every word, resolved, and not fooled by what only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alert_cases import CASES, Case
from health_cases import HEALTH_CASES
from promtool import Test, firing, judge, needs_promtool

from headway_alerts import catalogue
from headway_alerts.config import Config

if TYPE_CHECKING:
    from pathlib import Path

ALL = (*CASES, *HEALTH_CASES)


@needs_promtool
@pytest.mark.parametrize("case", ALL, ids=[f"{case.alert}-{case.expected.severity}" for case in ALL])
def test_alert(tmp_path: Path, case: Case) -> None:
    """It comes when it should, says what it should, goes when it should, and stays away otherwise."""
    own = [
        firing(case.silent, case.alert),
        firing(case.fires, case.alert, case.expected),
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


def test_every_alert_has_its_case() -> None:
    """An alert without a test of its own is a wish; so is one without a near miss."""
    alerts = {(alert.name, alert.severity) for alert in catalogue.alerts(Config())}
    assert {(case.alert, case.expected.severity) for case in ALL} == alerts
    assert all(case.near for case in ALL)
