"""The life lock: how a sidecar learns from the kernel that a process died, whatever killed it.

Each process of a slot holds a POSIX write lock on one byte of `slot-N.lock`, at the offset that is its life's number.
The kernel drops it when it closes the process's files. POSIX locks and not `flock`: a forked child inherits an `flock`
with the descriptor, so a data loader that outlives its trainer would keep it alive.

The price is a trap: *any* `close` of the file in this process drops the lock, whichever descriptor it was opened with.
So a process has one life lock at a time, and a reader must be another process.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final

from headway.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""The kernel's `struct flock` on 64-bit machines: type, whence, start, length, process id."""


def lock_name(slot: int) -> str:
    """File name of a slot's lock."""
    return f"slot-{slot}.lock"


class LifeLock:
    """Holds the lock of this process's life until `close`, or until the process is gone.

    `held` is False where the file system refuses or does not support locking, or the file cannot be opened: the life
    is then followed by its records alone.
    """

    def __init__(self, path: Path, life: int) -> None:
        self.path = path
        self.life = life
        self._fd = -1
        self.held = False
        try:
            self._fd = open_regular(path, os.O_RDWR | os.O_CREAT)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, life, os.SEEK_SET)
            self.held = True
        except (OSError, OverflowError):
            self.close()

    def neighbour(self) -> int | None:
        """Process id of another one that lives in this slot, 0 when it cannot be told; None when there is none, or no locking."""
        if not self.held:
            return None
        try:
            return _holder(self._fd, 0, length=0)
        except OSError:
            return None

    def close(self) -> None:
        """Gives the lock up: whoever waits for this life's end is told now."""
        self.held = False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: the lock is the parent's, and stays so, but `close` shall do nothing here any more."""
        self.held = False
        self._fd = -1


def wait_until_released(path: Path, life: int, met: Callable[[int | None], None] | None = None) -> None:
    """Blocks, for as long as it takes, until no process holds the lock of this life: for a daemon thread of a reader.

    That the lock is free means that the life is over only if it was held at all (`life_lock` in its
    `process_started`), and nothing of it is written afterwards.

    Args:
        path: the slot's lock file.
        life: whose lock.
        met: told, before the wait, the process id of the holder: 0 when it is of another PID namespace, None when there is none.

    Raises:
        OSError: the file cannot be opened, or locking is refused or unsupported there.
    """
    fd = open_regular(path)
    try:
        if met is not None:
            met(_holder(fd, life))
        fcntl.lockf(fd, fcntl.LOCK_SH, 1, life, os.SEEK_SET)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, life, os.SEEK_SET)
    finally:
        os.close(fd)


def _holder(fd: int, first: int, length: int = 1) -> int | None:
    """Process id of another one that holds a lock there, 0 when that cannot be told; None when nobody does. `length` 0: up to the end."""
    asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, first, length, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, int(pid))
