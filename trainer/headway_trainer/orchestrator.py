"""A minimal stand-in for an orchestrator: it starts a pod again when the pod is lost.

    python -m headway_trainer.orchestrator --restarts 3 --backoff 2 -- headway run -- ft_launcher … -m headway_trainer …

The pod is a process tree. When its main process ends badly, whatever is left of the tree is killed, its journal folder is removed (a
new pod gets an empty emptyDir), and after a back-off the command runs again with HEADWAY_ATTEMPT one higher. Kubernetes does all this
by itself; use this only where there is no orchestrator: on a workstation, in tests, in the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.command_line import Parser
from headway.environment import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

POD_ROOT_VARIABLE: Final = "HEADWAY_POD_SUPERVISOR_PID"
"""Tells the pod who supervises it: the fault `pod_loss` kills everything below that process."""

_PR_SET_CHILD_SUBREAPER: Final = 36
LONGEST_BACKOFF_SECONDS: Final = 300.0
"""As Kubernetes' kubelet, which begins with 10 s and doubles it."""


def descendants(root: int) -> list[int]:
    """Process ids below `root`, parents before children, as /proc shows them now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The command name in parentheses may hold anything; the fields after the last one are plain.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def kill_below(root: int, *, spare: int | None = None) -> None:
    """SIGKILL everything below `root`, at once for an onlooker: all are stopped first so that none can react.

    Args:
        root: stays alive itself.
        spare: is killed last (a process that kills its own tree).
    """
    while doomed := [pid for pid in descendants(root) if pid != spare and not _is_zombie(pid)]:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.01)
    if spare is not None:
        os.kill(spare, signal.SIGKILL)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def supervise(
    command: Sequence[str],
    *,
    restarts: int,
    backoff_seconds: float,
    longest_backoff_seconds: float = LONGEST_BACKOFF_SECONDS,
) -> int:
    """Run the pod until it ends well, the restarts are used up, or this process is told to stop.

    Args:
        command: argument list of the pod's main process.
        restarts: how often the pod may be started again.
        backoff_seconds: pause before the first restart; doubles each time.
        longest_backoff_seconds: it does not grow beyond that.

    Returns:
        The exit code of the last pod, 128 + n when signal n ended it.
    """
    _adopt_orphans()
    journal = _journal_folder()
    stopped_by: list[int] = []
    for attempt in range(restarts + 1):
        if attempt:
            shutil.rmtree(journal, ignore_errors=True)
        code = _run_pod(command, attempt, stopped_by)
        if code == 0 or stopped_by:
            return code
        if attempt < restarts:
            pause = min(backoff_seconds * 2**attempt, longest_backoff_seconds)
            print(f"orchestrator: the pod ended with {code}; attempt {attempt + 1} in {pause:g} s", file=sys.stderr)
            time.sleep(pause)
    print(f"orchestrator: gave up after {restarts} restarts; the last pod ended with {code}", file=sys.stderr)
    return code


def _run_pod(command: Sequence[str], attempt: int, stopped_by: list[int]) -> int:
    environment = os.environ | {"HEADWAY_ATTEMPT": str(attempt), POD_ROOT_VARIABLE: str(os.getpid())}
    with subprocess.Popen(command, env=environment, start_new_session=True) as pod:

        def forward(number: int, _frame: object) -> None:
            stopped_by.append(number)
            pod.send_signal(number)

        previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = pod.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            kill_below(os.getpid())
            _reap()
    return code if code >= 0 else 128 - code


def _adopt_orphans() -> None:
    """Processes whose parent died become our children, as they would become those of a container's first process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _journal_folder() -> Path:
    identity = Identity.from_env()
    return Path(identity.directory) / identity.run


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the module; see its docstring."""
    parser = Parser("python -m headway_trainer.orchestrator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--restarts", type=_count, default=3, help="how often the pod may be started again (default: 3)"
    )
    parser.add_argument(
        "--backoff", type=_seconds, default=2.0, help="seconds before the first restart, then doubled (default: 2)"
    )
    parser.add_argument(
        "--longest-backoff", type=_seconds, default=LONGEST_BACKOFF_SECONDS, help="seconds at most (default: 300)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND…: the pod's main process")
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("what should run? Put the pod's command after --")
    try:
        return supervise(
            command,
            restarts=options.restarts,
            backoff_seconds=options.backoff,
            longest_backoff_seconds=options.longest_backoff,
        )
    except OSError as error:
        print(f"orchestrator: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 2


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_BACKOFF_SECONDS:
        raise argparse.ArgumentTypeError(f"must be seconds from 0 to {LONGEST_BACKOFF_SECONDS:g}, got {text!r}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
