"""The made-up fleet is what sidecars serve, a real Prometheus takes it, and every rule can be evaluated on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import past
import pytest
import scale
from fleet import KINDS, MIX, RANKS, Fleet
from scale_server import PROMETHEUS, prometheus

from headway_alerts import catalogue, promql, render
from headway_alerts.config import Config
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from pathlib import Path

RUNS = len(MIX)
"""Each kind at least once."""


def test_every_pod_serves_the_catalogue() -> None:
    """A metric that the generator forgot would make the rules look cheaper than they are."""
    for pod in Fleet(RUNS, 2, 2e9).series():
        names = {dict(one.labels)["__name__"] for one in pod.series}
        served = {metric.name for metric in (promql.raw_metric(name) for name in names) if metric is not None}
        assert {name for name, metric in METRICS.items() if not metric.absent} <= served
        assert len({(pod.common, pod.own(one)) for one in pod.series}) == len(pod.series)


def test_ranks_are_those_of_the_run() -> None:
    """Two pods of a run have no rank in common."""
    pods = list(Fleet(1, 2, 2e9).series())
    ranks = [{dict(pod.own(one)).get("rank") for one in pod.series} - {None} for pod in pods]
    assert ranks == [{str(rank) for rank in range(RANKS)}, {str(rank) for rank in range(RANKS, 2 * RANKS)}]


def test_long_windows_have_a_past() -> None:
    """A window of three days that finds twenty minutes would look cheap."""
    windows = past.windows(catalogue.groups(Config()))
    assert max(windows.values()) == 3 * 86_400
    assert all(name.startswith(("run:", "pod:")) for name in windows)


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
def test_prometheus_evaluates_all_rules_on_it(tmp_path: Path) -> None:
    """Nothing is refused, no rule fails, and the failures of the fleet raise their alerts."""
    fleet = Fleet(RUNS, 2, time.time() + scale.AHEAD_SECONDS)
    past.write(tmp_path, fleet, catalogue.groups(Config()))
    with prometheus(tmp_path) as server:
        count = scale.filled_with(server, fleet)
        (found,) = server.query('count({job="headway"})')
        assert 0.9 * count < float(found["value"][1]) <= count  # what comes only with the last scrapes is still to come
        server.give(render.rule_file(catalogue.groups(Config()), Config()), "1s")
        for _ in range(240):
            faults = [
                rule["lastError"] for group in server.groups() for rule in group["rules"] if rule.get("lastError")
            ]
            raised = {(one["metric"]["alertname"], one["metric"]["run"]) for one in server.query("ALERTS")}
            if faults or fleet.alerts <= raised:
                break
            time.sleep(0.5)
    assert faults == []
    assert fleet.alerts - raised == set()
    assert {KINDS[kind].alerts for kind in fleet.kinds.values()} == {kind.alerts for kind in KINDS.values()}
