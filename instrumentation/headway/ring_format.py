"""The bytes of a step ring (`headway.ring` documents the file): names, header and records, without any I/O."""

from __future__ import annotations

import operator
import re
import struct
import zlib
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"HWSTEPS1"
VERSION: Final = 1
DEFAULT_CAPACITY: Final = 65_536
MAX_CAPACITY: Final = 1 << 20
"""A file that claims more is refused: 75 MB is far beyond what a sidecar should believe."""

LOSS_SET: Final = 1
TOKENS_SET: Final = 2

HEADER: Final = struct.Struct("@8sIIQQQ")
HEADER_BYTES: Final = 64
INDEX: Final = struct.Struct("@Q")
INDEX_OFFSET: Final = HEADER.size - INDEX.size

# A record in two halves: what most steps leave at its default (HEAD), and what changes in every one (TAIL).
HEAD: Final = struct.Struct("@IIQQq")
TAIL: Final = struct.Struct("@IIQQd")
RECORD: Final = struct.Struct("@IIQQqIIQQd")
RECORD_BYTES: Final = RECORD.size
CRC_BYTES: Final = 4
_CHECKED: Final = struct.Struct(f"@{CRC_BYTES}x{RECORD_BYTES - CRC_BYTES}s")
_CRC: Final = 0
_SEQUENCE: Final = 5
_FILE_NAME: Final = re.compile(r"slot-(\d+)\.(\d+)\.steps")


class RingFormatError(ValueError):
    """The file is no step ring that this version can read; the message says which part is wrong."""


def ring_name(slot: int, life: int) -> str:
    """File name of one life's ring."""
    return f"slot-{slot}.{life}.steps"


def parse_ring_name(name: str) -> tuple[int, int] | None:
    """`(slot, life)` from a file name, None when it is not a ring's."""
    match = _FILE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


class StepRecord(NamedTuple):
    """One completed step.

    Times are CLOCK_MONOTONIC nanoseconds. `step` counts the completed steps after it. `data_wait_ns` and `blocked_ns`
    (blocking part of checkpoint saves) lie inside `duration_ns`. `loss` and `tokens` are None when the trainer did not
    say.

    A tuple and not a frozen dataclass: a sidecar that starts late reads 65,536 of them at once, and a dataclass takes
    four times as long to make.
    """

    sequence: int
    step: int
    start_ns: int
    duration_ns: int
    data_wait_ns: int = 0
    blocked_ns: int = 0
    loss: float | None = None
    tokens: int | None = None

    @property
    def end_ns(self) -> int:
        """When the step was complete."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Consecutive records of one life, a list a field (see `StepRecord`): a late sidecar folds 65,536 of them without making a record each.

    Lists are shared, not copied: nobody may change them.
    """

    first: int
    """Sequence number of the first."""
    steps: list[int]
    starts: list[int]
    ends: list[int]
    durations: list[int]
    waits: list[int]
    blocked: list[int]
    losses: list[float | None]
    tokens: list[int | None]

    def __len__(self) -> int:
        return len(self.steps)

    def records(self) -> list[StepRecord]:
        """One by one."""
        sequences = range(self.first, self.first + len(self.steps))
        columns = (self.steps, self.starts, self.durations, self.waits, self.blocked, self.losses, self.tokens)
        return list(map(tuple.__new__, repeat(StepRecord), zip(sequences, *columns, strict=False)))

    def cut(self, low: int, high: int) -> StepColumns:
        """Those from place `low` up to `high`, that one left out."""
        if low == 0 and high >= len(self.steps):
            return self
        part = slice(low, high)
        return StepColumns(
            self.first + low,
            self.steps[part],
            self.starts[part],
            self.ends[part],
            self.durations[part],
            self.waits[part],
            self.blocked[part],
            self.losses[part],
            self.tokens[part],
        )

    def followed_by(self, other: StepColumns) -> StepColumns:
        """Both in one; `other` must begin where this one ends."""
        return StepColumns(
            self.first,
            self.steps + other.steps,
            self.starts + other.starts,
            self.ends + other.ends,
            self.durations + other.durations,
            self.waits + other.waits,
            self.blocked + other.blocked,
            self.losses + other.losses,
            self.tokens + other.tokens,
        )


def parse_header(header: bytes, file_bytes: int) -> tuple[int, int]:
    """`(life, capacity)` of a ring from its first bytes and its size.

    Raises:
        RingFormatError: it is no ring of this version.
    """
    if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
        raise RingFormatError(f"not a step ring: it does not begin with {MAGIC.decode()}")
    _, version, record_bytes, capacity, life, _ = HEADER.unpack_from(header)
    if version != VERSION:
        raise RingFormatError(f"step ring of version {version}, this program reads version {VERSION}")
    if record_bytes != RECORD_BYTES:
        raise RingFormatError(f"step ring with records of {record_bytes} bytes instead of {RECORD_BYTES}")
    if not 0 < capacity <= MAX_CAPACITY:
        raise RingFormatError(f"step ring with a capacity of {capacity} records, allowed are 1 to {MAX_CAPACITY}")
    if file_bytes < HEADER_BYTES + capacity * RECORD_BYTES:
        raise RingFormatError(f"step ring of {file_bytes} bytes, too few for the {capacity} records it claims to hold")
    return life, capacity


def leading_records(data: bytes, expected: int) -> StepColumns | None:
    """The whole records at the start of `data` that are numbered from `expected` on; None when there is none.

    It goes by columns, so that all loops run in C: that is what makes a late sidecar's catch-up fast.
    """
    found = sequences(data)
    numbered = _equal_prefix(found, list(range(expected, expected + len(found))))
    if not numbered:
        return None
    data = data[: numbered * RECORD_BYTES]
    good = _equal_prefix(_column(data, "I", 0), list(starmap(zlib.crc32, _CHECKED.iter_unpack(data))))
    if not good:
        return None
    data = data[: good * RECORD_BYTES]
    flags = _column(data, "I", 4)
    starts = _column(data, "Q", 40)
    ends = _column(data, "Q", 48)
    durations = list(map(operator.sub, ends, starts))
    losses = _where(flags, LOSS_SET, _column(data, "d", 56))
    tokens = _where(flags, TOKENS_SET, _column(data, "q", 24))
    waits, blocked, steps = _column(data, "Q", 8), _column(data, "Q", 16), _column(data, "I", 36)
    return StepColumns(expected, steps, starts, ends, durations, waits, blocked, losses, tokens)


def sequences(data: bytes) -> list[int]:
    """What stands in the place of every record's sequence number, whether it is whole or not."""
    return _column(data, "I", 32) if data else []


def whole_records(data: bytes, least: int) -> Iterator[tuple[int, int]]:
    """`(position, sequence)` of every record in `data` that is numbered `least` or above and whose CRC is good."""
    view = memoryview(data)
    for position, fields in enumerate(RECORD.iter_unpack(data)):
        at = position * RECORD_BYTES
        sequence = fields[_SEQUENCE]
        if sequence >= least and fields[_CRC] == zlib.crc32(view[at + CRC_BYTES : at + RECORD_BYTES]):
            yield position, sequence


def _equal_prefix(left: list[int], right: list[int]) -> int:
    """How many leading items of two lists of one length are equal."""
    if left == right:
        return len(left)
    return next(position for position, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])


def _column(data: bytes, item: str, offset: int) -> list[Any]:
    """One field of every record in `data`; `offset` is in bytes, a multiple of the item's size."""
    view = memoryview(data).cast(item)  # type: ignore[call-overload]  # of the single letters, which a variable cannot show
    return view[offset // view.itemsize :: RECORD_BYTES // view.itemsize].tolist()  # type: ignore[no-any-return]


def _where(flags: list[int], flag: int, values: list[Any]) -> list[Any]:
    """The values whose flag is set, None for the others."""
    kinds = set(flags)
    if len(kinds) == 1:  # nearly always: a trainer sets the same things in every step
        return values if kinds.pop() & flag else [None] * len(values)
    return [value if present & flag else None for value, present in zip(values, flags, strict=True)]
