"""A request's head from bytes, by RFC 9112, read strictly: what is odd is refused, and nothing is guessed.

Only GET and HEAD without a body are understood, one on a connection, so that there is nothing to mistake for a second request.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headway_exporter.routes import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_LINE: Final = 4_096
"""Bytes of the request line: our own paths and queries are far shorter."""
MOST_HEAD: Final = 16_384
"""Bytes of everything before the empty line."""
MOST_HEADERS: Final = 64

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a token of the grammar, not a secret
_LINE: Final = re.compile(rf"(?P<method>{_TOKEN}) (?P<target>[\x21-\x7e]+) HTTP/(?P<major>[0-9])\.(?P<minor>[0-9])")
_HEADER: Final = re.compile(rf"(?P<name>{_TOKEN}):[ \t]*(?P<value>[\t\x20-\x7e\x80-\xff]*)")
_METHODS: Final = ("GET", "HEAD")


class RefusedError(Exception):
    """The request gets this answer and no other."""

    def __init__(self, status: HTTPStatus, words: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(words)
        self.status = status
        self.headers = headers


def complete(received: bytes | bytearray) -> bool:
    """Whether these are all bytes of a head, or more.

    Raises:
        RefusedError: it is too long already, or its lines end as no request's do.
    """
    line = received.find(b"\n")
    if line > MOST_LINE or (line < 0 and len(received) > MOST_LINE):
        raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request line has at most {MOST_LINE} bytes")
    if line >= 0 and received[line - 1 : line] != b"\r":
        raise _bad("lines end with a carriage return and a line feed")
    ended = end(received)
    if ended > MOST_HEAD or (ended < 0 and len(received) > MOST_HEAD):
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has at most {MOST_HEAD} bytes")
    return ended >= 0


def end(received: bytes | bytearray) -> int:
    """Where the head ends, without its empty line; -1: not yet."""
    return received.find(b"\r\n\r\n")


def parse(head: bytes) -> Request:
    """The request whose head this is, without its empty line.

    Raises:
        RefusedError: it is no request that is understood.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target = _request_line(first)
    headers = _headers(lines)
    _no_body(headers)
    if method not in _METHODS:
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", {"Allow": ", ".join(_METHODS)})
    if first.endswith("1") and "host" not in headers:
        raise _bad("a request of HTTP/1.1 says which host it is for")
    path, _, query = target.partition("?")
    return Request(path, query, headers, head=method == "HEAD")


def _request_line(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise _bad("this is no request of HTTP/1.1")
    if match["major"] != "1":
        raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.0 and HTTP/1.1")
    if not match["target"].startswith("/") and match["method"] in _METHODS:
        raise _bad("a path begins with a slash")
    return match["method"], match["target"]


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MOST_HEADERS:
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has at most {MOST_HEADERS} fields")
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise _bad("a header is a name, a colon and a value")
        name, value = match["name"].lower(), match["value"].rstrip(" \t")
        if name in headers and name in ("host", "content-length", "authorization"):
            raise _bad("a header stands there twice that may stand there once")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _no_body(headers: Mapping[str, str]) -> None:
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request has no body here")


def _bad(words: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, words)
