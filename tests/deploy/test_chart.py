"""The chart makes what the kustomizations make, and takes no value that it does not know."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

import manifests
import pytest
import yaml
from manifests import CHART, EXPORTER, TRAINER, Object, charted, kustomized

from headway._version import __version__

if TYPE_CHECKING:
    from pathlib import Path

WITH_TRAINER: Final = {"trainer": {"enabled": True}}
KEPT: Final = {"helm.sh/resource-policy": "keep"}


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """For comparisons: by kind and name, in one order."""
    found = {(one["kind"], one["metadata"]["name"]): manifests.ordered(one) for one in objects}
    assert len(found) == len(objects)
    return found


def without_helms_own(objects: list[Object]) -> list[Object]:
    """Helm would delete claims with the release; kubectl knows nothing of that."""
    for one in objects:
        annotations = one["metadata"].pop("annotations", None)
        assert annotations == (KEPT if one["kind"] == "PersistentVolumeClaim" else None)
    return objects


def test_helm_has_nothing_to_complain_of() -> None:
    """Its own linter, warnings included, with everything switched on and off."""
    chart = pytest.importorskip("helm_python.chart", reason="Helm is not installed: pip install helm-python-sdk")
    for values in ({}, WITH_TRAINER, everything()):
        report = chart.lint(CHART, values, strict=True, kube_version=f"v{manifests.OLDEST}.0")
        assert report["errors"] == []
        assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_it_makes_what_kustomize_makes() -> None:
    """Object for object and field for field: the sidecar, its trainer, claims, monitoring, rules and dashboards."""
    folders = (EXPORTER, TRAINER / "storage", TRAINER / "base")
    expected = [one for folder in folders for one in kustomized(folder)]
    assert by_name(without_helms_own(charted(WITH_TRAINER))) == by_name(expected)


def test_so_do_its_options(tmp_path: Path) -> None:
    """GPUs, the Kubernetes API and the network policy are the components of the same name."""
    values = {
        "sidecar": {"gpus": {"enabled": True}, "kubernetesApi": {"enabled": True}},
        "networkPolicy": {"enabled": True},
        **WITH_TRAINER,
    }
    expected = manifests.composed(
        tmp_path,
        [EXPORTER, EXPORTER / "rbac", EXPORTER / "network-policy", TRAINER / "storage", TRAINER / "base"],
        [EXPORTER / "nvml", EXPORTER / "api"],
    )
    assert by_name(without_helms_own(charted(values))) == by_name(expected)


@pytest.mark.parametrize(("component", "mutual"), [("web-config", False), ("mutual-tls", True)])
def test_so_does_the_web_configuration(component: str, mutual: bool, tmp_path: Path) -> None:
    """TLS with password or certificate is that of the component, on both ends."""
    expected = manifests.composed(tmp_path, [EXPORTER, TRAINER / "storage", TRAINER / "base"], [EXPORTER / component])
    made = charted({"webConfig": {"enabled": True, "mutual": mutual}, **WITH_TRAINER})
    assert by_name(without_helms_own(made)) == by_name(expected)


def test_so_do_its_values_for_gpus() -> None:
    """The job of values-gpu.yaml is the GPU overlay's: GPUs claimed and used, not shown to the sidecar alone."""
    values = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
    made, expected = manifests.only(charted(values), "Job"), manifests.job_in(TRAINER / "overlays" / "gpu")
    assert manifests.ordered(made) == manifests.ordered(expected)


def everything() -> dict[str, Any]:
    """Each value other than its default."""
    digest = "sha256:" + "0a" * 32
    claim = {
        "create": True,
        "claimName": "own",
        "storageClassName": "fast",
        "accessModes": ["ReadWriteOnce"],
        "size": "1Gi",
    }
    env = [{"name": "EXTRA", "value": "1"}]
    return {
        "images": {
            "exporter": {"repository": "r.example/e", "digest": digest, "pullPolicy": "Always"},
            "trainer": {"repository": "r.example/t", "tag": "9.9.9"},
        },
        "imagePullSecrets": [{"name": "secret"}],
        "sidecar": {
            "resources": {"requests": {"cpu": "30m"}, "limits": {"memory": "200Mi"}},
            "journalSize": "300Mi",
            "terminationGracePeriodSeconds": 200,
            "gpus": {"enabled": True, "runtimeClassName": ""},
            "kubernetesApi": {"enabled": True},
            "extraEnv": env,
        },
        "state": claim,
        "webConfig": {
            "enabled": True,
            "secretName": "own-web",
            "tlsSecretName": "own-tls",
            "scrapeSecretName": "own-scrape",
            "serverName": "own.example",
        },
        "podMonitor": {"labels": {"release": "mine"}, "interval": "30s", "scrapeTimeout": "5s"},
        "prometheusRule": {"labels": {"release": "mine"}},
        "dashboards": {"labels": {"grafana_dashboard": "1", "more": "x"}},
        "networkPolicy": {"enabled": True, "prometheusNamespace": "prom"},
        "trainer": {
            "enabled": True,
            "name": "mine",
            "pods": 4,
            "ranksPerPod": 8,
            "maxRestarts": 7,
            "heartbeatTimeoutSeconds": 700,
            "firstHeartbeatTimeoutSeconds": 800,
            "failuresPerPod": 3,
            "options": {"MODEL__PRESET": "small"},
            "extraEnv": env,
            "resources": {"limits": {"memory": "9Gi", "nvidia.com/gpu": 8}},
            "sharedMemorySize": "8Gi",
            "scratchSize": "9Gi",
            "addCapabilities": ["IPC_LOCK"],
            "nodeSelector": {"kind": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "checkpoints": {**claim, "claimName": "others"},
        },
    }


@pytest.mark.parametrize("values", [{}, WITH_TRAINER, everything()], ids=["default", "trainer", "everything"])
def test_what_it_makes_is_understood(values: dict[str, Any]) -> None:
    """Strictly, as the manifests are."""
    objects = charted(values)
    assert objects
    for one in objects:
        for version in manifests.VERSIONS:
            manifests.check(one, version)


def test_every_value_arrives() -> None:
    """What somebody sets is in what is made; a value that only the schema knows would do nothing."""
    objects = charted(everything())
    job = manifests.only(objects, "Job")
    sidecar, trainer = manifests.container(job, "headway"), manifests.container(job, "trainer")
    spec = manifests.pod_of(job)["spec"]
    own = everything()
    assert (sidecar["image"], trainer["image"]) == (
        f"r.example/e@{own['images']['exporter']['digest']}",
        "r.example/t:9.9.9",
    )
    assert (sidecar["imagePullPolicy"], trainer["imagePullPolicy"]) == ("Always", "IfNotPresent")
    assert spec["imagePullSecrets"] == own["imagePullSecrets"]
    assert sidecar["resources"]["requests"] == {"cpu": "30m", "memory": "64Mi"}
    assert spec["terminationGracePeriodSeconds"] == 200
    assert "runtimeClassName" not in spec
    assert spec["serviceAccountName"] == "headway"
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert volumes["headway-journal"]["emptyDir"]["sizeLimit"] == "300Mi"
    assert volumes["shared-memory"]["emptyDir"]["sizeLimit"] == "8Gi"
    assert volumes["scratch"]["emptyDir"]["sizeLimit"] == "9Gi"
    assert volumes["headway-state"]["persistentVolumeClaim"]["claimName"] == "own"
    assert volumes["checkpoints"]["persistentVolumeClaim"]["claimName"] == "others"
    claims = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "PersistentVolumeClaim"}
    expected = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    assert claims == {"own": expected, "others": expected}
    variables = manifests.environment(trainer, job)
    assert (
        variables.items()
        >= {
            "HEADWAY_PODS": "4",
            "RANKS_PER_POD": "8",
            "MASTER_HOST": "mine-0.mine",
            "MAX_RESTARTS": "7",
            "HEARTBEAT_TIMEOUT_SECONDS": "700",
            "FIRST_HEARTBEAT_TIMEOUT_SECONDS": "800",
            "HEADWAY_TRAIN_MODEL__PRESET": "small",
            "HEADWAY_TRAIN_STEPS": "2000",
            "EXTRA": "1",
        }.items()
    )
    variables = manifests.environment(sidecar, job, secrets={"own-scrape": {"username": "me"}})
    assert variables.items() >= {"EXTRA": "1", "HEADWAY_STATUS_SERVER_NAME": "own.example"}.items()
    assert variables["HEADWAY_STATUS_USER"] == "me"
    assert (job["spec"]["completions"], job["spec"]["backoffLimitPerIndex"]) == (4, 3)
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert trainer["resources"]["limits"] == {"memory": "9Gi", "nvidia.com/gpu": 8}
    for name in ("nodeSelector", "tolerations", "affinity"):
        assert spec[name] == own["trainer"][name]
    monitor, rule = manifests.only(objects, "PodMonitor"), manifests.only(objects, "PrometheusRule")
    assert monitor["metadata"]["labels"]["release"] == rule["metadata"]["labels"]["release"] == "mine"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
    assert {one["metadata"]["labels"]["more"] for one in objects if one["kind"] == "ConfigMap"} == {"x"}
    names = own["webConfig"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["tlsConfig"] == {
        "ca": {"secret": {"name": names["tlsSecretName"], "key": "ca.crt"}},
        "serverName": names["serverName"],
    }
    sources = [source["secret"]["name"] for source in volumes["headway-web"]["projected"]["sources"]]
    assert sources == [names["secretName"], names["tlsSecretName"], names["scrapeSecretName"]]
    policy = manifests.only(objects, "NetworkPolicy")
    (namespace,) = policy["spec"]["ingress"][1]["from"]
    assert namespace["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "prom"


def test_a_chart_of_ones_own_takes_the_parts(tmp_path: Path) -> None:
    """The Job in the comment of _headway.tpl, as it stands there: the same sidecar, variables and volumes as in ours."""
    chart = pytest.importorskip("helm_python.chart", reason="Helm is not installed: pip install helm-python-sdk")
    comment, _, _ = (CHART / "templates" / "_headway.tpl").read_text().partition("*/}}")
    (example,) = re.findall(r"^    apiVersion:.*\n(?:(?:    .*)?\n)+", comment, re.MULTILINE)
    for folder in ("charts", "templates"):
        (tmp_path / folder).mkdir()
    (tmp_path / "charts" / "headway").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text(
        f"{{apiVersion: v2, name: own, version: 1.0.0, dependencies: [{{name: headway, version: {__version__}}}]}}"
    )
    (tmp_path / "templates" / "job.yaml").write_text(textwrap.dedent(example))
    job = yaml.safe_load(chart.Chart.load(tmp_path).render({}, name="own")["own/templates/job.yaml"])
    manifests.check(job, manifests.OLDEST)
    ours = manifests.job_in(TRAINER / "base")
    own, theirs = manifests.container(job, "headway"), manifests.container(ours, "headway")
    theirs["volumeMounts"] = [one for one in theirs["volumeMounts"] if one["name"] != "checkpoints"]
    assert manifests.ordered(own) == manifests.ordered(theirs)
    told = manifests.environment(manifests.container(job, "trainer"), job)
    assert told.keys() == {"HEADWAY_DIR", "HEADWAY_RUN", "HEADWAY_POD_INDEX", "HEADWAY_ATTEMPT", "NODE_NAME"}
    volumes = manifests.pod_of(ours)["spec"]["volumes"]
    assert all(one in volumes for one in manifests.pod_of(job)["spec"]["volumes"])


def test_each_part_can_be_left_out() -> None:
    """A cluster without the operator or without Grafana gets nothing that it does not know."""
    off = {name: {"enabled": False} for name in ("podMonitor", "prometheusRule", "dashboards")}
    assert charted({**off, "state": {"create": False}}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"trainner": {"enabled": True}},
        {"trainer": {"podz": 3}},
        {"sidecar": {"gpus": {"enable": True}}},
        {"state": {"storageClass": "x"}},
        {"trainer": {"pods": 0}},
        {"trainer": {"pods": "2"}},
        {"trainer": {"name": "Upper_case"}},
        {"trainer": {"options": {"model.preset": "small"}}},
        {"trainer": {"addCapabilities": ["SYS_ADMIN"]}},
        {"images": {"exporter": {"tag": "latest"}}},
        {"images": {"exporter": {"digest": "0a0a"}}},
        {"sidecar": {"terminationGracePeriodSeconds": 10}},
        {"sidecar": {"journalSize": "much"}},
        {"webConfig": {"enable": True}},
        {"webConfig": {"secretName": "no name"}},
        {"podMonitor": {"interval": "15"}},
    ],
    ids=str,
)
def test_a_value_that_it_does_not_know_is_refused(values: dict[str, Any]) -> None:
    """Unknown names and values that cannot be right end in an error, not in a default."""
    errors = pytest.importorskip("helm_python.errors", reason="Helm is not installed: pip install helm-python-sdk")
    with pytest.raises(errors.HelmError, match=r".+"):
        charted(values)


def test_its_version_is_ours() -> None:
    """The images that it names are those of this version."""
    chart = pytest.importorskip("helm_python.chart", reason="Helm is not installed: pip install helm-python-sdk")
    metadata = chart.Chart.load(CHART).metadata
    metadata = metadata() if callable(metadata) else metadata
    assert (metadata["version"], metadata["appVersion"]) == (__version__, __version__)
    assert metadata["kubeVersion"] == f">={manifests.OLDEST}.0-0"
