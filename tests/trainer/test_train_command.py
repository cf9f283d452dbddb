"""`headway train` before the first step: what is wrong is said in one line, whatever part finds it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.alone


def train(*options: str) -> subprocess.CompletedProcess[str]:
    """One process."""
    command = [sys.executable, "-m", "headway", "train", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--faults", "earthquake@5"], "earthquake"),
        (["--faults", "sigkill@5:rank=3"], "no such rank"),
        (["--faults", "pod_loss@5"], "needs a supervisor"),
        (["--parallel.device", "cuda"], "needs its own GPU"),
    ],
)
def test_a_configuration_that_cannot_run_is_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    """Exit code 2 and no traceback, also for what only the running parts can know."""
    if words == "needs its own GPU":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("needs a machine without a GPU")
    done = train("--output", str(tmp_path / "out"), *options)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("headway train: ")
    assert words in line
