"""Certificates for the tests, made by openssl as people make them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OPENSSL: Final = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="certificates want openssl (Debian: apt install openssl)")

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates in its folder."""

    folder: Path

    @property
    def cert(self) -> Path:
        """What others trust."""
        return self.folder / "ca.crt"

    def issue(self, name: str, sans: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> Certificate:
        """For server and client alike; a negative number of `days` is over already."""
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={sans}\n")
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        by = ("-CA", self.cert, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *by, "-days", days, "-extfile", extensions, "-out", made.cert)
        return made


def authority(folder: Path) -> Authority:
    """A new one, which nobody knows yet."""
    folder.mkdir(parents=True)
    made = Authority(folder)
    _openssl(
        "req", "-x509", *_KEY, "-subj", "/CN=authority", "-days", 2, "-keyout", folder / "ca.key", "-out", made.cert
    )
    return made


def client(trusted: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    """A client that trusts this authority and shows this certificate."""
    context = ssl.create_default_context(cafile=str(trusted.cert))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


def _openssl(*arguments: object) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=60)
