"""The follower on real folders, with real recorders in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN, Seen, finish, launcher, one_by_one, plain, trainer, wait_ready

from headway import clock
from headway.lifelock import lock_name
from headway.ring import RingWriter
from headway_exporter.follow import MOST_SLOTS, Follower
from headway_exporter.lives import MOST_WAITERS
from headway_exporter.observations import EventSeen, Run, StepSeen, StepsSeen

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run's folder, made before any trainer starts."""
    made = tmp_path / RUN
    made.mkdir()
    return made


def line(kind: str = "sample", **fields: object) -> bytes:
    now = clock.monotonic()
    event = {"v": 1, "kind": kind, "n": 0, "wall": clock.wall(), "mono": now, "life": 7, **fields}
    return json.dumps(event).encode() + b"\n"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, kind: str) -> None:
    """It is no folder in which nobody has written yet: that counts nothing, this once until it is mended."""
    follower = Follower(tmp_path / "journals", RUN)
    follower.poll()
    assert follower.dropped["unreadable"] == 0
    if kind == "file":
        (tmp_path / "journals").touch()
    else:
        (tmp_path / "journals").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "journals" / RUN).symlink_to(tmp_path / "elsewhere")
    for _ in range(3):
        follower.poll()
    assert follower.dropped["unreadable"] == 1
    (tmp_path / "journals" / ("" if kind == "file" else RUN)).unlink()
    follower.poll()
    assert follower.dropped["unreadable"] == 1


def test_a_killed_process_in_the_order_of_time(tmp_path: Path) -> None:
    """Events and steps of two files come as one story, and the death comes last, by the kernel's word."""
    seen = Seen(Follower(tmp_path, RUN))
    seen.until(lambda _: seen.follower.caught_up, "a poll of a folder that is not there")
    process = trainer(tmp_path, 0, "enter=a", "load=0", "steps=1-3", "commit=3", "steps=4-5", "ready", "wait")
    wait_ready(process)
    seen.until(lambda seen: 5 in seen.steps, "the steps")
    assert not seen.deaths
    killed = clock.monotonic()
    process.kill()
    process.communicate()
    seen.until(lambda seen: bool(seen.deaths), "the death")
    story = [plain(one) for one in seen.all if plain(one) != "sample"]
    assert story == [
        "process_started",
        "train_entered",
        "phase",
        "checkpoint",
        "phase",
        1,
        2,
        3,
        "checkpoint",
        4,
        5,
        "death by lock",
    ]
    assert seen.deaths[0].mono >= killed


def test_a_sidecar_that_comes_late_dates_a_death_by_the_last_trace(tmp_path: Path) -> None:
    """Who was dead before we came died when it wrote last, as far as anybody can tell."""
    process = trainer(tmp_path, 0, "steps=1-3", "ready", "wait")
    finish(process, kill=True)
    after = clock.monotonic()
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.deaths), "the death")
    assert [death.by for death in seen.deaths] == ["found"]
    assert seen.deaths[0].mono < after
    assert seen.deaths[0].mono == max(one.mono for one in seen.all)


def test_a_successor_tells_of_a_death_before_it(tmp_path: Path) -> None:
    """Two lives read at once: the first one's death belongs between them."""
    for steps in ("steps=1-2", "steps=3-4"):
        finish(trainer(tmp_path, 0, steps, "ready", "wait"), kill=True)
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: len(seen.deaths) == 2, "both deaths")
    story = [plain(one) for one in seen.all if plain(one) != "sample"]
    assert story == ["process_started", 1, 2, "death by replaced", "process_started", 3, 4, "death by found"]


def test_a_folder_that_is_replaced(tmp_path: Path) -> None:
    """A pod that starts again gets a fresh folder under the old name; what the old one held last is not lost."""
    seen = Seen(Follower(tmp_path, RUN))
    finish(trainer(tmp_path, 0, "steps=1-3", "ready", "wait"), kill=True)
    seen.until(lambda seen: bool(seen.deaths), "the first life's death")
    shutil.rmtree(tmp_path / RUN)
    seen.until(lambda _: seen.follower.caught_up, "a poll without the folder")
    finish(trainer(tmp_path, 0, "steps=2-4", "finish=4", attempt=1))
    seen.until(lambda seen: len(seen.deaths) == 2, "the second life's end")
    assert seen.steps == [1, 2, 3, 2, 3, 4]
    assert seen.kinds(0)[-2:] == ["train_finished", "process_exited"]


def test_the_launchers_journal_is_followed(tmp_path: Path, folder: Path) -> None:
    """Its lines belong to no slot."""
    assert folder.is_dir()
    assert launcher(tmp_path)("worker_exited", local_rank=1, exit_code=-9)
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.all), "the line")
    assert seen.kinds(None) == ["worker_exited"]


def test_without_a_lock_silence_decides(tmp_path: Path, folder: Path) -> None:
    """A file system that cannot lock: a life that writes nothing for too long counts as dead, until it writes again."""
    journal = folder / "slot-0.jsonl"
    journal.write_bytes(line("process_started", life_lock=False))
    seen = Seen(Follower(tmp_path, RUN, silence_seconds=0.3)).until(lambda seen: bool(seen.deaths), "the silence")
    assert [death.by for death in seen.deaths] == ["silence"]
    with journal.open("ab") as file:
        file.write(line(n=1))
    seen.until(lambda seen: len(seen.deaths) == 2, "the next silence")


def test_a_lock_that_lies_is_not_believed_twice(tmp_path: Path, folder: Path) -> None:
    """A process that lost its lock but still writes is alive; from then on its silence decides."""
    (folder / lock_name(0)).touch()
    journal = folder / "slot-0.jsonl"
    journal.write_bytes(line("process_started", life_lock=True))
    seen = Seen(Follower(tmp_path, RUN, silence_seconds=0.5)).until(lambda seen: bool(seen.deaths), "the free lock")
    with journal.open("ab") as file:
        file.write(line("train_entered", n=1))
    seen.until(lambda seen: len(seen.deaths) == 2, "the silence")
    assert [death.by for death in seen.deaths] == ["found", "silence"]


def test_a_lock_that_its_holder_merely_lost_is_no_death(tmp_path: Path) -> None:
    """Something in the trainer read the lock file, which drops the lock: the process lives on, and its real end is still known."""
    seen = Seen(Follower(tmp_path, RUN))
    process = trainer(tmp_path, 0, "steps=1-3", "meet", "unlock", "steps=4-5", "ready", "wait")
    wait_ready(process)
    seen.until(lambda seen: 3 in seen.steps, "the first steps")
    time.sleep(0.5)  # the thread that waits for the lock has asked who holds it
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wait_ready(process)
    seen.until(lambda seen: 5 in seen.steps, "the steps without a lock")
    for _ in range(20):
        seen.all += one_by_one(seen.follower.poll().observations)
        seen.follower.wake.wait(0.02)
    assert not seen.deaths
    process.kill()
    process.communicate()
    seen.until(lambda seen: bool(seen.deaths), "the death")
    assert [death.by for death in seen.deaths] == ["lock"]


def test_journals_of_other_runs_are_counted_and_left_alone(tmp_path: Path, folder: Path) -> None:
    """One run per sidecar: the labels would be wrong for another one's numbers."""
    other = tmp_path / "other"
    other.mkdir()
    for slot in (0, 1):
        (other / f"slot-{slot}.jsonl").write_bytes(line())
    (folder / "slot-0.jsonl").write_bytes(line())
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.all), "our own line")
    assert len(seen.all) == 1
    assert seen.follower.dropped["other_run"] == 2


def test_hostile_files_are_refused_and_counted(tmp_path: Path, folder: Path) -> None:
    """Links, FIFOs, folders, false rings and wrong lines neither stop nor mislead the follower."""
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(line())
    (folder / "slot-1.jsonl").symlink_to(secret)
    os.mkfifo(folder / "slot-2.jsonl")
    (folder / "slot-3.jsonl").mkdir()
    (folder / "slot-4.9.steps").write_bytes(b"HWSTEPS1" + b"\xff" * 64)
    (folder / "slot-5.9.steps").symlink_to(secret)
    RingWriter.create(folder, 6, 11, 8).close()
    (folder / "slot-6.11.steps").rename(folder / "slot-6.12.steps")
    far, huge = clock.monotonic() + 3600, 10**30
    (folder / "slot-0.jsonl").write_bytes(
        b"\x00\xff garbage\n"
        + line(v=2)
        + line(kind="no such kind")
        + line(mono=far)
        + line(mono=-1)
        + line(rss_bytes=huge)
        + b"x" * 200_000
        + b"\n"
        + line(n=5)
    )
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.all), "the good line")
    assert [seen.event.n for seen in seen.all if isinstance(seen, EventSeen)] == [5]
    dropped = seen.follower.dropped
    assert dropped["unreadable"] == 4
    assert dropped["bad_ring"] == 2
    assert (dropped["version"], dropped["unknown_kind"], dropped["too_long"], dropped["torn"]) == (1, 1, 1, 1)
    assert (dropped["future"], dropped["malformed"]) == (2, 1)


def test_a_clock_that_goes_back_within_a_life_is_counted(tmp_path: Path, folder: Path) -> None:
    """CLOCK_MONOTONIC does not: such a journal is made up, or from before a restart of the machine."""
    now = clock.monotonic()
    (folder / "slot-0.jsonl").write_bytes(line(mono=now) + line(mono=now - 5, n=1) + line(mono=now, n=2))
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: len(seen.all) == 3, "the lines")
    assert seen.follower.clock_went_back == 1


def test_many_slots_and_lives_stay_bounded(tmp_path: Path, folder: Path) -> None:
    """Names cost nothing to make up: they must not cost the sidecar files, threads or memory."""
    for slot in range(3 * MOST_SLOTS):
        (folder / f"slot-{slot}.jsonl").write_bytes(line())
    lives = (line("process_started", life=life, n=0, life_lock=True) for life in range(3 * MOST_WAITERS))
    (folder / lock_name(1)).touch()
    (folder / "slot-1.jsonl").write_bytes(b"".join(lives))
    follower = Follower(tmp_path, RUN)
    Seen(follower).until(lambda seen: len(seen.all) > MOST_SLOTS, "the lines")
    assert follower.dropped["limit"] == 2 * MOST_SLOTS
    assert len(follower._sources) == MOST_SLOTS
    assert all(len(lives) <= 4 for lives in follower._lives._slots.values())


def test_a_long_backlog_comes_in_order_and_in_portions(tmp_path: Path, folder: Path) -> None:
    """A sidecar that starts late must neither hold everything in memory at once nor mix up the order of files."""
    now = clock.monotonic_ns()
    for slot in (0, 1):
        ring = RingWriter.create(folder, slot, 7, 65_536)
        for number in range(60_000):
            begin = now - (60_000 - number) * 1000
            ring.append(number + 1, begin, begin + 900, 0, 0, 1.0, 1)
        ring.close()
        (folder / f"slot-{slot}.jsonl").write_bytes(line("train_finished", step=60_000))
    follower = Follower(tmp_path, RUN)
    sizes, times = [], []
    while len(times) < 2 * 60_000 + 2:
        observations = one_by_one(follower.poll().observations)
        sizes.append(len(observations))
        times += [seen.key for seen in observations if plain(seen) != "death by silence"]
    assert times == sorted(times)
    assert max(sizes) < 2 * 60_000
    assert sum(len(held) for held in follower._held.values()) == 0


def test_a_folder_that_comes_back_counts_no_step_again(tmp_path: Path, folder: Path) -> None:
    """Unreadable for a moment, or moved away and back: a ring is read on where it was left."""
    ring = RingWriter.create(folder, 0, 7, 16)
    follower = Follower(tmp_path, RUN)
    seen = Seen(follower)
    now = clock.monotonic_ns()
    for number in (1, 2):
        ring.append(number, now, now + 1, 0, 0, 1.0, 1)
    seen.until(lambda seen: seen.steps == [1, 2], "the steps")
    away = folder.rename(tmp_path / "away")
    for _ in range(4):
        follower.poll()
    assert not follower._sources
    ring.append(3, now, now + 1, 0, 0, 1.0, 1)
    away.rename(folder)
    seen.until(lambda seen: len(seen.steps) > 2, "the step after it")
    assert seen.steps == [1, 2, 3]


def test_a_step_that_ends_before_it_begins(tmp_path: Path, folder: Path) -> None:
    """A negative duration would make the sum of a histogram fall."""
    ring = RingWriter.create(folder, 0, 7, 16)
    now = clock.monotonic_ns()
    ring.append(1, now, now - 1_000_000, 0, 0, 1.0, 1)
    ring.append(2, now - 1_000, now, 0, 0, 1.0, 1)
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.steps), "the good step")
    assert seen.steps == [2]
    assert seen.follower.dropped["malformed"] == 1


def test_files_that_wait_for_a_longer_one_stay_small(tmp_path: Path, folder: Path) -> None:
    """A late start with two full rings a slot: the second one waits for the first, but not in memory."""
    now = clock.monotonic_ns()
    for life, count, age in ((1, 30_000, 2_000_000_000), (2, 30_000, 1_000_000_000)):
        ring = RingWriter.create(folder, 0, life, 32_768)
        for number in range(count):
            ring.append(number + 1, now - age + number * 1000, now - age + number * 1000 + 900, 0, 0, 1.0, 1)
        ring.close()
    follower = Follower(tmp_path, RUN)
    most, found = 0, 0
    while found < 60_000:
        found += sum(map(weight, follower.poll().observations))
        most = max(most, *(sum(map(weight, held)) for held in follower._held.values()))
    assert most < 6_000


def weight(seen: object) -> int:
    """How many steps an observation stands for."""
    return len(seen) if isinstance(seen, (Run, StepsSeen)) else isinstance(seen, StepSeen)


def test_scrapes_may_read_the_counts_while_files_come_and_go(tmp_path: Path, folder: Path) -> None:
    """A sum over sources that change meanwhile failed, or stepped back for a moment."""
    follower = Follower(tmp_path, RUN)
    seen, done = [0], threading.Event()

    def scrape() -> None:
        over = False
        while not over:
            over = done.is_set()
            seen.append(follower.dropped["version"])
            assert follower.clock_went_back == 0

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape)
        try:
            for round_ in range(20):
                for slot in range(8):
                    journal = folder / f"slot-{slot}.jsonl"
                    journal.unlink(missing_ok=True)
                    journal.write_bytes(line(v=999))
                follower.poll()
                assert follower.dropped["version"] <= 8 * (round_ + 1)
        finally:
            done.set()
            sys.setswitchinterval(before)
        scraping.result(30)
    assert seen == sorted(seen)
    assert seen[-1] > 0
