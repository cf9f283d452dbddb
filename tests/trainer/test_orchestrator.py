"""The pod supervisor: starts a lost pod again, in a fresh journal folder, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "headway_trainer.orchestrator")


def supervise(tmp_path: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script as the pod."""
    environment = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    command = [*COMMAND, *options, "--", sys.executable, "-c", script, str(tmp_path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_pod_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    """One start, exit code 0."""
    done = supervise(tmp_path, "print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_each_attempt_gets_a_number_and_an_empty_folder(tmp_path: Path) -> None:
    """HEADWAY_ATTEMPT counts up, and what the lost pod journalled is gone, as with a new pod's emptyDir."""
    script = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1], "r")
attempt = os.environ["HEADWAY_ATTEMPT"]
print(attempt, folder.exists(), flush=True)
folder.mkdir()
sys.exit(0 if attempt == "2" else 9)
"""
    done = supervise(tmp_path, script, "--backoff", "0.01")
    assert done.stdout == "0 False\n1 False\n2 False\n"
    assert done.returncode == 0
    assert "the pod ended with 9; attempt 1 in 0.01 s" in done.stderr


@pytest.mark.parametrize(("how", "code"), [("sys.exit(9)", 9), ("os.kill(os.getpid(), 9)", 137)])
def test_it_gives_up_with_the_pods_exit_code(tmp_path: Path, how: str, code: int) -> None:
    """The last pod's end is the supervisor's, as a shell would say it."""
    done = supervise(tmp_path, f"import os, sys; {how}", "--restarts", "1", "--backoff", "0.01")
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"orchestrator: gave up after 1 restarts; the last pod ended with {code}"


def test_the_pause_doubles_up_to_its_longest(tmp_path: Path) -> None:
    """As Kubernetes' kubelet does, from any first pause to any longest one."""
    done = supervise(
        tmp_path, "import sys; sys.exit(1)", "--backoff", "0.01", "--longest-backoff", "0.03", "--restarts", "4"
    )
    pauses = [line.rpartition(" in ")[2] for line in done.stderr.splitlines() if "attempt" in line]
    assert pauses == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]


def test_nothing_of_a_lost_pod_lives_on(tmp_path: Path) -> None:
    """Also grandchildren in sessions of their own die with the pod: the next one must not meet them."""
    orphan = "import time; print('up', flush=True); time.sleep(600)"
    script = f"""
import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {orphan!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path(sys.argv[1], "orphan").write_text(str(child.pid))
os._exit(1)
"""
    supervise(tmp_path, script, "--restarts", "0")
    assert not is_running(int((tmp_path / "orphan").read_text()))


def test_a_stop_reaches_the_pod_and_is_no_reason_to_restart(tmp_path: Path) -> None:
    """The orchestrator's own SIGTERM is passed on, and the pod's answer is the end."""
    script = "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'up').touch(); time.sleep(600)"
    command = [*COMMAND, "--", sys.executable, "-c", script, str(tmp_path)]
    environment = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as supervisor:
        deadline = time.monotonic() + 30
        while not (tmp_path / "up").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        supervisor.terminate()
        assert supervisor.wait(timeout=30) == 128 + signal.SIGTERM
        assert supervisor.stderr is not None
        assert supervisor.stderr.read() == ""


@pytest.mark.parametrize(
    "words", [(), ("--",), ("--restarts", "many", "--", "true"), ("--restarts", "-1", "--", "true")]
)
def test_bad_usage_is_one_line(words: tuple[str, ...]) -> None:
    """Exit code 2, no traceback, nothing started."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m headway_trainer.orchestrator: ")


def test_a_command_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """A misspelt command is said as such, and not tried again and again."""
    done = subprocess.run(
        [*COMMAND, "--", str(tmp_path / "nothing")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"orchestrator: cannot start {tmp_path / 'nothing'}: No such file or directory\n"


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
