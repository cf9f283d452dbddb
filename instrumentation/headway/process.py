"""What a process can read about itself and its container from /proc and /sys; every reading is None when it is not there."""

from __future__ import annotations

import os
import platform
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_MOST_BYTES: Final = 65_536
"""Of a file: the longest that is read, `memory.stat`, has about 2,000."""
_MOST_DIGITS: Final = 20
"""Of a number of 64 bits."""
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
    pages = _number(fields[1]) if len(fields) > 1 else None
    return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")


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
    return binding(_memory_groups(cgroups, _text(membership)))


def binding(readings: Iterable[ContainerMemory]) -> ContainerMemory:
    """Of a group and those above it, in this order, the first that has a limit, else the group itself.

    Kills are the most that one of them counts up to there: v1 counts them in the killed process's own group alone, v2 in all above it too.
    """
    own: ContainerMemory | None = None
    kills: int | None = None
    for reading in readings:
        own = own or reading
        kills = max((count for count in (kills, reading.oom_kills) if count is not None), default=None)
        if reading.limit_bytes is not None:
            return replace(reading, oom_kills=kills)
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
    names = ("memory.current", "memory.max", "memory.events", "memory.stat")
    return parse_v2(*(_text(group / name) for name in names))


def parse_v2(current: str, most: str, events: str, statistics: str) -> ContainerMemory | None:
    """What the files of a v2 group say; None: it is no group with memory. A limit of `max` is none."""
    used = _number(current)
    if used is None:
        return None
    kills = _number(_field(events, "oom_kill "))
    return ContainerMemory(_number(most), used, kills, _number(_field(statistics, "inactive_file ")))


def _read_v1(group: Path) -> ContainerMemory | None:
    names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "memory.stat")
    return parse_v1(*(_text(group / name) for name in names))


def parse_v1(usage: str, most: str, control: str, statistics: str) -> ContainerMemory | None:
    """What the files of a v1 group say; None: it is no group with memory."""
    used, limit = _number(usage), _number(most)
    if used is None:
        return None
    kills = _number(_field(control, "oom_kill "))
    cache = _number(_field(statistics, "total_inactive_file "))
    return ContainerMemory(None if limit is None or limit >= _UNLIMITED else limit, used, kills, cache)


def _text(path: Path) -> str:
    """The beginning of a plain file; empty for what is none, is not there, or is taken away while it is read."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _beginning(opened) if stat.S_ISREG(os.fstat(opened).st_mode) else ""
        finally:
            os.close(opened)
    except (OSError, ValueError):  # a path may hold a NUL
        return ""


def _beginning(opened: int) -> str:
    """The kernel gives what it makes up on the spot in parts."""
    content = b""
    while len(content) < _MOST_BYTES and (part := os.read(opened, _MOST_BYTES - len(content))):
        content += part
    return content.decode("ascii", "replace")


def _field(text: str, label: str) -> str | None:
    """The rest of the line that begins with `label`."""
    return next((line[len(label) :].strip() for line in text.splitlines() if line.startswith(label)), None)


def _number(text: str | None) -> int | None:
    """A number of 64 bits that is not negative; None: it is none."""
    digits = "" if text is None else text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None
