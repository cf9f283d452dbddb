"""Prometheus and Alertmanager beside the demo: they see what happens, tell who must know, and leave nothing behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from journal_folder import RUN, trainer
from rich.console import Console
from sidecar_process import sidecar

from headway_trainer.demo import alerting, cli, runner, stack
from headway_trainer.demo.webhook import webhook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

try:
    PROGRAMS: stack.Programs | None = stack.programs()
except stack.MissingError:
    PROGRAMS = None
needs_both = pytest.mark.skipif(PROGRAMS is None, reason="Prometheus or Alertmanager is not installed")
QUICK: Final = {**stack.PACE, "stalled_floor_seconds": 2, "wait_ratio": 0.1}
"""A hang of five seconds pages."""


@contextlib.contextmanager
def running(folder: Path, pace: Mapping[str, float] = stack.PACE) -> Iterator[stack.Stack]:
    """Both programs."""
    assert PROGRAMS is not None
    with stack.stack(PROGRAMS, folder, pace) as both:
        yield both


def until(condition: Callable[[], object], what: str) -> None:
    """Waits for what happens in other processes."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def alive(folder: Path) -> list[str]:
    """Command lines of the processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if str(folder) in line else []
    return found


@needs_both
def test_a_hang_pages_and_is_over_when_training_goes_on(tmp_path: Path) -> None:
    """From pending over firing to resolved, seen by a real Prometheus, and told to the pager by a real Alertmanager, both ways."""
    journals = tmp_path / "journals"
    journals.mkdir()
    with running(tmp_path / "stack", QUICK) as both, sidecar(journals) as watching:
        bulletin, told = stack.Bulletin(both), list[str]()

        def heard(what: str) -> bool:
            told.extend(line for line in bulletin.lines() if "HeadwayTrainingStalled" in line)
            return f"alert HeadwayTrainingStalled of {RUN}: {what}" in told

        both.watch(f"{watching.address[0]}:{watching.address[1]}")
        process = trainer(journals, 0, "enter=one", "steps=1-20:0.1", "meet", "steps=21-999:0.1", ranks=1)
        try:
            until(lambda: heard("firing (critical)"), "the hang is not seen")
            until(lambda: "firing" in statuses(both), "nobody is paged")
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: heard("resolved"), "the end of the hang is not seen")
            until(lambda: "resolved" in statuses(both), "nobody is told of the end")
            until(lambda: hang(both).ended, "Prometheus does not tell of the end")
        finally:
            process.kill()
            process.communicate()
        one = hang(both)
    assert (one.severity, one.run) == ("critical", RUN)
    assert one.pending is not None
    assert one.firing is not None
    assert one.ended is not None
    assert one.pending < one.firing < one.ended
    assert statuses(both)[:2] == ["firing", "resolved"]


def hang(both: stack.Stack) -> alerting.Episode:
    """The one that fired."""
    found = alerting.episodes(both.history())
    return next(one for one in found if one.alert == "HeadwayTrainingStalled" and one.firing is not None)


def statuses(both: stack.Stack) -> list[str]:
    """What the pager was told of the hang."""
    return [
        note.status
        for note in both.webhook.notes()
        if (note.receiver, note.alert, note.run) == ("page", "HeadwayTrainingStalled", RUN)
    ]


@needs_both
def test_only_its_pace_is_the_demos_own(tmp_path: Path) -> None:
    """The rules are those of the repository but for the figures that are said; so are the routes."""
    with running(tmp_path / "stack"):
        folder = Path(__file__).parents[2] / "alerts"
        rules = sorted((tmp_path / "stack" / "rules").iterdir())
        assert [path.name for path in rules] == sorted(path.name for path in (folder / "rules").iterdir())
        for path in rules:
            ours, committed = path.read_text(), (folder / "rules" / path.name).read_text()
            assert [line.strip() for line in ours.splitlines() if "alert:" in line or "record:" in line] == [
                line.strip() for line in committed.splitlines() if "alert:" in line or "record:" in line
            ]
        routes = (tmp_path / "stack" / "alertmanager.yaml").read_text().splitlines()
        committed = (folder / "alertmanager.yaml").read_text().splitlines()
        changed = [new.split(":")[0].strip() for new, old in zip(routes, committed, strict=True) if new != old]
        assert changed == ["group_wait", "group_interval", "- url", "- url", "- url"]


@needs_both
def test_both_end_with_the_block(tmp_path: Path) -> None:
    """Also when what is done in it fails."""
    lived = []

    def fail() -> None:
        with running(tmp_path / "stack"):
            lived.extend(alive(tmp_path))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(lived) == 2
    assert alive(tmp_path) == []


@needs_both
def test_a_demo_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    """Neither Prometheus nor Alertmanager nor a trainer lives on."""
    command = [sys.executable, "-m", "headway", "demo", "--stack", "--output", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        log = tmp_path / "out" / "undisturbed" / "trainer.log"
        until(log.exists, "the first run does not start")
        assert len(alive(tmp_path)) >= 4
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (1, "headway demo: stopped\n")
    assert alive(tmp_path) == []


@pytest.mark.parametrize("present", [(), ("prometheus",), ("alertmanager",)])
def test_what_is_missing_is_named_with_its_package(tmp_path: Path, present: tuple[str, ...]) -> None:
    """Who asks for the alerts gets one line, exit 2, and an output folder that was not touched."""
    for name in present:
        (tmp_path / name).symlink_to("/bin/true")
    command = [sys.executable, "-m", "headway", "demo", "--stack", "--output", str(tmp_path / "out")]
    done = subprocess.run(
        command, env=os.environ | {"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    missing = [name for name in ("Prometheus", "Alertmanager") if name.lower() not in present]
    assert done.returncode == 2
    assert done.stderr == (
        f"headway demo: --stack: {' and '.join(missing)} not found on the PATH (Debian: apt install prometheus prometheus-alertmanager)\n"
    )
    assert not (tmp_path / "out").exists()


def test_without_them_the_demo_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, no alerts; and who does not want them hears nothing at all."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install prometheus" in offered(None, tmp_path)
    assert offered(False, tmp_path) == ""


def test_a_program_that_does_not_come_up_stops_only_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old version, say: its log is named."""
    for name in ("prometheus", "prometheus-alertmanager"):
        (tmp_path / name).symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"does not come up; its output is in {tmp_path / 'one' / 'alertmanager.log'}" in offered(
        None, tmp_path / "one"
    )
    with pytest.raises(runner.DemoError, match="does not come up"):
        offered(True, tmp_path / "two")
    assert alive(tmp_path) == []


def offered(wanted: bool | None, folder: Path) -> str:
    """What the demo says when it has no alerts."""
    out = io.StringIO()
    with cli.offered_stack(wanted, folder, Console(file=out, width=100)) as both:
        assert both is None
    assert out.getvalue().count("\n") <= 1
    return out.getvalue()


ALERT: Final = {
    "status": "firing",
    "labels": {"alertname": "A", "run": "r"},
    "annotations": {"summary": "s"},
    "startsAt": "2026",
}
MESSAGE: Final = json.dumps({"receiver": "page", "alerts": [ALERT]}).encode()


def post(url: str, body: bytes) -> int:
    """The webhook's answer; 0 for none."""
    try:
        with urllib.request.urlopen(url, body, timeout=10) as answer:  # noqa: S310 - our own
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def test_the_webhook_takes_messages_and_nothing_else(tmp_path: Path) -> None:
    """What is no message is refused, and the next one is taken; all that is new is in a file as well."""
    with webhook(tmp_path / "log") as receiver:
        assert [post(receiver.url, body) for body in (b"", b"{", b"[]", b'{"alerts": [{}]}')] == [400] * 4
        assert post(receiver.url, b" " * 1_000_001) in (413, 0)  # it may hang up before all of it is sent
        assert [post(receiver.url, MESSAGE) for _ in range(2)] == [200, 200]
        (note,) = receiver.notes()
        assert (note.receiver, note.alert, note.run, note.summary) == ("page", "A", "r", "s")
    assert [json.loads(line)["alert"] for line in (tmp_path / "log").read_text().splitlines()] == ["A"]


def test_the_receiver_by_itself_prints_a_line_an_alert() -> None:
    """For those who run the stack in containers; told to end it ends, and a bad address is one line."""
    command = [sys.executable, "-m", "headway_trainer.demo.webhook", "--listen"]
    port = runner.free_ports(1)
    with subprocess.Popen([*command, f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True) as process:
        until(lambda: post(f"http://127.0.0.1:{port}", MESSAGE) == 200, "it does not listen")
        assert process.stdout is not None
        assert process.stdout.readline().partition(" ")[2] == "page: firing: A of r: s\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    for address in ("nowhere", "127.0.0.1:99999", "127.0.0.1:x"):
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"cannot listen on '{address}'" in done.stderr
