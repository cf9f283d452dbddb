"""The manifests: understood by Kubernetes as they are meant, with no more rights than they need, and each overlay what it says."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import manifests
import pytest
import yaml
from manifests import (
    EXPORTER,
    TRAINER,
    Object,
    container,
    each_container,
    each_job,
    environment,
    job_in,
    kustomized,
    only,
    pod_of,
    quantity,
)

from headway_exporter.health.kubernetes import SERVICE_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLACES: Final = manifests.of_kind("Kustomization")
SIDECAR: Final = EXPORTER / "sidecar"
each_place = pytest.mark.parametrize("place", PLACES, ids=manifests.shown)


# Understood.


@pytest.mark.parametrize("version", manifests.VERSIONS)
@each_place
def test_every_object_is_understood(place: Path, version: str) -> None:
    """By Kubernetes' own schemas, from the oldest version that can run it on, and the operator's types; unknown fields are refused."""
    objects = kustomized(place)
    assert objects
    for one in objects:
        manifests.check(one, version)


def misspelt(one: Object, change: Callable[[Object], None]) -> Object:
    """A copy with a mistake in it."""
    wrong = copy.deepcopy(one)
    change(wrong)
    return wrong


def test_a_mistake_is_noticed() -> None:
    """The checks bite: a misspelt field, a wrong type and a wrong word are refused, at any depth."""
    job, monitoring = job_in(TRAINER / "base"), kustomized(EXPORTER / "monitoring")
    mistakes: list[tuple[Object, Callable[[Object], None]]] = [
        (job, lambda one: one["spec"].update(backofLimitPerIndex=3)),
        (job, lambda one: one["spec"].update(parallelism="two")),
        (job, lambda one: pod_of(one)["spec"]["initContainers"][0].update(restartpolicy="Always")),
        (job, lambda one: pod_of(one)["spec"]["containers"][0]["securityContext"].update(runAsNonroot=True)),
        (only(monitoring, "PodMonitor"), lambda one: one["spec"]["podMetricsEndpoints"][0].update(intervall="15s")),
        (only(monitoring, "PodMonitor"), lambda one: one["spec"]["podMetricsEndpoints"][0].update(interval="soon")),
        (only(monitoring, "PodMonitor"), lambda one: one["spec"].pop("selector")),
        (only(monitoring, "PrometheusRule"), lambda one: one["spec"]["groups"][0]["rules"][0].update(alerts="A")),
        (only(monitoring, "PrometheusRule"), lambda one: one["spec"]["groups"][0].pop("name")),
    ]
    for one, change in mistakes:
        manifests.check(one, manifests.OLDEST)
        with pytest.raises(Exception, match=r".+"):
            manifests.check(misspelt(one, change), manifests.OLDEST)


@pytest.mark.parametrize("place", manifests.of_kind("Component"), ids=manifests.shown)
def test_each_component_fits_a_job(place: Path, tmp_path: Path) -> None:
    """Each can be added to the base by itself, and the result is understood."""
    component = [] if place == SIDECAR else [place]  # the base has that one
    for one in manifests.composed(tmp_path, [TRAINER / "base"], component):
        manifests.check(one, manifests.OLDEST)


# Secure.


@each_job
def test_no_container_has_more_rights_than_it_needs(place: Path) -> None:
    """No root, no way to become it, no capability but EFA's, no writable root file system, no token, and a limit on memory."""
    job = job_in(place)
    spec = pod_of(job)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert [name for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace") if name in spec] == []
    for one in each_container(job):
        context = {**spec["securityContext"], **one["securityContext"]}
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "privileged" not in context
        efa = one["name"] == "trainer" and place.name in ("efa", "eks")
        assert context["capabilities"].get("add", []) == (["IPC_LOCK"] if efa else [])
        assert "memory" in one["resources"]["limits"]
    sidecar, trainer = each_container(job)
    assert sidecar["securityContext"]["runAsUser"] != trainer["securityContext"]["runAsUser"]


@each_job
def test_the_sidecar_claims_no_gpu(place: Path) -> None:
    """A GPU that it claimed would be missing to training: NVIDIA's runtime shows it the driver alone."""
    job = job_in(place)
    sidecar = container(job, "headway")
    assert sidecar["resources"]["limits"].keys() == {"cpu", "memory"}
    gpus = "nvidia.com/gpu" in container(job, "trainer")["resources"]["limits"]
    variables = environment(sidecar, job)
    assert (variables["HEADWAY_GPUS"] == "on") is gpus
    assert (variables.get("NVIDIA_VISIBLE_DEVICES"), variables.get("NVIDIA_DRIVER_CAPABILITIES")) == (
        ("all", "utility") if gpus else (None, None)
    )


@each_job
def test_what_the_sidecar_may_take_is_its_budget(place: Path) -> None:
    """It is promised 64 MB and what one core in a hundred gives, and has room above that, though not a node's worth."""
    resources = container(job_in(place), "headway")["resources"]
    assert quantity(resources["requests"]["memory"]) >= 64e6
    assert 64e6 < quantity(resources["limits"]["memory"]) <= 256e6
    assert 0.01 <= quantity(resources["requests"]["cpu"]) <= 0.05
    assert quantity(resources["limits"]["cpu"]) <= 1


def test_only_the_sidecar_gets_a_token(tmp_path: Path) -> None:
    """Asking Kubernetes needs one; the trainer's container, which runs anybody's code, must not have it."""
    objects = manifests.composed(tmp_path, [TRAINER / "base", EXPORTER / "rbac"], [EXPORTER / "api"])
    job, role = only(objects, "Job"), only(objects, "Role")
    sidecar, trainer = each_container(job)
    assert [one["name"] for one in sidecar["volumeMounts"] if one["mountPath"] == str(SERVICE_ACCOUNT)] == [
        "headway-token"
    ]
    assert "headway-token" not in {one["name"] for one in trainer["volumeMounts"]}
    assert pod_of(job)["spec"]["automountServiceAccountToken"] is False
    assert pod_of(job)["spec"]["serviceAccountName"] == only(objects, "ServiceAccount")["metadata"]["name"]
    assert only(objects, "RoleBinding")["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    assert environment(sidecar, job)["HEADWAY_KUBERNETES"] == "auto"


# Overlays.


@each_job
def test_images_are_this_version(place: Path) -> None:
    """Built by the container files of this version, and never `latest`."""
    job = job_in(place)
    assert [one["image"] for one in each_container(job)] == [
        manifests.image("headway-exporter"),
        manifests.image("headway-trainer"),
    ]


def test_deleting_a_job_keeps_its_data() -> None:
    """Claims are in no kustomization of a job, but for the one that is a trial."""
    for place in manifests.JOBS:
        kinds = {one["kind"] for one in kustomized(place)}
        assert ("PersistentVolumeClaim" in kinds) is (place.name == "cpu")


def test_the_trial_needs_one_node_without_gpus() -> None:
    """Nothing of an operator, of GPUs, or of a storage that kind has not."""
    objects = kustomized(TRAINER / "overlays" / "cpu")
    assert {one["kind"] for one in objects} == {"Job", "Service", "PersistentVolumeClaim"}
    for one in objects:
        if one["kind"] == "PersistentVolumeClaim":
            assert one["spec"]["accessModes"] == ["ReadWriteOnce"]
    job = only(objects, "Job")
    assert container(job, "trainer")["resources"]["limits"].keys() == {"memory"}
    assert environment(container(job, "trainer"), job)["HEADWAY_TRAIN_PARALLEL__DEVICE"] == "cpu"


@pytest.mark.parametrize("name", ["gpu", "efa", "eks"])
def test_gpu_pods_land_on_gpu_nodes(name: str) -> None:
    """They tolerate those nodes' taint, ask for a node that has GPUs, and a lost node is given up after a minute."""
    spec = pod_of(job_in(TRAINER / "overlays" / name))["spec"]
    assert spec["affinity"]["podAffinity"]
    if name == "eks":  # by the type of machine, so that nothing must have labelled the nodes
        assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
        assert "nodeAffinity" not in spec["affinity"]
    else:
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    lost = {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"] if one["effect"] == "NoExecute"}
    assert lost == {"node.kubernetes.io/unreachable": 60, "node.kubernetes.io/not-ready": 60}


def test_the_eks_overlay_has_the_published_shape() -> None:
    """GPUs, network cards, variables, ports and file system of the published benchmark."""
    job = job_in(TRAINER / "overlays" / "eks")
    spec, trainer = pod_of(job)["spec"], container(job, "trainer")
    limits = trainer["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == (8, 32)
    published = {
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_NVLS_ENABLE": "0",
        "FI_PROVIDER": "efa",
        "FI_EFA_FORK_SAFE": "1",
        "RDMAV_FORK_SAFE": "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_CPP_LOG_LEVEL": "error",
        "MAX_RESTARTS": "5",
        "HEARTBEAT_TIMEOUT_SECONDS": "900",
        "FIRST_HEARTBEAT_TIMEOUT_SECONDS": "1200",
        "HEADWAY_TRAIN_STEPS": "2000",
        "HEADWAY_TRAIN_CHECKPOINT__EVERY": "500",
        "HEADWAY_TRAIN_RESILIENCE__SOFT_TIMEOUT_SECONDS": "300",
        "HEADWAY_TRAIN_RESILIENCE__HARD_TIMEOUT_SECONDS": "600",
        "HEADWAY_TRAIN_RESILIENCE__BARRIER_TIMEOUT_SECONDS": "900",
        "HEADWAY_TRAIN_RESILIENCE__COLLECTIVE_TIMEOUT_SECONDS": "60",
    }
    assert published.items() <= environment(trainer, job).items()
    assert "runtimeClassName" not in spec
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    storage = kustomized(TRAINER / "overlays" / "eks" / "storage")
    volume, claim = only(storage, "PersistentVolume"), only(storage, "PersistentVolumeClaim")
    assert volume["spec"]["csi"]["driver"] == "fsx.csi.aws.com"
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert claim["spec"]["resources"]["requests"] == volume["spec"]["capacity"] == {"storage": "1200Gi"}


def test_the_sidecar_joins_a_job_of_ones_own(tmp_path: Path) -> None:
    """The README's way: any Job whose container is called `trainer`, and nothing of it is lost."""
    own: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mine"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 4,
            "parallelism": 4,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "initContainers": [{"name": "prepare", "image": "mine:1", "command": ["true"]}],
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "mine:1",
                            "env": [{"name": "MINE", "value": "1"}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }
                    ],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                }
            },
        },
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "job.yaml").write_text(yaml.safe_dump(own))
    (tmp_path / "own" / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    (tmp_path / "with").mkdir()
    (job,) = manifests.composed(tmp_path / "with", [tmp_path / "own"], [SIDECAR])
    manifests.check(job, manifests.OLDEST)
    assert job["metadata"]["name"] == "mine"
    names = [one["name"] for one in pod_of(job)["spec"]["initContainers"]]
    assert names == ["headway", "prepare"]
    trainer = container(job, "trainer")
    assert (
        environment(trainer, job).items() >= {"MINE": "1", "HEADWAY_RUN": "mine", "HEADWAY_DIR": "/run/headway"}.items()
    )
    assert {one["mountPath"] for one in trainer["volumeMounts"]} == {"/data", "/run/headway"}
    assert {one["name"] for one in pod_of(job)["spec"]["volumes"]} == {"data", "headway-journal", "headway-state"}
