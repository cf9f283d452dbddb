"""What Prometheus and Grafana get: the pods, the rules and the dashboards as they are rendered elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import yaml
from manifests import (
    EXPORTER,
    ROOT,
    TRAINER,
    container,
    each_job,
    job_in,
    kustomized,
    only,
    pod_of,
)

from headway_exporter import cli as exporter_cli
from headway_exporter import schema

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_OF_APPLY: Final = 256 << 10
"""What fits into the annotation in which a client-side `kubectl apply` keeps an object."""
TARGETS: Final = {"namespace", "pod", "container", "endpoint", "job", "instance"}
"""Labels that the operator gives to each series of a pod."""


@each_job
def test_prometheus_finds_the_pods(place: Path) -> None:
    """The monitor chooses them by a label that they have, and a port by its name."""
    job, monitor = job_in(place), only(kustomized(EXPORTER / "monitoring"), "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod_of(job)["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {one["name"] for one in container(job, "headway")["ports"]}
    assert endpoint["path"] == "/metrics"
    interval = float(endpoint["interval"].removesuffix("s"))
    assert interval < exporter_cli.DEFAULT_LINGER_SECONDS, "the last word would not be scraped"


def test_our_labels_stay_as_they_are() -> None:
    """Prometheus would rename a label that a target has too, and which container restarted would be the sidecar, always."""
    (endpoint,) = only(kustomized(EXPORTER / "monitoring"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    theirs = {label for metric in schema.METRICS.values() for label in metric.labels} & TARGETS
    assert theirs == {"container"}
    assert endpoint["honorLabels"] is True


def test_a_further_namespace_gets_no_second_copy_of_the_rules() -> None:
    """What the README says it needs is what the first one has, without what is the whole cluster's."""
    first = {one["kind"]: one for one in kustomized(EXPORTER)}
    further = kustomized(EXPORTER / "state") + kustomized(EXPORTER / "podmonitor")
    assert [one["kind"] for one in further] == ["PersistentVolumeClaim", "PodMonitor"]
    assert all(first[one["kind"]] == one for one in further)
    assert first.keys() - {one["kind"] for one in further} == {"PrometheusRule", "ConfigMap"}


def test_rules_are_those_that_are_rendered() -> None:
    """No second copy: what is applied is alerts/prometheusrule.yaml."""
    rule = only(kustomized(EXPORTER / "monitoring"), "PrometheusRule")
    assert rule == yaml.safe_load((ROOT / "alerts" / "prometheusrule.yaml").read_text())
    assert len(json.dumps(rule)) < LIMIT_OF_APPLY


def test_dashboards_are_those_that_are_rendered() -> None:
    """Each file of dashboards/json in a ConfigMap of its own that Grafana's sidecar takes, and small enough for any `kubectl apply`."""
    found = {}
    for one in kustomized(EXPORTER / "monitoring"):
        if one["kind"] == "ConfigMap":
            assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert len(json.dumps(one)) < LIMIT_OF_APPLY
            found |= one["data"]
    assert found == {path.name: path.read_text() for path in (ROOT / "dashboards" / "json").glob("*.json")}


def test_the_network_policy_lets_prometheus_and_ranks_in() -> None:
    """The port that is opened is the sidecar's, and the pods are those that have one."""
    (policy,) = kustomized(EXPORTER / "network-policy")
    job = job_in(TRAINER / "base")
    labels = pod_of(job)["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    peers, scrapes = policy["spec"]["ingress"]
    assert peers["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert "ports" not in peers
    assert scrapes["ports"] == [{"protocol": "TCP", "port": container(job, "headway")["ports"][0]["containerPort"]}]
