"""A follower that goes on where another one was: nothing twice, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from journal_folder import RUN, Seen, one_by_one, plain
from test_follow import folder, line

from headway import clock
from headway.journal import JournalWriter, rotated_path
from headway.ring import RingWriter
from headway_exporter.follow import Follower, anything_left
from headway_exporter.observations import EventSeen

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]


def successor(follower: Follower, tmp_path: Path) -> Follower:
    """As after a restart of the sidecar; the position goes through JSON."""
    saved = json.loads(json.dumps(follower.position(), allow_nan=False))
    follower.close()
    return Follower(tmp_path, RUN, saved=saved)


def numbers(follower: Follower, until: int) -> list[int]:
    """The events' numbers up to this one."""
    seen = Seen(follower).until(lambda seen: any(plain_number(one) == until for one in seen.all), f"event {until}")
    return [number for one in seen.all if (number := plain_number(one)) is not None]


def plain_number(seen: object) -> int | None:
    return seen.event.n if isinstance(seen, EventSeen) else None


def test_a_journal_is_read_on_in_the_middle_of_a_line(tmp_path: Path, folder: Path) -> None:
    """A line that is half written when the sidecar dies is whole for the next one."""
    journal, text = folder / "slot-0.jsonl", line(n=1)
    journal.write_bytes(line(n=0) + text[:20])
    follower = Follower(tmp_path, RUN)
    assert numbers(follower, 0) == [0]
    follower = successor(follower, tmp_path)
    with journal.open("ab") as file:
        file.write(text[20:] + line(n=2))
    assert numbers(follower, 2) == [1, 2]
    assert not sum(follower.dropped.values())


@pytest.mark.parametrize("rotations", [0, 1, 2])
def test_a_journal_that_was_rotated_meanwhile(tmp_path: Path, folder: Path, rotations: int) -> None:
    """Its place is in the older generation then; two generations on, all that is left is new, and the gap is counted."""
    journal = folder / "slot-0.jsonl"
    writer = JournalWriter(journal, 7, max_bytes=1_000)
    for _ in range(5):
        writer.write("sample")
    follower = Follower(tmp_path, RUN)
    assert numbers(follower, 4) == [0, 1, 2, 3, 4]
    follower = successor(follower, tmp_path)
    total, born = 5, 0
    while born < rotations or total < 7:
        inode = journal.stat().st_ino
        writer.write("sample")
        total += 1
        born += journal.stat().st_ino != inode
    found = numbers(follower, total - 1)
    kept = rotated_path(journal).read_bytes() if rotations == 2 else b""
    first = json.loads(kept.splitlines()[0])["n"] if kept else 5
    assert found == list(range(first, total))
    assert follower.dropped["gap"] == first - 5


def test_another_file_under_the_name_is_read_from_its_start(tmp_path: Path, folder: Path) -> None:
    """Even where it got the inode of the one before, which is what happens on a tmpfs."""
    journal = folder / "slot-0.jsonl"
    journal.write_bytes(line(n=0) + line(n=1))
    follower = Follower(tmp_path, RUN)
    assert numbers(follower, 1) == [0, 1]
    follower = successor(follower, tmp_path)
    journal.write_bytes(line(n=0, life=8) + line(n=1, life=8) + line(n=2, life=8))
    assert numbers(follower, 2) == [0, 1, 2]


def test_a_ring_is_read_on(tmp_path: Path, folder: Path) -> None:
    """Each step counts once."""
    ring, now = RingWriter.create(folder, 0, 7, 16), clock.monotonic_ns()
    follower = Follower(tmp_path, RUN)
    for number in range(1, 9):
        ring.append(number, now, now + 1, 0, 0, 1.0, 1)
        assert Seen(follower).until(lambda seen: bool(seen.steps), "the step").steps == [number]
        follower = successor(follower, tmp_path)


def test_what_was_held_back_is_not_lost(tmp_path: Path, folder: Path) -> None:
    """Read, but dated a little ahead: it is in no fold yet, so the position must hold it."""
    ahead = clock.monotonic() + 0.7
    (folder / "slot-0.jsonl").write_bytes(line(n=0) + line(n=1, mono=ahead))
    ring = RingWriter.create(folder, 0, 7, 16)
    ring.append(1, round(ahead * 1e9) - 1000, round(ahead * 1e9), 0, 0, 1.0, 1)
    follower = Follower(tmp_path, RUN)
    first = [plain(seen) for seen in one_by_one(follower.poll().observations)]
    assert first == ["sample"]
    for _ in range(3):
        follower = successor(follower, tmp_path)
        assert not follower.poll().observations
    seen = Seen(follower).until(lambda seen: len(seen.all) >= 2, "what was ahead")
    assert sorted(map(str, map(plain, seen.all))) == ["1", "sample"]


def test_what_was_refused_is_counted_once(tmp_path: Path, folder: Path) -> None:
    """Every restart of the sidecar would count it again."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "slot-0.jsonl").write_bytes(line())
    (folder / "slot-0.jsonl").write_bytes(b"no event\n" + line())
    os.mkfifo(folder / "slot-2.jsonl")
    (folder / "slot-4.9.steps").write_bytes(b"HWSTEPS1" + b"\xff" * 64)
    follower = Follower(tmp_path, RUN)
    follower.poll()
    counted = follower.dropped
    assert counted == {"other_run": 1, "torn": 1, "unreadable": 1, "bad_ring": 1}
    for _ in range(3):
        follower = successor(follower, tmp_path)
        follower.poll()
    assert follower.dropped == counted


def test_journals_that_are_away_for_a_while(tmp_path: Path, folder: Path) -> None:
    """A sidecar that starts before its volume is mounted must not read all of it again later."""
    (folder / "slot-0.jsonl").write_bytes(line(n=0))
    follower = Follower(tmp_path, RUN)
    assert numbers(follower, 0) == [0]
    away = folder.rename(tmp_path / "away")
    for _ in range(2):
        follower = successor(follower, tmp_path)
        assert not follower.poll().observations
    away.rename(folder)
    with (folder / "slot-0.jsonl").open("ab") as file:
        file.write(line(n=1))
    assert numbers(follower, 1) == [1]


def test_whether_anything_is_left_of_the_pod(tmp_path: Path, folder: Path) -> None:
    """A journal or a ring that is known tells that the folder is the same; without any the pod was made anew."""
    journal = folder / "slot-0.jsonl"
    assert anything_left(folder, Follower(tmp_path, RUN).position())
    journal.write_bytes(line(n=0))
    RingWriter.create(folder, 0, 7, 16).close()
    follower = Follower(tmp_path, RUN)
    follower.poll()
    saved: dict[str, Any] = follower.position()
    assert anything_left(folder, saved)
    journal.rename(rotated_path(journal))
    (folder / "slot-0.7.steps").unlink()
    assert anything_left(folder, saved)
    shutil.rmtree(folder)
    assert not anything_left(folder, saved)
    folder.mkdir()
    journal.write_bytes(line(n=0, life=8))
    assert not anything_left(folder, saved)
