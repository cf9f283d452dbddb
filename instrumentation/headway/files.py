"""Opening files in a folder that other users may write to.

Both sides of the journal folder open files by fixed names. A link, a FIFO or a device under such a name is refused:
following it could write to, wait for, or read from something that is not ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_READABLE_BY_ALL: Final = 0o644
_FOLDER_MODE: Final = 0o755


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """File descriptor of a regular file, created with mode 0644 when `flags` holds O_CREAT.

    The sidecar may run as another user, so a restrictive umask must not keep it from reading.

    Raises:
        OSError: it cannot be opened, or is a symbolic link (ELOOP) or no regular file (EINVAL, ENXIO).
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, _READABLE_BY_ALL)
    try:
        _require_regular(fd, path)
        if flags & os.O_CREAT:
            with contextlib.suppress(OSError):  # another user's file is as readable as its owner wants it
                os.fchmod(fd, _READABLE_BY_ALL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_regular(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def make_run_folder(directory: Path, run: str, *, shared_place: bool) -> Path:
    """Makes sure that `directory / run` is a folder to write in, and returns it.

    A `shared_place` is one where every user may write: there it must be a real folder of this user's, since another one
    could have put a folder or a link under that name first.

    Raises:
        OSError: it cannot be made, or is not what it should be; the message says what to do.
    """
    _make_folder(directory, parents=not shared_place)
    if shared_place:
        _require_own_folder(directory)
    folder = directory / run
    _make_folder(folder, parents=False)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no folder: remove it", str(folder))
    return folder


def _make_folder(path: Path, *, parents: bool) -> None:
    if not path.is_dir():
        path.mkdir(mode=_FOLDER_MODE, parents=parents, exist_ok=True)
        path.chmod(_FOLDER_MODE)  # the sidecar may be another user; mkdir obeys the umask


def _require_own_folder(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "is no folder of this user: remove it, or set HEADWAY_DIR", str(path))
