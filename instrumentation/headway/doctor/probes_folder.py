"""Facts about folders. What is written has a name of its own and is gone at once; no file of a trainer is locked or changed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.events import BadLineError, Event, parse
from headway.files import open_regular
from headway.mounts import MOUNTS, file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROBE: Final = ".headway-doctor-"
_BYTES: Final = 65_536
_FLOCK: Final = struct.Struct("@hhqqi4x")
_JOURNAL: Final = re.compile(r"(slot-\d{1,4}|launcher)\.jsonl")
_MOST_ENTRIES: Final = 4_096
_MOST_READ: Final = 8 << 20
_TELLING: Final = (b'"process_started"', b'"train_entered"', b'"launcher_started"')
_SILENCES: Final = b'"phase_gaps"'
_MOST_SAMPLES: Final = 1_000
"""Newest lines with silences that are read of a journal; each has the longest ones of its process's life."""


def folder(path: str, *, writes: bool, replaces: bool = False, inner: str = "") -> dict[str, Any]:
    """How a folder is, or where it is missing the nearest one above it, in which it would be made.

    Args:
        path: absolute.
        writes: whether a file may be made there to try what works.
        replaces: try also what the state folder needs.
        inner: name of the folder in it that is tried in its stead where it is there: the run's.
    """
    wanted = Path(path)
    place = next((one for one in (wanted, *wanted.parents) if os.path.lexists(one)), Path("/"))
    status = place.stat()
    volume = os.statvfs(place)
    facts: dict[str, Any] = {
        "exists": place == wanted,
        "place": str(place),
        "is_folder": stat.S_ISDIR(status.st_mode),
        "is_link": place.is_symlink(),
        "mode": stat.S_IMODE(status.st_mode),
        "owner": status.st_uid,
        "kind": file_system(place.resolve(), MOUNTS.read_text(errors="replace")),
        "total_bytes": volume.f_blocks * volume.f_frsize,
        "free_bytes": volume.f_bavail * volume.f_frsize,
        "free_files": volume.f_favail if volume.f_files else None,
        "can_list": os.access(place, os.R_OK | os.X_OK),
    }
    if writes and facts["is_folder"]:
        entered = facts["exists"] and os.access(place, os.X_OK)
        tried = place / inner if entered and (place / inner).is_dir() else place
        facts |= {"tried": str(tried), **_tried(tried)}
        if replaces and facts["write"] is None:
            facts |= _replaced(tried)
    return facts


def _tried(place: Path) -> dict[str, Any]:
    name = place / f"{PROBE}{os.getpid()}-{secrets.token_hex(4)}"
    before = clock.wall()
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return {"write": error.strerror, "full": error.errno in (errno.ENOSPC, errno.EDQUOT)}
    try:
        name.unlink()  # the file lives on as long as it is open
        touched = os.fstat(fd).st_mtime
        allocate = _problem(lambda: os.posix_fallocate(fd, 0, _BYTES))
        return {
            "write": None,
            "ahead_seconds": touched - (before + clock.wall()) / 2,
            "allocate": allocate,
            "map": None
            if allocate
            else _problem(lambda: _mapped(fd)),  # without blocks, to write there may kill (SIGBUS)
            "lock": _problem(lambda: _locked(fd)),
        }
    finally:
        os.close(fd)


def _problem(act: Callable[[], object]) -> str | None:
    try:
        act()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _mapped(fd: int) -> None:
    with mmap.mmap(fd, _BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[:7] = b"headway"
    if os.pread(fd, 7, 0) != b"headway":
        raise OSError(errno.EIO, "what is written to memory does not reach the file")


def _locked(fd: int) -> None:
    """Another process must see the lock: some file systems only keep it to themselves."""
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7, os.SEEK_SET)
    child = os.fork()
    if not child:
        seen = 1
        with contextlib.suppress(OSError):
            asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 7, 1, 0)
            seen = int(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK)
        os._exit(seen)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.ENOLCK, "another process does not see it")


def _replaced(place: Path) -> dict[str, Any]:
    names = [place / f"{PROBE}{os.getpid()}-{secrets.token_hex(4)}" for _ in range(2)]
    try:
        return {"replace": _problem(lambda: _replace(place, *names))}
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                name.unlink()


def _replace(place: Path, old: Path, new: Path) -> None:
    for name in (old, new):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, name.name.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
    new.replace(old)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    if old.read_bytes() != new.name.encode():
        raise OSError(errno.EIO, "a replaced file still shows what it held before")


def journals(directory: str, run: str) -> dict[str, Any]:
    """What the journals of a run tell: settings, longest silences, launcher's command, newest event's clock; and whose else there are."""
    place = Path(directory, run)
    facts: dict[str, Any] = {
        "files": 0,
        "unreadable": [],
        "unwritable": [],
        "settings": {},
        "silences": {},
        "command": None,
        "mono": None,
    }
    started: list[Event] = []
    for path in _journals_in(place):
        facts["files"] += 1
        if not os.access(path, os.W_OK):
            facts["unwritable"].append(path.name)
        try:
            lines = _lines(path)
        except OSError as error:
            facts["unreadable"].append(f"{path.name}: {error.strerror}")
            continue
        events = list(_events(line for line in lines if any(word in line for word in _TELLING)))
        started += events
        for event in _events([line for line in lines if _SILENCES in line][-_MOST_SAMPLES:]):
            _lengthen(facts["silences"], event.fields.get("phase_gaps") or {})
        last = next(iter(_events(reversed(lines[-20:]))), None)
        if last is not None:
            facts["mono"] = max(last.mono, facts["mono"] or 0.0)
    for event in sorted(started, key=lambda one: one.wall):
        facts["settings"] |= event.fields.get("settings") or {}
        facts["command"] = event.fields.get("command") or facts["command"]
    facts["monotonic"] = clock.monotonic()
    facts["others"] = [] if facts["files"] else _others(Path(directory), run)
    return facts


def _lengthen(longest: dict[str, float], gaps: dict[str, Any]) -> None:
    for phase, seconds in gaps.items():
        if isinstance(seconds, (int, float)):
            longest[phase[:64]] = max(seconds, longest.get(phase[:64], 0.0))


def _journals_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as listing:
            names = [entry.name for entry, _ in zip(listing, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return []
    return [place / name for name in sorted(names) if _JOURNAL.fullmatch(name)]


def _lines(path: Path) -> list[bytes]:
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        return file.read(_MOST_READ).splitlines()


def _events(lines: Iterable[bytes]) -> Iterable[Event]:
    for line in lines:
        with contextlib.suppress(BadLineError):
            yield parse(line)


def _others(directory: Path, run: str) -> list[str]:
    try:
        with os.scandir(directory) as listing:
            names = [entry.name for entry, _ in zip(listing, range(64), strict=False)]
    except OSError:
        return []
    return [name for name in sorted(names) if name != run and _journals_in(directory / name)][:5]
