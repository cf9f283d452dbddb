"""Facts about the sidecar's port: who answers there, by which certificate, and whether one is let in.

A password is sent only over a connection whose certificate was checked, or in the clear to who has asked for it in the clear.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

_CALL_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4 << 20
_SAMPLE: Final = re.compile(r"[A-Za-z_:][\w:]*(\{.*\})? [^ ]+( -?\d+)?")
_RUN: Final = re.compile(r'[{,]run="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Access:
    """How to be let in; empty: not told. The same as the options of `headway status`."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    user: str = ""
    password: str = field(default="", repr=False)


def port(host: str, number: int, *, binds: bool, access: Access | None = None) -> dict[str, Any]:
    """Who answers there, or whether one could listen."""
    access = access or Access()
    reached = host if host not in ("", "0.0.0.0", "::") else "localhost"  # noqa: S104 - compared, not bound
    try:
        with socket.create_connection((reached, number), _CALL_SECONDS):
            pass
    except OSError as error:
        return {"listens": False, "why": error.strerror or str(error), "bind": _bound(host, number) if binds else None}
    plain = _heard(reached, number, None)
    if plain.startswith(b"HTTP/1."):
        facts = _read(plain)
        if facts["status"] == 401 and facts["server"] == "headway" and access.user:
            facts = _read(_heard(reached, number, None, access))
        return {"listens": True, "answers": True, "http": True, "encrypted": False, **facts}
    return {"listens": True, "http": False, **_encrypted(reached, number, access, answers=bool(plain))}


def _encrypted(host: str, number: int, access: Access, *, answers: bool) -> dict[str, Any]:
    """The certificate is checked first; whoever fails there is asked all the same, without a password."""
    try:
        trusting, checking = _trusting(access), _checking(access)
    except (OSError, ValueError) as error:
        return {
            "answers": True,
            "encrypted": True,
            "certificate": {"unusable": getattr(error, "strerror", None) or str(error)},
        }
    spoken, certificate = _certificate(host, number, checking, access.server_name or host)
    if not spoken:
        return {"answers": answers, "encrypted": False}
    good = "until" in certificate
    try:
        heard = _heard(
            host, number, checking if good else trusting, access if good else None, access.server_name or host
        )
        facts = _read(heard) if heard.startswith(b"HTTP/1.") else {}
    except ssl.SSLError:
        facts = {}
    return {"answers": True, "http": bool(facts), "encrypted": True, "certificate": certificate, **facts}


def _certificate(host: str, number: int, context: ssl.SSLContext, name: str) -> tuple[bool, dict[str, Any]]:
    """Whether TLS is spoken there; from when to when the certificate is good (seconds since 1970), or what is wrong with it."""
    try:
        with (
            socket.create_connection((host, number), _CALL_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=name) as connection,
        ):
            told = connection.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        return True, {"problem": error.verify_message, "code": error.verify_code}
    except ssl.SSLError as error:
        alert = "ALERT" in (error.reason or "")  # whoever sends one speaks TLS
        return alert, {"refused": (error.reason or "").replace("_", " ").lower()}
    except OSError:
        return False, {}
    return True, {
        name: ssl.cert_time_to_seconds(str(told[key])) for name, key in (("from", "notBefore"), ("until", "notAfter"))
    }


def _heard(
    host: str, number: int, context: ssl.SSLContext | None, access: Access | None = None, name: str = ""
) -> bytes:
    """The answer, as much as came.

    Raises:
        ssl.SSLError: it wants a certificate, or another one.
    """
    answer = bytearray()
    head = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{_login(access)}\r\n"
    try:
        with socket.create_connection((host, number), _CALL_SECONDS) as plain:
            connection = plain if context is None else context.wrap_socket(plain, server_hostname=name or host)
            connection.settimeout(_CALL_SECONDS)
            connection.sendall(head.encode())
            while len(answer) < _MOST_BYTES and (data := connection.recv(65_536)):
                answer += data
    except ssl.SSLError:
        raise
    except OSError:
        pass
    return bytes(answer)


def _login(access: Access | None) -> str:
    if access is None or not access.user:
        return ""
    word = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
    return f"Authorization: Basic {word}\r\n"


def _checking(access: Access) -> ssl.SSLContext:
    """Raises OSError or ValueError where the files cannot be used."""
    return _with_own(ssl.create_default_context(cafile=access.ca_file or None), access)


def _trusting(access: Access) -> ssl.SSLContext:
    """Nothing secret is sent by it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _with_own(context, access)


def _with_own(context: ssl.SSLContext, access: Access) -> ssl.SSLContext:
    if access.cert_file:
        context.load_cert_chain(access.cert_file, access.key_file or None, password=_nobody_to_ask)
    return context


def _nobody_to_ask() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for the password")


def _bound(host: str, number: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _read(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    lines = [line for line in body.decode(errors="replace").splitlines() if line and not line.startswith("#")]
    ours = [line for line in lines if line.startswith("headway_")]
    named = (_RUN.search(line) for line in ours)
    return {
        "status": int(words[1]) if len(words) > 1 and words[1].isdigit() else 0,
        "server": _server(head),
        "ours": bool(ours),
        "parses": all(_SAMPLE.fullmatch(line) for line in lines),
        "run": next((found[1] for found in named if found), None),
    }


def _server(head: bytes) -> str:
    found = re.search(rb"(?im)^server: *([!-~]{1,64})", head)
    return "" if found is None else found[1].decode()
