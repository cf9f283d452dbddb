"""Who gets which alert, and what mutes what: judged by Alertmanager itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from alertmanager_process import alertmanager_of

from headway_alerts import catalogue
from headway_alerts.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_alerts.model import Alert

EXAMPLE = Path(__file__).parents[2] / "alerts" / "alertmanager.yaml"
RECEIVERS = {"critical": "page", "warning": "ticket", "info": "channel"}
ALERTS = list(catalogue.alerts(Config()))

needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")


def amtool(*arguments: str) -> str:
    """What it prints; it must agree."""
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def labels_of(alert: Alert, run: str = "demo") -> dict[str, str]:
    """As Prometheus sends it."""
    return {"alertname": alert.name, "severity": alert.severity, "run": run, **dict(alert.labels)}


def test_inhibitions_name_alerts_that_exist() -> None:
    """A renamed alert must not silently stop muting."""
    document = yaml.safe_load(EXAMPLE.read_text())
    matchers = [one for rule in document["inhibit_rules"] for key in rule if key != "equal" for one in rule[key]]
    named = {name for one in matchers if one.startswith("alertname") for name in re.findall(r"Headway\w+", one)}
    assert named
    assert named <= {alert.name for alert in ALERTS}


@needs_amtool
def test_the_example_is_valid() -> None:
    """People copy it."""
    assert "SUCCESS" in amtool("check-config", str(EXAMPLE))


@needs_amtool
@pytest.mark.parametrize("severity", RECEIVERS)
def test_routes(severity: str) -> None:
    """Recovered goes to a channel, what is critical pages, a warning is a ticket; each to exactly one place."""
    alerts = [alert for alert in ALERTS if alert.severity == severity]
    assert alerts
    for alert in alerts:
        labels = [f"{name}={value}" for name, value in labels_of(alert).items()]
        told = amtool("config", "routes", "test", f"--config.file={EXAMPLE}", *labels)
        assert told.split() == [RECEIVERS[severity]], alert.name


@needs_amtool
def test_an_unknown_severity_is_not_lost() -> None:
    """Somebody's own rule with a severity of their own still reaches somebody."""
    told = amtool("config", "routes", "test", f"--config.file={EXAMPLE}", "alertname=HeadwayMine", "severity=odd")
    assert told.split() == ["ticket"]


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real one with the example's configuration."""
    with alertmanager_of(EXAMPLE, tmp_path_factory.mktemp("alertmanager")) as address:
        yield address


def muted(server: str, expected: set[str], *labels: dict[str, str]) -> set[str]:
    """Sends alerts of one run, and says which of them others mute: what is expected, or what it is when that does not come to stay."""
    now = datetime.now(timezone.utc)
    times = {"startsAt": now.isoformat(), "endsAt": (now + timedelta(hours=1)).isoformat()}
    body = json.dumps([{"labels": one, **times} for one in labels]).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/api/v2/alerts", body, headers)  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - our own address
        pass
    found: set[str] = set()
    steady = 0
    for _ in range(200):  # Alertmanager hands alerts on inside: an inhibition is there a moment after the alerts are
        sent = [one for one in _alerts(server) if one["labels"]["run"] == labels[0]["run"]]
        found = {_name(one) for one in sent if one["status"]["inhibitedBy"]}
        steady = steady + 1 if len(sent) == len(labels) and found == expected else 0
        if steady == 5:
            break
        time.sleep(0.1)
    return found


def _alerts(server: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{server}/api/v2/alerts", timeout=10) as answer:  # noqa: S310
        found: list[dict[str, Any]] = json.load(answer)
        return found


def _name(alert: dict[str, Any]) -> str:
    return f"{alert['labels']['alertname']}/{alert['labels']['severity']}"


def named(run: str, *names: str) -> list[dict[str, str]]:
    """The labels of these alerts."""
    return [labels_of(alert, run) for alert in ALERTS if f"{alert.name}/{alert.severity}" in names]


STUCK, STALLED = "HeadwayRecoveryStuck/critical", "HeadwayTrainingStalled/critical"
RECURRING, RECOVERED = "HeadwayRecurringFailure/critical", "HeadwayRecovered/info"


def test_recurring_mutes_stuck_and_stalled(alertmanager: str) -> None:
    """One problem, one page."""
    expected = {STUCK, STALLED}
    assert muted(alertmanager, expected, *named("a", RECURRING, STUCK, STALLED)) == expected


def test_an_attempt_without_its_first_step_mutes_stalled(alertmanager: str) -> None:
    """It is the reason that nothing moves."""
    assert muted(alertmanager, {STALLED}, *named("b", STUCK, STALLED)) == {STALLED}


def test_an_incident_that_only_waits_mutes_nothing(alertmanager: str) -> None:
    """Training that hangs while an old incident waits for its checkpoint has no attempt under way: it pages, with all else that fires."""
    others = ("HeadwayCheckpointStale/warning", "HeadwayRecurringEntity/warning", RECOVERED)
    assert muted(alertmanager, set(), *named("c", STALLED, *others)) == set()


def test_another_run_is_not_muted(alertmanager: str) -> None:
    """The loop of one run says nothing about the next one."""
    muted(alertmanager, set(), *named("d", RECURRING))
    assert muted(alertmanager, set(), *named("e", STALLED)) == set()


def test_the_fast_burn_mutes_the_slow_one(alertmanager: str) -> None:
    """Of the same objective."""
    fast, slow = "HeadwayGoodputBurn/critical", "HeadwayGoodputBurn/warning"
    assert muted(alertmanager, {slow}, *named("f", fast, slow)) == {slow}
