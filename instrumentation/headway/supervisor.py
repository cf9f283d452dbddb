"""`headway run -- CMD…`: starts a launcher and records in `launcher.jsonl` what only the launcher knows.

It is the container's main process, so it is transparent: output byte for byte and at once, signals, exit code. Whatever goes wrong
with the recording never stops or delays the launcher. As process 1 it also reaps orphans. With NVRx 0.6 and later it also reads who takes
part in each cycle (`cycle_info`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.command_line import Parser
from headway.cycle_info import CycleInfo, current_link
from headway.environment import Identity, run_name_problem
from headway.files import make_run_folder
from headway.journal import JournalWriter
from headway.launcher_output import LauncherOutput, LineSplitter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

_log = logging.getLogger("headway")

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
DRAIN_SECONDS: Final = 2.0
"""How long output is still awaited after the launcher's end, while an orphan of it keeps a pipe open."""

CHUNK_BYTES: Final = 65_536
NOT_STARTABLE: Final = 126
NOT_FOUND: Final = 127
MAX_ARGUMENTS: Final = 100
MAX_ARGUMENT_CHARACTERS: Final = 300


def main(argv: Sequence[str]) -> int:
    """`headway run` with its arguments; returns the exit code for the shell."""
    options, command = _parse(list(argv))
    environ = dict(os.environ)
    given = {"HEADWAY_DIR": options.dir, "HEADWAY_RUN": options.run, "HEADWAY_POD_INDEX": options.pod_index}
    environ |= {name: value for name, value in given.items() if value}
    return run(command, environ)


def _parser() -> Parser:
    parser = Parser(
        "headway run",
        usage="headway run [options] -- COMMAND [ARGUMENT …]",
        description="Starts a launcher (ft_launcher, torchrun) and journals each worker's exit code, missed heartbeats, restarts "
        "left and its own end. Output, signals and the exit code pass through.",
        epilog="exit code: the launcher's; 128 + n when signal n ended it; 127 command not found, 126 not startable, 2 bad usage",
    )
    parser.add_argument(
        "--dir", metavar="FOLDER", help="journal folder, shared with the sidecar (HEADWAY_DIR; /dev/shm/headway-UID)"
    )
    parser.add_argument("--run", metavar="NAME", help="name of the run (HEADWAY_RUN; the job's name or id)")
    parser.add_argument(
        "--pod-index", metavar="INDEX", help="the pod's place in the run (HEADWAY_POD_INDEX; completion index, …)"
    )
    return parser


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _parser()
    at = argv.index("--") if "--" in argv else len(argv)
    options, unknown = parser.parse_known_args(argv[:at])
    command = argv[at + 1 :]
    if not command:
        parser.error("no command: write it after `--`, as in `headway run -- ft_launcher --nproc-per-node 8 train.py`")
    if unknown:
        parser.error(f"unknown before `--`: {' '.join(unknown)}")
    return options, command


def run(command: Sequence[str], environ: Mapping[str, str], *, reap_orphans: bool | None = None) -> int:
    """Runs `command` to its end and journals what it tells; call it from the main thread.

    Args:
        command: the launcher and its arguments.
        environ: its environment; the journal's place is taken from it and made explicit in it, so that workers agree.
        reap_orphans: whether to take the exit codes of processes that lost their parent; by default as process 1 only.

    Returns:
        Its exit code, 128 + n when signal n ended it, 127 or 126 when it could not be started.
    """
    identity = Identity.from_env(environ)
    journal = _journal(identity)
    supervisor = _Supervisor(journal, os.getpid() == 1 if reap_orphans is None else reap_orphans)
    try:
        with supervisor.signals():
            if not supervisor.start(command, _child_environment(environ, identity), identity.attempt):
                return supervisor.exit_code
            supervisor.follow()
        return supervisor.exit_code
    finally:
        if journal is not None:
            journal.close()


def _journal(identity: Identity) -> JournalWriter | None:
    """The launcher's journal; None, after one warning, where there is no folder to write it in."""
    problem = run_name_problem(identity.run)
    try:
        if problem is None:
            folder = make_run_folder(identity.directory, identity.run, shared_place=identity.shared_place)
            return JournalWriter(folder / "launcher.jsonl", secrets.randbits(62))
    except OSError as error:
        problem = str(error)
    _warn(problem)
    return None


def _warn(problem: str | None) -> None:
    _log.warning("headway run records nothing of the launcher, which runs on: %s (HEADWAY_DIR, HEADWAY_RUN)", problem)


def _child_environment(environ: Mapping[str, str], identity: Identity) -> dict[str, str]:
    settled = {
        "HEADWAY_DIR": str(identity.directory),
        "HEADWAY_RUN": identity.run,
        "HEADWAY_POD_INDEX": identity.pod_index,
    }
    return {**environ, **settled}


class _Stream:
    """One of the launcher's output streams: passed on first, then read."""

    def __init__(self, source: int, sink: int, read_line: Callable[[str], None]) -> None:
        self.source = source
        self._sink = sink
        self._read_line = read_line
        self._lines = LineSplitter()
        self._sink_open = True

    def pump(self) -> bool:
        """Moves what is there, at most one chunk; False at the end of the stream."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self._pass_on(data)
        for line in self._lines.feed(data) if data else self._lines.flush():
            self._read_line(line)
        return bool(data)

    def _pass_on(self, data: bytes) -> None:
        """Nobody reading our output any more is no reason to end training: it is then read and thrown away."""
        rest = memoryview(data)
        try:
            while rest and self._sink_open:
                rest = rest[_write(self._sink, rest) :]
        except OSError:
            self._sink_open = False


def _write(fd: int, data: memoryview) -> int:
    """Writes what fits, waiting until something does; an inherited descriptor may be in non-blocking mode."""
    with contextlib.suppress(BlockingIOError):
        return os.write(fd, data)
    _wait_writable(fd)
    return 0


def _wait_writable(fd: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_WRITE)
        selector.select()


class _Supervisor:
    """The launcher's process, its streams, and the journal."""

    def __init__(self, journal: JournalWriter | None, reap_orphans: bool) -> None:
        self.exit_code = 0
        self._journal = journal
        self._warned = False
        self._reap_orphans = reap_orphans
        self._output = LauncherOutput()
        self._cycle_info: CycleInfo | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._early_signals: list[int] = []
        self._wake: tuple[int, int] = (-1, -1)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Forwards signals and wakes `follow()` when a child ends. One that was ignored, as under nohup, stays so."""
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        handlers: dict[signal.Signals, Any] = dict.fromkeys(FORWARDED, self._on_signal)
        handlers[signal.SIGCHLD] = lambda *_: None  # its byte in the pipe is what counts
        before = {number: signal.getsignal(number) for number in handlers}
        wakeup_before = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        try:
            for number, handler in handlers.items():
                if number == signal.SIGCHLD or before[number] != signal.SIG_IGN:
                    signal.signal(number, handler)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(wakeup_before)
            for fd in self._wake:
                os.close(fd)

    def start(self, command: Sequence[str], environ: dict[str, str], attempt: int) -> bool:
        """Starts the launcher in a session of its own; False, with the exit code set and one line said, when it cannot."""
        link = current_link(command, environ)
        if link is not None:
            self._cycle_info = CycleInfo(link, lambda told: self._record("launcher_cycle", told))
        try:
            self._process = subprocess.Popen(
                command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
            found = not isinstance(error, FileNotFoundError)
            self.exit_code = NOT_STARTABLE if found else NOT_FOUND
            hint = "is it executable, and for this machine?" if found else "is it installed, and is its folder in PATH?"
            print(f"headway run: cannot start {command[0]!r}: {error}; {hint}", file=sys.stderr)
            self._record("launcher_exited", {"exit_code": self.exit_code})
            return False
        self._record("launcher_started", {"pid": self._process.pid, "command": _shortened(command), "attempt": attempt})
        for number in self._early_signals:
            self._forward(number)
        return True

    def follow(self) -> None:
        """Passes output on until the launcher has ended and its pipes are empty."""
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return
        with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ, None)
            for source, sink in ((process.stdout, 1), (process.stderr, 2)):
                selector.register(source, selectors.EVENT_READ, _Stream(source.fileno(), sink, self._read_line))
            while not self._ended:
                self._turn(selector, timeout=1.0)
            for _ in range(2):  # the launcher's last words, no more than a pipe holds, which is one chunk; and its end
                self._turn(selector, timeout=0.0)
            if self._cycle_info is not None:
                self._cycle_info.close()
            self._record("launcher_exited", {"exit_code": process.returncode})
            self._drain(selector)
        self.exit_code = process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Awaits the ends of the streams; an orphan may hold them open for as long as it lives."""
        deadline = clock.monotonic() + DRAIN_SECONDS
        while len(selector.get_map()) > 1 and (left := deadline - clock.monotonic()) > 0:
            self._turn(selector, timeout=left)

    def _turn(self, selector: selectors.BaseSelector, timeout: float) -> None:
        for key, _ in selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], CHUNK_BYTES)
            elif not key.data.pump():
                selector.unregister(key.fileobj)
        self._reap()

    def _reap(self) -> None:
        """Takes exit codes: the launcher's, and as process 1 those of orphans, which nobody else can."""
        process = self._process
        while process is not None:
            try:
                pid, status = os.waitpid(-1 if self._reap_orphans else process.pid, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == process.pid:
                self._ended = True  # before anything else: from here on its number may belong to another process
                process.returncode = os.waitstatus_to_exitcode(status)
            if pid == 0 or not self._reap_orphans:
                return

    def _record(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._journal is not None and not self._journal.write(kind, fields) and not self._warned:
            self._warned = True
            _warn(f"{self._journal.path} cannot be written")

    def _read_line(self, line: str) -> None:
        seen = self._output.read(line)
        if seen is None:
            return
        self._record(seen.kind, seen.fields)
        if self._cycle_info is not None and seen.fields.get("name") == "rendezvous_completed":
            self._cycle_info.look_for(seen.fields["cycle"])

    def _on_signal(self, number: int, _frame: object) -> None:
        self._record("signal", {"signal": number, "name": signal.Signals(number).name})
        if self._process is None:
            self._early_signals.append(number)
        else:
            self._forward(number)

    def _forward(self, number: int) -> None:
        if self._process is not None and not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _shortened(command: Sequence[str]) -> list[str]:
    return [word[:MAX_ARGUMENT_CHARACTERS] for word in command[:MAX_ARGUMENTS]]
