"""The doctor for the tests: the real command, and what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON: Final = (sys.executable,)
needs_nvrx = pytest.mark.skipif(find_spec("nvidia_resiliency_ext") is None, reason="needs nvidia-resiliency-ext")


@dataclass(frozen=True)
class Found:
    """What it printed as JSON, and its exit code."""

    code: int
    findings: list[dict[str, Any]]

    def one(self, check: str) -> tuple[str, str, str]:
        """Status, what was found and what to do, of a check with one finding."""
        (only,) = [one for one in self.findings if one["check"] == check]
        return only["status"], only["what"], only["do"]

    def status(self, *status: str) -> set[str]:
        """Checks that ended so."""
        return {one["check"] for one in self.findings if one["status"] in status}


def run_doctor(*options: str, command: Sequence[str] = PYTHON, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs it; a port that nobody has unless the options say which. `command`: how Python is started."""
    variables = os.environ | {"HEADWAY_LISTEN": "127.0.0.1:1"} | environ
    command = [*command, "-m", "headway", "doctor", *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def doctor(*options: str, command: Sequence[str] = PYTHON, **environ: str) -> Found:
    """What it finds."""
    done = run_doctor("--format", "json", *options, command=command, **environ)
    assert done.stderr == ""
    return Found(done.returncode, json.loads(done.stdout)["findings"])
