from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.ring import RingFormatError, RingReader, RingWriter, StepRecord, parse_ring_name, ring_name
from headway.ring_format import HEADER, HEADER_BYTES, INDEX, INDEX_OFFSET, MAGIC, MAX_CAPACITY, RECORD_BYTES, VERSION

if TYPE_CHECKING:
    from pathlib import Path

LIFE = 0x2A5A_0000_1234_5678


def append(writer: RingWriter, step: int, loss: float | None = 0.5, tokens: int | None = None) -> None:
    writer.append(step, step * 1_000, step * 1_000 + 900, 30, 20, loss, tokens)


def place_of(sequence: int, capacity: int) -> int:
    return HEADER_BYTES + sequence % capacity * RECORD_BYTES


def steps(records: list[StepRecord]) -> list[int]:
    return [record.step for record in records]


@pytest.fixture
def ring(tmp_path: Path) -> tuple[RingWriter, RingReader]:
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=8)
    return writer, RingReader.open(tmp_path / ring_name(0, LIFE))


def test_a_reader_gets_back_what_was_written(ring: tuple[RingWriter, RingReader]) -> None:
    """Every field of a step survives, and a loss or token count that was not set stays unknown."""
    writer, reader = ring
    writer.append(7, 100, 150, 30, 20, 1.25, 4_096)
    writer.append(8, 150, 190, 0, 0, None, None)
    assert (reader.life, reader.capacity) == (LIFE, 8)
    assert reader.poll() == [
        StepRecord(0, 7, 100, 50, 30, 20, 1.25, 4_096),
        StepRecord(1, 8, 150, 40, 0, 0, None, None),
    ]
    assert reader.poll() == []


def test_mixed_records_keep_their_own_fields(ring: tuple[RingWriter, RingReader]) -> None:
    """Reading by columns does not lend one record the loss or tokens of another."""
    writer, reader = ring
    wanted = [(0.5, None), (None, 3), (None, None), (float("inf"), -1)]
    for step, (loss, tokens) in enumerate(wanted):
        append(writer, step, loss, tokens)
    assert [(record.loss, record.tokens) for record in reader.poll()] == wanted


def test_a_poll_is_bounded_and_goes_on_where_it_stopped(ring: tuple[RingWriter, RingReader]) -> None:
    """A reader that is far behind catches up in portions, without losing or repeating a step."""
    writer, reader = ring
    for step in range(7):
        append(writer, step)
    assert [steps(reader.poll(limit=3)) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]


@pytest.mark.parametrize("hint_is_current", [True, False])
@pytest.mark.parametrize("written", [9, 15, 16, 17, 60])
def test_overwritten_records_are_counted(tmp_path: Path, written: int, hint_is_current: bool) -> None:
    """After any number of laps the reader delivers what is left and counts the rest, with or without a fresh index."""
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=8)
    for step in range(written):
        append(writer, step)
    if hint_is_current:
        writer.publish_index()
    reader = RingReader.open(tmp_path / ring_name(0, LIFE))
    assert steps(reader.poll()) == list(range(written - 8, written))
    assert (reader.overwritten, reader.torn) == (written - 8, 0)


def test_a_half_written_record_is_waited_for(ring: tuple[RingWriter, RingReader], tmp_path: Path) -> None:
    """A record whose bytes are not all there is neither read nor given up: the next poll looks again."""
    writer, reader = ring
    append(writer, 1)
    append(writer, 2)
    path = tmp_path / ring_name(0, LIFE)
    whole = path.read_bytes()[place_of(1, 8) :][:RECORD_BYTES]
    with path.open("r+b") as file:
        file.seek(place_of(1, 8) + 40)
        file.write(b"\0" * 24)
    assert steps(reader.poll()) == [1]
    assert steps(reader.poll()) == []
    with path.open("r+b") as file:
        file.seek(place_of(1, 8))
        file.write(whole)
    assert steps(reader.poll()) == [2]
    assert reader.torn == 0


def test_a_record_that_stays_bad_is_skipped_and_counted(tmp_path: Path) -> None:
    """One damaged record costs itself alone, once later ones are there: at the second look, since it might be on its way."""
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=8)
    path = tmp_path / ring_name(0, LIFE)
    for step in range(4):
        append(writer, step)
    with path.open("r+b") as file:
        file.seek(place_of(1, 8) + 9)
        file.write(b"\xff")
    reader = RingReader.open(path)
    assert steps(reader.poll()) == [0]
    assert steps(reader.poll()) == [2, 3]
    assert (reader.torn, reader.overwritten) == (1, 0)


def test_a_long_stretch_of_bad_records_is_skipped(tmp_path: Path) -> None:
    """Damage larger than the reader's near sight does not end its reading, given an index that says there is more."""
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=512)
    path = tmp_path / ring_name(0, LIFE)
    for step in range(300):
        append(writer, step)
    writer.publish_index()
    with path.open("r+b") as file:
        file.seek(place_of(10, 512))
        file.write(b"\0" * RECORD_BYTES * 200)
    reader = RingReader.open(path)
    seen = [steps(reader.poll()) for _ in range(3)]
    assert seen == [list(range(10)), list(range(210, 300)), []]
    assert reader.torn == 200


def test_many_numbers_that_were_never_written_are_skipped_once_the_index_tells(tmp_path: Path) -> None:
    """A reader that looks no further than it must still comes to what lies behind a gap."""
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=64)
    reader = RingReader.open(tmp_path / ring_name(0, LIFE))
    append(writer, 1)
    assert steps(reader.poll()) == [1]
    writer.sequence += 30
    writer.at += 30 * RECORD_BYTES
    append(writer, 32)
    assert reader.poll() == []
    assert reader.at_end
    writer.publish_index()
    assert reader.poll() == []
    assert steps(reader.poll()) == [32]
    assert reader.torn == 30


def test_a_lying_index_delays_nothing(ring: tuple[RingWriter, RingReader], tmp_path: Path) -> None:
    """The index is only a hint: an absurd one neither hides records nor invents any."""
    writer, reader = ring
    with (tmp_path / ring_name(0, LIFE)).open("r+b") as file:
        file.seek(INDEX_OFFSET)
        file.write(INDEX.pack(2**64 - 1))
    assert reader.poll() == []
    for step in range(20):
        append(writer, step)
    assert steps(reader.poll()) == list(range(12, 20))
    assert reader.overwritten == 12


def test_a_value_that_does_not_fit_writes_nothing(ring: tuple[RingWriter, RingReader]) -> None:
    """A bad value is an error to the caller and leaves the ring as it was."""
    writer, reader = ring
    with pytest.raises(struct.error):
        writer.append(2**40, 0, 1, 0, 0, None, None)
    append(writer, 1)
    assert steps(reader.poll()) == [1]


def test_only_the_newest_other_ring_of_a_slot_is_kept(tmp_path: Path) -> None:
    """Restarts do not pile up files, and other slots' files and an interrupted creation's rest are told apart."""
    for life in (1, 2, 3):
        RingWriter.create(tmp_path, 0, life, capacity=8).close()
        os.utime(tmp_path / ring_name(0, life), (life, life))
    RingWriter.create(tmp_path, 1, 9, capacity=8).close()
    (tmp_path / ".slot-0.77.steps.new").touch()
    RingWriter.create(tmp_path, 0, 4, capacity=8).close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [ring_name(0, 3), ring_name(0, 4), ring_name(1, 9)]


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_without_fallocate_records_go_through_pwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A file system that cannot allocate is never mapped (a full one would be a SIGBUS), and works all the same."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    writer = RingWriter.create(tmp_path, 0, LIFE, capacity=8)
    for step in range(10):
        append(writer, step)
    writer.publish_index()
    assert writer.mapped is None
    assert steps(RingReader.open(tmp_path / ring_name(0, LIFE)).poll()) == list(range(2, 10))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "does not begin"),
        (b"\0" * 64, "does not begin"),
        (HEADER.pack(MAGIC, VERSION + 1, RECORD_BYTES, 8, LIFE, 0), "version 2"),
        (HEADER.pack(MAGIC, VERSION, 4_096, 8, LIFE, 0), "4096 bytes"),
        (HEADER.pack(MAGIC, VERSION, RECORD_BYTES, 0, LIFE, 0), "capacity of 0"),
        (HEADER.pack(MAGIC, VERSION, RECORD_BYTES, (2 << 30) // RECORD_BYTES, LIFE, 0), "capacity of 33554432"),
        (HEADER.pack(MAGIC, VERSION, RECORD_BYTES, MAX_CAPACITY, LIFE, 0), "too few"),
        (HEADER.pack(MAGIC, VERSION, RECORD_BYTES, 9, LIFE, 0), "too few"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, header: bytes, message: str) -> None:
    """What a file claims of itself is checked before anything is read or allocated by it."""
    path = tmp_path / "slot-0.1.steps"
    path.write_bytes(header + b"\0" * (HEADER_BYTES + 8 * RECORD_BYTES - len(header)) if header else b"")
    with pytest.raises(RingFormatError, match=message):
        RingReader.open(path)


def test_a_link_or_a_fifo_is_no_ring(tmp_path: Path) -> None:
    """Opening what somebody put there under a ring's name neither follows it nor hangs on it."""
    RingWriter.create(tmp_path, 0, 1, capacity=8).close()
    link, fifo = tmp_path / ring_name(1, 1), tmp_path / ring_name(2, 1)
    link.symlink_to(tmp_path / ring_name(0, 1))
    os.mkfifo(fifo)
    for path in (link, fifo, tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 - each has a number of its own
            RingReader.open(path)


def test_a_ring_cut_short_under_its_reader_is_survived(ring: tuple[RingWriter, RingReader], tmp_path: Path) -> None:
    """A file that somebody truncated reads as empty: the reader must not crash on the half record at its end."""
    writer, reader = ring
    append(writer, 1)
    writer.close()
    os.truncate(tmp_path / ring_name(0, LIFE), HEADER_BYTES + 40)
    assert reader.poll() == []


def test_names_are_parsed_strictly() -> None:
    """Only what a writer names a ring is taken for one."""
    assert parse_ring_name(ring_name(3, LIFE)) == (3, LIFE)
    for name in ("slot-1.steps", "slot-x.1.steps", "slot-1.2.steps.new", ".slot-1.2.steps.new", "slot-1.2.steps\n"):
        assert parse_ring_name(name) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(plan=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=12), capacity=st.integers(1, 9))
def test_whatever_the_pace_each_step_is_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, int]], capacity: int
) -> None:
    """Delivered and overwritten records together are exactly those written, in order, however reader and writer alternate."""
    folder = tmp_path_factory.mktemp("ring")
    writer = RingWriter.create(folder, 0, LIFE, capacity=capacity)
    reader = RingReader.open(folder / ring_name(0, LIFE))
    records: list[StepRecord] = []
    for appended, limit in plan:
        for _ in range(appended):
            append(writer, writer.sequence)
        records += reader.poll(limit)
    while more := reader.poll():
        records += more
    assert [record.sequence for record in records] == sorted({record.sequence for record in records})
    assert all(record.step == record.sequence for record in records)
    assert len(records) + reader.overwritten == writer.sequence
    assert reader.torn == 0
    writer.close()
    reader.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(
    damage=st.lists(st.tuples(st.integers(0, 16 * RECORD_BYTES - 1), st.integers(1, 255)), max_size=20),
    laps=st.integers(0, 40),
)
def test_damage_never_invents_a_step(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], laps: int
) -> None:
    """Flipped bits anywhere in the records cost those records and nothing else: no crash, no record that nobody wrote."""
    folder = tmp_path_factory.mktemp("ring")
    writer = RingWriter.create(folder, 0, LIFE, capacity=16)
    for step in range(laps):
        append(writer, step, loss=step / 2, tokens=step)
    path = folder / ring_name(0, LIFE)
    content = bytearray(path.read_bytes())
    for at, flip in damage:
        content[HEADER_BYTES + at] ^= flip
    path.write_bytes(content)
    reader = RingReader.open(path)
    records = reader.poll() + reader.poll() + reader.poll()
    written = {step: StepRecord(step, step, step * 1_000, 900, 30, 20, step / 2, step) for step in range(laps)}
    assert all(written[record.sequence] == record for record in records)
    assert reader.torn + reader.overwritten + len(records) <= laps
    writer.close()
    reader.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
@given(content=st.binary(max_size=8 * RECORD_BYTES), index=st.integers(0, 2**64 - 1))
def test_any_bytes_can_be_polled(tmp_path_factory: pytest.TempPathFactory, content: bytes, index: int) -> None:
    """Nothing that a file may hold crashes the reader or makes it loop."""
    path = tmp_path_factory.mktemp("ring") / "slot-0.1.steps"
    header = HEADER.pack(MAGIC, VERSION, RECORD_BYTES, 8, LIFE, index)
    path.write_bytes(header.ljust(HEADER_BYTES, b"\0") + content.ljust(8 * RECORD_BYTES, b"\0"))
    reader = RingReader.open(path)
    assert [reader.poll() for _ in range(3)] == [[], [], []]
    reader.close()
