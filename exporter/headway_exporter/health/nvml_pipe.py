"""The sidecar's end of the process that asks NVIDIA's driver (`nvml_child`): started, listened to with a deadline, and ended.

What the driver reports by itself is put aside as it comes, by whichever thread looks first; all else waits for who asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any, Final, cast

import headway
import headway_exporter
from headway import clock
from headway_exporter.health.nvml_notes import NOBODY, NOTE

LIBRARY: Final = "libnvidia-ml.so.1"
START_SECONDS: Final = 30.0
"""How long an interpreter may take to start on a busy machine."""
END_SECONDS: Final = 2.0
"""How long is waited for a process that was killed; one that hangs in the kernel stays until its call returns."""
_MOST_BYTES: Final = 1 << 20
"""No line is that long."""
_MOST_WAITING: Final = 4096
"""Reports that nobody took."""
_BY_ITSELF: Final = frozenset({"xids", "memory_errors", "lapses"})
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[3:]
from headway_exporter.health.nvml_child import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""

Message = dict[str, Any]


class SilentError(OSError):
    """The process did not answer in time."""


class EndedError(OSError):
    """The process ended."""


def library_is_here() -> bool:
    """Whether there is a library that a process could ask; with none, none is started."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


class DriverProcess:
    """One process, from its construction to `end`."""

    def __init__(self, reports: deque[Message]) -> None:
        """`reports`: where what the driver reports by itself is put. Raises OSError when no process can be started."""
        self._reports = reports
        self._answers: deque[Message] = deque()
        self._rest = b""
        self._lock = threading.Lock()
        self._open = True
        self._killed = False
        self._notes = os.memfd_create("headway-nvml")
        os.pwrite(self._notes, NOTE.pack(NOBODY, 0.0), 0)
        try:
            self._process = _started(self._notes)
        except OSError:
            os.close(self._notes)
            raise
        self._commands = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        self._fd = self._output.fileno()
        os.set_blocking(self._fd, False)
        try:
            self.answer(clock.monotonic() + START_SECONDS)
        except OSError:
            self.end()
            raise

    def ask(self, look: bool, skip: list[int], last: list[int]) -> None:
        """Gives a command. Raises EndedError."""
        command = json.dumps({"look": look, "skip": skip, "last": last}) + "\n"
        try:
            self._commands.write(command.encode())
            self._commands.flush()
        except (OSError, ValueError) as error:
            raise EndedError(self.why_ended()) from error

    def answer(self, until: float) -> Message:
        """The next answer; `until` is a time of CLOCK_MONOTONIC, seconds.

        Raises:
            SilentError: there was none.
            EndedError: there will be none.
        """
        while not self._answers:
            left = until - clock.monotonic()
            if left <= 0:
                raise SilentError("no answer")
            if not self.look(left) and not self._answers:
                raise EndedError(self.why_ended())
        return self._answers.popleft()

    def look(self, seconds: float = 0.0) -> bool:
        """Takes what has come, and waits so long for it; False: the process has ended."""
        if seconds > 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(seconds * 1000)
        with self._lock:
            return self._take()

    def asks(self) -> tuple[int, float] | None:
        """The GPU that the driver is asked about, and since when (CLOCK_MONOTONIC seconds); None: it is asked about none.

        None too once this end has killed the process: then it is no GPU's fault that it ended.
        """
        with self._lock:
            if self._killed:
                return None
            index, since = NOTE.unpack(os.pread(self._notes, NOTE.size, 0))
        return None if index == NOBODY else (index, since)

    def why_ended(self) -> str:
        """In words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        if code is None:
            return "the process that asks the driver has stopped answering"
        how = f"code {code}" if code >= 0 else _signal_name(-code)
        return f"the process that asks the driver was ended by {how}"

    def end(self) -> None:
        """Kills it; what it had reported before is not lost."""
        with self._lock:
            self._killed = True
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with self._lock:
            while self._take() and self._process.returncode is not None:
                pass
            if self._open:
                os.close(self._notes)
            self._open = False
            for pipe in (self._commands, self._output):
                with contextlib.suppress(OSError):
                    pipe.close()

    @property
    def gone(self) -> bool:
        """Whether it has truly ended; what hangs in the kernel has not."""
        return self._process.poll() is not None

    def _take(self) -> bool:
        """What has come; the caller holds the lock."""
        if not self._open:
            return False
        try:
            content = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return True
        if not content or len(self._rest) > _MOST_BYTES:
            return False
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._sort(line)
        return True

    def _sort(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # a library that writes wherever it likes
            return
        if not isinstance(message, dict):
            return
        if _BY_ITSELF.isdisjoint(message):
            self._answers.append(message)
        elif len(self._reports) < _MOST_WAITING:
            self._reports.append(message)


def _started(notes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), str(notes), *_import_path()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[notes])


def _import_path() -> list[str]:
    """Where the modules are that it needs: without `site`, which would cost memory, it does not find all of them by itself."""
    ours = [str(Path(module.__path__[0]).parent) for module in (headway, headway_exporter)]
    return [*ours, *filter(None, sys.path)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
