"""Whose clock dates the files of a folder: one for all machines that share it, or each machine's own.

Local file systems and NFS take the server's time when a file is touched without giving one, so that a touch tells what the own clock is
off by. Others (Lustre, CephFS, many FUSE ones) take the time of the client that touches: there a touch tells nothing, and how far the
clocks of two machines are apart is only known as well as they are kept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

KEPT_CLOCKS_SECONDS: Final = 1.0
"""Machines of one cluster whose clocks are kept by NTP are closer than this."""
_DATED_BY_SERVER: Final = frozenset(
    {"nfs", "nfs4", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay", "ramfs"}
)
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def clock_doubt_seconds(folder: Path) -> float:
    """What the times of files in this folder may be wrong by because each machine gave its own; 0 where one server dates them all.

    Raises:
        OSError: the folder cannot be looked at.
    """
    try:
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return KEPT_CLOCKS_SECONDS
    return 0.0 if file_system(folder.resolve(), mounts) in _DATED_BY_SERVER else KEPT_CLOCKS_SECONDS


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that the path lies in, by the lines of /proc/self/mountinfo (proc(5)); empty when they do not tell."""
    found, longest = "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5:
            continue
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and depth >= longest:  # the last one mounted there is on top
            found, longest = kind, depth
    return found
