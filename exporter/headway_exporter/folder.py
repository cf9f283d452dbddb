"""What lies in a folder that may be missing, replaced, huge or hostile."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_ENTRIES: Final = 4_096
"""Entries that are looked at: where there are more, which ones is the file system's choice."""
PASSING: Final = frozenset({errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
"""Reasons not to open a file that say nothing about it: it was just removed, or there is no room now."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder, and the inode that it had."""

    folder: Path
    name: str
    inode: int

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / self.name

    @property
    def regular(self) -> bool:
        """Whether it is a file now: no link, folder, pipe or device."""
        try:
            return stat.S_ISREG(self.path.lstat().st_mode)
        except OSError:
            return False


def entries(folder: Path, wanted: Iterable[str] = ()) -> dict[str, Entry]:
    """Entries of a real folder by name; none when it is missing, a link, or not to be read.

    Args:
        folder: where.
        wanted: names that are looked for one by one if there are too many to look at all.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return {}
        with os.scandir(folder) as listing:
            some = zip(listing, range(MOST_ENTRIES), strict=False)
            found = {entry.name: Entry(folder, entry.name, entry.inode()) for entry, _ in some}
    except OSError:
        return {}
    if len(found) == MOST_ENTRIES:
        others = (_entry(folder, name) for name in wanted if name not in found)
        found |= {entry.name: entry for entry in others if entry is not None}
    return found


def closed(folder: Path) -> bool:
    """Whether something is there that cannot be listed: a file, a link, or a folder that its rights or the disk keep shut."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return True
        os.scandir(folder).close()
    except OSError as error:
        return error.errno not in PASSING
    return False


def _entry(folder: Path, name: str) -> Entry | None:
    try:
        return Entry(folder, name, (folder / name).lstat().st_ino)
    except OSError:
        return None
