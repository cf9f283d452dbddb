"""What is measured is looked at by somebody: that of GPUs, hosts, networks, pods and of the sidecar itself in a panel."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
from rendered import NAMES, filled, load, queries

from headway_alerts import catalogue, promql
from headway_alerts.config import Config
from headway_alerts.model import Alert
from headway_dashboards.queries import health
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from pathlib import Path

HEALTH: Final = tuple(
    f"headway_{family}_"
    for family in (
        *("gpu", "host", "nic", "storage", "container", "pod_disruptions"),
        *("sidecar", "source", "events", "clock", "telemetry", "collector"),
    )
)

FOR_OTHERS: Final = {
    "headway_build_info": "for joins: which version",
    "headway_run_info": "for joins: versions, backend and node",
    "headway_steps_total": "for people's own rates; the panels show time, of which a slow step is more",
    "headway_tokens_total": "for people's own throughput, in the unit of their model",
    "headway_pending_rank_seconds": "for who adds up: states and pending time are elapsed time; the rules read sums that hold it",
    "headway_lost_rank_seconds_total": "for reports; what is not regained is in the goodput",
    "headway_rollback_steps": "for people's own quantiles; the rules read the last one",
    "headway_phase_gap_max_seconds": "`headway advise` makes time-outs of it",
    "headway_heartbeat_timeout_seconds": "`headway advise` compares it with the gaps",
    "headway_incident_opened_timestamp_seconds": "for links; the panels have the time itself",
}
"""Metrics that neither a panel nor a rule reads, and whom they are for."""


def of_panels() -> set[str]:
    """Metrics that some panel asks for."""
    exprs = [one["expr"] for dashboard in NAMES for _, one in queries(load(dashboard))]
    return families(exprs)


def families(exprs: list[str]) -> set[str]:
    """The metrics that these texts name; of a histogram they name its series."""
    found = [promql.raw_metric(name) for expr in exprs for name in promql.raw_names(expr)]
    return {metric.name for metric in found if metric is not None}


def test_health_is_shown() -> None:
    """A metric that nobody sees costs series in every pod."""
    health = {name for name in METRICS if name.startswith(HEALTH)}
    assert len(health) > 40
    assert health - of_panels() == set()


def test_what_nobody_here_reads_is_there_for_a_reason() -> None:
    """Which is written down, and goes when a panel or a rule reads it."""
    rules = [rule for group in catalogue.groups(Config()) for rule in group.rules]
    texts = [rule.expr for rule in rules] + [rule.description for rule in rules if isinstance(rule, Alert)]
    assert METRICS.keys() - of_panels() - families(texts) == FOR_OTHERS.keys()


def test_ranks_are_joined_to_gpus_by_uuid() -> None:
    """The table of GPUs names the ranks on them, whatever number a GPU has on either side."""
    exprs = [one["expr"] for _, one in queries(load("headway-health"))]
    assert families([expr for expr in exprs if "on (run, pod_index, UUID) group_right (gpu)" in expr]) >= {
        "headway_gpu_up",
        "headway_gpu_xid_last_timestamp_seconds",
        "headway_gpu_ecc_errors_total",
        "headway_gpu_row_remap_failed",
        "headway_gpu_temperature_celsius",
        "headway_gpu_throttle_active",
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_gpu_has_a_row_for_each_of_its_ranks(tmp_path: Path) -> None:
    """Two ranks share one (MIG), another one idles, and one of a second pod has the same number: no rank is lost, and none is invented."""
    here, there = 'run="demo",pod_index="0"', 'run="demo",pod_index="1"'
    series = {
        f'headway_gpu_up{{{here},gpu="0",UUID="a",pci_bus_id="x",modelName="m"}}': "1",
        f'headway_gpu_up{{{here},gpu="1",UUID="b",pci_bus_id="y",modelName="m"}}': "1",
        f'headway_gpu_up{{{there},gpu="0",UUID="c",pci_bus_id="x",modelName="m"}}': "0",
        f'headway_rank_info{{{here},rank="0",slot="0",gpu="0",UUID="a"}}': "1",
        f'headway_rank_info{{{here},rank="1",slot="1",gpu="0",UUID="a"}}': "1",
        f'headway_rank_info{{{there},rank="2",slot="0",gpu="7",UUID="c"}}': "1",
    }
    rows = {("0", "0", "a", "0"): 1, ("0", "0", "a", "1"): 1, ("0", "1", "b", "none"): 1, ("1", "0", "c", "2"): 0}
    found = [
        {"labels": f'{{pod_index="{pod}",gpu="{gpu}",UUID="{uuid}",rank="{rank}"}}', "value": value}
        for (pod, gpu, uuid, rank), value in rows.items()
    ]
    document = {
        "rule_files": [],
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": value} for name, value in series.items()],
                "promql_expr_test": [
                    {"expr": filled(health.BY_RANK["Answers"]), "eval_time": "0s", "exp_samples": found}
                ],
            }
        ],
    }
    (tmp_path / "tests.yaml").write_text(json.dumps(document))
    command = ["promtool", "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
