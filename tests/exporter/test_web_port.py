"""Hostile clients at a real port: whatever they send, or do not send, others are answered."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import socket
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificates import authority, client, needs_openssl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secured import basic, mutual, needs_prometheus, prometheus, scrape_configs, until_up, web_config
from sidecar_process import sidecar

from headway_exporter.routes import Request, Response, text
from headway_exporter.server import MOST_CONNECTIONS, Server
from headway_exporter.web import dialogue
from headway_exporter.web.connection import Connection, Stage, least_missed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

BIG = b"x" * 50_000_000
"""More than a kernel keeps for a client that does not read."""


def broken(_: Request) -> Response:
    raise RuntimeError("broken on purpose")


ROUTES = {
    "/ok": lambda _: text("ok"),
    "/big": lambda _: Response(HTTPStatus.OK, "text/plain", BIG),
    "/broken": broken,
    "/echo": lambda request: Response(HTTPStatus.OK, "application/json", json.dumps(request.query).encode()),
    "/own": lambda _: Response(HTTPStatus.OK, "text/html", b"<p>", {"Cache-Control": "max-age=9", "X-Mine": "1"}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), ROUTES)
    yield made
    made.stop()


def said(server: Server, content: bytes, *, then_end: bool = True) -> bytes:
    """Everything that the server answers to these bytes, until it closes the connection."""
    with socket.create_connection((str(server.server_address[0]), int(server.server_address[1])), timeout=30) as plain:
        answer = io.BytesIO()
        with contextlib.suppress(ConnectionError):
            plain.sendall(content)
            if then_end:
                plain.shutdown(socket.SHUT_WR)
            while piece := plain.recv(65_536):
                answer.write(piece)
        return answer.getvalue()


class Parsed(socket.socket):
    """What http.client reads an answer from."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content

    def makefile(self, *_: Any, **__: Any) -> Any:
        return io.BytesIO(self.content)


def parsed(answer: bytes, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, by Python's own client."""
    with Parsed(answer) as source:
        found = http.client.HTTPResponse(source, method=method)
        found.begin()
        return found.status, dict(found.headers), found.read()


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return parsed(said(server, "\r\n".join(lines).encode(), then_end=False), method)


def test_what_every_answer_says(server: Server) -> None:
    """Nothing of Python's version, no guessing of types, no copies that outlive the moment; a route may know better."""
    for path in ("/ok", "/none", "/broken"):
        _, headers, _ = asked(server, path)
        assert (headers["Server"], headers["Connection"]) == ("headway", "close")
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
        assert headers["Date"].endswith("GMT")
    code, headers, body = asked(server, "/own")
    assert (code, headers["Cache-Control"], headers["X-Mine"], body) == (200, "max-age=9", "1", b"<p>")
    code, headers, body = asked(server, "/ok", "HEAD")
    assert (code, headers["Content-Length"], body) == (200, "3", b"")
    assert asked(server, "/echo?a=%2F&b")[2] == b'"a=%2F&b"'


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/ok/",
        "/ok/..",
        "/../ok",
        "//ok",
        "/./ok",
        "/%6fk",
        "/ok%00",
        "/%2e%2e/etc/passwd",
        "/OK",
        "/ok;a",
        "/ok#a",
        "/<b>",
    ],
)
def test_only_exact_paths_are_answered(server: Server, path: str) -> None:
    """There are no folders, no other spellings, and nothing of the path comes back."""
    code, headers, body = asked(server, path)
    assert (code, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert body == b"not found; there are /ok, /big, /broken, /echo, /own\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PROPFIND", "X"])
def test_nothing_writes(server: Server, method: str) -> None:
    """Also where there is nothing, and whatever the method."""
    for path in ("/ok", "/none"):
        code, headers, _ = asked(server, path, method)
        assert (code, headers["Allow"]) == (405, "GET, HEAD")


def test_a_refusal_reaches_who_is_still_sending(server: Server) -> None:
    """Else a client that sends too much sees a broken connection and tries again."""
    before = server.refused["malformed"]
    assert asked(server, "/ok", "POST", **{"Content-Length": "99"})[0] == 413
    assert parsed(said(server, b"GET /" + b"a" * 100_000))[0] == 414
    assert parsed(said(server, b"GET / HTTP/1.0\r\nA: " + b"a" * 100_000))[0] == 431
    assert server.refused["malformed"] == before + 3


def test_a_route_that_breaks_tells_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets an answer, the log the reason."""
    with caplog.at_level(logging.ERROR, "headway.exporter"):
        assert asked(server, "/broken")[::2] == (500, b"internal error; see the log\n")
    assert "broken on purpose" in caplog.text


PIECES = [
    b"GET ",
    b"HEAD ",
    b"/ok",
    b"/..",
    b" HTTP/1.1",
    b" HTTP/1.0",
    b"\r\n",
    b"\n",
    b"Host: a",
    b": ",
    b"\0",
    b"\xff",
    b"%",
]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.sampled_from(PIECES) | st.binary(max_size=9), max_size=12).map(b"".join))
def test_every_answer_is_well_formed(server: Server, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """Whatever is sent: an answer that a client understands or a closed connection, no traceback, and the next one is answered."""
    answer = said(server, content)
    if answer:
        code, headers, body = parsed(answer, "HEAD" if content.startswith(b"HEAD") else "GET")
        assert 200 <= code <= 505
        assert code == 200 or headers["Content-Type"].startswith("text/plain")
        assert len(body) in (0, int(headers["Content-Length"]))
    assert asked(server, "/ok")[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_who_is_too_slow_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then, no byte at all, an answer that is taken in sips: each ends, and is counted."""
    monkeypatch.setattr(dialogue, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(dialogue, "ANSWER_SECONDS", 0.5)
    address, before = server.server_address, server.refused["timeout"]
    with (
        socket.create_connection(address, timeout=30) as silent,
        socket.create_connection(address, timeout=30) as slow,
        socket.socket() as reader,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        reader.connect(address)
        reader.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        done = threading.Event()
        sipping = threading.Thread(target=sip, args=(reader, done))
        sipping.start()
        answer = bytearray()
        with contextlib.suppress(ConnectionError):
            for letter in b"GET /ok HTTP/1.1\r\nHost: a" + b"a" * 10_000:
                slow.sendall(bytes([letter]))
                time.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            while piece := slow.recv(65_536):
                answer += piece
        assert silent.recv(100) == b""
        deadline = time.monotonic() + 30
        while server.refused["timeout"] < before + 3:
            assert time.monotonic() < deadline, server.refused
            time.sleep(0.05)
        done.set()
        sipping.join()
    assert not answer or parsed(bytes(answer))[0] == 408


def sip(reader: socket.socket, done: threading.Event) -> None:
    """Takes some now and then, so that no single write waits for long."""
    with contextlib.suppress(OSError):
        while not done.wait(0.02):
            reader.recv(65_536)


@needs_openssl
@needs_prometheus
def test_scrapes_go_on_while_the_port_is_besieged(tmp_path: Path) -> None:
    """200 silent TLS clients, slow ones, ones that do not read, and ones that guess passwords: Prometheus gets its numbers."""
    ours = authority(tmp_path / "ours")
    friend = ours.issue("friend")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    config = mutual(ours, client_auth_type="VerifyClientCertIfGiven")
    file = web_config(tmp_path, tls_server_config=config, basic_auth_users={"prometheus": hashed})
    with sidecar(tmp_path / "journals", "--web-config", str(file)) as exporter, contextlib.ExitStack() as crowd:
        exporter.context = client(ours, friend)
        for _ in range(200):
            crowd.enter_context(socket.create_connection(exporter.address, timeout=30))
        stop = threading.Event()
        threads = [
            threading.Thread(target=besiege, args=(exporter.address, client(ours), what, stop))
            for what in ("handshake", "head", "guess", "silence") * 4
        ]
        for one in threads:
            one.start()
        try:
            scrape = scrape_configs(exporter.address, ours, friend, "prometheus", "secret")
            with prometheus(tmp_path, scrape) as address:
                assert until_up(address) == {"health": "up", "lastError": ""}
        finally:
            stop.set()
            for one in threads:
                one.join()
        exporter.headers = basic("prometheus", "secret")
        assert exporter.value("headway_requests_refused_total", reason="crowded")
        assert exporter.stop() == (0, "")


def besiege(address: tuple[str, int], context: ssl.SSLContext, what: str, stop: threading.Event) -> None:
    """Again and again a client that is no good, until told to stop; who guesses has an address of his own."""
    source = ("127.0.0.2" if what == "guess" else "127.0.0.1", 0)
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=5, source_address=source) as plain:
            if what == "silence":
                stop.wait(0.2)
                continue
            if what == "handshake":
                plain.sendall(b"\x16\x03\x01\x02\x00\x01")
                stop.wait(0.2)
                continue
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                guess = basic("prometheus", f"guess {time.monotonic()}")["Authorization"]
                end = "\r\n\r\n" if what == "guess" else "\r\n"
                wrapped.sendall(f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: {guess}{end}".encode())
                if what == "guess":
                    wrapped.recv(100)
                stop.wait(0.1)


def test_who_opens_many_connections_loses_his_own() -> None:
    """The place for a new client is taken from the address that has most, from who has not asked, and from the oldest."""
    pair = socket.socketpair()

    def connections(*clients: str) -> list[Connection]:
        return [Connection(pair[0], one) for one in clients]

    crowd = connections("prometheus", "a", "a", "b", "a", "b")
    assert least_missed(crowd) is crowd[1]
    for one in crowd[1:]:
        one.stage = Stage.ANSWERING
    assert least_missed(crowd) is crowd[0]
    crowd[0].stage = Stage.CHECKING
    assert least_missed(crowd) is crowd[1]
    assert least_missed(crowd[:1]) is None
    for one in pair:
        one.close()


def test_all_places_are_given_back(server: Server) -> None:
    """After more clients than there are places, of which none behaved, as many as before fit."""
    before = server.refused["crowded"]
    clients = [socket.create_connection(server.server_address, timeout=30) for _ in range(3 * MOST_CONNECTIONS)]
    assert asked(server, "/ok")[0] == 200
    assert server.refused["crowded"] > before
    for one in clients:
        one.close()
    deadline = time.monotonic() + 30
    while server._connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(MOST_CONNECTIONS):
        assert server._places.acquire(timeout=30)
    for _ in range(MOST_CONNECTIONS):
        server._places.release()
