"""Files that survive a crash: hashing writes, atomic replacement, bounded reads that refuse what is no plain file.

Nothing here knows what a checkpoint is. Readers open with ``O_NOFOLLOW | O_NONBLOCK`` and insist on a regular file, so
that a symbolic link, a FIFO or a device in the checkpoint folder is an error and never a hang.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_BYTES: Final = 4 << 20
_PACE_SECONDS: Final = 0.05
"""How much a slowed-down file writes at once, in seconds of its rate."""
_NO_FOLDER_FSYNC: Final = (errno.EINVAL, errno.ENOTSUP)


@dataclass(frozen=True)
class WriteFault:
    """A fault for one write, injected half-way through the file.

    Attributes:
        slow_seconds: How much longer the write takes.
        out_of_space: Whether the disk then turns out to be full (``ENOSPC``); the torn temporary file stays, as after a
            crash.
    """

    slow_seconds: float = 0.0
    out_of_space: bool = False


class HashingFile:
    """A new file, opened for writing, that knows its own size and SHA-256 while it is written.

    It has just what `torch.save` needs (``write`` and ``flush``). `torch.save` turns an error of ``write`` into a
    RuntimeError about positions in an archive, so the first real one is kept in `error`.
    """

    def __init__(
        self,
        path: Path,
        *,
        expected_bytes: int = 0,
        fault: WriteFault | None = None,
        bytes_per_second: float = 0.0,
    ) -> None:
        """Creates or empties `path`; `fault` strikes after half of `expected_bytes`; 0 bytes a second: no limit."""
        self.path = path
        self.size_bytes = 0
        self.error: OSError | None = None
        self._hash = hashlib.sha256()
        self._fault = fault
        self._strike_at = expected_bytes // 2
        self._rate = bytes_per_second
        self._opened = time.monotonic()
        self._piece_bytes = (
            min(CHUNK_BYTES, max(1, int(bytes_per_second * _PACE_SECONDS))) if self._rate else CHUNK_BYTES
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)

    @property
    def sha256(self) -> str:
        """The checksum of everything written so far, in hex."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Appends `data` whole; raises OSError, and the same one again on any later call."""
        if self.error is not None:
            raise self.error
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), self._piece_bytes):
                self._append_or_strike(view[start : start + self._piece_bytes])
                self._keep_pace()
        except OSError as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        """Does nothing: every write goes straight to the file."""

    def sync(self) -> None:
        """Puts the bytes on the disk; raises OSError if they did not all get there."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file without another look at its content."""
        os.close(self._fd)

    def _keep_pace(self) -> None:
        """Sleeps until a storage of this rate would have taken what was written so far."""
        if self._rate:
            time.sleep(max(0.0, self._opened + self.size_bytes / self._rate - time.monotonic()))

    def _append_or_strike(self, piece: memoryview) -> None:
        if self._fault is not None and self.size_bytes + len(piece) >= self._strike_at:
            fault, self._fault = self._fault, None
            head = max(self._strike_at - self.size_bytes, 0)
            self._append(piece[:head])
            self._strike(fault)
            piece = piece[head:]
        self._append(piece)

    def _strike(self, fault: WriteFault) -> None:
        time.sleep(fault.slow_seconds)
        if fault.out_of_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC) + " (injected)", str(self.path))

    def _append(self, piece: memoryview) -> None:
        while piece:
            written = os.write(self._fd, piece)
            self._hash.update(piece[:written])
            self.size_bytes += written
            piece = piece[written:]


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Gives a file descriptor for reading; OSError for a symbolic link, a folder, a FIFO, or what cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield fd
    finally:
        os.close(fd)


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Reads a small file whole; OSError (EFBIG) when it is larger than `limit_bytes`."""
    with open_regular(path) as fd:
        chunks: list[bytes] = []
        left = limit_bytes + 1
        while left and (chunk := os.read(fd, min(left, CHUNK_BYTES))):
            chunks.append(chunk)
            left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
    return b"".join(chunks)


def digest(path: Path, *, from_disk: bool = False) -> tuple[int, str]:
    """The size in bytes and the SHA-256 of a file.

    Args:
        path: A regular file, of any size; it is read in chunks.
        from_disk: Ask the kernel to drop its cached pages first, so that a file just written is really read back. Best
            effort: file systems without a page cache have nothing to drop.
    """
    with open_regular(path) as fd:
        if from_disk:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size, sha256 = 0, hashlib.sha256()
        while chunk := os.read(fd, CHUNK_BYTES):
            sha256.update(chunk)
            size += len(chunk)
    return size, sha256.hexdigest()


def replace_durably(temporary: Path, final: Path) -> None:
    """Renames a synced file over `final` and makes the rename itself durable."""
    temporary.replace(final)
    sync_folder(final.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a small file so that after a crash there is the old one, or none, or all of the new one."""
    temporary = path.with_name(path.name + ".tmp")
    file = HashingFile(temporary)
    try:
        file.write(content)
        file.sync()
    finally:
        file.close()
    replace_durably(temporary, path)


def sync_folder(folder: Path) -> None:
    """Makes a folder's entries durable; a file system that cannot sync folders is let pass."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FSYNC:
            raise
    finally:
        os.close(fd)


def describe(error: OSError) -> str:
    """An operating system's error in a few words, without its number: ``shard-… is a symbolic link``."""
    what = "is a symbolic link" if error.errno == errno.ELOOP else (error.strerror or str(error))
    name = os.path.basename(str(error.filename)) if error.filename else ""  # noqa: PTH119 - may be bytes or no path at all
    return f"{name}: {what}" if name else what
