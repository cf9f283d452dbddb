"""Slurm's commands as far as the batch script needs them, on one machine: each "node" is a host name, a /dev/shm and a port of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import simulated_nodes


def scontrol(words: list[str]) -> int:
    """`scontrol show hostnames LIST`, in the order that Slurm would have: node9 before node10."""
    assert words[:2] == ["show", "hostnames"], words
    print("\n".join(words[2].split(",")))
    return 0


def srun(words: list[str]) -> int:
    """One task on each node at the same time; signals go to them; the worst of their exit codes is srun's."""
    command = words[next(number for number, word in enumerate(words) if not word.startswith("-")) :]
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
    assert f"--ntasks={len(nodes)}" in words
    tasks = [task(command, node, number) for number, node in enumerate(nodes)]
    # To the task's group, as Slurm does it.
    signal.signal(signal.SIGTERM, lambda number, _: [os.killpg(one.pid, number) for one in tasks if one.poll() is None])
    return max(one.wait() for one in tasks)


def task(command: list[str], node: str, number: int) -> subprocess.Popen[bytes]:
    """The task of one node."""
    files = Path(os.environ["STAND_IN_FILES"])
    left = 'mount -t tmpfs tmpfs /dev/shm && { "$@"; status=$?; ls /dev/shm > "$LEFT"; exit $status; }'
    entered = simulated_nodes.on_host(node, files / "hosts", ["sh", "-c", f"trap : TERM; {left}", "sh", *command])
    variables = {
        "SLURM_NODEID": str(number),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": node,
        "HEADWAY_LISTEN": f"127.0.0.1:{os.environ[f'STAND_IN_PORT_{number}']}",
        "LEFT": str(files / f"left-{number}"),
    }
    with (files / f"node-{number}.log").open("wb") as log:
        return subprocess.Popen(
            entered, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


if __name__ == "__main__":
    sys.exit({"scontrol": scontrol, "srun": srun}[sys.argv[1]](sys.argv[2:]))
