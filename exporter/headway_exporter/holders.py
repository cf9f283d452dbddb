"""The process that holds a life lock, where it can be seen: a lock that it merely lost is then not taken for its death.

Any close of the lock file drops the lock, also one by code of the trainer's own that looked into the journal's folder. Where sidecar and
trainer share a PID namespace (one machine, or `shareProcessNamespace`), the kernel tells who holds the lock, and a descriptor of
that process tells of its real end. Elsewhere the holder cannot be seen, and only what the life writes afterwards shows the error.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path


class Holder:
    """A process that was seen holding a lock; `pid` 0: one of another namespace; None: nobody held it.

    Attributes:
        nobody: nobody held it.
    """

    def __init__(self, pid: int | None) -> None:
        self.nobody = pid is None
        self._pid = pid or 0
        self._fd = -1
        if self._pid > 0:
            with contextlib.suppress(OSError):
                self._fd = os.pidfd_open(self._pid)

    def wait(self) -> None:
        """Returns at once if it is dead or dying, or cannot be seen, else when it ends: for a daemon thread."""
        if self._fd < 0 or self._memory_gone():
            return
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.poll()

    def close(self) -> None:
        """Lets it go."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _memory_gone(self) -> bool:
        """The kernel takes a process's memory before it closes its files: so where a lock ended with its process there is none left."""
        try:
            return Path(f"/proc/{self._pid}/statm").read_text().startswith("0 ")
        except OSError:
            return True
