"""Facts about the machine: clocks, NVIDIA's driver, packages, advice."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_STATUS_OFFSET: Final = 40
"""Of `status` in the kernel's `struct timex` on 64-bit machines (adjtimex(2))."""
_UNSYNCHRONISED: Final = 0x40
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
