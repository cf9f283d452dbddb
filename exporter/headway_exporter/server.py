"""The HTTP server of the sidecar's port: exact paths, GET and HEAD, one request on a connection, and nothing that writes.

prometheus_client's own server answers on any path, and one client that connects and stays silent can hold up all others. Here every
connection has a thread, deadlines, and a place among a bounded number; the TLS handshake happens in that thread, too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.web.connection import Connection, least_missed
from headway_exporter.web.dialogue import Dialogue
from headway_exporter.web.protection import Unprotected

if TYPE_CHECKING:
    from headway_exporter.routes import Routes
    from headway_exporter.web.protection import Protection

_log = logging.getLogger("headway.exporter")

MOST_CONNECTIONS: Final = 32
_ROOM_SECONDS: Final = 0.5
_SHORT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

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


def show_address(host: str, port: int) -> str:
    """The other way round."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server(socketserver.ThreadingTCPServer):
    """Serves `routes` on `address` from the moment it is made until `stop`.

    Attributes:
        refused: connections and requests that got no answer of a route, by reason (`headway_exporter.labels.REFUSALS`).

    Raises:
        OSError: the address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 128  # waiting to be accepted, which takes no time

    def __init__(
        self, address: tuple[str, int], routes: Routes, protection: Protection | Unprotected | None = None
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._protection = protection or Unprotected()
        self._dialogue = Dialogue(routes, self._protection, self._refuse)
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._guard = threading.Lock()
        self._connections: set[Connection] = set()
        self.address_family, bound = _resolved(*address)
        self._everywhere = address[0] in _ALL_ADDRESSES
        super().__init__(bound, socketserver.BaseRequestHandler)
        self._thread = threading.Thread(target=self.serve_forever, name="headway-server", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """All addresses means those of IPv4, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not self._everywhere))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def url(self) -> str:
        """Where it listens; the wildcard address is shown as localhost."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        if host in ("::", "0.0.0.0"):  # noqa: S104 - compared, not bound
            host = "localhost"
        return f"{'https' if self._protection.tls else 'http'}://{show_address(host, port)}"

    def stop(self) -> None:
        """Ends serving; answers under way are cut off when the process ends."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; out of file descriptors, it waits instead of asking for it again and again."""
        try:
            request, client = super().get_request()
        except OSError as error:
            if error.errno in _SHORT_OF:
                time.sleep(_ROOM_SECONDS)
            raise
        with contextlib.suppress(
            OSError
        ):  # else what follows the last bytes of a TLS handshake waits for their acknowledgement
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return request, client

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives the connection a thread; when all places are taken, another one is closed for it.

        A client that sends a byte now and then keeps its place for `REQUEST_SECONDS`: a few dozen of them must not end all scrapes.
        """
        if not self._places.acquire(blocking=False):
            self._make_room()
            if not self._places.acquire(timeout=_ROOM_SECONDS):
                self._refuse("crowded")
                self.shutdown_request(request)
                return
        connection = Connection(request, str(client_address[0]))
        with self._guard:
            self._connections.add(connection)
        try:
            super().process_request(connection, client_address)  # type: ignore[arg-type]  # handed on, and no more
        except BaseException:  # no thread could be started
            self._leave(connection)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers in the connection's own thread."""
        connection: Connection = request
        unread = False
        try:
            unread = self._dialogue.hold(connection)
        except Exception:  # noqa: BLE001 - a client that went away is no reason to write on the terminal
            self.handle_error(request, client_address)
        finally:
            self._leave(connection, unread=unread)

    def _leave(self, connection: Connection, *, unread: bool = False) -> None:
        with self._guard:  # nobody breaks off what is being closed
            self._connections.discard(connection)
        connection.close(unread=unread)
        self._places.release()

    def _make_room(self) -> None:
        with self._guard:
            chosen = least_missed(self._connections)
            if chosen is None:
                return
            self._connections.remove(chosen)
            self.refused["crowded"] += 1
            chosen.break_off()  # its thread finds the end of the request, and ends

    def _refuse(self, reason: str) -> None:
        with self._guard:
            self.refused[reason] += 1

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Only for who looks for it."""
        _log.debug("request from %s failed", client_address, exc_info=sys.exc_info())


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Family and address to bind, of IPv4 where a name has both; without asking anybody where all addresses are meant.

    Raises:
        OSError: there is no such host.
    """
    if host in _ALL_ADDRESSES:
        return (socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET), ("", port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address
