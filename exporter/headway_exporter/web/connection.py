"""A connection with a deadline: however slowly a client sends or takes bytes, it is over in time."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_PIECE: Final = 65_536
_LAST_SECONDS: Final = 1.0
_LAST_BYTES: Final = 262_144


class Stage(Enum):
    """How far a connection is."""

    ASKING = "asking"
    """Its request is not there yet."""
    CHECKING = "checking"
    """Its password is being checked: these are few, and cannot be hurried."""
    ANSWERING = "answering"


class Connection:
    """A client's socket, plain or TLS, with what is needed to choose who has to go when there are too many.

    Attributes:
        client: its address, without the port.
        stage: how far it is.
    """

    _numbers = itertools.count()

    def __init__(self, sock: socket.socket, client: str) -> None:
        self.client = client
        self.stage = Stage.ASKING
        self.number = next(self._numbers)
        self._socket = sock
        self._deadline = 0.0
        self._broken = False

    def limit(self, seconds: float) -> None:
        """From now on everything together may take so long, then it raises TimeoutError."""
        self._deadline = time.monotonic() + seconds

    def wrap(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Speaks TLS from now on; the handshake counts as waiting for the client.

        Raises:
            OSError: there will be no TLS with this client.
        """
        wrapped = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._socket = wrapped
        if self._broken:  # while there were two of them
            raise ConnectionAbortedError
        wrapped.settimeout(self._left())
        wrapped.do_handshake()
        return wrapped

    def receive(self) -> bytes:
        """The next bytes; none: there are no more.

        Raises:
            OSError: nor will there be any; TimeoutError: not in time.
        """
        self._socket.settimeout(self._left())
        return self._socket.recv(_PIECE)

    def send(self, content: bytes) -> None:
        """All of it, piece by piece, since a limit of `ssl` begins anew with each.

        Raises:
            OSError: the client has not all of it; TimeoutError: not in time.
        """
        left = memoryview(content)
        while left:
            self._socket.settimeout(self._left())
            left = left[self._socket.send(left[:_PIECE]) :]

    def break_off(self) -> None:
        """Whatever is under way ends; for another thread. Goes past `ssl`, which would do more than that."""
        self._broken = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self, *, unread: bool) -> None:
        """Ends it; where the client may still be sending, what it sends is taken for a moment, else it may never see its answer."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.settimeout(0)  # to say goodbye and not to wait for the other's
                self._socket.unwrap()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            if unread:
                self._drain()
        self._socket.close()

    def _drain(self) -> None:
        self.limit(_LAST_SECONDS)
        left = _LAST_BYTES
        while left > 0:
            self._socket.settimeout(self._left())
            piece = socket.socket.recv(self._socket, _PIECE)
            if not piece:
                return
            left -= len(piece)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client was too slow")
        return left


def least_missed(connections: Collection[Connection]) -> Connection | None:
    """Which one to close for a new one: who has not asked yet before who is being answered, of the address that has most, the oldest.

    So whoever opens many connections closes his own, and whoever may not ask cannot drive out who may.
    """
    for stage in (Stage.ASKING, Stage.ANSWERING):
        found = [connection for connection in connections if connection.stage is stage]
        if found:
            crowd = Counter(connection.client for connection in found)
            most = max(crowd.values())
            return min((one for one in found if crowd[one.client] == most), key=lambda one: one.number)
    return None
