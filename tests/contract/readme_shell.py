"""A shell for command lines of the README."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips where one of them is missing."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: {' '.join(missing)} (Debian: apt install {' '.join(missing)})"
    )


def shell(
    commands: Sequence[str], folder: Path, replaced: Mapping[str, str] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """What bash makes of the lines, each of which must succeed; `headway` is the tests' own. What is left in the background is ended."""
    script = "\n".join(commands)
    for old, new in (replaced or {}).items():
        assert old in script, f"{old}: no longer in the README, so this test shows something else"
        script = script.replace(old, new)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "headway").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m headway "$@"\n')
    (programs / "headway").chmod(0o755)
    environ = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADWAY_GPUS": "off",
        "HEADWAY_LINGER_SECONDS": "0",
    } | environ
    return subprocess.run(
        ["bash", "-c", f"set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        cwd=folder,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
