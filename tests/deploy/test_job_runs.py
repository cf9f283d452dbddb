"""The Job's own containers, started as a kubelet would, but that folders are elsewhere."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

import manifests
import pytest
import simulated_nodes
from harness import wait_until
from manifests import TRAINER, container, environment

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from pathlib import Path

PODS: Final = (0, 1)
STEPS: Final = 40


def hosts(folder: Path, job: str, service: str) -> Path:
    """What the cluster's DNS and the kubelet would tell; each pod has an address of its own."""
    names = [f"{job}-{index}.{service}" for index in PODS]
    lines = [
        f"127.0.1.{1 + index} {name}.training.svc.cluster.local {job}-{index} {name}"
        for index, name in enumerate(names)
    ]
    file = folder / "hosts"
    file.write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    return file


def variables(name: str, job: manifests.Object, index: int, folder: Path, more: dict[str, str]) -> dict[str, str]:
    """The container's environment, with the volumes' folders below `folder`; the journals are each pod's own."""
    given = environment(container(job, name), job, index)
    places = {"/run/headway": f"{folder}/journal-{index}", "/var/lib/headway": f"{folder}/state"}
    moved = {
        key: places.get(value, value).replace("/checkpoints", f"{folder}/checkpoints") for key, value in given.items()
    }
    return simulated_nodes.surroundings({**moved, **more})


def test_a_bad_option_ends_the_job_at_once(tmp_path: Path) -> None:
    """The container ends with the exit code for which the Job is given up, and no launcher tries it again and again."""
    job = manifests.only(manifests.kustomized(TRAINER / "overlays" / "cpu"), "Job")
    (rule,) = [one for one in job["spec"]["podFailurePolicy"]["rules"] if one["action"] == "FailJob"]
    one = container(job, "trainer")
    given = variables("trainer", job, 0, tmp_path, {"HEADWAY_TRAIN_STEPS": "many"})
    done = subprocess.run(
        [*one["command"], *one["args"]], env=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in rule["onExitCodes"]["values"]
    assert done.stderr == "headway train: --steps: must be a whole number, got many\n"


@pytest.mark.e2e
@pytest.mark.alone
def test_two_pods_find_each_other_by_name_and_train(tmp_path: Path) -> None:
    """By the rendered Job's commands and variables ranks of two hosts meet at pod 0's DNS name, and each sidecar has its pod's series."""
    simulated_nodes.need_namespaces()
    job = manifests.only(manifests.kustomized(TRAINER / "overlays" / "cpu"), "Job")
    name, service = job["metadata"]["name"], manifests.pod_of(job)["spec"]["subdomain"]
    table, ports = hosts(tmp_path, name, service), [runner.free_ports(1) for _ in PODS]
    small = {
        "MASTER_PORT": str(runner.free_ports()),
        "RANKS_PER_POD": "1",
        "HEADWAY_TRAIN_STEPS": str(STEPS),
        "HEADWAY_TRAIN_CHECKPOINT__EVERY": "10",
        "HEADWAY_TRAIN_EVALUATION__EVERY": "0",
        "HOME": str(tmp_path),
    }
    with contextlib.ExitStack() as stack:
        trainers = []
        for index in PODS:
            listen = {"HEADWAY_LISTEN": f"127.0.0.1:{ports[index]}", "HEADWAY_LINGER_SECONDS": "0"}
            for part, more in (("headway", listen), ("trainer", small)):
                one = container(job, part)
                command = simulated_nodes.on_host(f"{name}-{index}", table, [*one["command"], *one.get("args", [])])
                given = variables(part, job, index, tmp_path, more)
                process = stack.enter_context(simulated_nodes.started(command, given, tmp_path / f"{part}-{index}.log"))
                trainers += [process] if part == "trainer" else []
        for index, process in enumerate(trainers):
            wait_until(lambda: process.poll() is not None, f"pod {index} ended", 200, tmp_path / f"trainer-{index}.log")  # noqa: B023 - called at once
        assert [process.poll() for process in trainers] == [0, 0], (tmp_path / "trainer-0.log").read_text()
        for index in PODS:
            sidecar = runner.Sidecar(f"http://127.0.0.1:{ports[index]}", 0)
            wait_until(lambda: (sidecar.status() or {}).get("finished"), f"sidecar {index} saw the end", 20)  # noqa: B023 - called at once
            labels = f'{{pod_index="{index}",run="{name}"}}'
            scraped = sidecar.scrape().splitlines()
            assert f"headway_step{labels} {STEPS}.0" in scraped
            assert f"headway_world_size{labels} {len(PODS)}.0" in scraped
            assert f"headway_pods_expected{labels} {len(PODS)}.0" in scraped
            assert any(line.startswith("headway_rank_info{") and f'rank="{index}"' in line for line in scraped), (
                "rank 0 hosts the in-process layer's store, which all look for at the name of pod 0"
            )
            assert [line for line in scraped if line.startswith("headway_run_info{") and 'node="node-a"' in line]
    assert {folder.name for folder in (tmp_path / "state" / name).iterdir() if folder.is_dir()} >= {"0", "1"}
