"""TLS by Python's `ssl`, as the configuration says: a context for the server, and a look at who the client is."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from typing import TYPE_CHECKING, Final

from headway_exporter.web.document import WebConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from headway_exporter.web.config import Pem, TlsConfig

_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def context(config: TlsConfig) -> ssl.SSLContext:
    """What connections are wrapped with; its files are read now.

    Raises:
        WebConfigError: a file cannot be read or does not fit, or this build of OpenSSL lacks something.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version, made.maximum_version = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    if not config.prefer_server_cipher_suites:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _choose(made, config)
    _load_certificate(made, config)
    if config.client_ca is not None:
        _load_authorities(made, config.client_ca)
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, whatever stands in that file is trusted
    made.verify_mode = _VERIFY[config.client_auth_type]
    return made


def allowed(connection: ssl.SSLSocket, sans: Collection[str]) -> bool:
    """Whether one of the names in the client's certificate is among these."""
    names: Iterable[tuple[str, str]] = (connection.getpeercert() or {}).get("subjectAltName", ())  # type: ignore[assignment]
    return any(_name(kind, value) in sans for kind, value in names)


def _name(kind: str, value: str) -> str:
    """As Go writes it."""
    if kind == "IP Address":
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(value.strip()))
    return value if kind in ("DNS", "IP Address", "email", "URI") else ""


def _choose(made: ssl.SSLContext, config: TlsConfig) -> None:
    try:
        if config.ciphers:
            made.set_ciphers(":".join(config.ciphers))
        if config.curve:
            made.set_ecdh_curve(config.curve)
    except (ssl.SSLError, ValueError) as error:
        raise WebConfigError(
            f"tls_server_config: {ssl.OPENSSL_VERSION} has not the ciphers or the curve that are asked for"
        ) from error


def _load_certificate(made: ssl.SSLContext, config: TlsConfig) -> None:
    with _path(config.cert) as cert, _path(config.key) as key:
        try:
            made.load_cert_chain(cert, key, password=_nobody_to_ask)
        except ssl.SSLError as error:
            raise WebConfigError(
                f"{config.key.name}: {_of(config.cert)} and {_of(config.key)} hold no certificate and key that belong "
                f"together, both in PEM and the key not encrypted ({error.reason or 'PEM'})"
            ) from error
        except ValueError as error:
            raise WebConfigError(f"{config.key.name}: {error}") from error


def _load_authorities(made: ssl.SSLContext, pem: Pem) -> None:
    with _path(pem) as path:
        try:
            made.load_verify_locations(path)
        except ssl.SSLError as error:
            raise WebConfigError(f"{pem.name}: {_of(pem)} holds no certificates in PEM") from error


@contextlib.contextmanager
def _path(pem: Pem) -> Iterator[str]:
    """A path to read it from, which `ssl` wants; what has none gets one in memory, so that no key is written to a disk.

    Raises:
        WebConfigError: it cannot be read.
    """
    if pem.file is not None:
        try:
            pem.file.open("rb").close()
        except OSError as error:
            raise WebConfigError(f"{pem.name}: {pem.file}: {error.strerror or error}") from error
        yield str(pem.file)
        return
    memory = os.memfd_create("headway-pem")
    try:
        os.write(memory, pem.content.encode())
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)


def _of(pem: Pem) -> Path | str:
    return pem.file or pem.name.rpartition(".")[2]


def _nobody_to_ask() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for the password")
