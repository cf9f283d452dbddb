"""Whatever happens to the sidecar and to the journal's disk, training goes on and gives the same result."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import harness
import pytest

from headway_trainer.demo import report, runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

STEPS = 40


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """The result of one process that records on a healthy disk."""
    output = tmp_path_factory.mktemp("healthy")
    journal = output / "journal"
    code, log = harness.run_unobserved(command(output), output, {"HEADWAY_DIR": str(journal)})
    assert code == 0, log
    assert (journal / "default" / "slot-0.jsonl").exists()
    return report.read_results(output)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB: room for one step ring and little else."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def command(output: Path) -> list[str]:
    """One process without NVRx: the shortest way to real training steps."""
    more = ("--checkpoint.mode=off", "--resilience.in-process=false")
    return harness.alone(harness.trainer_options(output, steps=STEPS, more=more))


def run_into(trouble: Callable[[Path], None], output: Path, directory: Path) -> str:
    """Train, make trouble once the first steps are recorded, and return the log of a run that ended well."""
    output.mkdir(exist_ok=True)
    environment = {"HEADWAY_DIR": str(directory), "HEADWAY_SAMPLE_SECONDS": "0.05"}  # many events in a short run
    with runner.training(command(output), environment, output / "trainer.log") as training:
        journal = directory / "default" / "slot-0.jsonl"
        entered = lambda: journal.exists() and "train_entered" in journal.read_text()  # noqa: E731 - read where it is used
        harness.wait_until(entered, "training began", 60, training.log)
        trouble(journal.parent)
        harness.wait_until(lambda: training.exit_code is not None, "training ended", 60, training.log)
    log = training.log.read_text()
    assert training.exit_code == 0, log
    return log


def test_full_disk(tmp_path: Path, small_disk: Path, expected: list[dict[str, object]]) -> None:
    """A disk that fills up while training runs costs events, never a step."""

    def fill(journal: Path) -> None:
        with (journal / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    run_into(fill, tmp_path / "out", small_disk)
    assert report.read_results(tmp_path / "out") == expected
    assert "train_finished" not in (small_disk / "default" / "slot-0.jsonl").read_text()


def test_folder_removed(tmp_path: Path, expected: list[dict[str, object]]) -> None:
    """Somebody who cleans up the journal folder under a running trainer does not stop it."""
    run_into(shutil.rmtree, tmp_path / "out", tmp_path / "journal")
    assert report.read_results(tmp_path / "out") == expected


def test_read_only_disk(tmp_path: Path, small_disk: Path, expected: list[dict[str, object]]) -> None:
    """On a read-only disk nothing is recorded, one line says so, and training goes on."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    output = tmp_path / "out"
    code, log = harness.run_unobserved(command(output), output, {"HEADWAY_DIR": str(small_disk)})
    assert code == 0, log
    assert report.read_results(output) == expected
    assert log.count("headway records nothing in this process") == 1


def test_sidecar_killed(tmp_path: Path, expected: list[dict[str, object]]) -> None:
    """The sidecar may die at any moment; a new one reads the whole story."""
    directory = tmp_path / "journal"
    output = tmp_path / "out"
    with runner.sidecar(directory, "default", tmp_path / "first.log") as first:
        run_into(lambda _journal: os.kill(first.pid, signal.SIGKILL), output, directory)
    assert report.read_results(output) == expected
    with runner.sidecar(directory, "default", tmp_path / "second.log") as second:
        harness.wait_until(lambda: (second.status() or {}).get("finished"), "the new sidecar saw the end", 10)
        status = second.status()
    assert status is not None
    assert status["step"] == STEPS
