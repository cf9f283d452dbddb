"""The event journal: one line for each rare event, appended by a single `write`, and the reader that follows it.

A journal is a file `<name>.jsonl` and at most one older generation `<name>.1.jsonl`; both together never exceed their
bound. Several processes of one slot may write to it at the same time (an old one that is still dying, and its
successor).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import zlib
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.events import MAX_LINE_BYTES, BadLineError, Event, encode, parse
from headway.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULT_MAX_BYTES: Final = 4 << 20
"""Size at which a generation ends: a journal takes at most twice that."""

_REOPEN_SECONDS: Final = 1.0
_LOCK_SECONDS: Final = 0.2
_LIVES_REMEMBERED: Final = 64
_LARGEST_GAP: Final = 1_000_000
_CHUNK: Final = 65_536
_USUAL_LINE_BYTES: Final = 4_096
_MOST_FORMER: Final = 2


@dataclass(frozen=True)
class Place:
    """How far a journal was read, in a form that outlives the reader.

    The file is known by its first line, which no other one has: its name goes over to its successor, and inode numbers are used again.
    """

    identity: int
    """CRC-32 of the first line."""
    offset: int
    """Bytes of whole lines that were read."""
    skipping: bool = False
    """In the middle of a line that is too long."""


def rotated_path(path: Path) -> Path:
    """Where the older generation of a journal lies."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


class JournalWriter:
    """Appends one life's events; never raises, and counts in `dropped` what could not be written.

    Safe to call from any thread and from signal handlers. Nobody ever waits long for the lock: a writer that hangs in
    the file system must not hang a hook of the recovery, so after 0.2 s the event is given up. While the file cannot
    be opened or written, it is tried again at most once a second.
    """

    def __init__(self, path: Path, life: int, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.path = path
        self.life = life
        self.dropped = 0
        self._max_bytes = max_bytes
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._holder = 0
        self._fd = -1
        self._retry_at = 0.0
        self._closed = False

    def write(self, kind: str, fields: Mapping[str, Any] | None = None, incarnation: str | None = None) -> bool:
        """Appends an event of this moment; False, and one more in `dropped`, when that failed.

        Numbers are used up by events that are dropped too, so that the reader sees the gap.
        """
        me = threading.get_ident()
        # A signal handler may run inside a write of its own thread; it must neither wait for that write nor end its
        # lock.
        nested = self._holder == me
        written = False
        try:
            if not nested:
                if not self._lock.acquire(timeout=_LOCK_SECONDS):
                    next(self._numbers)
                    return False
                self._holder = me
            written = self._append(kind, fields or {}, incarnation)
        except Exception:  # noqa: BLE001 - whatever it is (a full disk, a value that is no JSON), training goes on
            written = False
        finally:
            # An injected exception can come out of any call, `acquire` included, before its result could be noted: so
            # no call may precede the release here, and the lock itself knows whether it is ours.
            if not nested:
                if self._holder == me:
                    self._holder = 0
                try:  # noqa: SIM105 - `suppress()` would be such a call
                    self._lock.release()
                except RuntimeError:
                    pass
            if not written:
                self.dropped += 1
        return written

    def close(self) -> None:
        """Ends the journal; later events are dropped."""
        self._closed = True
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _append(self, kind: str, fields: Mapping[str, Any], incarnation: str | None) -> bool:
        number = next(self._numbers)
        if self._closed:
            return False
        line = encode(Event(kind, number, clock.wall(), clock.monotonic(), self.life, incarnation, fields))
        if len(line) > MAX_LINE_BYTES:
            return False
        size = self._prepare(len(line))
        if size is None:
            return False
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # somebody was killed or ran out of space within a line: that costs theirs, not ours
        return os.write(self._fd, line) == len(line)

    def _prepare(self, room: int) -> int | None:
        """Makes `_fd` the file that now has our name, with room in its generation; its size, None while that fails."""
        try:
            size = self._size()
            if size is None:
                size = self._open()
            if size is not None and size and size + room > self._max_bytes:
                self._rotate()
                size = self._open()
        except OSError:
            self._retry_at = clock.monotonic() + _REOPEN_SECONDS
            return None
        return size

    def _size(self) -> int | None:
        """Size of the open file; None when there is none, or it lost its name (another process rotated it, removed)."""
        if self._fd < 0:
            return None
        try:
            named = self.path.lstat()
        except FileNotFoundError:
            return None
        return named.st_size if os.path.samestat(named, os.fstat(self._fd)) else None

    def _open(self) -> int | None:
        """Opens the file by its name, at most once a second after a failure; its size."""
        if clock.monotonic() < self._retry_at:
            return None
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(mode=0o755)
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        old, self._fd = self._fd, fd
        if old >= 0:
            os.close(old)
        return os.fstat(fd).st_size

    def _rotate(self) -> None:
        """Makes the file the older generation, unless another process is just doing so.

        Raises:
            OSError: it cannot; nothing more may be written then, or the journal would outgrow its bound.
        """
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends when the file is closed
        if self._size() is not None:
            self.path.replace(rotated_path(self.path))


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read up to `offset`."""

    fd: int
    offset: int

    @property
    def inode(self) -> tuple[int, int]:
        """Which file it is."""
        return _inode_of(self.fd)


class JournalReader:
    """Follows a journal across rotation, replacement and removal; trusts nothing in it.

    `dropped` counts what was no event, by reason: `torn`, `too_long`, `version`, `malformed`, `unknown_kind`, and
    `gap` for events that their writer could not write. At most one line and one chunk are held in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped: Counter[str] = Counter()
        self._fd = -1
        self._former: list[_Read] = []
        self._offset = 0
        self._partial = b""
        self._skipping = False
        self._next_number: OrderedDict[int, int] = OrderedDict()

    def poll(self, limit_bytes: int = 1 << 20) -> list[Event]:
        """The events in the next `limit_bytes` bytes; an empty list when there is nothing new, or no file."""
        events: list[Event] = []
        while limit_bytes > 0:
            data = self._read(min(_CHUNK, limit_bytes))
            if not data:
                if not self._advance():
                    break
                continue
            limit_bytes -= len(data)
            events += self._parsed(data)
        return events

    @property
    def place(self) -> Place | None:
        """Where a later reader is to go on; None before there was a whole line."""
        identity = _identity(self._fd)
        if identity is not None:
            return Place(identity, self._offset - len(self._partial), self._skipping)
        before = self._former[-1] if self._former else None  # read to its end
        identity = None if before is None else _identity(before.fd)
        return None if before is None or identity is None else Place(identity, before.offset)

    @property
    def next_numbers(self) -> dict[int, int]:
        """By life, the number of the event that comes next."""
        return dict(self._next_number)

    def resume(self, place: Place | None, next_numbers: Mapping[int, int]) -> None:
        """Before the first poll: goes on where another reader was, if that file is still there; else begins at the oldest one."""
        self._next_number.update(next_numbers)
        for path in (self.path, rotated_path(self.path)) if place is not None else ():
            fd = _open_if_there(path)
            if place is not None and _identity(fd) == place.identity:
                self._fd, self._offset, self._skipping = fd, place.offset, place.skipping
                return
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """Closes the file; the next poll would start over."""
        for fd in (self._fd, *(former.fd for former in self._former)):
            if fd >= 0:
                os.close(fd)
        self._fd, self._former = -1, []

    def _read(self, length: int) -> bytes:
        if self._fd < 0:
            return b""
        try:
            data = os.pread(self._fd, length, self._offset)
            if not data:
                # No writer ever cuts a file; should somebody else have done so, go on at its end.
                self._offset = min(self._offset, os.fstat(self._fd).st_size)
        except OSError:
            return b""
        self._offset += len(data)
        return data

    def _advance(self) -> bool:
        """At the end of a file: True when there may be more to read at once, here or in the file that followed."""
        successor = self._successor()
        if successor is None:
            return False
        if self._fd >= 0 and self._unread():  # written after we saw the end, before it was replaced
            self._put_back(successor)
            return True
        if self._partial:
            self.dropped["torn"] += 1
        self._partial = b""
        self._skipping = False
        if self._fd >= 0:
            self._former.append(_Read(self._fd, self._offset))
        self._fd, self._offset = successor.fd, successor.offset
        self._let_go_of_former()
        return True

    def _put_back(self, file: _Read) -> None:
        """Will be read later."""
        if file.offset:
            self._former.append(file)
        else:
            os.close(file.fd)

    def _let_go_of_former(self) -> None:
        """Closes all but the files that may yet be met again by a name.

        As long as they are open, no new file is given their inode: so an equal inode is the same file, and nothing of it
        is read twice.
        """
        older = _inode(rotated_path(self.path))
        while len(self._former) > _MOST_FORMER:
            unnamed = (former for former in self._former if former.inode != older)
            gone = next(unnamed, self._former[0])
            self._former.remove(gone)
            os.close(gone.fd)

    def _unread(self) -> bool:
        try:
            return os.fstat(self._fd).st_size > self._offset
        except OSError:
            return False

    def _successor(self) -> _Read | None:
        """The file to read after the open one, None when there is none yet.

        The journal may have been rotated twice since the last look: then the older generation is one that we never
        read. Or it was moved away and back: then it goes on where we left it.
        """
        newest = _inode(self.path)  # without opening it: nearly always it is the one that we have
        if newest is not None and self._fd >= 0 and newest == _inode_of(self._fd):
            return None
        older = _open_if_there(rotated_path(self.path))
        if older >= 0:
            inode = _inode_of(older)
            unread = self._fd < 0 or inode != _inode_of(self._fd)
            if unread and all(inode != former.inode for former in self._former):
                return _Read(older, 0)
            os.close(older)
        known = next((former for former in self._former if former.inode == newest), None)
        if known is not None:
            self._former.remove(known)
            return known
        fd = _open_if_there(self.path)
        return _Read(fd, 0) if fd >= 0 else None

    def _parsed(self, data: bytes) -> Iterator[Event]:
        """The events of the lines that `data` completes."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._skipping:
            self._skipping = False
            del lines[0]
        if self._skipping:
            self._partial = b""
        elif len(self._partial) > MAX_LINE_BYTES:
            self.dropped["too_long"] += 1
            self._skipping = True
            self._partial = b""
        for line in lines:
            event = self._event(line) if line else None
            if event is not None:
                yield event

    def _event(self, line: bytes) -> Event | None:
        try:
            event = parse(line)
        except BadLineError as error:
            self.dropped[error.reason] += 1
            return None
        self._note_number(event)
        return event

    def _note_number(self, event: Event) -> None:
        """Counts the events of its life that should have come before it and did not."""
        expected = self._next_number.pop(event.life, 0)
        if event.n > expected:
            self.dropped["gap"] += min(event.n - expected, _LARGEST_GAP)
        self._next_number[event.life] = max(expected, event.n + 1)
        if len(self._next_number) > _LIVES_REMEMBERED:
            self._next_number.popitem(last=False)


def _open_if_there(path: Path) -> int:
    """A descriptor, or -1 when there is no file or none that may be read: a link, a FIFO, another user's."""
    try:
        return open_regular(path)
    except OSError:
        return -1


def identity(path: Path) -> int | None:
    """What names the journal in the file for good (see `Place`); None when there is none with a whole line."""
    fd = _open_if_there(path)
    try:
        return _identity(fd)
    finally:
        if fd >= 0:
            os.close(fd)


def _identity(fd: int) -> int | None:
    if fd < 0:
        return None
    try:
        beginning = os.pread(fd, _USUAL_LINE_BYTES, 0)
        if b"\n" not in beginning:
            beginning = os.pread(fd, MAX_LINE_BYTES, 0)
    except OSError:
        return None
    first, newline, _ = beginning.partition(b"\n")
    return zlib.crc32(first) if newline or len(beginning) == MAX_LINE_BYTES else None


def _inode(path: Path) -> tuple[int, int] | None:
    """Device and inode of what has this name now, links not followed."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _inode_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
