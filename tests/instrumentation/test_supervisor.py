"""`headway run` with real child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from headway.journal import JournalReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway.events import Event

SECONDS = 20.0
T = TypeVar("T")


class Run:
    """One `headway run` under test."""

    def __init__(self, folder: Path, *command: str, before: str = "", **environ: str) -> None:
        self.folder = folder
        code = f"import sys\nfrom headway.cli import main\n{before}\nsys.exit(main(sys.argv[1:]))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "run", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HEADWAY_DIR": str(folder), "HEADWAY_RUN": "r", "HEADWAY_POD_INDEX": "3"} | environ,
        )

    def finish(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def events(self) -> list[Event]:
        reader = JournalReader(self.folder / "r" / "launcher.jsonl")
        try:
            return reader.poll()
        finally:
            reader.close()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events()]

    def started(self) -> int:
        """Waits for the launcher; its process id."""
        pids = wait_for(lambda: [e.fields["pid"] for e in self.events() if e.kind == "launcher_started"])
        return int(pids[0])

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def wait_for(probe: Callable[[], T]) -> T:
    end = time.monotonic() + SECONDS
    while not (found := probe()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start_one(*command: str, **more: str) -> Run:
        runs.append(Run(tmp_path, *command, **more))
        return runs[-1]

    yield start_one
    for run in runs:
        with contextlib.suppress(ProcessLookupError):
            run.process.kill()
        run.process.communicate()


def shell(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


def wait_and(file: Path, script: str) -> str:
    return f"until test -e {file}; do sleep 0.05; done; {script}"


def python(script: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", script)


def test_output_passes_byte_for_byte(start: Callable[..., Run]) -> None:
    """Binary output, and a last line without a newline, arrive unchanged on the stream they were written to."""
    blob = bytes(range(256)) * 2000
    script = "import sys; b = bytes(range(256)) * 2000; sys.stdout.buffer.write(b); sys.stderr.buffer.write(b[::-1] + b'end')"
    assert start(*python(script)).finish() == (0, blob, blob[::-1] + b"end")


def test_partial_line_passes_at_once(start: Callable[..., Run]) -> None:
    """A prompt or progress bar without a newline is seen while the launcher still runs."""
    run = start(*shell("printf 50%%; sleep 60"))
    assert run.process.stdout is not None
    assert run.process.stdout.read(3) == b"50%"
    assert run.process.poll() is None


@pytest.mark.parametrize(("script", "code", "recorded"), [("exit 0", 0, 0), ("exit 7", 7, 7), ("kill -9 $$", 137, -9)])
def test_exit_code_passes(start: Callable[..., Run], script: str, code: int, recorded: int) -> None:
    """The orchestrator sees the launcher's own exit code, 128 + n for a signal; the journal keeps the signal negative."""
    run = start(*shell(script))
    assert run.finish()[0] == code
    events = run.events()
    assert [e.kind for e in events] == ["launcher_started", "launcher_exited"]
    assert events[0].fields["command"] == ["sh", "-c", script]
    assert events[1].fields == {"exit_code": recorded}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signals_are_forwarded(start: Callable[..., Run], name: str) -> None:
    """The launcher gets the orchestrator's signals and decides itself; what was sent is on record."""
    script = (
        "import signal, sys\n"
        f"signal.signal(signal.{name}, lambda n, f: sys.exit(40))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    run = start(*python(script))
    assert run.read_line() == b"ready\n"
    run.process.send_signal(signal.Signals[name])
    assert run.finish()[0] == 40
    assert [(e.fields["signal"], e.fields["name"]) for e in run.events() if e.kind == "signal"] == [
        (int(signal.Signals[name]), name)
    ]


def test_ignored_signal_stays_ignored(start: Callable[..., Run], tmp_path: Path) -> None:
    """`nohup headway run …` survives the end of the terminal, and so does the launcher."""
    run = start(
        *shell(wait_and(tmp_path / "go", "exit 5")),
        before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)",
    )
    for pid in (run.started(), run.process.pid):
        os.kill(pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert run.finish()[0] == 5
    assert "signal" not in run.kinds()


def test_launcher_lines_become_events(start: Callable[..., Run]) -> None:
    """What the launcher says of its workers is in the journal, in order, from both streams and without its newline."""
    group = "[default] Worker group UNHEALTHY. 2/3 attempts left; will restart worker group"
    exited = "failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python"
    silent = "[workload:?(1) infra:?(?)] x.py:1 [Cycle 0] Did not get subsequent heartbeat. Waited 9.00 seconds."
    run = start(*shell(f"echo '{silent}' >&2; echo '{exited}' >&2; printf '{group}' >&2"))
    run.finish()
    assert [(e.kind, dict(e.fields)) for e in run.events()[1:-1]] == [
        ("heartbeat_missed", {"which": "subsequent", "waited_seconds": 9.0, "local_rank": 1}),
        ("worker_exited", {"local_rank": 1, "pid": 77, "exit_code": -9}),
        ("worker_group_failed", {"restarts_left": 2, "restarts_limit": 3}),
    ]


def test_orphan_that_holds_the_pipe_delays_the_end_only_briefly(start: Callable[..., Run]) -> None:
    """A worker that outlives its launcher keeps the output open; the container must end all the same."""
    run = start(*shell("sleep 300 & echo $!; exit 4"))
    orphan = int(run.read_line())
    try:
        assert run.process.wait(SECONDS) == 4
        os.kill(orphan, 0)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert run.kinds()[-1] == "launcher_exited"


def test_children_know_the_journal(start: Callable[..., Run], tmp_path: Path) -> None:
    """The workers write where the launcher's journal is, also when the place was given as an option."""
    run = start(
        "--run", "r", "--pod-index", "8", *shell("echo $HEADWAY_DIR $HEADWAY_RUN $HEADWAY_POD_INDEX"), HEADWAY_RUN=""
    )
    assert run.finish() == (0, f"{tmp_path} r 8\n".encode(), b"")


def test_journal_that_cannot_be_written_never_stops_it(start: Callable[..., Run], tmp_path: Path) -> None:
    """A file where the folder should be costs the events and one warning."""
    (tmp_path / "r").write_text("not a folder")
    code, out, err = start(*shell("echo hello; exit 3")).finish()
    assert (code, out) == (3, b"hello\n")
    assert err.count(b"\n") == 1
    assert str(tmp_path / "r").encode() in err


def test_run_name_that_is_no_folder_name(start: Callable[..., Run], tmp_path: Path) -> None:
    """A run name cannot lead out of the journal folder; it costs the events and one warning."""
    code, out, err = start(*shell("echo hello"), HEADWAY_RUN="../r").finish()
    assert (code, out) == (0, b"hello\n")
    assert err.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_reads_the_output(start: Callable[..., Run], tmp_path: Path) -> None:
    """A log shipper that dies does not end training."""
    run = start(*shell(wait_and(tmp_path / "go", "for i in 1 2 3 4 5; do echo line; sleep 0.05; done; exit 6")))
    assert run.process.stdout is not None
    run.process.stdout.close()
    (tmp_path / "go").touch()
    assert run.process.wait(SECONDS) == 6


@pytest.mark.parametrize(("command", "code"), [("/no/such/launcher", 127), ("/etc/passwd", 126), ("/", 126)])
def test_command_that_cannot_be_started(start: Callable[..., Run], command: str, code: int) -> None:
    """One line says what could not be started and what to look at."""
    got, out, err = start("--", command).finish()
    assert (got, out) == (code, b"")
    assert err.count(b"\n") == 1
    assert command.encode() in err


@pytest.mark.parametrize("arguments", [[], ["--"], ["true"], ["--run", "x", "--"], ["--bogus", "--", "true"]])
def test_bad_usage(start: Callable[..., Run], arguments: list[str]) -> None:
    """Without a command, or with an option that is not ours, nothing is started."""
    code, out, err = start(*arguments).finish()
    assert (code, out) == (2, b"")
    assert b"headway run: " in err


def test_killed_supervisor_leaves_a_whole_journal(start: Callable[..., Run]) -> None:
    """SIGKILL of `headway run` itself loses no event that was written before."""
    run = start(*shell("echo $$; sleep 300"))
    launcher = int(run.read_line())
    try:
        assert run.started() == launcher
        run.process.kill()
        run.process.wait()
        assert run.kinds() == ["launcher_started"]
    finally:
        os.kill(launcher, signal.SIGKILL)


ADOPT = """
import ctypes, os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us, as to process 1
import headway.supervisor
real = headway.supervisor.run
headway.supervisor.run = lambda command, environ: real(command, environ, reap_orphans=True)
"""


def test_process_1_reaps_orphans(start: Callable[..., Run]) -> None:
    """As the container's process 1 it leaves no zombies behind, and still finds the launcher's own exit code."""
    run = start(*shell("sh -c 'sleep 0.2 & echo $!'; sleep 300"), before=ADOPT)
    orphan = int(run.read_line())
    wait_for(lambda: not Path(f"/proc/{orphan}").exists())
    os.kill(run.started(), signal.SIGTERM)
    assert run.finish()[0] == 128 + signal.SIGTERM
