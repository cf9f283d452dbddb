"""Journal folders as an enemy, a broken disk or a stranger's program would fill them, and what must be true of a sidecar all the same.

Each maker fills the run's folder with files of the slots from 1 on; slot 0 belongs to an honest trainer. A journal of a maker ends with a
line of another version: once as many of these were counted as dropped, all before them was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.journal import JournalWriter
from headway.lifelock import lock_name
from headway.ring import RingWriter, ring_name
from headway.ring_format import HEADER, HEADER_BYTES, MAGIC, RECORD, RECORD_BYTES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAST: Final = b'{"v":99}\n'
"""The last line of every hostile journal."""
MANY: Final = int(os.environ.get("HEADWAY_FUZZ_NAMES", "4000"))
FULL: Final = 65_536


@dataclass(frozen=True)
class Hostile:
    """What a maker left."""

    journals: int = 0
    """Journals that end with `LAST`."""
    reasons: tuple[str, ...] = ()
    """Reasons of `headway_events_dropped_total` that must rise."""
    believed: bool = False
    """Some of it is well formed: it counts, so the pod's sums are not the honest trainer's alone."""


def event(kind: str, life: int, number: int, **fields: Any) -> bytes:
    """A line that is as it should be, but for the fields given (also `n`, `wall`, `mono`, `v`)."""
    line = {"v": 1, "kind": kind, "n": number, "wall": clock.wall(), "mono": clock.monotonic(), "life": life}
    return json.dumps(line | fields).encode() + b"\n"


def journal(folder: Path, slot: int, lines: Iterable[bytes]) -> None:
    """A slot's journal with these lines and `LAST`."""
    with (folder / f"slot-{slot}.jsonl").open("wb") as file:
        file.writelines(lines)
        file.write(b"\n" + LAST)


def header(capacity: int, life: int, *, index: int = 0, version: int = VERSION, record: int = RECORD_BYTES) -> bytes:
    """A ring's header."""
    packed = HEADER.pack(MAGIC, version, record, capacity, life, index)
    return packed + bytes(HEADER_BYTES - len(packed))


def sparse(path: Path, head: bytes, size: int) -> None:
    """A file of `size` bytes that takes none."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def noise(folder: Path) -> Hostile:
    """Bytes that mean nothing, and lines without an end."""
    dice = random.Random(1)
    journal(folder, 1, [dice.randbytes(1 << 20)])
    journal(folder, 2, [bytes(range(256)) * 4_000])
    journal(folder, 3, [b"x" * (20 << 20)])
    journal(folder, 4, [b"\n" * (1 << 20), b"{}\n" * 10_000, b"null\n[]\n1\ntrue\n" * 1_000])
    journal(folder, 5, [b"[" * 60_000 + b"\n", b'{"v":1,"kind":' * 4_000 + b"\n"])
    nested: Any = {}
    for _ in range(400):
        nested = {"deeper": nested}
    journal(folder, 6, [event("process_started", 9, 0, settings=nested, versions=nested), b"\xef\xbb\xbf{}\n"])
    (folder / "launcher.jsonl").write_bytes(dice.randbytes(1 << 18) + b"\n")
    return Hostile(6, ("torn", "too_long", "malformed", "version"), believed=True)


def strangers(folder: Path) -> Hostile:
    """Other versions and kinds, and fields of other types."""
    journal(folder, 1, (event("sample", 9, n, v=version) for n, version in enumerate([0, 2, -1, "1", None, 1.5, [1]])))
    journal(folder, 2, (event("no_such_kind" * n, 9, n) for n in range(200)))
    wrong: list[Any] = ["", "x", -1, 1.5, True, [], {}, [[]], {"a": []}, None, 10**400, -(10**18), "\ud800", "1e999"]
    kinds = [
        "process_started",
        "train_entered",
        "phase",
        "checkpoint",
        "queue",
        "fault_caught",
        "interruption",
        "sample",
    ]
    names = [
        "rank",
        "world_size",
        "name",
        "edge",
        "stage",
        "step",
        "records",
        "settings",
        "depth",
        "type",
        "mode",
        "pid",
    ]
    journal(folder, 3, (event(kind, 9, 0, **dict.fromkeys(names, value)) for kind in kinds for value in wrong))
    journal(folder, 4, (event("sample", value, value) for value in (True, -1, 1 << 63, 10**300)))
    nonsense = ("NaN", "Infinity", "-Infinity", "1e999", "-5", "1e300", '"1"', "[]")
    lines = [
        b'{"v":1,"kind":"sample","n":0,"life":9,"wall":%s,"mono":%s}\n' % (one.encode(), two.encode())
        for one in nonsense
        for two in nonsense
    ]
    journal(folder, 5, lines)
    return Hostile(5, ("version", "unknown_kind", "malformed", "future"), believed=True)


def crowds(folder: Path) -> Hostile:
    """Ever new names: of phases, exceptions, checkpoints, settings, nodes and lives."""
    journal(folder, 1, (event("phase", 9, n, name=f"phase-{n}", edge="begin") for n in range(MANY)))
    journal(folder, 2, (event("fault_caught", 9, n, type=f"Error{n}", message="m" * 50) for n in range(MANY // 4)))
    journal(folder, 3, (event("checkpoint", 9, n, stage="requested", step=n) for n in range(MANY)))
    journal(
        folder, 4, (event("process_started", n, 0, rank=n, node=f"n{n}", gpu_uuid=f"G{n}") for n in range(MANY // 4))
    )
    tables = ({f"s{n}-{item}": item for item in range(300)} for n in range(MANY // 100))
    starts = (event("process_started", n, 0, settings=table, versions=table) for n, table in enumerate(tables))
    journal(folder, 5, starts)
    gaps = ({f"g{n}-{item}": float(item) for item in range(100)} for n in range(MANY // 100))
    journal(folder, 6, (event("sample", 9, n, phase_gaps=table) for n, table in enumerate(gaps)))
    entries = (event("train_entered", 9, n, incarnation=f"i{n}", rank=n) for n in range(MANY // 4))
    journal(folder, 7, entries)
    return Hostile(7, ("version",), believed=True)


def places(folder: Path) -> Hostile:
    """Files that are none: links, pipes, sockets' like, devices, folders; and far too many of them."""
    (folder / "slot-1.jsonl").symlink_to("/dev/zero")
    (folder / "slot-2.jsonl").symlink_to(folder / "slot-2.jsonl")
    (folder / "slot-3.jsonl").symlink_to("/nowhere/at/all")
    os.mkfifo(folder / "slot-4.jsonl")
    (folder / "slot-5.jsonl").mkdir()
    (folder / ring_name(6, 9)).mkdir()
    os.mkfifo(folder / ring_name(7, 9))
    (folder / ring_name(8, 9)).symlink_to("/dev/urandom")
    with contextlib.suppress(PermissionError):
        os.mknod(folder / "slot-9.jsonl", stat.S_IFCHR | 0o644, os.makedev(1, 5))
    (folder / lock_name(10)).symlink_to("/dev/zero")
    journal(folder, 10, [event("process_started", 9, 0, life_lock=True)])
    (folder / lock_name(11)).mkdir()
    journal(folder, 11, [event("process_started", 9, 0, life_lock=True)])
    for number in range(500):
        (folder / f"slot-{100 + number}.jsonl").touch()
        (folder / f"slot-0{number}.jsonl").touch()
    return Hostile(2, ("unreadable", "limit", "version"), believed=True)


def rings(folder: Path) -> Hostile:
    """Rings that are cut short, claim gigabytes, or lie about what is in them."""
    sparse(folder / ring_name(1, 9), header(1 << 25, 9), 2 << 30)
    sparse(folder / ring_name(2, 9), header(1 << 20, 9, index=1 << 19), HEADER_BYTES + (1 << 20) * RECORD_BYTES)
    sparse(folder / ring_name(3, 9), header(FULL, 9), HEADER_BYTES)
    sparse(folder / ring_name(4, 9), header(FULL, 8), HEADER_BYTES + FULL * RECORD_BYTES)
    sparse(folder / ring_name(5, 9), header(FULL, 9, version=7), HEADER_BYTES + FULL * RECORD_BYTES)
    sparse(folder / ring_name(6, 9), header(FULL, 9, record=0), HEADER_BYTES + FULL * RECORD_BYTES)
    (folder / ring_name(7, 9)).write_bytes(random.Random(7).randbytes(1 << 20))
    (folder / ring_name(8, 9)).write_bytes(MAGIC)
    garbage = RECORD.pack(1, 3, 0, 0, 0, 50_000, 5, 1, 2, 1.0)
    (folder / ring_name(9, 9)).write_bytes(header(FULL, 9, index=60_000) + garbage * FULL)
    for life in range(1, 200):
        sparse(
            folder / ring_name(10 + life % 40, life),
            header(FULL, life, index=50_000),
            HEADER_BYTES + FULL * RECORD_BYTES,
        )
    sparse(folder / "slot-60.jsonl", b"", 2 << 30)  # two gigabytes of nothing, in one line
    return Hostile(0, ("bad_ring", "too_long"))


def clocks(folder: Path) -> Hostile:
    """Steps and events from times that never were, whole and with good checksums."""
    now = clock.monotonic_ns()
    largest = (1 << 63) - 1
    times = [(0, 0), (now, 0), (now, now - 10**18), (0, now), (largest, largest), (now, now + 10**12), (5, 1)]
    ring = RingWriter.create(folder, 1, 9)
    for step in (1, 0, 2**32 - 1, 7, 7, 6):
        for start, end in times:
            ring.append(step, max(start, 0), max(end, 0), 0, 0, float("nan"), -(2**62))
    for share in (0, 10**9, 2**63):
        ring.append(1, now - 10, now, share, share, float("inf"), 2**62)
    ring.close()
    moments = [0.0, -0.0, -1.0, 1e-9, clock.monotonic() - 1, 1e9, 1e300]
    edges = [
        event("phase", 9, n, mono=at, wall=-at, name="eval", edge=edge)
        for n, at in enumerate(moments)
        for edge in ("begin", "end")
    ]
    random.Random(3).shuffle(edges)
    journal(folder, 1, edges)
    samples = (event("sample", 9, n, dropped=10**17, step=10**15, oom_kills=n) for n in (5, 1, 9, 0))
    journal(folder, 2, [*samples, event("checkpoint", 9, 9, stage="committed", step=-(10**15), seconds=-1e308)])
    return Hostile(2, ("future", "malformed", "version"), believed=True)


MAKERS: Final[tuple[Callable[[Path], Hostile], ...]] = (noise, strangers, crowds, places, rings, clocks)


def grow(folder: Path, rounds: int) -> None:
    """One round of what happens to files while they are read: growing, cut short, replaced by other sorts, removed and back."""
    target = folder / "slot-20.jsonl"
    with target.open("ab") as file:
        file.write(os.urandom(300_000))
    ring = folder / ring_name(21, 9)
    if rounds % 3 == 0:
        sparse(ring, header(FULL, 9, index=rounds), HEADER_BYTES + FULL * RECORD_BYTES)
    elif rounds % 3 == 1:
        os.truncate(ring, HEADER_BYTES + 100)
    else:
        ring.unlink()
    other = folder / "slot-22.jsonl"
    with contextlib.suppress(OSError):
        other.rmdir() if other.is_dir() else other.unlink()
    if rounds % 2:
        other.mkdir()
    else:
        JournalWriter(other, 9).write("sample", {"step": rounds})
    os.truncate(target, rounds * 1_000)


def peak_megabytes(pid: int) -> float:
    """Most memory that the process ever had resident."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6
