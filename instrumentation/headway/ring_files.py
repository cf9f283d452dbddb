"""The files of step rings: their blocks, and the old ones that go."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
from typing import TYPE_CHECKING, Final

from headway.ring_format import parse_ring_name

if TYPE_CHECKING:
    from pathlib import Path

_CANNOT_ALLOCATE: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)


def allocate(fd: int, size: int) -> mmap.mmap | None:
    """Gives the file its blocks and maps it; None where the file system can do either only on paper.

    Raises:
        OSError: no room.
    """
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        if error.errno not in _CANNOT_ALLOCATE:
            raise
    os.ftruncate(fd, size)
    return None


def remove_old_rings(folder: Path, slot: int, keep: int) -> None:
    """Unlinks all but the slot's newest `keep` rings, and what an interrupted `create` left; never raises OSError."""
    rings: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            parsed = parse_ring_name(path.name)
            if parsed is not None and parsed[0] == slot:
                rings.append((path.lstat().st_mtime, path))
            elif path.name.startswith(f".slot-{slot}.") and path.name.endswith(".steps.new"):
                rings.append((-math.inf, path))
    rings.sort(reverse=True)
    unwanted = [path for number, (modified, path) in enumerate(rings) if number >= keep or modified == -math.inf]
    for path in unwanted:
        with contextlib.suppress(OSError):
            path.unlink()
