"""What a process can read about itself and its container from /proc and /sys; every reading is None when it is not there."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_UNLIMITED: Final = 1 << 60
"""cgroup v1 has no word for "no limit": it shows the largest number of pages, in bytes."""


@dataclass(frozen=True)
class ContainerMemory:
    """Memory of the innermost control group that has a limit, else of the process's own, in bytes."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    oom_kills: int | None = None
    cache_bytes: int | None = None
    """What of the used memory the kernel can take back at once: pages of files that nobody used lately."""


def resident_bytes(pid: int | None = None, proc: Path = _PROC) -> int | None:
    """Resident memory of a process, by default this one."""
    fields = _text(proc / ("self" if pid is None else str(pid)) / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 and fields[1].isdigit() else None


def open_files(proc: Path = _PROC) -> int | None:
    """Open file descriptors of this process."""
    try:
        return len(os.listdir(proc / "self" / "fd"))  # noqa: PTH208 - only their number matters
    except OSError:
        return None


def container_memory(cgroups: Path = _CGROUPS, membership: Path = _PROC / "self" / "cgroup") -> ContainerMemory:
    """Memory limit, use and OOM kills of the container, under cgroup v2 or v1.

    The limit may sit on a parent (the pod), and a group's path as the host knows it may not exist in the container.
    """
    own: ContainerMemory | None = None
    for reading in _memory_groups(cgroups, _text(membership)):
        if reading.limit_bytes is not None:
            return reading
        own = own or reading
    return own or ContainerMemory()


def gpu_uuid(environ: Mapping[str, str], slot: int, gpus: Path = _GPUS) -> str | None:
    """UUID of the GPU with this rank's number, without loading a driver library.

    CUDA_VISIBLE_DEVICES may already name UUIDs; numbers in it, and the slot itself, count GPUs in the order of their
    PCI address.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    names = [name.strip() for name in visible.split(",")] if visible else []
    name = names[slot] if slot < len(names) else (str(slot) if not names else "")
    if name.startswith(("GPU-", "MIG-")):
        return name
    try:
        folders = sorted(gpus.iterdir())
    except OSError:
        return None
    if not name.isdecimal() or int(name) >= len(folders):
        return None
    return _field(_text(folders[int(name)] / "information"), "GPU UUID:")


def versions() -> dict[str, str]:
    """Versions of what decides how a run behaves, without importing any of it."""
    found = {"headway": __version__, "python": platform.python_version()}
    for name, distribution in (("torch", "torch"), ("nvrx", "nvidia-resiliency-ext")):
        version = _installed_version(name, distribution)
        if version is not None:
            found[name] = version
    return found


def _installed_version(module: str, distribution: str) -> str | None:
    loaded = getattr(sys.modules.get(module), "__version__", None)
    if loaded is not None:
        return str(loaded)
    from importlib import metadata  # 20 ms that only this needs

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _memory_groups(cgroups: Path, membership: str) -> Iterator[ContainerMemory]:
    """Readings from the process's own group up to the root, of the hierarchy that controls memory."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield from _upwards(cgroups / "memory", path, _read_v1)
        elif number == "0" and not controllers:
            yield from _upwards(cgroups, path, _read_v2)


def _upwards(root: Path, path: str, read: Callable[[Path], ContainerMemory | None]) -> Iterator[ContainerMemory]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        reading = read(root.joinpath(*parts[:depth]))
        if reading is not None:
            yield reading


def _read_v2(group: Path) -> ContainerMemory | None:
    used = _number(_text(group / "memory.current"))
    if used is None:
        return None
    limit = _number(_text(group / "memory.max"))  # "max" is no number
    kills = _number(_field(_text(group / "memory.events"), "oom_kill "))
    return ContainerMemory(limit, used, kills, _number(_field(_text(group / "memory.stat"), "inactive_file ")))


def _read_v1(group: Path) -> ContainerMemory | None:
    used = _number(_text(group / "memory.usage_in_bytes"))
    if used is None:
        return None
    limit = _number(_text(group / "memory.limit_in_bytes"))
    kills = _number(_field(_text(group / "memory.oom_control"), "oom_kill "))
    cache = _number(_field(_text(group / "memory.stat"), "total_inactive_file "))
    return ContainerMemory(None if limit is None or limit >= _UNLIMITED else limit, used, kills, cache)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def _field(text: str, label: str) -> str | None:
    """The rest of the line that begins with `label`."""
    return next((line[len(label) :].strip() for line in text.splitlines() if line.startswith(label)), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None
