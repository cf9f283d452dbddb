"""Step files that are gone before they are read are counted, once each, and nothing else is."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN, Seen, finish, trainer
from test_follow import folder, line
from test_follow_resume import successor

from headway.journal import JournalWriter
from headway.ring import RingWriter, ring_name
from headway_exporter.follow import Follower

if TYPE_CHECKING:
    from pathlib import Path

    from headway.ring import RingWriter as Ring

__all__ = ["folder"]


def lives(folder: Path, *numbers: int, ring: bool = True, slot: int = 0) -> list[Ring]:
    """Processes that start one after the other, as the recorder does it: the file first, then the word."""
    made = []
    for number in numbers:
        if ring:
            made.append(RingWriter.create(folder, slot, number, 16))
            made[-1].append(1, number, number + 1, 0, 0, 1.0, 1)
        JournalWriter(folder / f"slot-{slot}.jsonl", number).write("process_started", {"ring": ring, "rank": slot})
    return made


def lost(follower: Follower) -> int:
    """How many are counted once everything was read and looked at again."""
    for _ in range(4):
        follower.poll()
    return follower.dropped["ring_gone"]


def test_files_that_went_before_anybody_looked(tmp_path: Path, folder: Path) -> None:
    """A crash loop that is faster than the sidecar, in two slots: only the newest two files of each are left."""
    lives(folder, 1, 2, 3, 4)
    lives(folder, 5, 6, slot=1)
    assert lost(Follower(tmp_path, RUN)) == 2


def test_real_lives_that_nobody_saw(tmp_path: Path) -> None:
    """The recorder's own files, and a sidecar that comes after three lives."""
    for cycle in range(3):
        finish(trainer(tmp_path, 0, "steps=1-3", "ready", "wait", cycle=cycle), kill=True)
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: len(seen.deaths) == 3, "the deaths")
    assert seen.steps == [1, 2, 3, 1, 2, 3]
    assert lost(seen.follower) == 1


def test_what_was_read_in_time_is_not_lost(tmp_path: Path, folder: Path) -> None:
    """Old files go all the time; each was read before."""
    follower = Follower(tmp_path, RUN)
    for number in range(1, 8):
        lives(folder, number)
        assert lost(follower) == 0
        follower = successor(follower, tmp_path)
    assert lost(follower) == 0


@pytest.mark.parametrize("again", [1, 3])
def test_files_that_went_while_no_sidecar_lived(tmp_path: Path, folder: Path, again: int) -> None:
    """The life that went on after the last word may have made any number of steps; it counts once, however often sidecars come and go."""
    lives(folder, 1)
    follower = Follower(tmp_path, RUN)
    assert lost(follower) == 0
    follower.close()
    saved = follower.position()
    lives(folder, 2, 3, 4)
    follower = Follower(tmp_path, RUN, saved=saved)
    for _ in range(again):
        assert lost(follower) == 2  # the first, and the second, which nobody ever saw
        follower = successor(follower, tmp_path)


def test_a_life_that_was_over_before_the_last_word_has_lost_nothing(tmp_path: Path) -> None:
    """All it made was read: that its file goes later is in order."""
    finish(trainer(tmp_path, 0, "steps=1-3", "ready", "wait"), kill=True)
    seen = Seen(Follower(tmp_path, RUN)).until(lambda seen: bool(seen.deaths), "the death")
    seen.follower.close()
    saved = seen.follower.position()
    (ring,) = (tmp_path / RUN).glob("*.steps")
    ring.unlink()
    finish(trainer(tmp_path, 0, "steps=4-6", "ready", "wait", cycle=1), kill=True)
    seen = Seen(Follower(tmp_path, RUN, saved=saved)).until(lambda seen: bool(seen.deaths), "the next death")
    assert seen.steps == [4, 5, 6]
    assert lost(seen.follower) == 0


def test_a_pod_that_went_takes_its_file_along(tmp_path: Path, folder: Path) -> None:
    """Its successor's folder is a new one; as long as that is empty nothing is known to be lost: the volume may not be there yet."""
    lives(folder, 1)
    follower = Follower(tmp_path, RUN)
    assert lost(follower) == 0
    follower = successor(follower, tmp_path)
    shutil.rmtree(folder)
    assert lost(follower) == 0
    follower = successor(follower, tmp_path)
    folder.mkdir()
    lives(folder, 2)
    assert lost(follower) == 1


def test_a_life_without_a_file_has_lost_none(tmp_path: Path, folder: Path) -> None:
    """A full disk: the trainer says so itself, and counts what it could not record."""
    lives(folder, 1, 2, 3, 4, ring=False)
    assert lost(Follower(tmp_path, RUN)) == 0


def test_a_file_that_is_refused_is_not_gone(tmp_path: Path, folder: Path) -> None:
    """It is counted under another reason already."""
    (folder / "slot-0.jsonl").write_bytes(b"".join(line("process_started", life=life, ring=True) for life in (1, 2)))
    os.mkfifo(folder / ring_name(0, 1))
    follower = Follower(tmp_path, RUN)
    assert lost(follower) == 0
    assert follower.dropped["unreadable"] == 1


def test_a_position_of_an_older_version_is_good(tmp_path: Path, folder: Path) -> None:
    """It says nothing of files that may have gone."""
    lives(folder, 1)
    follower = Follower(tmp_path, RUN)
    assert lost(follower) == 0
    saved = follower.position()
    del saved["lost_rings"]
    follower.close()
    assert lost(Follower(tmp_path, RUN, saved=saved)) == 0
