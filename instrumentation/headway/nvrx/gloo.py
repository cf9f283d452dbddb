"""Makes a gloo collective that is under way fail at once, so that an in-process restart on CPU takes under a second.

NVRx aborts NCCL. `ProcessGroupGloo` (torch 2.13) has nothing that interrupts a rank waiting in a collective: not `abort()`, not
`shutdown()`, not `destroy_process_group()`; it waits for the group's time-out. Shutting down the connections under it does.

    store = PrefixStore(..., TCPStore(...))  # first, so that its connection is not taken for gloo's
    with gloo_sockets():
        dist.init_process_group("gloo", store=store, ...)
    ...
    Wrapper(**hooks(recorder, abort=Compose(AbortTorchDistributed(), AbortGloo())))  # the rightmost runs first
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.inprocess.abort import Abort

if TYPE_CHECKING:
    from collections.abc import Iterator

_opened: dict[str, int] = {}
"""Sockets that gloo opened: `socket:[inode]` to file descriptor. The inode tells a descriptor that was closed and used again."""


@contextlib.contextmanager
def gloo_sockets() -> Iterator[None]:
    """Around whatever makes a gloo group (`init_process_group`, `new_group`, a device mesh): remembers its connections.

    No other thread may open connections meanwhile: they would be taken for gloo's.
    """
    before = _sockets()
    try:
        yield
    finally:
        _opened.update({inode: fd for inode, fd in _sockets().items() if inode not in before})


def shut_down_gloo() -> int:
    """Shuts down the remembered connections that are still open and forgets them all; safe from any thread.

    Returns:
        How many connections were shut down.
    """
    now = _sockets()
    ours = [fd for inode, fd in _opened.items() if now.get(inode) == fd]
    _opened.clear()
    return sum(_shut_down(fd) for fd in ours)


class AbortGloo(Abort):  # type: ignore[misc]
    """`Abort` hook: wakes the ranks that wait in a gloo collective. Does nothing where no gloo group was remembered."""

    def __call__(self, state: Any) -> Any:
        """Called on NVRx's monitor thread; `state` passes through."""
        shut_down_gloo()
        return state


def _sockets() -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            target = str(entry.readlink())
            if target.startswith("socket:["):
                found[target] = int(entry.name)
    return found


def _shut_down(fd: int) -> bool:
    """Whether `fd` was a connection and is shut down now; gloo keeps its descriptor and sees the end of the stream."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        connection.getpeername()  # a listening socket has no peer: left alone
        connection.shutdown(socket.SHUT_RDWR)
        return True
    return False
