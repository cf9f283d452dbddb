"""The other end of the port: asks a sidecar for a path, by certificate and password where it wants them."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 16 << 20


class AskError(Exception):
    """There is no answer; the message says where and why, `usage` whether it was not even asked."""

    def __init__(self, words: str, *, usage: bool = False) -> None:
        super().__init__(words)
        self.usage = usage


@dataclass(frozen=True)
class Access:
    """How to be let in.

    Attributes:
        ca_file: the authority of the sidecar's certificate; None: those that the system trusts.
        cert_file: one's own certificate; its key is in `key_file`, or in the same file.
        server_name: the name in the sidecar's certificate, where that is not the host asked.
        user: empty: none is told.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""
    user: str = ""
    password: str = field(default="", repr=False)


def ask(url: str, path: str, access: Access, seconds: float) -> tuple[int, bytes]:
    """Status and body. Only the sidecar itself is asked: no proxy, and nowhere else it may point to.

    Raises:
        AskError: there is none within so many seconds.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
            raise AskError(
                f"{url!r} is no address of a sidecar: expected http://HOST:PORT or https://HOST:PORT", usage=True
            )
        connection = _connection(parts.scheme, parts.hostname, parts.port, access, seconds)
    except ValueError as error:
        raise AskError(f"{url!r} cannot be asked: {error}", usage=True) from error
    try:
        connection.request("GET", path, headers=_headers(access))
        answer = connection.getresponse()
        return answer.status, _body(answer, time.monotonic() + seconds)
    except (OSError, http.client.HTTPException) as error:
        raise AskError(f"{url}{path} does not answer: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()


class _Secure(http.client.HTTPSConnection):
    """Checks the certificate for a name that need not be the host's."""

    server_name = ""
    trust: ssl.SSLContext

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self.trust.wrap_socket(self.sock, server_hostname=self.server_name or self.host)


def _connection(scheme: str, host: str, port: int | None, access: Access, seconds: float) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=seconds)
    with _blamed(access.ca_file):
        context = ssl.create_default_context(cafile=access.ca_file)
    if access.cert_file is not None:
        with _blamed(access.cert_file, access.key_file):
            context.load_cert_chain(access.cert_file, access.key_file, password=_nobody_to_ask)
    made = _Secure(host, port, timeout=seconds, context=context)
    made.trust, made.server_name = context, access.server_name
    return made


@contextmanager
def _blamed(*files: Path | None) -> Iterator[None]:
    """OpenSSL does not say which file it could not use."""
    try:
        yield
    except OSError as error:
        names = " with ".join(str(file) for file in files if file is not None)
        raise AskError(f"{names} cannot be used: {error.strerror or error}", usage=True) from error


def _headers(access: Access) -> dict[str, str]:
    if not access.user:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{access.user}:{access.password}".encode()).decode()}


def _body(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    body = bytearray()
    while piece := answer.read1(65_536):
        body += piece
        if len(body) > MOST_BYTES or time.monotonic() > deadline:
            raise OSError("the answer is too long, or takes too long")
    return bytes(body)


def _nobody_to_ask() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for the password")
