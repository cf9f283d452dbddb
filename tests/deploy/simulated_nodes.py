"""Pods and nodes on one machine: processes that see a host name and a table of hosts of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ENTER: Final = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
_UNSHARE: Final = ("unshare", "--mount", "--uts", *(() if os.getuid() == 0 else ("--user", "--map-root-user")))


def need_namespaces() -> None:
    """Skips where the kernel or the container forbids them, or the programs that make them are missing."""
    for program in ("unshare", "mount", "hostname"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt install util-linux mount hostname)")
    tried = subprocess.run([*_UNSHARE, "hostname", "tried"], capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not allowed here: {tried.stderr.strip()}")


def on_host(name: str, hosts: Path, command: Sequence[str]) -> list[str]:
    """The command, as on a machine of this name whose /etc/hosts is this file."""
    return [*_UNSHARE, "sh", "-c", _ENTER, "sh", name, str(hosts), *command]


def surroundings(variables: Mapping[str, str], programs: Path | None = None) -> dict[str, str]:
    """An environment with these variables and, of this process's own, only what programs need to be found."""
    folders = [*([str(programs)] if programs else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", "HOME": os.environ.get("HOME", "/")}
    return {**quiet, **kept, **variables, "PATH": ":".join(folders)}


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this environment and no other variable; at the end whatever it left behind is killed."""
    given = ["env", "--ignore-environment", *(f"{name}={value}" for name, value in environment.items())]
    with runner.started([*given, *command], log) as process:
        yield process
