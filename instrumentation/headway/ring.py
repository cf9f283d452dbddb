"""The step ring: one fixed-size file per process life that holds its newest completed steps.

One process writes (`RingWriter`), any number read (`RingReader`); they share nothing but the file, and neither ever
waits for the other. A record costs the writer a copy of 64 bytes into mapped memory, and survives a SIGKILL at any
moment: the pages belong to the kernel, not to the process.
"""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway.files import open_regular
from headway.ring_files import allocate, remove_old_rings
from headway.ring_format import (
    CRC_BYTES,
    DEFAULT_CAPACITY,
    HEAD,
    HEADER,
    HEADER_BYTES,
    INDEX,
    INDEX_OFFSET,
    LOSS_SET,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    TOKENS_SET,
    VERSION,
    RingFormatError,
    StepColumns,
    StepRecord,
    leading_records,
    parse_header,
    parse_ring_name,
    ring_name,
    sequences,
    whole_records,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "DEFAULT_CAPACITY",
    "LOSS_SET",
    "TOKENS_SET",
    "RingFormatError",
    "RingReader",
    "RingWriter",
    "StepColumns",
    "StepRecord",
    "parse_ring_name",
    "remove_old_rings",
    "ring_name",
]

_FIRST_CHUNK: Final = 16
_LARGEST_CHUNK: Final = 4_096
_NEAR: Final = 64
_SKIPS_PER_POLL: Final = 16
_SEARCHED_PER_POLL: Final = 2_048

# Bound here once: a look-up less for each record.
_pack_record = RECORD.pack_into
_crc32 = zlib.crc32


class RingWriter:
    """Writes the ring file of one life.

    The file, in the machine's byte order, since it never leaves the machine:

    - bytes 0 to 63, the header: magic `HWSTEPS1`; version u32 (1); record size u32 (64); capacity u64 (records);
      life u64; index u64 (records written so far: a hint, a reader may see it before or after the records); zeros.
    - from byte 64, `capacity` records of 64 bytes; record k of the life (k from 0) lies in place k modulo capacity:
      CRC-32 u32 of the 60 bytes that follow; flags u32 (1 loss was set, 2 tokens were set); data wait u64 and blocked
      u64 in nanoseconds; tokens i64; sequence u32 (= k); step u32; start u64 and end u64 in nanoseconds; loss
      f64.

    A record exists once its bytes do, and its number and its CRC are right. Nothing is truncated or moved, and the
    file gets its name only when its header is complete. The blocks are allocated before the file is mapped, because a
    store into a hole of a full tmpfs is a SIGBUS in the trainer; where the file system cannot allocate, records go
    through `pwrite`, which reports a full disk as an error.

    `append` takes any step. The attributes without an underscore are for `Step`, which writes the usual one (a loss,
    nothing else) by itself: the call alone would cost as much as a third of what it does.
    """

    __slots__ = (
        "_fd",
        "_record",
        "_record_checked",
        "_record_words",
        "at",
        "capacity",
        "end",
        "life",
        "mapped",
        "scratch",
        "sequence",
        "tail",
        "usual_crc",
        "words",
    )

    def __init__(self, fd: int, life: int, capacity: int, mapped: mmap.mmap | None) -> None:
        """Takes over `fd`, an allocated file whose header is written; use `create`."""
        self._fd = fd
        self.life = life
        self.capacity = capacity
        self.mapped = mapped
        """The file in memory; None where records go through `pwrite`."""
        self.sequence = 0
        """Records written so far."""
        self.at = HEADER_BYTES
        """Where the next record goes, and `end`, where the first one goes again."""
        self.end = HEADER_BYTES + capacity * RECORD_BYTES
        self.scratch = bytearray(RECORD_BYTES)
        """A record whose first half is a usual step's, for ever."""
        HEAD.pack_into(self.scratch, 0, 0, LOSS_SET, 0, 0, 0)
        self.usual_crc = zlib.crc32(self.scratch[CRC_BYTES : HEAD.size])
        """CRC of that half, from which the whole record's goes on."""
        self._record = bytearray(RECORD_BYTES)
        self._record_checked = memoryview(self._record)[CRC_BYTES:]
        self._record_words = memoryview(self._record).cast("I")
        self.tail = memoryview(self.scratch)[HEAD.size :]
        self.words = memoryview(self.scratch).cast("I")

    @classmethod
    def create(cls, folder: Path, slot: int, life: int, capacity: int = DEFAULT_CAPACITY) -> RingWriter:
        """A new ring in `folder`; of the slot's other rings only the newest is kept.

        Raises:
            OSError: the file cannot be made, or the disk has no room for it (ENOSPC, EDQUOT); nothing is left behind.
        """
        remove_old_rings(folder, slot, keep=1)
        path = folder / ring_name(slot, life)
        unfinished = path.with_name(f".{path.name}.new")
        fd = open_regular(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            mapped = allocate(fd, HEADER_BYTES + capacity * RECORD_BYTES)
            os.pwrite(fd, HEADER.pack(MAGIC, VERSION, RECORD_BYTES, capacity, life, 0), 0)
            unfinished.rename(path)
        except BaseException:
            os.close(fd)
            unfinished.unlink(missing_ok=True)
            raise
        return cls(fd, life, capacity, mapped)

    def append(
        self,
        step: int,
        start_ns: int,
        end_ns: int,
        data_wait_ns: int,
        blocked_ns: int,
        loss: float | None,
        tokens: int | None,
    ) -> None:
        """Writes one record.

        Raises:
            struct.error: a value is no number or does not fit; nothing was written.
            OSError: only where the file is not mapped, for example a full disk.
        """
        flags = 0
        if loss is None:
            loss = 0.0
        else:
            flags = LOSS_SET
        if tokens is None:
            tokens = 0
        else:
            flags |= TOKENS_SET
        sequence = self.sequence
        record = self._record
        _pack_record(record, 0, 0, flags, data_wait_ns, blocked_ns, tokens, sequence, step, start_ns, end_ns, loss)
        self._record_words[0] = _crc32(self._record_checked)
        mapped = self.mapped
        if mapped is None:
            self._write(record, HEADER_BYTES + sequence % self.capacity * RECORD_BYTES)
            return
        at = self.at
        end = at + RECORD_BYTES
        # An exception that another thread injects can come out of any call, but not between two plain stores: so no
        # record is written twice under one number. Were it to come here, a number would be skipped, which a reader
        # survives.
        self.sequence = sequence + 1
        self.at = end if end < self.end else HEADER_BYTES
        mapped[at:end] = record

    def publish_index(self) -> None:
        """Brings the header's index up to date. Now and then will do: it only saves a reader who is far behind a search."""
        index = INDEX.pack(self.sequence)
        if self.mapped is not None:
            self.mapped[INDEX_OFFSET : INDEX_OFFSET + INDEX.size] = index
        elif self._fd >= 0:
            os.pwrite(self._fd, index, INDEX_OFFSET)

    def _write(self, record: bytearray, at: int) -> None:
        sequence = self.sequence
        self.sequence = sequence + 1
        try:
            written = os.pwrite(self._fd, record, at)
        except OSError:
            self.sequence = sequence  # the next record takes its place
            raise
        if written != RECORD_BYTES:
            self.sequence = sequence
            raise OSError(errno.ENOSPC, "a step record was only written in part")

    def close(self) -> None:
        """Unmaps and closes the file; what is in it stays."""
        mapped, self.mapped = self.mapped, None
        if mapped is not None:
            mapped.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(slots=True)
class _Search:
    """How far the search for the next good record has come, and the lowest number it found."""

    expected: int
    done: int = 0
    lowest: int | None = None

    def found(self, sequence: int | None) -> None:
        """One more candidate, or none."""
        if sequence is not None:
            self.lowest = sequence if self.lowest is None else min(self.lowest, sequence)


class RingReader:
    """Follows one ring file without ever waiting for, or trusting, its writer.

    `poll` delivers each record at most once and in order. A record counts only with the expected sequence number and a
    good CRC; otherwise it is looked at again in the next poll. What the writer overwrote before it was read is counted
    in `overwritten`; records that stay bad although later ones are good are counted in `torn`.
    """

    def __init__(self, fd: int, life: int, capacity: int) -> None:
        """Takes over `fd`; use `open`."""
        self.life = life
        self.capacity = capacity
        self.overwritten = 0
        self.torn = 0
        self.at_end = False
        """The last poll saw that there is nothing more to read."""
        self._fd = fd
        self._expected = 0
        self._chunk = _FIRST_CHUNK  # grows while there is more, over polls
        self._suspect = -1
        self._searched_at_hint = -1
        self._search: _Search | None = None

    @classmethod
    def open(cls, path: Path, first: int = 0) -> RingReader:
        """A reader at the oldest record that is numbered `first` or above.

        Raises:
            RingFormatError: the file is no ring.
            OSError: it cannot be opened, or is a link or no regular file.
        """
        fd = open_regular(path)
        try:
            life, capacity = parse_header(os.pread(fd, HEADER.size, 0), os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise
        reader = cls(fd, life, capacity)
        reader._expected = first
        return reader

    @property
    def position(self) -> int:
        """Number of the record that comes next."""
        return self._expected

    def poll(self, limit: int = 8_192) -> list[StepRecord]:
        """The next records, at most `limit`; an empty list when there is nothing new.

        Reads at most 262 kB at a time.

        Raises:
            OSError: the file cannot be read.
        """
        return [record for columns in self.poll_columns(limit) for record in columns.records()]

    def poll_columns(self, limit: int = 8_192) -> list[StepColumns]:
        """As `poll`, by columns: see `StepColumns`."""
        found: list[StepColumns] = []
        left, skips, self.at_end = limit, 0, False
        while left > 0:
            place = self._expected % self.capacity
            wanted = min(self._chunk, left, self.capacity - place)
            data = self._read(place, wanted)
            taken = leading_records(data, self._expected)
            count = 0 if taken is None else len(taken)
            if taken is not None:
                found.append(taken)
                left -= count
                self._expected += count
                if count == wanted:
                    self._chunk = min(self._chunk * 4, _LARGEST_CHUNK)
                    continue
            self._chunk = _FIRST_CHUNK
            skips += 1
            self.at_end = self._nothing_newer(data[count * RECORD_BYTES :])
            if self.at_end or skips > _SKIPS_PER_POLL or not self._skip():
                break
        return found

    def close(self) -> None:
        """Closes the file; polling afterwards raises OSError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _read(self, place: int, length: int) -> bytes:
        data = os.pread(self._fd, length * RECORD_BYTES, HEADER_BYTES + place * RECORD_BYTES)
        return data[: len(data) // RECORD_BYTES * RECORD_BYTES]  # a file that was cut short under us

    def _nothing_newer(self, data: bytes) -> bool:
        """Whether only older laps, or nothing, lie where the next records belong: nearly always, so it must be cheap to tell."""
        newest = max(sequences(data), default=self._expected)
        return newest < self._expected and self._hint() <= self._expected

    def _skip(self) -> bool:
        """Decides what it means that the expected record is not there; True when reading can go on at once."""
        expected = self._expected
        here = self._good(expected % self.capacity)
        if here == expected:
            return True  # it was being written while the chunk was read
        if here is not None and here > expected:
            oldest = self._oldest(here)
            self.overwritten += oldest - expected
            self._expected = oldest
            return True
        later = self._next_good()
        if later is None:
            return False
        if self._suspect != expected:  # its bytes may still be on their way to us
            self._suspect = expected
            return False
        lost = later - expected
        self.torn += min(lost, self.capacity)
        self.overwritten += max(lost - self.capacity, 0)
        self._expected = later
        return True

    def _oldest(self, lapped: int) -> int:
        """The oldest record that the ring still holds, when `lapped` lies where an older one was expected.

        From there on come the rest of the newest lap, then what is left of the one before: a binary search for the
        border. A bad record on the way makes the answer too old, and the next look will try again.
        """
        newer, older = 0, self.capacity
        while older - newer > 1:
            middle = (newer + older) // 2
            if self._good((lapped + middle) % self.capacity) == lapped + middle:
                newer = middle
            else:
                older = middle
        return lapped + newer + 1 - self.capacity

    def _good(self, place: int) -> int | None:
        """Sequence number of the record in this place, None unless it is whole, belongs there and is no older one."""
        return next(self._good_records(place, 1, self._expected), None)

    def _good_records(self, place: int, length: int, least: int) -> Iterator[int]:
        """Sequence numbers, `least` or above, of the good records in the `length` places from `place` on (no wrap)."""
        for position, sequence in whole_records(self._read(place, length), least):
            if sequence % self.capacity == place + position:
                yield sequence

    def _next_good(self) -> int | None:
        """The lowest good sequence number above the expected one, None when nothing of the kind is in sight."""
        near = self._lowest_above(min(_NEAR, self.capacity))
        if near is not None:
            return near
        hint = self._hint()
        if hint <= self._expected or hint == self._searched_at_hint:
            return None  # the writer is no further, or we looked already: a lying index must not cost a scan each time
        return self._search_on(hint)

    def _search_on(self, hint: int) -> int | None:
        """A portion of the search through the whole ring; its answer when that was the last one.

        In portions, because a sidecar may follow hundreds of rings that all lie, and must answer its scrapes meanwhile.
        """
        search = self._search
        if search is None or search.expected != self._expected:
            search = self._search = _Search(self._expected)
        if search.lowest is not None and search.done >= self.capacity:  # found before: is it still there?
            self._search = None
            return self._good(search.lowest % self.capacity)
        places = min(_SEARCHED_PER_POLL, self.capacity - search.done)
        search.found(self._lowest_above(places, search.done))
        search.done += places
        if search.done < self.capacity:
            return None
        if search.lowest is None:
            self._search = None
            self._searched_at_hint = hint
        return search.lowest

    def _lowest_above(self, places: int, beyond: int = 0) -> int | None:
        """The lowest good sequence number above the expected one, in `places` places from that one's place and `beyond` on."""
        lowest = None
        place = (self._expected + beyond) % self.capacity
        while places > 0:
            span = min(places, self.capacity - place, _LARGEST_CHUNK)
            for sequence in self._good_records(place, span, self._expected + 1):
                lowest = sequence if lowest is None else min(lowest, sequence)
            places -= span
            place = (place + span) % self.capacity
        return lowest

    def _hint(self) -> int:
        data = os.pread(self._fd, INDEX.size, INDEX_OFFSET)
        return int(INDEX.unpack(data)[0]) if len(data) == INDEX.size else 0
