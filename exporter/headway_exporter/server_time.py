"""Whose clock dates the files of a folder: one for all machines that share it, or each machine's own.

Local file systems and NFS take the server's time when a file is touched without giving one, so that a touch tells what the own clock is
off by. Others (Lustre, CephFS, many FUSE ones) take the time of the client that touches: there a touch tells nothing, and how far the
clocks of two machines are apart is only known as well as they are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway.mounts import DATED_BY_SERVER, MOUNTS, file_system

if TYPE_CHECKING:
    from pathlib import Path

KEPT_CLOCKS_SECONDS: Final = 1.0
"""Machines of one cluster whose clocks are kept by NTP are closer than this."""


def clock_doubt_seconds(folder: Path) -> float:
    """What the times of files in this folder may be wrong by because each machine gave its own; 0 where one server dates them all.

    Raises:
        OSError: the folder cannot be looked at.
    """
    try:
        mounts = MOUNTS.read_text(errors="replace")
    except OSError:
        return KEPT_CLOCKS_SECONDS
    return 0.0 if file_system(folder.resolve(), mounts) in DATED_BY_SERVER else KEPT_CLOCKS_SECONDS
