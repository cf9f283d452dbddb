from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.events import COMMON_FIELDS, KINDS, MAX_LINE_BYTES, BadLineError, Event, encode, parse
from headway.journal import JournalReader, JournalWriter, rotated_path

if TYPE_CHECKING:
    from pathlib import Path

LIFE = 4_611_686_018_427_387_903


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slot-0.jsonl"


def steps(events: list[Event]) -> list[int]:
    return [event.fields["step"] for event in events]


def write_steps(writer: JournalWriter, first: int, last: int) -> None:
    for step in range(first, last):
        assert writer.write("train_finished", {"step": step})


def test_events_are_read_back_as_they_were_written(path: Path) -> None:
    """Kind, fields, life and incarnation survive, and events are numbered from 0."""
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    writer.write("process_started", {"pid": 7, "settings": {"total_steps": 300.0}, "gpu_uuid": None})
    writer.write("phase", {"name": "éval\n", "edge": "begin"}, incarnation="a1")
    first, second = reader.poll()
    assert (first.kind, first.n, first.life, first.incarnation) == ("process_started", 0, LIFE, None)
    assert first.fields == {"pid": 7, "settings": {"total_steps": 300.0}}
    assert (second.n, second.incarnation, second.fields["name"]) == (1, "a1", "éval\n")
    assert reader.poll() == []
    assert not reader.dropped


def test_an_event_after_a_torn_line_begins_a_fresh_line(path: Path) -> None:
    """A process that was killed inside a line costs that line, and not the next process's first."""
    path.write_bytes(b'{"v":1,"kind":"sig')
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    write_steps(writer, 0, 1)
    with path.open("ab") as other:  # another process's torn line, while the writer is open
        other.write(b'{"v":1')
    write_steps(writer, 1, 2)
    assert steps(reader.poll()) == [0, 1]
    assert reader.dropped == {"torn": 2}


def test_a_line_that_is_still_being_written_is_waited_for(path: Path) -> None:
    """Half a line at the end is no event yet, and no torn one either."""
    line = encode(Event("aborted", 0, 1.0, 2.0, LIFE))
    path.write_bytes(line[:20])
    reader = JournalReader(path)
    assert reader.poll() == []
    with path.open("ab") as file:
        file.write(line[20:])
    assert [event.kind for event in reader.poll()] == ["aborted"]
    assert not reader.dropped


def test_a_journal_is_bounded_and_followed_across_rotation(path: Path) -> None:
    """Two generations at most, each within its size, and a reader that keeps pace misses nothing."""
    writer, reader = JournalWriter(path, LIFE, max_bytes=1_000), JournalReader(path)
    seen: list[int] = []
    for step in range(200):
        write_steps(writer, step, step + 1)
        seen += steps(reader.poll())
    assert seen == list(range(200))
    assert sorted(file.name for file in path.parent.iterdir()) == ["slot-0.1.jsonl", "slot-0.jsonl"]
    assert all(file.stat().st_size <= 1_000 for file in path.parent.iterdir())


def test_a_late_reader_gets_both_generations(path: Path) -> None:
    """Reading begins with the older generation; what was rotated away before counts as a gap."""
    writer = JournalWriter(path, LIFE, max_bytes=1_000)
    write_steps(writer, 0, 40)
    reader = JournalReader(path)
    seen = steps(reader.poll())
    assert seen == list(range(seen[0], 40))
    assert reader.dropped == {"gap": seen[0]}
    assert len(rotated_path(path).read_bytes()) + len(path.read_bytes()) <= 2_000


def test_two_rotations_between_two_looks_lose_only_what_is_gone(path: Path) -> None:
    """A reader that slept through several rotations finishes its file, reads what is left, and counts the gap."""
    writer, reader = JournalWriter(path, LIFE, max_bytes=1_000), JournalReader(path)
    write_steps(writer, 0, 3)
    assert steps(reader.poll()) == [0, 1, 2]
    write_steps(writer, 3, 60)
    seen = steps(reader.poll())
    assert seen == sorted(seen)
    assert seen[-1] == 59
    assert len(seen) + reader.dropped["gap"] == 57


def test_a_journal_that_is_replaced_again_and_again_is_read_once(path: Path) -> None:
    """The older generation keeps its name while others put new files under the journal's: it was read, and stays read."""
    writer, reader = JournalWriter(path, LIFE, max_bytes=1_000), JournalReader(path)
    step = 0
    while not rotated_path(path).exists():
        write_steps(writer, step, step + 1)
        step += 1
    assert steps(reader.poll()) == list(range(step))
    for replaced in range(4):
        for _ in range(1 + replaced % 2):  # twice between two looks, too
            path.unlink()
            write_steps(JournalWriter(path, LIFE), step, step + 1)
            step += 1
        assert steps(reader.poll()) == [step - 1]


def test_a_journal_that_is_moved_away_and_back_goes_on_where_it_was_left(path: Path) -> None:
    """What a person does who looks into it: no event may count twice."""
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    write_steps(writer, 0, 3)
    assert steps(reader.poll()) == [0, 1, 2]
    aside = path.with_name("aside")
    path.rename(aside)
    write_steps(JournalWriter(path, LIFE + 1), 3, 4)
    assert steps(reader.poll()) == [3]
    aside.rename(path)
    assert steps(reader.poll()) == []
    write_steps(writer, 4, 5)
    assert steps(reader.poll()) == [4]


def test_two_processes_share_a_journal_across_rotation(path: Path) -> None:
    """An old process that is still dying and its successor append to one journal, whoever rotates it."""
    old, new = JournalWriter(path, 1, max_bytes=2_000), JournalWriter(path, 2, max_bytes=2_000)
    reader = JournalReader(path)
    seen: list[tuple[int, int]] = []
    for step in range(100):
        write_steps(old, step, step + 1)
        write_steps(new, step, step + 1)
        seen += [(event.life, event.fields["step"]) for event in reader.poll()]
    assert seen == [(life, step) for step in range(100) for life in (1, 2)]
    assert not reader.dropped
    assert old.dropped == new.dropped == 0


def test_a_removed_journal_is_made_again(path: Path) -> None:
    """Removing the file or its folder costs at most the events in it; reader and writer go on in the new one."""
    folder = path.parent / "run"
    path = folder / path.name
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    write_steps(writer, 0, 2)
    assert steps(reader.poll()) == [0, 1]
    path.unlink()
    write_steps(writer, 2, 3)
    assert steps(reader.poll()) == [2]
    path.unlink()
    folder.rmdir()
    write_steps(writer, 3, 4)
    assert steps(reader.poll()) == [3]


def test_what_cannot_be_written_is_dropped_counted_and_seen_as_a_gap(path: Path) -> None:
    """A value that is no JSON, a line beyond the limit, a file that is a link: never an exception, always a count."""
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    assert not writer.write("signal", {"name": object()})
    assert not writer.write("signal", {"name": "x" * MAX_LINE_BYTES})
    assert writer.write("signal", {"name": "SIGTERM"})
    assert writer.dropped == 2
    assert [event.n for event in reader.poll()] == [2]
    assert reader.dropped == {"gap": 2}
    link = path.with_name("launcher.jsonl")
    link.symlink_to(path)
    refused = JournalWriter(link, LIFE)
    assert not refused.write("aborted")
    assert JournalReader(link).poll() == []


def test_a_closed_journal_drops(path: Path) -> None:
    """An event after the end is counted and does not open the file again."""
    writer = JournalWriter(path, LIFE)
    writer.close()
    assert not writer.write("aborted")
    assert writer.dropped == 1
    assert not path.exists()


def test_threads_share_a_journal(path: Path) -> None:
    """Hooks on other threads neither tear lines nor number them out of order."""
    writer = JournalWriter(path, LIFE)
    threads = [threading.Thread(target=write_steps, args=(writer, 0, 200)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.n for event in JournalReader(path).poll()] == list(range(800))


def test_a_writer_that_hangs_does_not_hang_others(path: Path) -> None:
    """While another thread is stuck inside a write, an event is given up soon instead of waited for."""
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    stuck, released = threading.Event(), threading.Event()

    class Slow(dict[str, int]):
        def items(self):  # type: ignore[no-untyped-def]  # what the writer calls in the middle of its work
            stuck.set()
            released.wait(10)
            return super().items()

    thread = threading.Thread(target=writer.write, args=("signal", Slow(signal=1)))
    thread.start()
    assert stuck.wait(10)
    assert not writer.write("signal", {"signal": 2})
    released.set()
    thread.join()
    assert writer.write("signal", {"signal": 3})
    assert [event.fields["signal"] for event in reader.poll()] == [1, 3]
    assert reader.dropped == {"gap": 1}


def test_a_signal_handler_may_write_in_the_middle_of_a_write(path: Path) -> None:
    """A write inside a write of the same thread neither waits for it nor ends its lock."""
    writer = JournalWriter(path, LIFE)

    class Interrupted(dict[str, int]):
        def items(self):  # type: ignore[no-untyped-def]  # what the writer calls in the middle of its work
            assert writer.write("signal", {"signal": 2})
            other = threading.Thread(target=writer.write, args=("signal", {"signal": 3}))
            other.start()
            other.join()
            return super().items()

    assert writer.write("signal", Interrupted(signal=1))
    assert writer.dropped == 1  # the other thread's: the lock was still held
    other = threading.Thread(target=writer.write, args=("signal", {"signal": 4}))
    other.start()
    other.join()
    assert [event.fields["signal"] for event in JournalReader(path).poll()] == [2, 1, 4]


def test_an_endless_line_is_bounded_and_counted_once(path: Path) -> None:
    """A line of many megabytes is skipped piece by piece, and the one after it is read."""
    path.write_bytes(b"x" * (20 * MAX_LINE_BYTES) + b"\n" + encode(Event("aborted", 0, 1.0, 2.0, LIFE)))
    reader = JournalReader(path)
    events: list[Event] = []
    for _ in range(30):
        events += reader.poll(limit_bytes=MAX_LINE_BYTES)
        assert len(reader._partial) <= MAX_LINE_BYTES
    assert [event.kind for event in events] == ["aborted"]
    assert reader.dropped == {"too_long": 1}


def test_hostile_lines_are_told_apart_and_bounded(path: Path) -> None:
    """Each kind of rubbish has its count, and a made-up event number cannot blow a counter up."""
    good = {"v": 1, "kind": "aborted", "n": 10**30, "wall": 1, "mono": 1, "life": 1}
    lines = [
        "[]",
        "{",
        '{"v":2}',
        json.dumps(good | {"kind": "no_such"}),
        json.dumps(good | {"n": "1"}),
        json.dumps(good | {"wall": 10**400}),
        "\u2028" * 3,
        "[" * 60_000,
        json.dumps(good),
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n")
    reader = JournalReader(path)
    assert len(reader.poll()) == 1
    wanted = {"malformed": 3, "torn": 3, "version": 1, "unknown_kind": 1, "gap": 1_000_000}
    assert reader.dropped == wanted


def test_a_fifo_or_a_folder_is_no_journal(path: Path) -> None:
    """A reader neither hangs on nor crashes at what is no regular file."""
    os.mkfifo(path)
    rotated_path(path).mkdir()
    assert JournalReader(path).poll() == []


def test_a_journal_cut_short_is_followed_on(path: Path) -> None:
    """Nobody may truncate a journal; if somebody does, later events are read and none is read twice."""
    writer, reader = JournalWriter(path, LIFE), JournalReader(path)
    write_steps(writer, 0, 3)
    assert steps(reader.poll()) == [0, 1, 2]
    os.truncate(path, 0)
    assert reader.poll() == []
    write_steps(writer, 3, 5)
    assert steps(reader.poll()) == [3, 4]


# Neither a deadline nor a limit for making inputs: on a busy machine both fail by chance.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from([*COMMON_FIELDS, *sorted({name for kind in KINDS.values() for name in kind.fields})])
nearly_events = st.dictionaries(keys, json_values, max_size=8).map(
    lambda fields: json.dumps({"v": 1, "kind": "sample", "n": 0, "wall": 1, "mono": 1, "life": 1} | fields).encode()
)
lines = st.lists(st.binary(max_size=60) | nearly_events | st.sampled_from([b"", b"\n", b"{}", b'{"v":1}']), max_size=20)


@patient
@given(line=st.binary(max_size=200) | nearly_events)
def test_parse_returns_a_checked_event_or_refuses(line: bytes) -> None:
    """Any bytes give either an event whose fields have their types, or BadLineError with a reason of the closed list."""
    try:
        event = parse(line)
    except BadLineError as error:
        assert error.reason in {"torn", "too_long", "version", "malformed", "unknown_kind"}  # noqa: PT017 - refusing is one of two fair answers
        return
    for name, value in event.fields.items():
        assert isinstance(value, KINDS[event.kind].fields[name].types)


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@patient
@given(kind=st.sampled_from(sorted(KINDS)), data=st.data(), life=st.integers(0, 2**62 - 1), mono=finite)
def test_every_kind_survives_a_round_trip(kind: str, data: st.DataObject, life: int, mono: float) -> None:
    """What is encoded with fields of the right types is parsed to the same event, for every kind and field there is."""
    values = {
        str: st.text(max_size=20),
        int: st.integers(-(2**60), 2**60),
        bool: st.booleans(),
        float: finite,
        list: st.lists(st.integers(), max_size=3),
        dict: st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    }
    fields = {
        name: data.draw(st.one_of([values[kind_of] for kind_of in field.types]))
        for name, field in KINDS[kind].fields.items()
    }
    event = Event(kind, 3, 1.5, round(mono, 6), life, "abc", fields)
    assert parse(encode(event)) == event


@settings(patient, max_examples=60)
@given(content=lines, chunk=st.integers(1, 200), cut=st.integers(0, 300))
def test_any_content_can_be_followed(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], chunk: int, cut: int
) -> None:
    """Hostile bytes, arriving in any pieces, crash nothing, grow nothing, and give the same events as in one piece."""
    path = tmp_path_factory.mktemp("journal") / "slot-0.jsonl"
    whole = b"\n".join(content) + b"\n"
    path.write_bytes(whole[:cut])
    reader = JournalReader(path)
    events = reader.poll(limit_bytes=chunk)
    with path.open("ab") as file:
        file.write(whole[cut:])
    for _ in range(len(whole) // chunk + 2):
        events += reader.poll(limit_bytes=chunk)
    at_once = JournalReader(path)
    assert repr(events) == repr(at_once.poll())
    assert reader.dropped == at_once.dropped
    reader.close()
    at_once.close()
