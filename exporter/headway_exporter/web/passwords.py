"""Basic authentication against bcrypt hashes, which take a tenth of a second each: rarely, one at a time, and not for long.

Who was let in once is known again by a keyed digest, so that a scrape does not wait for bcrypt. Others wait in a short line, in which each
client's address has one place, and after a wrong password the next one has to wait some more: guessing costs a fifth of one processor at
most, and nobody who guesses keeps another address out of the line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headway_exporter.web.head import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_WAITING: Final = 8
MOST_KNOWN: Final = 64
PAUSE_RATIO: Final = 4.0
"""How many times as long as a wrong password took to check, nobody else's is checked after it."""
_BCRYPT_BYTES: Final = 72
"""bcrypt looks at no more of a password; some libraries refuse longer ones, Prometheus' own does not."""
_NOBODY: Final = "RDlBOwtHyPwY2b1iiogLMeiQmch/ZoZ4YC.Qk4idRWXQFNnJ2Pe/6"
"""Salt and hash that no password is kept of: a name that does not exist takes as long to refuse as one that does."""


class Passwords:
    """Remembers who was let in; safe to call from several threads."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._waiting: set[str] = set()

    def admit(self, users: Mapping[str, str], authorization: str, client: str) -> None:
        """Returns if the header names one of the users (name to bcrypt hash) with the right password; may wait for seconds.

        Raises:
            RefusedError: it does not (401), or too many are waiting to be told so (429).
        """
        user, password = credentials(authorization)
        hashed = users.get(user)
        digest = self._digest(user, hashed or "", password)
        with self._guard:
            if digest in self._known:
                self._known.move_to_end(digest)
                return
        if not self._checked(password, hashed or nobody(users), client) or hashed is None:
            raise _unauthorized("wrong name or password")
        with self._guard:
            self._known[digest] = None
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _checked(self, password: bytes, hashed: str, client: str) -> bool:
        with self._guard:
            if client in self._waiting or len(self._waiting) >= MOST_WAITING:
                raise RefusedError(
                    HTTPStatus.TOO_MANY_REQUESTS, "too many passwords are being checked", {"Retry-After": "1"}
                )
            self._waiting.add(client)
        try:
            with self._one_at_a_time:
                return _right(password, hashed)
        finally:
            with self._guard:
                self._waiting.discard(client)

    def _digest(self, user: str, hashed: str, password: bytes) -> bytes:
        parts = (user.encode(), hashed.encode(), password)
        content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, content, hashlib.sha256)


def credentials(authorization: str) -> tuple[str, bytes]:
    """Name and password from the header (RFC 7617), in UTF-8.

    Raises:
        RefusedError: it holds none.
    """
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise _unauthorized("a name and a password are wanted")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        name = user.decode()
    except (binascii.Error, ValueError):
        raise _unauthorized("the name and the password cannot be read") from None
    if not colon:
        raise _unauthorized("the name and the password cannot be read")
    return name, password


def nobody(users: Mapping[str, str]) -> str:
    """A hash that costs as much to check as the dearest of the users' and fits no password."""
    cost = max(hashed[4:6] for hashed in users.values())
    return f"$2b${cost}${_NOBODY}"


def _right(password: bytes, hashed: str) -> bool:
    """Asks bcrypt; a wrong one makes the next one in the line wait."""
    import bcrypt  # where nobody has a password it need not be installed

    began = time.monotonic()
    if b"\0" not in password and bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode()):
        return True
    time.sleep(PAUSE_RATIO * (time.monotonic() - began))
    return False


def _unauthorized(words: str) -> RefusedError:
    return RefusedError(HTTPStatus.UNAUTHORIZED, words, {"WWW-Authenticate": 'Basic realm="headway", charset="UTF-8"'})
