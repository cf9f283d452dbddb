"""A small HTTP server for scrapes: `/metrics`, `/healthz`, `/status.json`, and nothing else.

prometheus_client's own server answers on any path, and one client that connects and stays silent can hold up all others. Here every
connection has a thread, a time limit, and a place among a bounded number.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.routes import Request, Response, text

if TYPE_CHECKING:
    from headway_exporter.routes import Routes

_log = logging.getLogger("headway.exporter")

CLIENT_SECONDS: Final = 10.0
"""Longest wait for the next bytes of a request, or for a client to take its answer."""
MOST_CONNECTIONS: Final = 32
_ROOM_SECONDS: Final = 0.5

_ALL_ADDRESSES: Final = ("", "*")


def parse_address(text: str) -> tuple[str, int]:
    """`(host, port)` from `[host]:port`; an empty host is every address, an IPv6 address stands in brackets.

    Raises:
        ValueError: it has not that form; the message says what is expected.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address belongs in brackets, as in [::1]:9838")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is no address to listen on: expected [host]:port, as in :9838 or 127.0.0.1:9838")
    return host, int(port)


class Server(ThreadingHTTPServer):
    """Serves `routes` on `address` from the moment it is made until `stop`.

    Raises:
        OSError: the address cannot be used.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], routes: Routes) -> None:
        self.routes = routes
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._guard = threading.Lock()
        self._connections: dict[socket.socket, None] = {}  # oldest first
        host, port = address
        everywhere = host in _ALL_ADDRESSES
        dual = everywhere and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
        super().__init__(("" if everywhere else host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name="headway-server", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """Binds without asking a name server for this host's name, which may hang."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(self.server_address[0] != ""))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def url(self) -> str:
        """Where it listens; the wildcard address is shown as localhost."""
        host, port = str(self.server_address[0]), self.server_address[1]
        if host in ("::", "0.0.0.0"):  # noqa: S104 - compared, not bound
            host = "localhost"
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def stop(self) -> None:
        """Ends serving; answers under way are cut off when the process ends."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives the connection a thread; when all places are taken, the oldest one is closed for it.

        A client that sends a byte now and then never runs into `CLIENT_SECONDS`: a few dozen of them must not end all scrapes.
        """
        if not self._places.acquire(blocking=False):
            self._close_oldest()
            if not self._places.acquire(timeout=_ROOM_SECONDS):
                self.shutdown_request(request)
                return
        with self._guard:
            self._connections[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers in the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._connections.pop(request, None)
            self._places.release()

    def _close_oldest(self) -> None:
        with self._guard:
            oldest = next(iter(self._connections), None)
            self._connections.pop(oldest, None)  # type: ignore[arg-type]
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end of the request, and ends

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """A client that went away is no reason to write on the terminal."""
        _log.debug("request from %s failed", client_address, exc_info=sys.exc_info())


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = CLIENT_SECONDS
    disable_nagle_algorithm = (
        True  # head and body are two writes: the second would wait for the first one's acknowledgement
    )
    server_version = "headway"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self._answer()
        self._send(answer)
        if answer.sent is not None and self.command == "GET":
            answer.sent()

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self._send(text("only GET and HEAD", HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD"))

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST  # noqa: N815

    def _answer(self) -> Response:
        path, _, query = self.path.partition("?")
        route = self.server.routes.get(path)
        if route is None:
            return text(f"not found; there are {', '.join(self.server.routes)}", HTTPStatus.NOT_FOUND)
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            return route(Request(path, query, headers, self.command == "HEAD"))
        except Exception:  # noqa: BLE001 - the client gets an answer whatever broke
            _log.exception("%s could not be answered", self.path[:100])
            return text("internal error; see the log", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: Response) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        _log.debug(format, *args)
