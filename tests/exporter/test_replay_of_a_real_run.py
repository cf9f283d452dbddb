"""The replay check on journals of the reference trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN

from headway_exporter.follow import Follower
from headway_exporter.pod import Pod
from headway_exporter.status import status

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch", reason="needs torch")

pytestmark = pytest.mark.alone

HERE = Path(__file__).parent


def train(folder: Path, *, steps: int, faults: str, spoil: bool = False) -> int:
    """One process, restarted by nobody: returns its exit code."""
    options = [f"--steps={steps}", f"--output={folder / 'output'}", "--checkpoint.every=10", "--evaluation.every=0"]
    options += ["--checkpoint.mode=sync", "--resilience.in-process=false", "--faults", faults]
    environ = {"HEADWAY_DIR": str(folder / "journals"), "HEADWAY_RUN": RUN, "SPOIL_OPTIMIZER": "1" if spoil else ""}
    command = [sys.executable, "-W", "ignore", str(HERE / "spoiled_trainer.py"), *options]
    return subprocess.run(command, env=os.environ | environ, check=False, timeout=120).returncode


class Watcher:
    """A sidecar that is there all the time: a slot keeps the rings of its two newest lives only."""

    def __init__(self, folder: Path) -> None:
        self._follower = Follower(folder / "journals", RUN)
        self._pod = Pod(RUN, "0")

    def results(self) -> list[str | None]:
        """What it says of each recovery, up to now."""
        while True:
            batch = self._follower.poll()
            self._pod.set_clock(batch.mono, batch.wall)
            self._pod.fold(batch.observations)
            self._pod.advance(batch.mono)
            if self._follower.caught_up:
                return [recovery["replay_check"] for recovery in status(self._pod, {})["recoveries"]]

    def close(self) -> None:
        """Lets the files go."""
        self._follower.close()


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    watching = Watcher(tmp_path)
    yield watching
    watching.close()


def test_a_damaged_optimizer_state_is_found_although_its_checksums_pass(tmp_path: Path, watcher: Watcher) -> None:
    """The recovery that looked like any other is the one to know of; an honest one after it is known to be sound."""
    faults = "exit@16, exit@26"
    assert train(tmp_path, steps=27, faults=faults) == 3
    watcher.results()
    assert train(tmp_path, steps=27, faults=faults, spoil=True) == 3
    assert watcher.results()[0] == "diverged"
    assert train(tmp_path, steps=27, faults=faults) == 0
    assert watcher.results() == ["diverged", "valid"]
