"""A real Slurm on one machine: its controller and two nodes, each with a host name, processes and /dev/shm of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
import simulated_nodes
from harness import wait_until

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES: Final = ("node9", "node10")
"""Slurm's order; as text the second comes first."""

_PROGRAMS: Final = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "sinfo")
_OWN_PROCESSES: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONFIGURATION: Final = """\
ClusterName=headway
SlurmctldHost=control(127.0.1.3)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
SelectType=select/cons_tres
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
NodeName=node9 NodeAddr=127.0.1.1 Port={node9} CPUs=2 RealMemory=1000
NodeName=node10 NodeAddr=127.0.1.2 Port={node10} CPUs=2 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""
_HOSTS: Final = """\
127.0.0.1 localhost
127.0.1.1 node9
127.0.1.2 node10
127.0.1.3 control
"""


@dataclass(frozen=True)
class Cluster:
    """Slurm, ready for jobs."""

    folder: Path
    listen: dict[str, int]
    """Each node's port for its sidecar."""

    def run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        """What one of Slurm's commands printed."""
        surroundings = {
            **(environment or simulated_nodes.surroundings({})),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job, as JobState and ExitCode."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", "--oneliner", number)))

    def left_in_memory(self, node: str) -> list[str]:
        """What is in a node's /dev/shm."""
        return sorted(path.name for path in self.memory(node).iterdir())

    def memory(self, node: str) -> Path:
        """A node's /dev/shm."""
        return self.folder / f"memory-{node}"


def need_slurm() -> None:
    """Skips where it cannot run."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt install slurmctld slurmd slurm-client)")
    if os.getuid() != 0:
        pytest.skip("Slurm's node daemon must be root")
    simulated_nodes.need_namespaces()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """Controller and nodes, until the end of the block; jobs end with them."""
    need_slurm()
    first = runner.free_ports(5)
    ports = {name: first + place for place, name in enumerate(("control", *NODES))}
    cluster = Cluster(folder, {node: first + 3 + place for place, node in enumerate(NODES)})
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, **ports))
    (folder / "hosts").write_text(_HOSTS)
    for name in ("state", "memory-control", *(f"{kind}-{node}" for kind in ("spool", "memory") for node in NODES)):
        (folder / name).mkdir()
    prolog = "".join(
        f"{node}) echo export HEADWAY_LISTEN=127.0.0.1:{port};;\n" for node, port in cluster.listen.items()
    )
    (folder / "prolog").write_text(f"#!/bin/sh\ncase $SLURMD_NODENAME in\n{prolog}esac\n")
    (folder / "prolog").chmod(0o755)
    with contextlib.ExitStack() as stack:
        for node, command in (
            ("control", ["slurmctld", "-D"]),
            *((node, ["slurmd", "-D", "-N", node]) for node in NODES),
        ):
            own = ["sh", "-c", 'mount --bind "$1" /dev/shm && shift && exec "$@"', "sh", str(folder / f"memory-{node}")]
            stack.enter_context(
                runner.started(
                    simulated_nodes.on_host(node, folder / "hosts", [*own, *_OWN_PROCESSES, *command]),
                    folder / f"{node}.log",
                    {"SLURM_CONF": str(folder / "slurm.conf")},
                )
            )
        wait_until(lambda: _idle(cluster) == len(NODES), "both nodes are idle", 60, folder / "control.log")
        yield cluster
        cluster.run("scontrol", "shutdown")


def _idle(cluster: Cluster) -> int:
    try:
        return cluster.run("sinfo", "--noheader", "--Node", "--format=%T").split().count("idle")
    except AssertionError:  # nobody answers yet
        return 0
