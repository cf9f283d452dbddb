"""What `pip install` brings, with nothing of this tree in reach: alone, and with each extra alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Final

import places
import pytest
from report_story import four_faults

from headway._version import __version__
from headway.cli import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

WITH_EXTRAS: Final = sorted(name for name, command in COMMANDS.items() if command.extra)
ALONE: Final = sorted({*COMMANDS} - {*WITH_EXTRAS})
THREE_STEPS: Final = """
import sys
before = {*sys.modules}
import headway
recorder = headway.Recorder.from_env()
for n in (1, 2, 3):
    with recorder.step(n) as step:
        step.loss = 1 / n
recorder.train_finished(3)
names = {name.partition(".")[0].lstrip("_") for name in {*sys.modules} - before}
names -= {"headway", *(name.lstrip("_") for name in sys.stdlib_module_names)}
print(headway.__file__, *(name for name in names if not name.startswith("sysconfigdata")))  # Python's own, named after the platform
"""


def having(installed: places.Place, command: str) -> places.Place:
    """With the extra that this command asks for."""
    return installed.having(*(COMMANDS[command].extra or "").split(","))


def get(url: str) -> str:
    """What is answered there."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        text: str = answer.read().decode()
        return text


def test_the_recorder_needs_nothing(installed: places.Place, tmp_path: Path) -> None:
    """In an environment of the wheel alone it records, and imports nothing but Python's own modules."""
    environ = {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    done = installed.run("python", "-c", THREE_STEPS, cwd=tmp_path, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(installed.packages / "headway" / "__init__.py")]
    assert (tmp_path / "r" / "slot-0.jsonl").exists()
    listed = installed.run("headway", "--version", cwd=tmp_path)
    assert listed.stdout == f"headway {__version__}\n"


@pytest.mark.parametrize("command", ALONE)
def test_commands_that_need_nothing(installed: places.Place, tmp_path: Path, command: str) -> None:
    """As the table of commands says."""
    done = installed.run("headway", command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: headway {command} ")


@pytest.mark.parametrize("command", WITH_EXTRAS)
def test_commands_with_their_extra_and_without(installed: places.Place, tmp_path: Path, command: str) -> None:
    """Without it one line says what to install; what it says is enough: the extra needs no other, and no package that it does not name."""
    extra = COMMANDS[command].extra
    done = installed.run("headway", command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"headway {command} needs \w+, which is not installed: pip install 'headway\[{extra}\]'\n", done.stderr
    )
    done = having(installed, command).run("headway", command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: headway {command} ")


def test_records_are_read_without_any_extra(installed: places.Place, tmp_path: Path) -> None:
    """Incidents are listed and searched, and advice is given, wherever the recorder is installed."""
    four_faults().write(tmp_path)
    done = installed.run("headway", "incidents", tmp_path, "process_killed", "--layer", "launcher", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "process_killed" in done.stdout.splitlines()[1]
    done = installed.run("headway", "advise", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Advice for four-faults: ")


def test_a_launcher_is_run_without_any_extra(installed: places.Place, tmp_path: Path) -> None:
    """Its exit code is passed on, and the journal is there."""
    environ = {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    done = installed.run("headway", "run", "--", "sh", "-c", "exit 3", cwd=tmp_path, **environ)
    assert (done.returncode, done.stdout) == (3, "")
    assert (tmp_path / "r" / "launcher.jsonl").exists()


def test_the_sidecar_serves(installed: places.Place, tmp_path: Path) -> None:
    """Metrics, page, JSON and status of a run that the bare recorder wrote; then it ends in order."""
    environ = {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r", "HEADWAY_GPUS": "off", "HEADWAY_LINGER_SECONDS": "0"}
    installed.run("python", "-c", THREE_STEPS, cwd=tmp_path, **environ)
    sidecar = having(installed, "exporter")
    with subprocess.Popen(
        [sidecar.folder / "bin" / "headway", "exporter", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state"],
        cwd=tmp_path,
        env=sidecar.environment(**environ),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert found is not None
            url = found.group()
            deadline = time.monotonic() + 30
            while json.loads(get(f"{url}/api/v1/status"))["step"] != 3:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert "headway_build_info{" in get(f"{url}/metrics")
            assert "<style" in get(f"{url}/")
            assert get(f"{url}/healthz")
            told = installed.run("headway", "status", url, cwd=tmp_path)
            assert (told.returncode, told.stderr) == (0, "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_report_is_written(installed: places.Place, tmp_path: Path) -> None:
    """With its styles and pictures."""
    four_faults().write(tmp_path / "state")
    done = having(installed, "postmortem").run("headway", "postmortem", "state", "--out", "r.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert "<style" in page


def test_rules_and_dashboards_are_the_committed_ones(installed: places.Place, tmp_path: Path) -> None:
    """Rendered by the wheel, with one extra each."""
    for command, committed in (("rules", "alerts/rules"), ("dashboards", "dashboards/json")):
        done = having(installed, command).run("headway", command, "--out", command, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        files = {path.name: path.read_text() for path in (places.ROOT / committed).iterdir()}
        assert {path.name: path.read_text() for path in (tmp_path / command).iterdir()} == files


def test_a_demo_that_lacks_the_sidecars_packages_says_so(installed: places.Place, tmp_path: Path) -> None:
    """The trainer is there and can start; why nobody watches it stands in the same line."""
    done = installed.having("trainer").run("headway", "demo", "--no-stack", cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "headway exporter needs " in line
    assert "pip install 'headway[exporter]'" in line


@pytest.mark.e2e
def test_the_demo_trains_from_the_wheel(installed: places.Place, tmp_path: Path) -> None:
    """`make demo` without Makefile and checkout: launcher, ranks, text and sidecar are found; it is stopped once steps are seen."""
    both = having(installed, "demo")
    with subprocess.Popen(
        [both.folder / "bin" / "headway", "demo", "--no-stack"],
        cwd=tmp_path,
        env=both.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        seen = []
        for line in demo.stdout:
            seen.append(line)
            if re.search(r"step +[1-9]\d*/300 +loss \d", line):
                demo.terminate()
    assert (demo.returncode, seen[-1]) == (1, "headway demo: stopped\n"), "".join(seen)
    assert {"trainer.log", "sidecar.log"} <= {
        path.name for path in (tmp_path / "demo-output" / "undisturbed").iterdir()
    }
