"""Facts about the machine: clocks, NVIDIA's driver, packages, and what answers on the sidecar's port."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import re
import socket
import ssl
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_CALL_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4 << 20
_LIBRARY: Final = "libnvidia-ml.so.1"
_STATUS_OFFSET: Final = 40
"""Of `status` in the kernel's `struct timex` on 64-bit machines (adjtimex(2))."""
_UNSYNCHRONISED: Final = 0x40
_SAMPLE: Final = re.compile(r"[A-Za-z_:][\w:]*(\{.*\})? [^ ]+( -?\d+)?")
_RUN: Final = re.compile(r'[{,]run="((?:[^"\\]|\\.)*)"')
PACKAGES: Final = (
    "torch", "nvidia-resiliency-ext", "numpy", "fastapi", "uvicorn", "pynvml", "nvidia-ml-py", "bcrypt", "jinja2",
    "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk", "prometheus-client", "psutil", "pyyaml", "requests",
)  # fmt: skip


def clocks() -> dict[str, Any]:
    """What the kernel says of this process's clocks; None where it does not tell."""
    shifted = None
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
        shifted = any(line.split()[0] == "monotonic" and set(line.split()[1:]) != {"0"} for line in lines if line)
    return {"shifted": shifted, "kept": _kept()}


def _kept() -> bool | None:
    asked = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(asked)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    status = int.from_bytes(asked.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    return not status & _UNSYNCHRONISED


def driver() -> dict[str, Any]:
    """What NVIDIA's driver answers; the library itself is asked, so that no package is needed."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return {"library": False}
    code = library.nvmlInitWithFlags(0)
    if code:
        return {"library": True, "code": code}
    count = ctypes.c_uint()
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return {"library": True, "code": code, "gpus": count.value, "version": _driver_version(library)}


def _driver_version(library: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(80)
    try:
        code = library.nvmlSystemGetDriverVersion(text, len(text))
    except AttributeError:
        return ""
    return "" if code else text.value.decode(errors="replace")


def packages() -> dict[str, Any]:
    """Versions by name, without importing anything; None for what is not installed."""
    return {"python": list(sys.version_info[:2]), "versions": {name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def advice(folder: str) -> dict[str, Any]:
    """What `headway advise` would change of the run in this folder."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = importlib.import_module("headway_exporter.advise_cli").main([folder, "--format", "json"])
    if code:
        return {"problem": errors.getvalue().strip()}
    told = json.loads(output.getvalue())["advice"]
    return {"changes": [{"title": one["title"], "text": one["text"]} for one in told if one["verdict"] == "change"]}


def port(host: str, number: int, *, binds: bool) -> dict[str, Any]:
    """Who answers there, or whether one could listen."""
    reached = host if host not in ("", "0.0.0.0", "::") else "localhost"  # noqa: S104 - compared, not bound
    try:
        with socket.create_connection((reached, number), _CALL_SECONDS):
            pass
    except OSError as error:
        return {"listens": False, "why": error.strerror or str(error), "bind": _bound(host, number) if binds else None}
    plain = _asked(reached, number, encrypted=False)
    if plain is not None and plain.startswith(b"HTTP/1."):
        return {"listens": True, "answers": True, "http": True, "encrypted": False, **_read(plain)}
    hidden = _asked(reached, number, encrypted=True)
    facts = {"listens": True, "answers": bool(plain or hidden), "http": False, "encrypted": hidden is not None}
    if hidden is not None and hidden.startswith(b"HTTP/1."):
        facts |= {"http": True, **_read(hidden)}
    return facts


def _bound(host: str, number: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _asked(host: str, number: int, *, encrypted: bool) -> bytes | None:
    """The answer, as much as came; None where no connection was made, or none that is encrypted."""
    answer: bytearray | None = None
    with contextlib.suppress(OSError), socket.create_connection((host, number), _CALL_SECONDS) as plain:
        connection = _trusting().wrap_socket(plain) if encrypted else plain
        answer = bytearray()
        connection.settimeout(_CALL_SECONDS)
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        while len(answer) < _MOST_BYTES and (data := connection.recv(65_536)):
            answer += data
    return None if answer is None else bytes(answer)


def _trusting() -> ssl.SSLContext:
    """Nothing secret is sent, and whether the certificate is good is `headway status`'s business."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _read(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    lines = [line for line in body.decode(errors="replace").splitlines() if line and not line.startswith("#")]
    ours = [line for line in lines if line.startswith("headway_")]
    named = (_RUN.search(line) for line in ours)
    return {
        "status": int(words[1]) if len(words) > 1 and words[1].isdigit() else 0,
        "ours": bool(ours),
        "parses": all(_SAMPLE.fullmatch(line) for line in lines),
        "run": next((found[1] for found in named if found), None),
    }
