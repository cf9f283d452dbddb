"""One connection from its first byte to its last: TLS, the request, whether it may be asked, the answer."""

from __future__ import annotations

import email.utils
import logging
import ssl
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headway_exporter.routes import TEXT, Response, text
from headway_exporter.web import head, tls
from headway_exporter.web.connection import Stage
from headway_exporter.web.document import WebConfigError
from headway_exporter.web.head import RefusedError
from headway_exporter.web.passwords import Passwords
from headway_exporter.web.protection import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headway_exporter.routes import Request, Routes
    from headway_exporter.web.connection import Connection
    from headway_exporter.web.protection import Protection, Unprotected

_log = logging.getLogger("headway.exporter")

REQUEST_SECONDS: Final = 10.0
"""From the connection to the end of the request's head, the TLS handshake included."""
ANSWER_SECONDS: Final = 30.0
"""For the client to take its answer."""

_ALWAYS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_REASONS: Final = {
    HTTPStatus.UNAUTHORIZED: "credentials",
    HTTPStatus.TOO_MANY_REQUESTS: "busy",
    HTTPStatus.REQUEST_TIMEOUT: "timeout",
    HTTPStatus.INTERNAL_SERVER_ERROR: "configuration",
}


class Dialogue:
    """What all connections have in common; `refuse` is told why somebody got no answer of a route (`labels.REFUSALS`)."""

    def __init__(self, routes: Routes, protection: Protection | Unprotected, refuse: Callable[[str], None]) -> None:
        self._routes = routes
        self._protection = protection
        self._refuse = refuse
        self._passwords = Passwords()

    def hold(self, connection: Connection) -> bool:
        """Answers one request, if there is one; returns whether the client may still be sending.

        Raises:
            OSError: the client went away.
        """
        connection.limit(REQUEST_SECONDS)
        try:
            return self._hold(connection)
        except TimeoutError:
            self._refuse("timeout")
            return False

    def _hold(self, connection: Connection) -> bool:
        rules = self._greeted(connection)
        if rules is None:
            return False
        request = None
        try:
            request = _asked(connection)
            if request is None:
                return False
            self._admit(connection, request, rules)
            response = self._answer(replace(request, client=connection.client))
        except RefusedError as refused:
            self._refuse(_REASONS.get(refused.status, "malformed"))
            response = Response(refused.status, TEXT, f"{refused}\n".encode(), refused.headers)
        self._send(connection, response, rules, head=request is not None and request.head)
        return request is None

    def _greeted(self, connection: Connection) -> Rules | None:
        """What is in force for this client; None: nothing is to be said to it."""
        try:
            rules = self._protection.current()
        except WebConfigError:
            if not self._protection.tls:
                return Rules(None)
            self._refuse("configuration")
            return None
        if rules.context is None:
            return rules
        try:
            wrapped = connection.wrap(rules.context)
        except ssl.SSLEOFError:  # a probe that only looks whether the port is open
            return None
        except ssl.SSLError as error:
            _log.debug("no TLS with %s: %s", connection.client, error)
            self._refuse("tls")
            return None
        sans = () if rules.config is None or rules.config.tls is None else rules.config.tls.client_allowed_sans
        if sans and not tls.allowed(wrapped, sans):
            self._refuse("tls")
            return None
        return rules

    def _admit(self, connection: Connection, request: Request, rules: Rules) -> None:
        if rules.config is None:
            raise RefusedError(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the web configuration cannot be used; the log says why"
            )
        if not rules.rate.take():
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", {"Retry-After": "1"})
        if rules.config.users:
            connection.stage = Stage.CHECKING
            self._passwords.admit(rules.config.users, request.headers.get("authorization", ""), connection.client)

    def _answer(self, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return text(f"not found; there are {', '.join(self._routes)}", HTTPStatus.NOT_FOUND)
        try:
            return route(request)
        except Exception:  # noqa: BLE001 - the client gets an answer whatever broke
            _log.exception("%s could not be answered", request.path)
            return text("internal error; see the log", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, connection: Connection, response: Response, rules: Rules, *, head: bool) -> None:
        headers = {} if rules.config is None else rules.config.headers
        connection.stage = Stage.ANSWERING
        connection.limit(ANSWER_SECONDS)
        connection.send(_head(response, headers) + (b"" if head else response.body))
        if response.sent is not None and not head:
            response.sent()


def _asked(connection: Connection) -> Request | None:
    """The request; None: the client went away without one.

    Raises:
        RefusedError: what came is none.
    """
    received = bytearray()
    try:
        while not head.complete(received):
            piece = connection.receive()
            if not piece:
                return None
            received += piece
    except TimeoutError:
        if not received:
            raise
        raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, f"a request comes within {REQUEST_SECONDS:g} s") from None
    return head.parse(bytes(received[: head.end(received)]))


def _head(response: Response, configured: Mapping[str, str]) -> bytes:
    """Status line and headers; those that somebody configured stand above all others."""
    headers = {
        "Server": "headway",
        "Date": email.utils.formatdate(usegmt=True),
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **_ALWAYS,
        **response.headers,
        **configured,
    }
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
