"""A request's head, and above all what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_exporter.routes import Request
from headway_exporter.web.head import MOST_HEAD, MOST_LINE, RefusedError, complete, end, parse


def asked(content: bytes) -> Request | int | None:
    """The request, the code of the refusal, or None: more must come."""
    try:
        return parse(content[: end(content)]) if complete(content) else None
    except RefusedError as refused:
        return refused.status.value


def test_what_clients_send_is_understood() -> None:
    """Prometheus', a browser's and a person's request; names in lower case, queries apart, nothing decoded."""
    assert asked(b"GET /metrics HTTP/1.1\r\nHost: a:1\r\nAccept: x;q=0.5, y\r\nX-Odd:\t \r\n\r\n") == Request(
        "/metrics", "", {"host": "a:1", "accept": "x;q=0.5, y", "x-odd": ""}
    )
    assert asked(b"HEAD /a/%2e%2e/b?c=%20&d?e HTTP/1.0\r\n\r\n") == Request("/a/%2e%2e/b", "c=%20&d?e", {}, head=True)
    assert asked(b"GET / HTTP/1.1\r\nHost: a\r\nAccept: x\r\nAccept: y\r\nContent-Length: 0\r\n\r\nGET /2") == Request(
        "/", "", {"host": "a", "accept": "x, y", "content-length": "0"}
    )
    assert asked(b"GET / HTTP/1.1\r\nHost: a\r\n") is None


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\n\n", 400),
        (b"GET / HTTP/1.0\nHost: a\r\n\r\n", 400),
        (b"GET  / HTTP/1.0\r\n\r\n", 400),
        (b" GET / HTTP/1.0\r\n\r\n", 400),
        (b"GET / HTTP/1.0 \r\n\r\n", 400),
        (b"GET / http/1.0\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.0\r\n\r\n", 400),
        (b"GET /\0 HTTP/1.0\r\n\r\n", 400),
        (b"GET metrics HTTP/1.0\r\n\r\n", 400),
        (b"GET http://a/metrics HTTP/1.0\r\n\r\n", 400),
        (b"G\xe9T / HTTP/1.0\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nA: b\0c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400),
        (b"POST /metrics HTTP/1.0\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.0\r\n\r\n", 405),
        (b"get / HTTP/1.0\r\n\r\n", 405),
        (b"GET / HTTP/1.0\r\nContent-Length: 1\r\n\r\n", 413),
        (b"GET / HTTP/1.0\r\nContent-Length: +0\r\n\r\n", 413),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"POST / HTTP/1.0\r\nContent-Length: 99\r\n\r\n", 413),
        (b"GET /" + b"a" * MOST_LINE, 414),
        (b"GET /" + b"a" * MOST_LINE + b" HTTP/1.0\r\n\r\n", 414),
        (b"GET / HTTP/1.0\r\nA: " + b"b" * MOST_HEAD, 431),
        (b"GET / HTTP/1.0\r\nA: " + b"b" * MOST_HEAD + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 65 + b"\r\n", 431),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_what_is_odd_is_refused(content: bytes, code: int) -> None:
    """Two programs that read one oddity in two ways are how requests are smuggled; a server that waits for more is how it is held up."""
    assert asked(content) == code


@given(
    st.lists(
        st.sampled_from(
            [b"GET ", b"/", b"..", b" HTTP/1.1", b"\r\n", b"\n", b"Host: a", b":", b" ", b"\0", b"\xff", b"%2e"]
        )
        | st.binary(max_size=20),
        max_size=30,
    ).map(b"".join),
    st.integers(min_value=0, max_value=200),
)
def test_no_bytes_break_it(content: bytes, cut: int) -> None:
    """Whatever comes, in whatever pieces, is a request, a refusal, or not the end yet; and what is not the end stays so when cut."""
    found = asked(content)
    assert found is None or isinstance(found, (Request, int))
    if found is None:
        assert asked(content[:cut]) is None
    if isinstance(found, Request):
        assert found.path.startswith("/")
        assert all(0x21 <= ord(letter) <= 0x7E for letter in found.path + found.query)
        assert not any(letter in value for value in found.headers.values() for letter in "\r\n\0")
