"""The manifests: understood by Kubernetes as they are meant, and true to the code that they start."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import manifests
import pytest
import yaml
from manifests import EXPORTER, ROOT, TRAINER, Object, container, environment, kustomized, only, pod_of, quantity

from headway import environment as environment_module
from headway.journal import DEFAULT_MAX_BYTES
from headway.ring_format import DEFAULT_CAPACITY, HEADER_BYTES, RECORD_BYTES
from headway.supervisor import _parse as supervised
from headway.supervisor import _parser as supervisor_parser
from headway_exporter import cli as exporter_cli
from headway_exporter.health.kubernetes import LAST_SECONDS, SERVICE_ACCOUNT
from headway_trainer.arguments import all_options, parse_args
from headway_trainer.cli import IN_PROCESS_STORE_PORT_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES: Final = manifests.of_kind("Kustomization")
JOBS: Final = [TRAINER / "base", *(TRAINER / "overlays" / name for name in ("cpu", "gpu", "efa", "eks"))]
SIDECAR: Final = EXPORTER / "sidecar"
LAUNCHER_PORT: Final = 29500
PAGE: Final = 4096
RANKS: Final = 8
LIMIT_OF_APPLY: Final = 256 << 10
"""What fits into the annotation in which a client-side `kubectl apply` keeps an object."""

each_place = pytest.mark.parametrize("place", PLACES, ids=manifests.shown)
each_job = pytest.mark.parametrize("place", JOBS, ids=manifests.shown)


def job_in(place: Path) -> Object:
    """The job of a kustomization."""
    return only(kustomized(place), "Job")


# Understood.


@pytest.mark.parametrize("version", manifests.VERSIONS)
@each_place
def test_every_object_is_understood(place: Path, version: str) -> None:
    """By Kubernetes' own schemas, unknown fields refused, from the oldest version that can run it to the newest; the operator's kinds too."""
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


def each_container(job: Object) -> list[Object]:
    """The sidecar and the trainer."""
    return [container(job, "headway"), container(job, "trainer")]


@each_job
def test_no_container_has_more_rights_than_it_needs(place: Path) -> None:
    """No root, no way to become it, no capability but EFA's, no writable root file system, no token; limits for what the sidecar may take."""
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


# Places that trainer and sidecar share.


@each_job
def test_the_journal_is_memory_that_suffices(place: Path) -> None:
    """Twice the most that 8 ranks can write, which the trainer writes and the sidecar only reads."""
    job = job_in(place)
    (volume,) = [one for one in pod_of(job)["spec"]["volumes"] if one["name"] == "headway-journal"]
    sidecar, trainer = each_container(job)
    folder = environment(trainer, job)["HEADWAY_DIR"]
    assert environment(sidecar, job)["HEADWAY_DIR"] == folder
    assert {"name": "headway-journal", "mountPath": folder, "readOnly": True} in sidecar["volumeMounts"]
    assert {"name": "headway-journal", "mountPath": folder} in trainer["volumeMounts"]
    ring = -(-(HEADER_BYTES + DEFAULT_CAPACITY * RECORD_BYTES) // PAGE) * PAGE
    journal = 2 * DEFAULT_MAX_BYTES
    bound = RANKS * (2 * ring + journal) + journal
    assert volume["emptyDir"]["medium"] == "Memory"
    assert 2 * bound <= quantity(volume["emptyDir"]["sizeLimit"]) < 2.5 * bound
    assert int(environment(trainer, job)["RANKS_PER_POD"]) <= RANKS


@each_job
def test_every_mount_has_its_volume(place: Path) -> None:
    """And each claim is one that a kustomization beside it makes."""
    job = job_in(place)
    volumes = {one["name"]: one for one in pod_of(job)["spec"]["volumes"]}
    mounted = {mount["name"] for one in each_container(job) for mount in one["volumeMounts"]}
    assert mounted == volumes.keys()
    claims = {
        one["metadata"]["name"]
        for folder in (EXPORTER / "state", TRAINER / "storage")
        for one in kustomized(folder)
        if one["kind"] == "PersistentVolumeClaim"
    }
    asked = {one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one}
    assert asked <= claims


# True to the code.


@each_job
def test_the_sidecar_is_given_options_that_it_has(place: Path) -> None:
    """Its own parser reads command and variables; port, folder and probes are what it then uses."""
    job = job_in(place)
    sidecar = container(job, "headway")
    assert sidecar["command"] == ["headway", "exporter"]
    variables = environment(sidecar, job, index=1)
    options = exporter_cli._parser(variables).parse_args(sidecar.get("args", []))
    assert (options.run, options.pod_index, str(options.dir)) == (
        job["metadata"]["name"],
        "1",
        variables["HEADWAY_DIR"],
    )
    assert any(options.state_dir.is_relative_to(one["mountPath"]) for one in sidecar["volumeMounts"])
    assert options.gpus is (variables["HEADWAY_GPUS"] == "on")
    (port,) = sidecar["ports"]
    assert options.listen == ("", port["containerPort"])
    assert f":{port['containerPort']}" == exporter_cli.DEFAULT_LISTEN
    for probe in ("livenessProbe", "readinessProbe"):
        assert sidecar[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert "startupProbe" not in sidecar, "the trainer would wait for it"
    assert sidecar["restartPolicy"] == "Always"


@each_job
def test_the_pod_ends_slowly_enough_for_the_last_scrape(place: Path) -> None:
    """The sidecar stays for it, asks Kubernetes a last time, and the trainer needs some time before both."""
    sidecar_needs = exporter_cli.DEFAULT_LINGER_SECONDS + LAST_SECONDS
    assert pod_of(job_in(place))["spec"]["terminationGracePeriodSeconds"] >= sidecar_needs + 60


def known_variables() -> set[str]:
    """Every variable that Headway reads."""
    parsers = (exporter_cli._parser({}), supervisor_parser())
    texts = [environment_module.__doc__ or "", *(parser.format_help() for parser in parsers)]
    named = {name for text in texts for name in re.findall(r"HEADWAY_[A-Z_]+|NODE_NAME|POD_[A-Z]+", text)}
    options = {f"HEADWAY_TRAIN_{option.key.replace('.', '__').upper()}" for option in all_options()}
    return named | options | {"POD_NAMESPACE", "POD_UID"}  # of OpenTelemetry's resource, and of the Kubernetes API


@each_job
def test_no_variable_is_misspelt(place: Path) -> None:
    """A name that nobody reads would do nothing, in silence."""
    job = job_in(place)
    ours = re.compile(r"HEADWAY_|POD_|NODE_")
    set_here = {name for one in each_container(job) for name in environment(one, job) if ours.match(name)}
    assert len(set_here) > 10
    assert set_here - known_variables() == set()
    for one in each_container(job):
        names = [variable["name"] for variable in one["env"]]
        assert len(names) == len(set(names))


def launched(job: Object, index: int, folder: Path) -> list[str]:
    """What the trainer's container starts in this pod: its own shell line, with a `headway` that tells its arguments."""
    told = folder / f"told-{index}"
    stand_in = folder / "headway"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {told}\n')
    stand_in.chmod(0o755)
    one = container(job, "trainer")
    variables = environment(one, job, index) | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run([*one["command"], *one["args"]], env=variables, check=True, timeout=30)
    return told.read_text().split("\0")[:-1]


@each_job
def test_the_trainer_is_given_options_that_it_has(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headway run`, NVRx's launcher and the trainer read their parts by their own parsers; pod 0 hosts the store."""
    launcher = pytest.importorskip("nvidia_resiliency_ext.fault_tolerance.launcher")
    job = job_in(place)
    variables = environment(container(job, "trainer"), job)
    for index in (0, 1, 10):
        words = launched(job, index, tmp_path)
        assert words[0] == "run"
        _, command = supervised(words[1:])
        assert command[0] == "ft_launcher"
        options = launcher.get_args_parser().parse_args(command[1:])
        assert (options.module, options.training_script, options.training_script_args) == (True, "headway_trainer", [])
        assert options.nnodes == str(job["spec"]["completions"])
        assert options.nproc_per_node == variables["RANKS_PER_POD"]
        assert options.rdzv_endpoint == f"{variables['MASTER_HOST']}:{LAUNCHER_PORT}"
        assert variables["MASTER_PORT"] == str(LAUNCHER_PORT)
        assert options.rdzv_conf == f"is_host={int(index == 0)}"
        assert options.rdzv_id == job["metadata"]["name"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = parse_args([])
    assert config.steps == int(variables["HEADWAY_TRAIN_STEPS"])
    assert config.output.startswith("/checkpoints/")
    assert float(variables["HEARTBEAT_TIMEOUT_SECONDS"]) > config.resilience.hard_timeout_seconds
    assert float(variables["FIRST_HEARTBEAT_TIMEOUT_SECONDS"]) >= float(variables["HEARTBEAT_TIMEOUT_SECONDS"])


@each_job
def test_peers_find_rank_0_by_its_name(place: Path) -> None:
    """The name that DNS gives pod 0, by a headless Service that lists pods before they are ready, and the ports that are used there."""
    objects = kustomized(place)
    job, service = only(objects, "Job"), only(objects, "Service")
    pod = pod_of(job)
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert environment(container(job, "trainer"), job)["MASTER_HOST"] == (
        f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    )
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {one["port"] for one in service["spec"]["ports"]}
    assert ports == {LAUNCHER_PORT, LAUNCHER_PORT + 1, LAUNCHER_PORT + IN_PROCESS_STORE_PORT_OFFSET}


@each_job
def test_a_lost_pod_is_replaced_and_a_bad_option_is_not_tried_again(place: Path) -> None:
    """Every place has its own budget; a drained node costs none of it; and the number of pods is the same everywhere."""
    job = job_in(place)
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] == int(environment(container(job, "trainer"), job)["HEADWAY_PODS"])
    assert pod_of(job)["spec"]["restartPolicy"] == "Never"
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (10, 0)
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (final["action"], final["onExitCodes"]["values"]) == ("FailJob", [2, 126, 127])
    assert spec["podReplacementPolicy"] == "Failed"


def test_a_replaced_pod_knows_how_often_its_place_has_failed() -> None:
    """The Job writes it on the pod, and the recorder reads it as the attempt."""
    job = job_in(TRAINER / "base")
    one = container(job, "trainer")
    for failures, attempt in (("", 0), ("3", 3)):
        identity = environment_module.Identity.from_env(environment(one, job, failures=failures))
        assert (identity.attempt, identity.warnings, identity.run) == (attempt, (), "headway-trainer")


# Monitoring.


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
    for place in JOBS:
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
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
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
    assert environment(trainer, job).items() >= {"MINE": "1", "HEADWAY_RUN": "mine", "HEADWAY_DIR": "/run/headway"}.items()
    assert {one["mountPath"] for one in trainer["volumeMounts"]} == {"/data", "/run/headway"}
    assert {one["name"] for one in pod_of(job)["spec"]["volumes"]} == {"data", "headway-journal", "headway-state"}
