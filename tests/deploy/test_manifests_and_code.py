"""The manifests are true to the code that they start: its options, variables, folders, ports, sizes and times."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
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

from headway import environment as environment_module
from headway.journal import DEFAULT_MAX_BYTES
from headway.ring_format import DEFAULT_CAPACITY, HEADER_BYTES, RECORD_BYTES
from headway.supervisor import _parse as supervised
from headway.supervisor import _parser as supervisor_parser
from headway_exporter import cli as exporter_cli
from headway_exporter.health.kubernetes import LAST_SECONDS
from headway_trainer.arguments import all_options, parse_args
from headway_trainer.cli import IN_PROCESS_STORE_PORT_OFFSET

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHER_PORT: Final = 29500
PAGE: Final = 4096
RANKS: Final = 8


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


# Options, names, times.


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
def test_the_trainer_is_given_options_that_it_has(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (
        spec["parallelism"] == spec["completions"] == int(environment(container(job, "trainer"), job)["HEADWAY_PODS"])
    )
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
