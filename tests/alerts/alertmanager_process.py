"""A real Alertmanager for the tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import pytest

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER: Final = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")


@contextlib.contextmanager
def alertmanager_of(config: Path, folder: Path) -> Iterator[str]:
    """One with this configuration, its files in the folder; its address."""
    if SERVER is None:
        pytest.skip("alertmanager is not installed (Debian: apt install prometheus-alertmanager)")
    address = f"127.0.0.1:{runner.free_ports()}"
    command = [
        SERVER,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(300):
                if process.poll() is not None:
                    pytest.fail((folder / "log").read_text())
                if _ready(address):
                    break
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
