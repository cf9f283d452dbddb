"""Which file system a folder lies in, and whose clock dates its files.

Local file systems and NFS take the server's time when a file is touched without giving one. Others (Lustre, CephFS, many FUSE ones)
take the time of the client that touches.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
DATED_BY_SERVER: Final = frozenset(
    {"nfs", "nfs4", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay", "ramfs"}
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


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
