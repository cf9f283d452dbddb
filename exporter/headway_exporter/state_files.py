"""The files of the durable state: where they lie, what is in them, how they are written and read.

    <state dir>/<run>/<pod>/ledger.json             replaced every few seconds: the sidecar's whole memory, and a summary for readers
    <state dir>/<run>/<pod>/incidents.jsonl         appended: a line for each incident that had its verdict, and for each revision
    <state dir>/<run>/incidents/<id>/<pod>.json     what each pod knows of where an incident began
    <state dir>/<run>/incidents/<id>/verdict.json   what was made of it, written once

The folder is shared by all pods of many runs, perhaps over a network, and its files outlive this program's versions. A file that was made
by a newer version, for another pod, or that is damaged is told apart from a good one (`StateFileError`), set aside under another name
and never written over.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, unquote

from headway.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION: Final = 1
LEDGER: Final = "ledger.json"
RECORDS: Final = "incidents.jsonl"
INCIDENTS: Final = "incidents"
VERDICT: Final = "verdict.json"
MOST_NAME: Final = 200
"""Characters of a pod's name in a file's: with what is added to it, a file system must take it (mostly 255)."""
MOST_LEDGER_BYTES: Final = 64 << 20
MOST_RECORD_BYTES: Final = 1 << 20
_MOST_HEADER_BYTES: Final = 1 << 16
_LAST_WALL: Final = 4_102_444_800.0
"""The year 2100."""

Fault = Literal["corrupt", "foreign", "newer"]


class StateFileError(ValueError):
    """A file of the state folder cannot be used; `fault` says why in a word, the message to people."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True)
class Ledger:
    """A `ledger.json` that was found whole."""

    run: str
    pod_index: str
    session: str
    """Which sidecar process wrote it."""
    written_wall: float
    body: dict[str, Any]


def pod_folder(state_dir: Path, run: str, pod_index: str) -> Path:
    """The pod's own folder."""
    return state_dir / run / pod_name(pod_index)


def pod_name(pod_index: str) -> str:
    """Name of the pod's folder: the pod index with unusual characters written as %XX."""
    name = quote(pod_index, safe="")
    return f"%{ord(name[0]):02X}{name[1:]}" if name in (".", "..", INCIDENTS) else name


def incident_folder(state_dir: Path, run: str, incident: str) -> Path:
    """Where the pods exchange what they know of one failure; `incident` is an id of 16 hex digits."""
    return state_dir / run / INCIDENTS / incident


def claim_name(pod_index: str) -> str:
    """File name of the pod's claim in an incident's folder; never that of the verdict."""
    name = f"{quote(pod_index, safe='')}.json"
    return name if name != VERDICT and not name.startswith(".") else f"%{ord(name[0]):02X}{name[1:]}"


def claimant(name: str) -> str | None:
    """The pod whose claim a file of that name is; None: it is none."""
    pod_index = unquote(name.removesuffix(".json"))
    return pod_index if name == claim_name(pod_index) else None


def read_bounded(path: Path, limit: int) -> bytes:
    """A regular file's content.

    Raises:
        OSError: it cannot be opened or read, or is no regular file.
        StateFileError: it is larger than `limit` bytes.
    """
    return _read(path, limit)


def pods_of(run_folder: Path) -> dict[str, Path]:
    """The folders of the run's pods by pod index, numbers in their order and first.

    Raises:
        OSError: the run's folder cannot be read.
    """
    found = {pod_named(path.name): path for path in run_folder.iterdir() if path.is_dir() and path.name != INCIDENTS}
    return dict(sorted(found.items(), key=lambda item: pod_order(item[0])))


def pod_named(folder_name: str) -> str:
    """The pod whose folder has this name."""
    return unquote(folder_name)


def pod_order(pod_index: str) -> tuple[bool, int, str]:
    """Sorts pod indices: numbers in their order, before names."""
    number = pod_index.isascii() and pod_index.isdigit() and len(pod_index) < 10
    return not number, int(pod_index) if number else 0, pod_index


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Replaces the file by the ledger, so that a reader sees the old one or the new one whole, whatever happens meanwhile.

    Raises:
        OSError: it could not be written; the old one stands.
    """
    body = json.dumps(ledger.body, separators=(",", ":")).encode()
    header = {
        "headway": "ledger",
        "version": VERSION,
        "run": ledger.run,
        "pod_index": ledger.pod_index,
        "session": ledger.session,
        "written_wall": ledger.written_wall,
        "bytes": len(body),
        "crc32": zlib.crc32(body),
    }
    replace(path, json.dumps(header).encode() + b"\n" + body + b"\n")


def read_ledger(path: Path, run: str | None = None, pod_index: str | None = None) -> Ledger:
    """The ledger in the file, which must be that of `run` and `pod_index` where these are given.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        StateFileError: it is damaged, of another pod, or of a newer version.
    """
    first, newline, rest = _read(path, MOST_LEDGER_BYTES).partition(b"\n")
    header = _header(first + newline, path)
    body = rest[: header["bytes"]] if isinstance(header.get("bytes"), int) else b""
    content = _object(body) if zlib.crc32(body) == header.get("crc32") else None
    if content is None:
        raise StateFileError("corrupt", f"{path} is damaged: its checksum does not match")
    _check_owner(header, path, run, pod_index)
    wall = header.get("written_wall")
    return Ledger(
        run=str(header.get("run")),
        pod_index=str(header.get("pod_index")),
        session=str(header.get("session")),
        written_wall=float(wall) if isinstance(wall, (int, float)) and 0 < wall < _LAST_WALL else 0.0,
        body=content,
    )


def session_of(path: Path, run: str, pod_index: str) -> str | None:
    """Which sidecar process wrote the ledger, None when there is none: what a writer looks at before it writes again.

    Raises:
        OSError: it cannot be read.
        StateFileError: it is no ledger, of another run or pod, or of a newer version.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        header = _header(file.readline(_MOST_HEADER_BYTES), path)
    _check_owner(header, path, run, pod_index)
    return str(header.get("session"))


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Appends the record as a line of its own, after whatever a crash may have left of an earlier one, and waits until it is on disk.

    What could only be written in part, or not be brought to disk, is taken back: it is tried again every few seconds, and a disk that is
    full for hours must not end up full of such parts.

    Raises:
        OSError: it could not be written (a part of it may have been: readers skip that).
    """
    line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    new = not path.exists()
    fd = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        _append(fd, line, size)
    finally:
        os.close(fd)
    if new:
        _sync_folder(path.parent)


def _append(fd: int, line: bytes, size: int) -> None:
    """Appends to a file of that size, to disk."""
    done = 0
    try:
        while done < len(line):
            done += os.write(fd, line[done:])
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_size == size + done:  # nobody else has appended meanwhile
                os.ftruncate(fd, size)
        raise


def read_records(path: Path) -> Iterator[dict[str, Any] | StateFileError]:
    """The records in order, and in place of each line that is none what is wrong with it.

    Raises:
        OSError: the file cannot be opened or read; a missing one has no records.
    """
    for number, (_, line) in enumerate(record_lines(path), 1):
        if line.strip():
            yield parse_record(line, f"{path}, line {number}")


def record_lines(path: Path, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Where each line begins, and the line as it is, for readers that need not parse them all; one that is too long is cut.

    Args:
        path: the file.
        begin: offset of a line, to read from there on.

    Raises:
        OSError: as `read_records`.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "rb") as file:
        file.seek(begin)
        while line := file.readline(MOST_RECORD_BYTES):
            yield begin, line
            begin += len(line)
            while not line.endswith(b"\n") and (line := file.readline(MOST_RECORD_BYTES)):
                begin += len(line)  # the rest of one that is too long


def last_records(path: Path) -> list[dict[str, Any]]:
    """The newest records, as many as `MOST_RECORD_BYTES` hold: what a writer looks at before it goes on; none when there is no file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return []
    with os.fdopen(fd, "rb") as file:
        begin = max(0, os.fstat(fd).st_size - MOST_RECORD_BYTES)
        file.seek(max(0, begin - 1))
        if begin:
            file.readline()  # the rest of one that begins before
        lines = file.read(MOST_RECORD_BYTES + 1).splitlines()
    return [record for line in lines if isinstance(record := parse_record(line, str(path)), dict)]


def _header(line: bytes, path: Path) -> dict[str, Any]:
    header = _object(line) if line.endswith(b"\n") else None
    if header is None or header.get("headway") != "ledger":
        raise StateFileError("corrupt", f"{path} is no ledger of Headway, or only a part of one")
    version = header.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StateFileError(
            "newer", f"{path} was written by a newer Headway (version {version} of the format; this knows {VERSION})"
        )
    return header


def _check_owner(header: dict[str, Any], path: Path, run: str | None, pod_index: str | None) -> None:
    for name, wanted in (("run", run), ("pod_index", pod_index)):
        if wanted is not None and header.get(name) != wanted:
            raise StateFileError("foreign", f"{path} is of {name} {str(header.get(name))[:80]!r}, not {wanted!r}")


def parse_record(line: bytes, place: str) -> dict[str, Any] | StateFileError:
    """The record in the line, or what is wrong with it; `place` says in the message where it is from."""
    record = _object(line)
    if record is None:
        return StateFileError("corrupt", f"{place}: no record, or only a part of one")
    version = record.get("v")
    if not isinstance(version, int) or version > VERSION:
        return StateFileError("newer", f"{place}: of version {str(version)[:20]}, this Headway knows {VERSION}")
    return record


def set_aside(path: Path, fault: Fault) -> Path:
    """Moves the file out of the way, to a name that is not in use; returns that.

    Raises:
        OSError: it cannot be moved.
    """
    for number in range(1_000):
        other = path.with_name(f"{path.name}.{fault}-{number}")
        with contextlib.suppress(FileExistsError):
            os.link(path, other)  # unlike a rename, never replaces
            path.unlink()
            return other
    raise FileExistsError(f"too many files named {path.name}.{fault}-…: remove some")


def replace(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all, and waits until it is on disk.

    Raises:
        OSError: it could not be written.
    """
    temporary = _write_beside(path, content)
    try:
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Writes the file whole unless there is one already; whether it was written.

    Raises:
        OSError: it could not be written.
    """
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    _sync_folder(path.parent)
    return True


def remove_unfinished(folder: Path) -> None:
    """Removes what writers that were killed left in the folder; one that is writing just now fails, and may try again.

    Raises:
        OSError: the folder cannot be read, or a file not be removed.
    """
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _write_beside(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: Path, limit: int) -> bytes:
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise StateFileError("corrupt", f"{path} is larger than {limit} bytes")
    return content


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
