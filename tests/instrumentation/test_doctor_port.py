"""`headway doctor` on a sidecar with TLS and a password: what keeps Prometheus out is told, and what lets it in."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificates import Authority, authority, needs_openssl
from doctored import Found, doctor, run_doctor
from journal_folder import RUN
from secured import mutual, web_config
from sidecar_process import sidecar

from headway.doctor.checks_port import certificate, port
from headway.doctor.gather import Answer
from headway.doctor.probes_port import Access
from headway_exporter.routes import text
from headway_exporter.server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar_process import Sidecar

DAY = 86_400.0
VARIABLE = "HEADWAY_STATUS_PASSWORD"


def on(exporter: Sidecar, folder: Path, *options: str, **environ: str) -> Found:
    """What is found of its port."""
    listen = f"127.0.0.1:{exporter.address[1]}"
    return doctor("--run", RUN, "--dir", str(folder), "--listen", listen, *options, **environ)


def files(ours: Authority, sans: str, days: int = 90) -> dict[str, str]:
    """A certificate of that name, for a web configuration beside it."""
    ours.issue("server", sans, days)
    return {"cert_file": "ours/server.crt", "key_file": "ours/server.key"}


@needs_openssl
def test_certificates(tmp_path: Path) -> None:
    """An unknown authority, another name and one that has expired are told apart, each with what to do; and one that is good."""
    ours = authority(tmp_path / "ours")
    other = authority(tmp_path / "other")
    named, trusted = ("--server-name", "headway"), ("--ca-file", str(ours.cert))
    config = web_config(tmp_path, tls_server_config=files(ours, "DNS:headway"))
    with sidecar(tmp_path / "journals", "--web-config", str(config)) as exporter:
        for options, status, words, advice in (
            ((), "warn", "cannot be believed", "--ca-file"),
            (named, "warn", "cannot be believed", "--ca-file"),
            ((*named, "--ca-file", str(other.cert)), "fail", "cannot be believed", "--ca-file"),
            (trusted, "warn", "not valid for '127.0.0.1'", "--server-name"),
            ((*trusted, "--server-name", "another"), "fail", "not valid for 'another'", "--server-name"),
            ((*trusted, *named), "ok", "good for another 90 days", ""),
            (("--ca-file", "/none"), "fail", "No such file", "PEM"),
        ):
            found = on(exporter, tmp_path, *options)
            told = found.one("certificate")
            assert (told[0], words in told[1], advice in told[2]) == (status, True, True), told
            assert found.one("sidecar")[0] == ("skip" if "/none" in options else "ok")
        assert exporter.process.poll() is None
        ours.issue("server", "DNS:headway", -1)
        status, what, do = on(exporter, tmp_path, *trusted, *named).one("certificate")
        assert (status, what, "renew" in do) == ("fail", "it has expired", True)


@needs_openssl
def test_passwords(tmp_path: Path) -> None:
    """Wanted, wrong and right are told apart; a password goes to nobody whose certificate is not believed."""
    ours = authority(tmp_path / "ours")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    users = {"basic_auth_users": {"me": hashed}}
    (tmp_path / "password").write_text("secret\n")
    login = ("--user", "me", "--password-file", str(tmp_path / "password"))
    trusted = ("--ca-file", str(ours.cert))
    config = web_config(tmp_path, tls_server_config=files(ours, "DNS:localhost,IP:127.0.0.1"), **users)
    with sidecar(tmp_path / "journals", "--web-config", str(config)) as exporter:
        for options, status, words in (
            (trusted, "skip", "it wants a password"),
            (login, "skip", "was not told ours"),
            ((*trusted, *login), "ok", "its scrape can be parsed"),
        ):
            told = on(exporter, tmp_path, *options).one("sidecar")
            assert (told[0], words in told[1]) == (status, True), told
        told = on(exporter, tmp_path, *trusted, "--user", "me", **{VARIABLE: "wrong"}).one("sidecar")
        assert (told[0], "401" in told[1], "htpasswd" in told[2]) == ("fail", True, True)
    with sidecar(tmp_path / "journals", "--web-config", str(web_config(tmp_path, **users))) as exporter:
        assert on(exporter, tmp_path, *login).one("sidecar")[0] == "ok"
        web_config(tmp_path, basic_auth_users={"me": "secret"})
        found = on(exporter, tmp_path, *login)
        assert (found.code, found.one("sidecar")[0], found.one("certificate")[0]) == (1, "fail", "skip")
        assert "web configuration cannot be used" in found.one("sidecar")[1]


@needs_openssl
def test_certificates_of_clients(tmp_path: Path) -> None:
    """Where the sidecar wants one that is no other program, in either version of TLS: one's own is asked for, or was the wrong one."""
    ours = authority(tmp_path / "ours")
    friend, stranger = ours.issue("friend"), authority(tmp_path / "theirs").issue("stranger")
    trusted = ("--ca-file", str(ours.cert))
    for newest in ("TLS13", "TLS12"):
        config = web_config(tmp_path, tls_server_config=mutual(ours, max_version=newest))
        with sidecar(tmp_path / "journals", "--web-config", str(config)) as exporter:
            told = on(exporter, tmp_path, *trusted)
            assert (told.one("port")[0], told.one("sidecar")[0], "--cert-file" in told.one("sidecar")[2]) == (
                "skip",
                "skip",
                True,
            )
            shown = ("--cert-file", str(stranger.cert), "--key-file", str(stranger.key))
            told = on(exporter, tmp_path, *trusted, *shown)
            assert (told.code, told.one("sidecar")[0], "client_ca_file" in told.one("sidecar")[2]) == (1, "fail", True)
            shown = ("--cert-file", str(friend.cert), "--key-file", str(friend.key))
            assert on(exporter, tmp_path, *trusted, *shown).one("sidecar")[0] == "ok"


def test_another_program_that_wants_a_password(tmp_path: Path) -> None:
    """It is told no password, and taken for no sidecar."""
    heard: list[str] = []
    facts = {
        "listens": True,
        "answers": True,
        "http": True,
        "encrypted": False,
        "status": 401,
        "server": "nginx",
        "ours": False,
    }
    found = list(port(":9838", RUN, "both", Answer(facts), Access(user="me"), 0.0))
    assert (found[0].status, "another program" in found[0].what) == ("fail", True)

    def answer(request: Any) -> Any:
        heard.append(request.headers.get("authorization", ""))
        return text("no", HTTPStatus.UNAUTHORIZED, Server="other")

    server = Server(("127.0.0.1", 0), {"/metrics": answer})
    try:
        listen = f"127.0.0.1:{server.server_address[1]}"
        doctor("--dir", str(tmp_path), "--listen", listen, "--user", "me", **{VARIABLE: "secret"})
    finally:
        server.stop()
    assert set(heard) == {""}


@pytest.mark.parametrize(
    ("left", "life", "status"), [(30 * DAY, 90 * DAY, "ok"), (8 * DAY, 90 * DAY, "warn"), (3_600.0, DAY, "warn")]
)
def test_a_certificate_that_is_about_to_expire(left: float, life: float, status: str) -> None:
    """By its own life: one of a day is not warned of all day long."""
    now = 1.8e9
    found = certificate({"from": now + left - life, "until": now + left}, Access(), now)
    assert (found.status, bool(found.do)) == (status, status == "warn")


def test_a_password_file_that_cannot_be_read(tmp_path: Path) -> None:
    """One line, and exit code 2."""
    done = run_doctor("--password-file", str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
