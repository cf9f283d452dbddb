"""Whole pods: a sidecar and a launcher with its ranks below a supervisor that starts the pod again, a folder each, one state folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_trainer import orchestrator
from headway_trainer.demo import runner

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

RUN: Final = "e2e"
QUICK: Final = "verdict_after_seconds=4,verdict_timeout_seconds=60,pod_silent_seconds=12,pod_live_seconds=2.5"
"""Seconds where a real sidecar waits half a minute for what other pods know."""


@dataclass(frozen=True)
class Job:
    """What all pods of a run have in common.

    Attributes:
        folder: of everything that the run leaves behind.
        pods: how many there are.
        ranks: of each pod.
        options: the trainer's.
    """

    folder: Path
    pods: int
    ranks: int
    options: Sequence[str]
    port: int

    @property
    def output(self) -> Path:
        """Where the trainer writes: storage that all pods share."""
        return self.folder / "output"

    @property
    def state(self) -> Path:
        """Where sidecars keep what outlives their pods, likewise."""
        return self.folder / "state"


@dataclass
class Pod:
    """One pod, running."""

    supervisor: subprocess.Popen[bytes]
    sidecar: runner.Sidecar
    log: Path

    def kill(self) -> None:
        """SIGKILL to everything in it at once: sidecar, launcher, ranks."""
        orchestrator.kill_below(self.supervisor.pid)


@contextlib.contextmanager
def pod(job: Job, index: int, *, node: str = "", port: int | None = None, restarts: int = 0) -> Iterator[Pod]:
    """Starts a pod; at the end whatever it left is killed.

    Args:
        job: what it is part of.
        index: its place in the run.
        node: where it runs, which decides where its journals are; by default a node of its own.
        port: where its sidecar answers; by default a free one.
        restarts: how often the supervisor starts it again, on the same node.
    """
    node, port = node or f"node-{index}", runner.free_ports(1) if port is None else port
    log = job.folder / f"{node}.log"
    command = [sys.executable, "-m", "headway_trainer.orchestrator", f"--restarts={restarts}", "--backoff=0.5", "--"]
    command += ["sh", "-c", f"{_sidecar(port)} & exec {shlex.join(_launcher(job, index))}"]
    with runner.started(command, log, _environment(job, index, node)) as process:
        one = Pod(process, runner.Sidecar(f"http://127.0.0.1:{port}", 0), log)
        try:
            yield one
        finally:
            process.terminate()  # it is not to start the pod again
            one.kill()


def _sidecar(port: int) -> str:
    return shlex.join([sys.executable, "-m", "headway", "exporter", "--listen", f"127.0.0.1:{port}"])


def _launcher(job: Job, index: int) -> list[str]:
    """As the Kubernetes Job starts it; ranks are given out in the order of the pods' addresses, as there of their names."""
    endpoint = ["--rdzv-endpoint", f"127.0.1.1:{job.port}", "--rdzv-id", RUN, "--local-addr", f"127.0.1.{1 + index}"]
    more = [*endpoint, f"--rdzv-conf=is_host={int(index == 0)}", f"--nnodes={job.pods}"]
    return runner.launcher_command(job.port, job.ranks, job.options, heartbeat_timeout_seconds=60, more=more)


def _environment(job: Job, index: int, node: str) -> Mapping[str, str]:
    return {
        "HEADWAY_DIR": str(job.folder / node),
        "HEADWAY_STATE_DIR": str(job.state),
        "HEADWAY_RUN": RUN,
        "HEADWAY_POD_INDEX": str(index),
        "HEADWAY_PODS": str(job.pods),
        "HEADWAY_NODE": node,
        "HEADWAY_THRESHOLDS": QUICK,
        "HEADWAY_LINGER_SECONDS": "0",
    }
