"""Runs one cell: the real trainer under real layers, beside a real sidecar with a state folder; and what is kept of it."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.demo import runner
from headway_trainer.experiment import plan as plans
from headway_trainer.faults import fired_faults
from headway_trainer.orchestrator import kill_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headway_trainer.experiment.kept import Result
    from headway_trainer.experiment.plan import Cell, Plan

POLL_SECONDS: Final = 0.5
LAST_WORD_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 180.0
"""A run that makes no new step or restart for so long, beyond its pauses, will not end by itself."""
POD: Final = "0"
HEARTBEAT_TIMEOUT_SECONDS: Final = 60


class CellError(RuntimeError):
    """The cell did not come to its end; the message says why and where to look."""


def run(plan: Plan, cell: Cell, folder: Path, show: Callable[[dict[str, Any]], None]) -> Result:
    """Run the cell to its end in its empty folder.

    Args:
        plan: what all cells have in common.
        cell: which one.
        folder: its own.
        show: is given the sidecar's status twice a second.

    Returns:
        What was injected and what the sidecar made of it, in JSON's types; see `measure`.

    Raises:
        CellError: it did not end, or not well.
        runner.DemoError: a process did not start.
    """
    started = time.time()
    journals, state, output = folder / "journal", folder / "state", folder / "run"
    name = cell.folder
    environment = {"HEADWAY_DIR": str(journals), "HEADWAY_RUN": name, "HEADWAY_POD_INDEX": POD}
    with runner.sidecar(journals, name, folder / "sidecar.log", state_dir=state) as sidecar:
        with _training(_command(plan, cell, output), environment, folder / "trainer.log") as training:
            _watch(plan, training, sidecar, show)
            if training.exit_code != 0:
                raise CellError(f"training ended with {training.exit_code}; its output is in {training.log}")
        _await_last_word(sidecar, folder)
    return {
        "state": "done",
        "started_wall": started,
        "seconds": time.time() - started,
        "storage_seconds": plan.write_seconds,
        "fired": [
            {"kind": one.fault.kind, "step": one.step, "rank": one.rank, "wall": one.wall}
            for one in fired_faults(output / "faults")
        ],
        "summary": _summary(state / name / POD / "ledger.json"),
    }


def failed(reason: str) -> Result:
    """What is kept of a cell that did not come to its end."""
    return {"state": "failed", "reason": reason}


def _command(plan: Plan, cell: Cell, output: Path) -> list[str]:
    launched = runner.launcher_command(
        runner.free_ports(),
        plans.RANKS,
        plans.trainer_options(plan, cell, output),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        max_restarts=plans.launcher_restarts(plan, cell),
    )
    return [sys.executable, "-m", "headway_trainer.orchestrator", *plans.supervisor_options(plan), "--", *launched]


@contextmanager
def _training(command: list[str], environment: dict[str, str], log: Path) -> Iterator[runner.Training]:
    """The run; one that is interrupted is killed at once, whole, for nothing of it will be read."""
    with runner.training(command, environment, log) as training:
        try:
            yield training
        finally:
            if training.exit_code is None:
                training.process.terminate()
                kill_below(training.process.pid)


def _watch(
    plan: Plan, training: runner.Training, sidecar: runner.Sidecar, show: Callable[[dict[str, Any]], None]
) -> None:
    patience = SILENCE_SECONDS + min(plan.backoff_seconds * 2**plan.faults, plan.longest_backoff_seconds)
    last: tuple[Any, ...] = ()
    changed = time.monotonic()
    while training.exit_code is None:
        status = sidecar.status()
        if status is not None:
            show(status)
            now = (status["step"], sum(status["restarts"].values()))
            if now != last:
                last, changed = now, time.monotonic()
        if time.monotonic() - changed > patience:
            raise CellError(f"no new step for {patience:.0f} s; the output so far is in {training.log}")
        time.sleep(POLL_SECONDS)


def _await_last_word(sidecar: runner.Sidecar, folder: Path) -> None:
    """Until the sidecar has seen every rank finish."""
    deadline = time.monotonic() + LAST_WORD_SECONDS
    while (status := sidecar.status()) is None or not status["finished"]:
        if time.monotonic() > deadline:
            raise CellError(f"the sidecar did not see the end of the run; its output is in {folder / 'sidecar.log'}")
        time.sleep(POLL_SECONDS)


def _summary(ledger: Path) -> dict[str, Any]:
    """The readers' part of the sidecar's memory, as it left it."""
    try:
        summary: dict[str, Any] = json.loads(ledger.read_text().partition("\n")[2])["summary"]
    except (OSError, ValueError, KeyError) as error:
        raise CellError(f"the sidecar's ledger {ledger} cannot be read: {error}") from error
    return summary
