"""`headway status`: a real sidecar asked in the clear, by certificate and by password; and what it says when there is nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificates import authority, needs_openssl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_folder import finish, trainer, wait_ready
from secured import mutual, web_config
from sidecar_process import sidecar

from headway_exporter import glance, status_cli
from headway_exporter.routes import Response, text
from headway_exporter.server import Server

if TYPE_CHECKING:
    from pathlib import Path


def status(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "status", *options]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False)


def test_it_says_how_the_pod_is(tmp_path: Path) -> None:
    """Step, mark, checkpoint and incident of a pod whose trainer was killed; the same as JSON."""
    with sidecar(tmp_path) as exporter:
        finish(trainer(tmp_path, 0, *ACTS, ranks=1), kill=True)
        exporter.until(lambda found: found["incidents"], "the incident")
        url = f"http://127.0.0.1:{exporter.address[1]}"
        done, as_json = status(url), status("--format", "json", HEADWAY_STATUS_URL=url)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    for name, words in (
        ("run", "testrun, pod 0"),
        ("step", "60 of 100, highest 60"),
        ("checkpoint", "step 40, durable for"),
        ("ranks", "0 of 1 alive"),
        ("incident", "open: process_killed on rank 0"),
    ):
        assert words in rows[name]
    assert json.loads(as_json.stdout)["step"] == 60


@needs_openssl
def test_it_is_let_in_by_certificate_and_password(tmp_path: Path) -> None:
    """The password from a file or a variable; without either, or without the certificate, one line and exit 1."""
    ours = authority(tmp_path / "ours")
    config = mutual(ours)
    ours.issue("server", "DNS:sidecar.example")
    friend = ours.issue("friend")
    hashed = bcrypt.hashpw("pässword".encode(), bcrypt.gensalt(4)).decode()
    file = web_config(tmp_path, tls_server_config=config, basic_auth_users={"me": hashed})
    (tmp_path / "password").write_text("pässword\n")
    with sidecar(tmp_path / "journals", "--web-config", str(file)) as exporter:
        url = f"https://127.0.0.1:{exporter.address[1]}"
        trust = ("--ca-file", str(ours.cert), "--server-name", "sidecar.example")
        shown = ("--cert-file", str(friend.cert), "--key-file", str(friend.key))
        named = (url, *trust, *shown, "--user", "me")
        assert status(*named, "--password-file", str(tmp_path / "password")).returncode == 0
        variable = {"HEADWAY_STATUS_PASSWORD": "pässword"}
        assert status(*named, **variable).returncode == 0
        for options, words in (
            (named, "answers 401: wrong name or password"),
            ((url, *trust), "does not answer"),
            ((url, *shown, "--ca-file", str(ours.cert)), "certificate is not valid for '127.0.0.1'"),
            ((url, *shown), "CERTIFICATE_VERIFY_FAILED"),
        ):
            done = status(*options)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
            assert words in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["http://127.0.0.1:1"], 1, "does not answer: [Errno 111] Connection refused"),
        (["ftp://localhost"], 2, "expected http://HOST:PORT"),
        (["http://localhost:99999"], 2, "cannot be asked"),
        (["http://user:word@localhost"], 2, "expected http://HOST:PORT"),
        (["--ca-file", "/none", "https://localhost"], 2, "/none cannot be used: No such file"),
        (
            ["--ca-file", "/etc/hostname", "--cert-file", "/none", "https://localhost"],
            2,
            "/etc/hostname cannot be used",
        ),
        (["--key-file", "/none", "https://localhost"], 2, "needs --cert-file"),
        (["--password-file", "/none"], 2, "/none: No such file"),
        (["localhost:9838"], 2, "localhost:9838 is neither a folder nor the address of a sidecar"),
        (["/etc"], 1, "/etc holds no journals of the run default"),
    ],
)
def test_what_does_not_work_gets_one_line(options: list[str], code: int, words: str) -> None:
    """What, where, and an exit code that tells a sidecar that is away from a typing error."""
    done = status(*options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr


def test_a_sidecar_that_is_not_well_or_not_ready_is_told_apart() -> None:
    """As a probe it must not end a sidecar that still reads its memory, and must end one whose numbers are old."""
    answers: dict[str, Response] = {}
    server = Server(
        ("127.0.0.1", 0), {path: lambda request: answers[request.path] for path in ("/healthz", "/status.json")}
    )
    try:
        late = text("later", status=HTTPStatus.SERVICE_UNAVAILABLE)
        answers |= {"/healthz": text("ok"), "/status.json": late}
        assert (status(server.url).returncode, status(server.url).stdout) == (0, "later\n")
        answers |= {"/healthz": late, "/status.json": text("{}")}
        assert status(server.url).returncode == 1
        answers |= {"/healthz": text("ok"), "/status.json": text("\x1b[31mno JSON")}
        done = status(server.url)
        assert (done.returncode, "\x1b" in done.stderr) == (1, False)
    finally:
        server.stop()


ACTS = ("enter=a", "load=0", "steps=1-50", "save=40", "commit=40", "steps=51-60", "ready", "wait")


def test_without_a_sidecar_the_journals_are_read(tmp_path: Path) -> None:
    """The same as a sidecar without a memory would say: of a life that ended, and of one that goes on and is not disturbed."""
    finish(trainer(tmp_path, 0, *ACTS, ranks=1), kill=True)
    again = trainer(tmp_path, 0, "enter=b", "load=40", "steps=41-70", "ready", "wait", cycle=1, ranks=1)
    wait_ready(again)
    try:
        done, run_folder = status(str(tmp_path), COLUMNS="300"), status("--format", "json", str(tmp_path / "testrun"))
        with sidecar(tmp_path) as exporter:
            found = exporter.until(lambda found: found["step"] == 70 and found["incidents"], "the second life")
            again.kill()
            exporter.until(lambda found: not found["ranks"][0]["alive"], "its death, though others have looked")
    finally:
        finish(again)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "step        70 of 100, highest 70" in rows["step"]
    assert ("1 of 1 alive" in rows["ranks"], "1 launcher" in rows["restarts"]) == (True, True)
    assert f"{tmp_path}, read just now" in rows["journals"]
    told = json.loads(run_folder.stdout)
    same = ("run", "step", "high_water_step", "restarts", "checkpoint", "finished")
    assert {name: told[name] for name in same} == {name: found[name] for name in same}
    for name, facts in (("incidents", ("cause", "layer", "evidence")), ("recoveries", ("cause", "steps_lost"))):
        assert told[name]
        assert [[one[fact] for fact in facts] for one in told[name]] == [
            [one[fact] for fact in facts] for one in found[name]
        ]


def test_of_several_runs_one_is_named(tmp_path: Path) -> None:
    """Nobody is shown another run than he means, and what is not there is answered by what is."""
    for run, last in (("one", 10), ("two", 20)):
        finish(trainer(tmp_path, 0, "enter=a", f"steps=1-{last}", "finish", ranks=1, HEADWAY_RUN=run))
    (tmp_path / "\x1b[31mred").mkdir()
    done = status(str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "there are those of one, two (--run)" in done.stderr
    assert "20 of 100" in status(str(tmp_path), "--run", "two").stdout
    assert "10 of 100" in status(str(tmp_path), HEADWAY_RUN="one").stdout


def test_where_no_sidecar_answers_the_journals_are_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 all the same, for a probe, and not where an address was given."""
    finish(trainer(tmp_path, 0, "enter=a", "steps=1-10", "finish", ranks=1))
    monkeypatch.setenv("HEADWAY_DIR", str(tmp_path))
    for name in ("HEADWAY_RUN", "HEADWAY_STATUS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(status_cli, "DEFAULT_URL", "http://127.0.0.1:1")
    assert status_cli.main([]) == 1
    told = capsys.readouterr()
    assert ("10 of 100" in told.out, "127.0.0.1:1/healthz does not answer" in told.err) == (True, True)
    assert status_cli.main(["http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().out == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "run",
    "state",
    "step",
    "checkpoint",
    "queue",
    "ranks",
    "restarts",
    "incidents",
    "training_goodput",
    "finished",
)


def test_before_the_first_step() -> None:
    """A pod that has done nothing yet is not shown at the highest step 0."""
    lines = glance.lines({"run": "mine", "pod_index": "0", "step": None, "high_water_step": 0}, 1.8e9)
    assert [line.split(None, 1)[1] for line in lines if line.startswith("step")] == ["none yet"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_no_answer_breaks_it(document: dict[str, Any]) -> None:
    """Whoever answers at that port may be anybody: always the same eight lines, and nothing in them that steers a terminal."""
    lines = glance.lines(document, 1.8e9)
    assert len(lines) == 8
    assert all(line.isprintable() for line in lines)
