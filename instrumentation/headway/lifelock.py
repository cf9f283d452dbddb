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
from typing import TYPE_CHECKING

from headway.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path


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


def wait_until_released(path: Path, life: int) -> None:
    """Blocks, for as long as it takes, until no process holds the lock of this life: for a daemon thread of a reader.

    That the lock is free means that the life is over only if it was held at all (`life_lock` in its
    `process_started`), and nothing of it is written afterwards.

    Raises:
        OSError: the file cannot be opened, or locking is refused or unsupported there.
    """
    fd = open_regular(path)
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH, 1, life, os.SEEK_SET)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, life, os.SEEK_SET)
    finally:
        os.close(fd)
