"""However many names, lives and files pass by a sidecar, it keeps what it keeps, finds the real ones, and lets the others go.

In this process and by allocations, so that it is quick; with a sidecar process and thousands of names in `test_hostile_journals`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hostile_files import event, header

from headway import clock
from headway.events import Event
from headway.lifelock import lock_name
from headway.ring import RingWriter, ring_name
from headway.ring_format import RECORD_BYTES
from headway_exporter import failures, pod
from headway_exporter.folder import MOST_ENTRIES
from headway_exporter.follow import Follower
from headway_exporter.observations import DeathSeen, EventSeen, StepSeen
from headway_exporter.pod import Pod
from headway_exporter.sources import JournalSource, RingSource

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.slow

RUN = "testrun"
MOST_MEGABYTES = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run's folder."""
    made = tmp_path / RUN
    made.mkdir()
    return made


def journal(folder: Path, slot: int, lines: Iterable[bytes]) -> None:
    with (folder / f"slot-{slot}.jsonl").open("ab") as file:
        file.writelines(lines)


def polled(follower: Follower) -> list[Any]:
    """All observations until it has caught up."""
    found: list[Any] = []
    while True:
        found += follower.poll().observations
        if follower.caught_up:
            return found


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_what_waits_for_another_file_is_bounded_by_its_size(tmp_path: Path, folder: Path) -> None:
    """A journal of tables that may not be told of before another journal was read weighs no more than one of small events."""
    before = clock.monotonic() - 100
    tables = [{f"s{number}-{item}": item for item in range(300)} for number in range(150)]
    journal(folder, 0, (event("sample", 1, n, mono=before + n * 1e-4, open_files=n) for n in range(8_000)))
    for slot in range(1, 5):
        late = (
            event("process_started", 9, n, mono=before + 50 + n * 1e-4, settings=table)
            for n, table in enumerate(tables)
        )
        journal(folder, slot, late)
    follower = Follower(tmp_path, RUN)
    counts = dict.fromkeys(range(5), 0)
    last = -1.0
    tracemalloc.start()
    try:
        while True:
            for seen in follower.poll().observations:
                if isinstance(seen, EventSeen) and seen.slot is not None:
                    counts[seen.slot] += 1
                    assert seen.mono >= last
                    last = seen.mono
                    if seen.slot:
                        assert seen.event.fields["settings"] == tables[seen.event.n]
            if follower.caught_up:
                break
        peak = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
        follower.close()
    assert counts == {0: 8_000} | dict.fromkeys(range(1, 5), len(tables))
    assert peak < MOST_MEGABYTES


def test_what_is_written_during_a_long_look_is_not_from_the_future(folder: Path) -> None:
    """A look at many files on a busy machine takes longer than a second, and a trainer that writes meanwhile is believed."""
    began = clock.monotonic() - 5
    journal(folder, 0, [event("sample", 9, 0)])
    ring = RingWriter.create(folder, 0, 9)
    now = clock.monotonic_ns()
    ring.append(1, now - 1_000, now, 0, 0, 1.0, 0)
    ring.close()
    sources = JournalSource(folder / "slot-0.jsonl", 0), RingSource(folder / ring_name(0, 9), 0, 9)
    found = [source.read(began, 128) for source in sources]
    for source in sources:
        source.close()
    assert [len(one) for one in found] == [1, 1]
    assert not sum((source.counts() for source in sources), Counter()).total()


def test_a_long_line_is_not_the_end_of_its_file(tmp_path: Path, folder: Path) -> None:
    """However small the portions are where there are many files, what follows a long line is known before later events are told of."""
    before = clock.monotonic() - 50
    for slot in range(1, 60):
        journal(folder, slot, [event("sample", slot, 0, mono=before + 20)])
        for life in range(1, 5):
            (folder / ring_name(slot, life)).write_bytes(header(8, life) + bytes(8 * RECORD_BYTES))
    long = event("fault_caught", 9, 0, mono=before, message="m" * 30_000, traceback="t" * 30_000)
    journal(folder, 0, [long, event("sample", 9, 1, mono=before + 10)])
    follower = Follower(tmp_path, RUN)
    seen = [(one.slot, one.event.n) for one in polled(follower) if isinstance(one, EventSeen)]
    follower.close()
    assert seen[:2] == [(0, 0), (0, 1)]
    assert len(seen) == 61


def test_what_waits_is_the_same_to_the_next_sidecar(tmp_path: Path, folder: Path) -> None:
    """Tables and texts of any script that one sidecar held back are given out by the next, whatever they take as JSON."""
    soon = clock.monotonic() + 0.9  # held back until then
    table = {f"s{n}": n for n in range(100)}
    text = "\u65e5" * 8_000
    lines = [
        event("process_started", 9, 0, mono=soon, settings=table),
        json.dumps(
            {
                "v": 1,
                "kind": "fault_caught",
                "n": 1,
                "wall": 1.0,
                "mono": soon,
                "life": 9,
                "message": text,
                "traceback": text,
            },
            ensure_ascii=False,
        ).encode()
        + b"\n",
    ]
    journal(folder, 0, lines)
    first = Follower(tmp_path, RUN)
    assert not [seen for seen in first.poll().observations if isinstance(seen, EventSeen)]
    position = json.loads(json.dumps(first.position()))
    first.close()
    assert len(position["held"]) == 2
    second = Follower(tmp_path, RUN, saved=position)
    events: list[Event] = []
    while len(events) < 2:
        events += [seen.event for seen in second.poll().observations if isinstance(seen, EventSeen)]
    second.close()
    assert events[0].fields["settings"] == table
    assert events[1].fields["message"] == events[1].fields["traceback"] == text
    assert second.dropped.total() == 0


def test_lives_that_came_and_went_are_not_waited_for(tmp_path: Path, folder: Path) -> None:
    """Thousands of lives in a journal that is read late leave no word of their locks behind, and the last one's is still heard."""
    (folder / lock_name(0)).touch()
    before = clock.monotonic() - 50
    journal(
        folder, 0, (event("process_started", n, 0, mono=before + n * 1e-3, life_lock=True) for n in range(1, 6_001))
    )
    follower = Follower(tmp_path, RUN)
    deaths: list[DeathSeen] = []
    while True:
        deaths += [seen for seen in follower.poll().observations if isinstance(seen, DeathSeen)]
        assert len(follower._released) <= 4
        if any(death.life == 6_000 for death in deaths):
            break
        follower.wake.wait(0.05)
    follower.close()
    assert [death.life for death in deaths] == list(range(1, 6_001))
    assert {death.by for death in deaths[:-1]} == {"replaced"}


def test_the_real_files_are_found_among_any_number_of_others(tmp_path: Path, folder: Path) -> None:
    """A slot has its place and its ring is not given up, although only a part of the folder can be looked at."""
    for number in range(2 * MOST_ENTRIES):
        (folder / f"other-{number}").touch()
    ring = RingWriter.create(folder, 3, 9)
    journal(folder, 3, [event("process_started", 9, 0, ring=True)])
    for number in range(2 * MOST_ENTRIES, 4 * MOST_ENTRIES):
        (folder / f"other-{number}").touch()
    follower = Follower(tmp_path, RUN)
    steps = []
    for step in range(1, 4):
        now = clock.monotonic_ns()
        ring.append(step, now - 1_000, now, 0, 0, 1.0, 0)
        for _ in range(3):  # the ring is known by its life, and that by the journal
            steps += [seen.record.step for seen in polled(follower) if isinstance(seen, StepSeen)]
    ring.close()
    follower.close()
    assert steps == [1, 2, 3]
    assert follower.dropped.total() == 0


def test_files_that_come_and_go_leave_nothing_behind(tmp_path: Path, folder: Path) -> None:
    """Rings, bad ones and journals of ever new names: descriptors and what is saved stay, and a further bad one is still counted."""
    follower = Follower(tmp_path, RUN)
    sizes, opened = [], []
    for round_ in range(16):
        for number in range(300):
            (folder / ring_name(number % 60, 1 + number + 1_000 * round_)).write_bytes(b"no ring")
        for slot in range(8):
            good = folder / ring_name(slot, 10**9 + round_)
            good.write_bytes(header(64, 10**9 + round_) + bytes(64 * 64))
            journal(folder, slot, [event("sample", 10**9 + round_, 0)])
        polled(follower)
        for file in [*folder.glob("*.steps"), *folder.glob("slot-[1-7].jsonl")]:
            file.unlink()
        for _ in range(3):
            polled(follower)
        sizes.append(len(json.dumps(follower.position())))
        opened.append(descriptors())
    assert follower.dropped["bad_ring"] == 16 * 300
    assert max(sizes[12:]) < 1.5 * max(sizes[4:8])
    assert max(opened[12:]) <= max(opened[4:8])
    follower.close()


def test_a_ring_that_cannot_be_opened_now_is_opened_later(tmp_path: Path, folder: Path) -> None:
    """Too few descriptors say nothing about a file: what could not be opened then is read once there is room."""
    for slot in range(3):
        ring = RingWriter.create(folder, slot, 9)
        now = clock.monotonic_ns()
        ring.append(slot + 1, now - 1_000, now, 0, 0, 1.0, 0)
        ring.close()
    follower = Follower(tmp_path, RUN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []
    try:
        highest = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
        os.close(fillers.pop())  # one for the folder, and then for the first ring
        found = follower.poll().observations
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(found) == 1
    found += follower.poll().observations
    assert sorted(seen.record.step for seen in found if isinstance(seen, StepSeen)) == [1, 2, 3]
    assert follower.dropped.total() == 0
    follower.close()


def test_ranks_that_failed_are_bounded() -> None:
    """A journal that gives each life a rank of its own adds series up to a bound; what is beyond is counted as such."""
    one, at = Pod(RUN, "0"), 100.0

    def told(kind: str, life: int, **fields: object) -> EventSeen:
        return EventSeen(0, Event(kind, 0, 1.7e9 + at, at, life, None, fields))

    lives = failures.MOST_RANKS + 50
    for life in range(1, lives + 2):
        at += 10.0
        one.fold([told("process_started", life, rank=life), told("train_entered", life, rank=life)])
        at += 1.0
        one.fold([told("fault_caught", life, type="ValueError", message="m")])
    counts = one.failures.rank_failures
    assert len(counts) == failures.MOST_RANKS
    assert counts.total() + one.failures.unplaced == lives
    assert one.dropped.total() == 0


def test_the_log_is_not_filled(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be folded is told a few times with all that is known, and counted every time."""
    one = Pod(RUN, "0")
    wrong: Any = object()
    with caplog.at_level(logging.ERROR):
        one.fold([wrong] * 1_000)
    assert one.dropped["malformed"] == 1_000
    assert len(caplog.records) == pod.MOST_TOLD + 1
