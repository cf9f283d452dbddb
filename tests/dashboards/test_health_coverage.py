"""What is measured is looked at by somebody: that of GPUs, hosts, networks, pods and of the sidecar itself in a panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from rendered import NAMES, answered, filled, load, needs_promtool, queries

from headway_alerts import catalogue, promql
from headway_alerts.config import Config
from headway_alerts.model import Alert
from headway_dashboards.queries import health
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping
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


HERE, THERE = 'run="demo",pod_index="0"', 'run="demo",pod_index="1"'


def gpu_up(pod: str, gpu: str, uuid: str) -> str:
    """The text of a series."""
    return f'headway_gpu_up{{{pod},gpu="{gpu}",UUID="{uuid}",pci_bus_id="x",modelName="m"}}'


def rank_info(pod: str, rank: str, gpu: str, uuid: str) -> str:
    """Likewise."""
    return f'headway_rank_info{{{pod},rank="{rank}",slot="{rank}",gpu="{gpu}",UUID="{uuid}"}}'


@needs_promtool
def test_a_gpu_has_a_row_for_each_of_its_ranks(tmp_path: Path) -> None:
    """Two ranks share one (MIG), another one idles, and one of a second pod has the same number: no rank is lost, and none is invented."""
    series = {
        gpu_up(HERE, "0", "a"): "1",
        gpu_up(HERE, "1", "b"): "1",
        gpu_up(THERE, "0", "c"): "0",
        rank_info(HERE, "0", "0", "a"): "1",
        rank_info(HERE, "1", "0", "a"): "1",
        rank_info(THERE, "2", "7", "c"): "1",
    }
    rows = {("0", "0", "a", "0"): 1, ("0", "1", "b", "none"): 1, ("1", "0", "c", "2"): 0}
    rows[("0", "0", "a", "1")] = 1
    answered(tmp_path, series, filled(health.BY_RANK["Answers"]), labelled(rows))


def labelled(rows: Mapping[tuple[str, str, str, str], float]) -> dict[str, float]:
    """Rows by pod, GPU, UUID and rank, as promtool has their labels."""
    return {
        f'{{pod_index="{pod}",gpu="{gpu}",UUID="{uuid}",rank="{rank}"}}': value
        for (pod, gpu, uuid, rank), value in rows.items()
    }


@needs_promtool
def test_gpus_that_were_lost_from_the_start_have_rows(tmp_path: Path) -> None:
    """Two of them have no UUID to tell them apart: the table is needed then, and must not fail."""
    series = {
        gpu_up(HERE, "0", "a"): "1",
        gpu_up(HERE, "1", ""): "0",
        gpu_up(HERE, "2", ""): "0",
        rank_info(HERE, "0", "0", "a"): "1",
        rank_info(HERE, "1", "1", ""): "1",
    }
    rows = {("0", "0", "a", "0"): 1.0, ("0", "1", "", "none"): 0.0, ("0", "2", "", "none"): 0.0}
    expected = {labels.replace(',UUID=""', ""): value for labels, value in labelled(rows).items()}
    answered(tmp_path, series, filled(health.BY_RANK["Answers"]), expected)


@needs_promtool
@pytest.mark.parametrize("column", health.BY_RANK)
def test_the_table_bears_a_pod_that_is_scraped_twice(column: str, tmp_path: Path) -> None:
    """Two targets for one pod are two of each series, of which a join takes one at most."""
    expr = filled(health.BY_RANK[column])
    name = next(name for name in promql.raw_names(expr) if name != "headway_rank_info")
    gpu = {"gpu": "0", "UUID": "a", "pci_bus_id": "x", "modelName": "m"}
    labels = {label: values[0] if values else gpu.get(label, "0") for label, values in METRICS[name].labels.items()}
    labels |= {"class": "driver", "type": "uncorrected"} if "class" in labels or "type" in labels else {}
    own = ",".join(f'{label}="{value}"' for label, value in labels.items() if label in METRICS[name].labels)
    series = {
        f'{text[:-1]},instance="{instance}"}}': values
        for instance in ("old", "new")
        for text, values in ((f"{name}{{{HERE},{own}}}", "0 1"), (rank_info(HERE, "0", "0", "a"), "1 1"))
    }
    answered(tmp_path, series, f"count({expr})", {"{}": 1}, "1m")


@needs_promtool
def test_xids_that_a_new_sidecar_remembers_are_not_news(tmp_path: Path) -> None:
    """Their series begin when a pod is back at another address; one that came just before is shown, also as the first of its number."""
    gpu = 'gpu="0",UUID="a",pci_bus_id="x",modelName="m"'
    series = {
        f'headway_gpu_xid_errors_total{{instance="new",{HERE},{gpu},xid="79",class="hardware"}}': "_x10 7x10",
        f'headway_gpu_xid_errors_total{{instance="new",{HERE},{gpu},xid="31",class="application"}}': "_x10 1x10",
        f'headway_gpu_xid_last_timestamp_seconds{{instance="new",{HERE},{gpu},class="hardware"}}': "_x10 0x10",
        f'headway_gpu_xid_last_timestamp_seconds{{instance="new",{HERE},{gpu},class="application"}}': "_x10 590x10",
    }
    fresh = '{pod_index="0",gpu="0",xid="31",class="application"}'
    (query,) = health.XIDS
    answered(tmp_path, series, filled(query.expr, rate="4m"), {fresh: 1}, "12m")
