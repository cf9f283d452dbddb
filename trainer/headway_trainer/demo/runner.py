"""The demo's processes: a launcher with its two ranks, and the sidecar that watches them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STOP_SECONDS: Final = 10.0
START_SECONDS: Final = 30.0
_LOWEST_PORT: Final = 10_240
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why and where to look."""


def free_ports(count: int = 3) -> int:
    """The first of `count` neighbouring TCP ports that are free on the loopback interface.

    They lie below those that the kernel gives to outgoing connections: else one of these could take a port before its user does.
    """
    for _ in range(100):
        first = random.randrange(_LOWEST_PORT, _first_ephemeral_port() - count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise DemoError(f"found no {count} neighbouring free TCP ports on 127.0.0.1")


def _first_ephemeral_port() -> int:
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 0
    return lowest if lowest > 2 * _LOWEST_PORT else 32_768


def launcher_command(
    port: int,
    ranks: int,
    trainer_options: Sequence[str],
    *,
    heartbeat_timeout_seconds: int = 8,
    max_restarts: int = 6,
    more: Sequence[str] = (),
) -> list[str]:
    """`headway run -- ft_launcher … -m headway_trainer …`, in this very Python; `more` options of the launcher replace those here."""
    launcher = [sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]
    options = {
        "--nproc-per-node": ranks,
        "--max-restarts": max_restarts,
        "--monitor-interval": 0.5,
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": f"127.0.0.1:{port}",
        "--ft-rank-heartbeat-timeout": heartbeat_timeout_seconds,
        "--ft-initial-rank-heartbeat-timeout": 60,
        "--ft-workload-check-interval": 1,
    }
    flags = [str(word) for pair in options.items() for word in pair]
    trainer = ["-m", "headway_trainer", *trainer_options]
    return [sys.executable, "-m", "headway", "run", "--", *launcher, *flags, *more, *trainer]


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, its output in `log`. At the end of the block it is ended, and what it left behind killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | (environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)


@dataclass
class Training:
    """A launcher and everything below it."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()


@contextlib.contextmanager
def training(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Training]:
    """Start a run; its output goes to `log`. Whatever still lives at the end is killed."""
    with started(command, log, environment) as process:
        yield Training(process, log)


@dataclass
class Sidecar:
    """A running exporter."""

    url: str
    pid: int

    @property
    def address(self) -> str:
        """Host and port."""
        return self.url.partition("//")[2]

    def status(self) -> dict[str, Any] | None:
        """What `/status.json` says; None while it does not answer."""
        try:
            status: dict[str, Any] = json.loads(self._get("/status.json"))
        except (OSError, ValueError):
            return None
        return status

    def scrape(self) -> str:
        """What Prometheus would read."""
        return self._get("/metrics").decode()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own loopback address
            content: bytes = answer.read()
            return content


@contextlib.contextmanager
def sidecar(
    directory: Path, run: str, log: Path, *, state_dir: Path | None = None, linger_seconds: float = 0
) -> Iterator[Sidecar]:
    """Start `headway exporter` on a free port of the loopback interface.

    `state_dir`: where it keeps its records; `linger_seconds`: how long it waits for a last scrape when it is told to end.
    """
    port = free_ports(1)
    command = [sys.executable, "-m", "headway", "exporter", "--dir", str(directory), "--run", run]
    command += ["--pod-index", "0", "--listen", f"127.0.0.1:{port}", "--linger-seconds", str(linger_seconds)]
    command += [] if state_dir is None else ["--state-dir", str(state_dir)]
    with started(command, log) as process:
        answering = Sidecar(f"http://127.0.0.1:{port}", process.pid)
        _wait_for(answering, process, log)
        yield answering


def postmortem(state_dir: Path, run: str, report: Path) -> None:
    """Writes the report on a run to the file `report`.

    Raises:
        DemoError: there is none.
    """
    command = [sys.executable, "-m", "headway", "postmortem", str(state_dir / run), "--out", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoError(f"no report on the run {run!r}: {done.stderr.strip() or done.stdout.strip()}")


def _wait_for(answering: Sidecar, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while answering.status() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise DemoError(f"the sidecar does not answer{_last_word(log)}; its output is in {log}")
        time.sleep(0.1)


def _last_word(log: Path) -> str:
    """What the process said last, mostly what it lacks."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f" ({lines[-1].strip()})" if lines else ""


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the process and whatever it left in its session; at once when interrupted meanwhile."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
