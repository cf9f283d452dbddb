"""Names and passwords: who is let in, what that costs, and that guessing keeps nobody out."""

from __future__ import annotations

import base64
import itertools
import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_process import sidecar

from headway_exporter.web.head import RefusedError
from headway_exporter.web.passwords import MOST_KNOWN, MOST_WAITING, Passwords, nobody

if TYPE_CHECKING:
    from pathlib import Path

LONG = "l" * 72 + "ong"
USERS = {
    "plain": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode(),
    "htpasswd": "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe",
    "crypt": "$2a$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe",
    "ünï": bcrypt.hashpw("pässwörd:with".encode(), bcrypt.gensalt(4, prefix=b"2a")).decode(),
    "long": bcrypt.hashpw(LONG.encode()[:72], bcrypt.gensalt(4)).decode(),
}
"""Those of `htpasswd` and `crypt` are crypt(3)'s for `password`: perl's `crypt("password", "$2y$05$bvIG6Nmid91Mu9RcmmWZfO")`."""


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def refusal(passwords: Passwords, authorization: str, client: str = "1.2.3.4") -> int | None:
    """The code; None: it is let in."""
    try:
        passwords.admit(USERS, authorization, client)
    except RefusedError as refused:
        return refused.status.value
    return None


@pytest.mark.parametrize(
    ("user", "password"),
    [("plain", "secret"), ("htpasswd", "password"), ("crypt", "password"), ("ünï", "pässwörd:with"), ("long", LONG)],
)
def test_the_right_password_is_let_in_and_no_other(user: str, password: str) -> None:
    """Hashes of every program that makes them, in the same order of trust as Prometheus' own exporters; the second time from memory."""
    passwords = Passwords()
    assert [refusal(passwords, header(user, password)) for _ in range(2)] == [None, None]
    for wrong in (password.upper(), "", "x" + password, password + "\0", "\0"):
        if wrong[:72] != password[:72]:
            assert refusal(passwords, header(user, wrong)) == 401
    assert refusal(passwords, header("nobody", password)) == 401
    assert refusal(passwords, header(user, password)) is None


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Basic ",
        "Basic !!!!",
        "Bearer abc",
        "Basic " + base64.b64encode(b"nocolon").decode(),
        "Basic /////w==",
    ],
)
def test_what_is_no_name_and_password_is_asked_for(authorization: str) -> None:
    """401 with the question, and bcrypt is not troubled."""
    assert refusal(Passwords(), authorization) == 401


@given(st.text(max_size=40))
def test_no_header_breaks_it(authorization: str) -> None:
    """Only one sort of refusal, whatever a client writes there."""
    assert {refusal(Passwords(), text) for text in (authorization, f"Basic {authorization}")} <= {401}


def test_who_does_not_exist_costs_as_much_as_who_does() -> None:
    """Else the time of an answer tells which names there are."""
    users = {"a": USERS["plain"], "b": USERS["htpasswd"]}
    assert nobody(users).startswith("$2b$05$")
    assert len(nobody(users)) == 60
    bcrypt.checkpw(b"x", nobody(users).encode())


def test_another_password_counts_at_once() -> None:
    """What was right under the old hash is not remembered as right under the new one."""
    passwords = Passwords()
    assert refusal(passwords, header("plain", "secret")) is None
    changed = {"plain": bcrypt.hashpw(b"changed", bcrypt.gensalt(4)).decode()}
    with pytest.raises(RefusedError):
        passwords.admit(changed, header("plain", "secret"), "1.2.3.4")
    passwords.admit(changed, header("plain", "changed"), "1.2.3.4")


def test_memory_of_who_was_let_in_is_bounded() -> None:
    """Only right passwords are remembered, and few of them."""
    passwords = Passwords()
    for number in range(MOST_KNOWN + 10):
        hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        passwords.admit({f"user-{number}": hashed}, header(f"user-{number}", "secret"), "1.2.3.4")
    assert refusal(passwords, header("plain", "wrong")) == 401
    assert len(passwords._known) == MOST_KNOWN
    assert not any(b"secret" in known for known in passwords._known)


def test_guessing_keeps_nobody_out_who_is_known_or_comes_from_elsewhere() -> None:
    """Hundreds of wrong passwords at once wait in a short line with one place for each address; the right ones go by or queue up."""
    passwords = Passwords()
    assert refusal(passwords, header("plain", "secret")) is None
    codes: list[int | None] = []
    stop = threading.Event()

    def guess(number: int) -> None:
        for attempt in itertools.count():
            if stop.is_set():
                return
            codes.append(refusal(passwords, header("plain", f"guess {number} {attempt}"), "6.6.6.6"))

    guessers = [threading.Thread(target=guess, args=(number,)) for number in range(20)]
    for one in guessers:
        one.start()
    try:
        assert [refusal(passwords, header("plain", "secret"), "6.6.6.6") for _ in range(50)] == [None] * 50
        assert refusal(passwords, header("htpasswd", "password"), "5.5.5.5") is None
    finally:
        stop.set()
        for one in guessers:
            one.join()
    assert set(codes) == {401, 429}
    assert passwords._waiting == set()


def test_the_line_is_short() -> None:
    """However many addresses guess at once, no more threads wait than there are places in it."""
    passwords = Passwords()
    with passwords._one_at_a_time:
        waiting = [
            threading.Thread(target=refusal, args=(passwords, header("plain", "guess"), f"10.0.0.{number}"))
            for number in range(MOST_WAITING)
        ]
        for one in waiting:
            one.start()
        while len(passwords._waiting) < MOST_WAITING:
            pass
        assert refusal(passwords, header("plain", "guess"), "10.0.1.1") == 429
        assert refusal(passwords, header("plain", "guess"), "10.0.0.1") == 429
    for one in waiting:
        one.join()


def test_a_real_port_asks_on_every_path(tmp_path: Path) -> None:
    """Also for health, also where there is nothing: whoever has no password learns nothing but that one is wanted."""
    file = tmp_path / "web.yml"
    file.write_text(f'basic_auth_users: {{htpasswd: "{USERS["htpasswd"]}"}}\nhttp_server_config: {{http2: false}}\n')
    with sidecar(tmp_path / "journals", "--web-config", str(file)) as exporter:
        for path in ("/metrics", "/healthz", "/status.json", "/", "/none"):
            code, headers, body = exporter.get(path)
            assert (code, headers["WWW-Authenticate"]) == (401, 'Basic realm="headway", charset="UTF-8"')
            assert path not in body.split() or path == "/"
        exporter.headers = {"Authorization": header("htpasswd", "password")}
        assert [exporter.get(path)[0] for path in ("/metrics", "/healthz", "/none")] == [200, 200, 404]
        assert exporter.value("headway_requests_refused_total", reason="credentials") == 5
        file.write_text("basic_auth_users: {htpasswd: gone}")
        assert exporter.get("/metrics")[0] == 500
        file.write_text(
            f'basic_auth_users: {{a: "{USERS["plain"]}"}}\nhttp_server_config: {{headers: {{X-Frame-Options: deny}}}}\n'
            "rate_limit: {interval: 1h, burst: 2}\n"
        )
        assert exporter.get("/metrics")[0] == 401
        exporter.headers = {"Authorization": header("a", "secret")}
        code, headers, _ = exporter.get("/metrics")
        assert (code, headers["X-Frame-Options"]) == (200, "deny")
        code, headers, _ = exporter.get("/metrics")
        assert (code, headers["Retry-After"]) == (429, "1")
        code, errors = exporter.stop()
    assert code == 0
    assert "basic_auth_users.htpasswd: the password is no bcrypt hash" in errors
    assert "$2" not in errors
