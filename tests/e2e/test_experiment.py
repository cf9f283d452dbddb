"""`headway experiment` with real launchers, supervisors and sidecars: its books, its orders, its ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

COMMAND = (sys.executable, "-m", "headway", "experiment", "--quick")


def experiment(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [*COMMAND, "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


def document(out: Path) -> dict[str, Any]:
    """What it wrote for programs."""
    written: dict[str, Any] = json.loads((out / "results.json").read_text())
    return written


def left_running(out: Path) -> Iterator[str]:
    """Command lines of processes that have something to do with that folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(out) in line:
                yield line


@pytest.mark.timeout(900)
def test_the_quick_grid(tmp_path: Path) -> None:
    """Each fault is recovered by the layer that it must be, the books add up, the orders are the published ones; again is at once."""
    done = experiment(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = document(tmp_path)
    cells = {cell["cell"]: cell for cell in written["cells"]}
    assert list(cells) == ["sync/in_process@20", "async/launcher@20", "async/orchestrator@20"]
    schedule = [fault.partition("@")[0] for fault in written["schedule"]]
    assert sorted(schedule) == ["exception", "sigkill"]
    layers = {name: [one["layer"] for one in cell["recoveries"]] for name, cell in cells.items()}
    by_kind = {"exception": "in_process", "sigkill": "launcher"}
    assert layers["sync/in_process@20"] == [by_kind[kind] for kind in schedule]
    assert layers["async/launcher@20"] == ["launcher", "launcher"]
    assert layers["async/orchestrator@20"] == ["orchestrator", "orchestrator"]
    for cell in cells.values():
        assert cell["struck"] == 2
        assert sorted(one["origin_rank"] for one in cell["recoveries"]) == [0, 1]
        assert sum(cell["shares"].values()) == pytest.approx(1)
        assert 0 < cell["training_goodput"]["ours"] < cell["infrastructure_goodput"]["ours"] < 1
        assert cell["training_goodput"]["ours"] == pytest.approx(cell["shares"]["productive"], abs=1e-6)
        assert 0 < cell["training_goodput"]["theirs"] < 1
        # The published formula takes each interval's checkpoint for committed: nobody can lose less than it says.
        assert (
            cell["lost_steps"]["ours"] >= cell["lost_steps"]["theirs"] - cell["struck"]
        )  # ranks are a step apart at most
    medians = [written["recovery_by_layer"][layer]["p50"] for layer in ("in_process", "launcher", "orchestrator")]
    assert medians == sorted(medians)
    assert cells["async/launcher@20"]["efficiency"]["ours"] > cells["sync/in_process@20"]["efficiency"]["ours"]
    assert list(left_running(tmp_path)) == []

    table = (tmp_path / "table.md").read_text()
    again = experiment(tmp_path)
    assert again.returncode == 0
    assert "3 of 3 cells are in" in again.stdout
    assert (tmp_path / "table.md").read_text() == table


@pytest.mark.timeout(600)
def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """It is shown as failed with its reason, the rest is run, the exit code is 1; and once the reason is gone it is run again alone."""
    words = ("--faults", "0", "--steps", "12", "--cells", "sync/in_process@20,async/launcher@20")
    (tmp_path / "experiment.json").touch()
    (tmp_path / "cells").mkdir()
    in_the_way = tmp_path / "cells" / "sync-in_process-20"
    in_the_way.write_text("no folder")
    done = experiment(tmp_path, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {cell["cell"]: cell["state"] for cell in document(tmp_path)["cells"]} == {
        "sync/in_process@20": "failed",
        "async/launcher@20": "done",
    }
    assert "failed: [Errno 20] Not a directory" in (tmp_path / "table.md").read_text()

    in_the_way.unlink()
    again = experiment(tmp_path, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 of 2 cells are in" in again.stdout
    assert [cell["state"] for cell in document(tmp_path)["cells"]] == ["done", "done"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_experiment_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    """Supervisor, launcher, ranks, writers and sidecar all end with it, and it says how to go on."""
    command = [*COMMAND, "--out", str(tmp_path), "--cells", "async/launcher@20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        history = tmp_path / "cells" / "async-launcher-20" / "run" / "history.jsonl"
        deadline = time.monotonic() + 120
        while not history.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(list(left_running(tmp_path))) > 4
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert errors.splitlines() == [
        "headway experiment: stopped; cells that had ended are kept, the same command goes on from there"
    ]
    assert list(left_running(tmp_path)) == []
