"""Real runs for the end-to-end tests: launcher, two ranks, sidecar; and what each of them says afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.journal import JournalReader
from headway.ring import RingReader
from headway_trainer.demo import report, runner
from headway_trainer.faults import FiredFault, fired_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headway.ring import StepRecord

PATIENT = (
    "--resilience.soft-timeout-seconds=60",
    "--resilience.hard-timeout-seconds=70",
    "--resilience.barrier-timeout-seconds=80",
)
"""In-process time-outs far above the launcher's heartbeat time-out: hangs are then the launcher's to find."""

STEPS = 90
"""Length of the runs that are compared with the undisturbed one."""

LIMIT_SECONDS = 280.0


@dataclass
class Outcome:
    """What is left of a run."""

    output: Path
    exit_code: int
    log: str
    status: dict[str, Any]
    metrics: str
    injected: list[FiredFault] = field(default_factory=list)

    @property
    def results(self) -> list[dict[str, Any]]:
        """Final loss and digest of all weights, by rank."""
        return report.read_results(self.output)

    @property
    def resumes(self) -> list[report.Resume]:
        """Where each incarnation started, by the trainer's own account."""
        return report.read_resumes(self.output / "history.jsonl")

    def differences(self) -> list[str]:
        """Where what was observed is not what was injected."""
        rows, surplus = report.compare(self.injected, self.status["recoveries"], self.resumes)
        return [f"{row.fired.fault}: {problem}" for row in rows for problem in row.problems] + surplus


def trainer_options(output: Path, *, steps: int, faults: Sequence[str] = (), more: Sequence[str] = ()) -> list[str]:
    """Small and quick: checkpoints every 10 steps, no evaluation."""
    options = [f"--steps={steps}", f"--output={output}", "--checkpoint.every=10", "--evaluation.every=0", *more]
    return [*options, "--faults", *faults] if faults else options


def torchrun(options: Sequence[str]) -> list[str]:
    """The same two ranks under plain torchrun: no heartbeats."""
    port = runner.free_ports()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3"]
    launcher += ["--monitor-interval=0.5", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    return [sys.executable, "-m", "headway", "run", "--", *launcher, "-m", "headway_trainer", *options]


def ft_launcher(options: Sequence[str], *, heartbeat_timeout_seconds: int = 8, more: Sequence[str] = ()) -> list[str]:
    """Two ranks under NVRx's launcher, as the demo starts them; `more` goes to the launcher."""
    port = runner.free_ports()
    command = runner.launcher_command(port, 2, options, heartbeat_timeout_seconds=heartbeat_timeout_seconds)
    at = len(command) - len(options) - len(("-m", "headway_trainer"))
    return [*command[:at], *more, *command[at:]]


def alone(options: Sequence[str]) -> list[str]:
    """One process, no launcher."""
    return [sys.executable, "-m", "headway_trainer", *options]


def orchestrated(command: Sequence[str]) -> list[str]:
    """Below the trainer package's pod supervisor."""
    return [sys.executable, "-m", "headway_trainer.orchestrator", "--restarts=2", "--backoff=0.5", "--", *command]


def run(
    command: Sequence[str], output: Path, *, during: Callable[[runner.Sidecar, Path], None] | None = None
) -> Outcome:
    """Run to the end beside a sidecar.

    Args:
        command: starts launcher and ranks.
        output: the run's folder, as in the trainer's options.
        during: called once while training goes on, with the sidecar and the journal folder.
    """
    output.mkdir(parents=True, exist_ok=True)
    journals = output / "journal"
    environment = {"HEADWAY_DIR": str(journals), "HEADWAY_RUN": "e2e", "HEADWAY_POD_INDEX": "0"}
    with (
        runner.sidecar(journals, "e2e", output / "sidecar.log") as sidecar,
        runner.training(command, environment, output / "trainer.log") as training,
    ):
        if during is not None:
            during(sidecar, journals / "e2e")
        wait_until(lambda: training.exit_code is not None, "the run ended", LIMIT_SECONDS, training.log)
        wait_until(lambda: (sidecar.status() or {}).get("finished"), "the sidecar saw the end", 15, training.log)
        status, metrics = sidecar.status(), sidecar.scrape()
    assert status is not None
    assert training.exit_code is not None
    log = training.log.read_text(errors="replace")
    return Outcome(output, training.exit_code, log, status, metrics, fired_faults(output / "faults"))


def run_unobserved(command: Sequence[str], output: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run to the end without a sidecar; returns exit code and output."""
    output.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    return done.returncode, done.stdout + done.stderr


def checkpoints_of_rank(outcome: Outcome, rank: int) -> list[dict[str, Any]]:
    """Fields of the rank's `checkpoint` events, in order."""
    reader = JournalReader(outcome.output / "journal" / "e2e" / f"slot-{rank}.jsonl")
    return [dict(event.fields) for event in reader.poll() if event.kind == "checkpoint"]


def steps_of_rank(outcome: Outcome, rank: int) -> list[StepRecord]:
    """The step records of the rank's newest life."""
    folder = outcome.output / "journal" / "e2e"
    newest = max(folder.glob(f"slot-{rank}.*.steps"), key=lambda path: path.stat().st_mtime)
    return RingReader.open(newest).poll()


def wait_until(condition: Callable[[], Any], what: str, seconds: float, log: Path | None = None) -> None:
    """Poll until the condition holds; fails with the end of the log otherwise."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log and log.exists() else ""
            raise AssertionError(f"{what}: not within {seconds:g} s\n{tail}")
        time.sleep(0.1)
