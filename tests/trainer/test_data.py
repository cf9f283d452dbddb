"""The text: which files count, in which order, and the same bytes for the same step at any time."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway_trainer import data
from headway_trainer.config import ConfigError, DataConfig
from headway_trainer.data import Corpus, list_text

SETTINGS = DataConfig(sequence_length=16, batch_size=4, held_out_fraction=0.1)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with text, and with everything that must not be taken for text."""
    root = tmp_path / "library"
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "__pycache__").mkdir()
    for number in range(20):
        (root / f"part-{number}.txt").write_bytes(bytes([number]).replace(b"\0", b"z") * (50 + number))
    (root / "deep" / "er" / "note.md").write_text("deep down " * 30)
    (root / "empty.txt").touch()
    (root / "picture.png").write_bytes(b"\x89PNG\0\0")
    (root / ".git" / "config").write_text("hidden")
    (root / ".hidden").write_text("hidden")
    (root / "__pycache__" / "x.py").write_text("cached")
    (root / "gone.txt").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    return root


def opened(path: Path, config: DataConfig = SETTINGS, seed: int = 0) -> Corpus:
    return Corpus.open(DataConfig(**{**vars(config), "paths": (str(path),)}), seed=seed)


def test_only_text_is_taken_and_the_rest_is_counted(library: Path) -> None:
    """Binaries, empty files, pipes (which would block for ever) and broken links must neither end up in the text nor stop the run."""
    listing = list_text([str(library)])
    assert len(listing.files) == 21
    assert listing.skipped == {"empty": 1, "binary": 1, "unreadable": 1, "not a regular file": 1}


def test_nothing_left_is_one_clear_error(tmp_path: Path) -> None:
    """A wrong folder must be told at the start, with what was found in it."""
    (tmp_path / "a").touch()
    (tmp_path / "b").write_bytes(b"\0")
    with pytest.raises(ConfigError, match=re.escape(f"--data.paths: no text found in {tmp_path} (1 binary, 1 empty)")):
        list_text([str(tmp_path)])
    with pytest.raises(ConfigError, match=r"no such file or folder: .*missing"):
        list_text([str(tmp_path / "missing")])


def test_the_order_does_not_depend_on_the_file_system(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes may list a folder in different orders; they must read the same corpus."""
    forwards = list_text([str(library)])
    walk = os.walk

    def backwards(top: Path) -> object:
        for folder, folders, names in walk(top):
            folders.reverse()
            yield folder, folders, sorted(names, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert list_text([str(library)]) == forwards


def test_the_order_is_not_alphabetical(library: Path) -> None:
    """The held-out tail must be a sample of the files, not the end of the alphabet."""
    names = [file.name for file in list_text([str(library)]).files]
    assert names != sorted(names)


def test_the_fingerprint_knows_names_and_sizes_but_not_the_place(library: Path) -> None:
    """A checkpoint records it: a moved mount is the same text, a longer file is another."""
    fingerprint = list_text([str(library)]).fingerprint
    moved = library.rename(library.with_name("moved"))
    assert list_text([str(moved)]).fingerprint == fingerprint
    with (moved / "part-3.txt").open("a") as file:
        file.write("x")
    longer = list_text([str(moved)]).fingerprint
    (moved / "part-4.txt").rename(moved / "part-four.txt")
    assert len({fingerprint, longer, list_text([str(moved)]).fingerprint}) == 3


def test_the_standard_library_is_the_default() -> None:
    """Every machine has it, and installed packages (which differ between machines) are not part of it."""
    listing = list_text([])
    assert sum(file.size for file in listing.files) > 1_000_000
    assert all(file.path.suffix == ".py" and "site-packages" not in file.path.parts for file in listing.files)


def test_batches_are_windows_with_the_next_byte_as_label(library: Path) -> None:
    """The model must learn to predict the byte that really follows."""
    corpus = opened(library)
    everything = corpus.read(0, corpus.size)
    batch = corpus.batch(7, 0, 1)
    assert batch.tokens.shape == batch.labels.shape == (4, 16)
    assert batch.tokens.dtype == torch.int64
    for row in range(4):
        offset = corpus.training_offset(7, row)
        assert batch.tokens[row].tolist() == everything[offset : offset + 16].tolist()
        assert batch.labels[row].tolist() == everything[offset + 1 : offset + 17].tolist()


def test_a_step_has_the_same_batch_in_any_process_and_order(library: Path) -> None:
    """A resumed run must see the very same batches: nothing that was read before may matter."""
    one, two = opened(library), opened(library)
    forwards = [one.batch(step, 1, 2) for step in range(1, 30)]
    backwards = [two.batch(step, 1, 2) for step in reversed(range(1, 30))]
    for first, second in zip(forwards, reversed(backwards), strict=True):
        assert torch.equal(first.tokens, second.tokens)
        assert torch.equal(first.labels, second.labels)


PINNED = [850_965, 655_773, 17_689, 621_518]


def test_batches_are_pinned_for_ever() -> None:
    """A new version that draws other windows would silently break every resumed run; change this number only on purpose."""
    corpus = Corpus(data.Listing((data.TextFile(Path("x"), "0/x", 1_000_000),), {}), SETTINGS, seed=42)
    assert [corpus.training_offset(step, row) for step, row in ((1, 0), (1, 1), (2, 0), (100_000, 7))] == PINNED


def test_ranks_share_a_step_without_overlap(library: Path) -> None:
    """The global batch is split: the rows of four ranks of a step are the rows of one world, whatever its size."""
    corpus = opened(library)
    rows = [row.tolist() for rank in range(4) for row in corpus.batch(3, rank, 4).tokens]
    assert rows == [row.tolist() for rank in range(4) for row in corpus.batch(3, rank, 8).tokens]
    assert len({corpus.training_offset(3, row) for row in range(16)}) == 16
    with pytest.raises(ValueError, match="rank 2 is not in a world of 2"):
        corpus.batch(3, 2, 2)


def test_steps_and_seeds_draw_different_windows(library: Path) -> None:
    """Training must move through the text, and another seed must see another order."""
    corpus, other = opened(library), opened(library, seed=1)
    offsets = [corpus.training_offset(step, 0) for step in range(200)]
    assert len(set(offsets)) > 150
    assert offsets != [other.training_offset(step, 0) for step in range(200)]
    own = opened(library, DataConfig(**{**vars(SETTINGS), "seed": 1}))
    assert own.training_offset(5, 0) == other.training_offset(5, 0)


def test_windows_cover_the_training_part_evenly(library: Path) -> None:
    """No part of the text may be favoured: a tenth of the windows starts in each tenth."""
    corpus = opened(library)
    last = corpus.training_size - 17
    offsets = [corpus.training_offset(step, row) for step in range(2000) for row in range(4)]
    assert min(offsets) == 0
    assert max(offsets) == last
    tenths = Counter(offset * 10 // (last + 1) for offset in offsets)
    assert all(600 < count < 1000 for count in tenths.values())


def test_training_never_sees_held_out_text(library: Path) -> None:
    """Else the held-out loss would be training loss."""
    corpus = opened(library)
    trained = max(corpus.training_offset(step, row) + 17 for step in range(2000) for row in range(4))
    assert trained <= corpus.training_size
    held_out = corpus.read(corpus.training_size, corpus.size - corpus.training_size).tobytes()
    windows = [corpus.held_out_batch(number, of=5) for number in range(5)]
    assert all(bytes(row.tolist()) in held_out for batch in windows for row in batch.tokens)
    assert bytes(windows[-1].labels[-1].tolist()) == held_out[-16:]
    assert torch.equal(windows[2].tokens, corpus.held_out_batch(2, of=5).tokens)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(0, 1700), length=st.integers(1, 400))
def test_reading_across_files_is_reading_their_concatenation(library: Path, offset: int, length: int) -> None:
    """A window may start in one file and end several files later."""
    corpus = opened(library)
    text = b"".join(file.path.read_bytes() for file in corpus.listing.files)
    length = min(length, len(text) - offset)
    if length > 0:
        assert corpus.read(offset, length).tobytes() == text[offset : offset + length]


def test_only_so_many_files_stay_mapped(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a million files must not use up the process's file descriptors."""
    monkeypatch.setattr(data, "OPEN_MAPS", 3)
    corpus = opened(library)
    corpus.read(0, corpus.size)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(library) in line]
    assert len(mapped) <= 3


def test_a_file_that_changes_during_the_run_is_an_error(library: Path) -> None:
    """A shrunken mapped file would kill the process with SIGBUS, a grown one would shift every byte after it."""
    corpus = opened(library)
    for file in library.glob("part-*"):
        file.write_text("short")
    with pytest.raises(ConfigError, match="the text must not change during a run"):
        corpus.read(0, corpus.size)
    for file in library.glob("part-*"):
        file.unlink()
    with pytest.raises(ConfigError, match="cannot be read any more"):
        corpus.read(0, corpus.size)


def test_too_little_text_is_said_at_the_start(tmp_path: Path) -> None:
    """Better than an index error at the first evaluation."""
    (tmp_path / "a.txt").write_text("x" * 100)
    with pytest.raises(ConfigError, match="the held-out part of the text has 10 bytes, but one sequence needs 17"):
        opened(tmp_path)
    without = opened(tmp_path, DataConfig(sequence_length=99, batch_size=1, held_out_fraction=0))
    assert without.batch(1, 0, 1).tokens.shape == (1, 99)
    with pytest.raises(ConfigError, match="the training part of the text has 100 bytes, but one sequence needs 101"):
        opened(tmp_path, DataConfig(sequence_length=100, batch_size=1, held_out_fraction=0))


def test_text_is_mapped_and_not_read_into_memory(tmp_path: Path) -> None:
    """A corpus larger than memory must work: a sparse file of a terabyte is opened and read at its end."""
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.write(b"start of a huge file" * 500)
        file.truncate(1 << 40)
    corpus = opened(path)
    assert corpus.size == 1 << 40
    assert np.count_nonzero(corpus.held_out_batch(0, of=1).tokens.numpy()) == 0


def test_file_names_may_be_any_bytes(tmp_path: Path) -> None:
    """Linux names are bytes; one that is no UTF-8 must not stop the run."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("x" * 500)
    assert len(opened(tmp_path).listing.files) == 1
    assert opened(tmp_path).fingerprint


def test_listings_are_sorted_by_a_hash(library: Path) -> None:
    """The documented order, so that another tool can rebuild it."""
    files = list_text([str(library)]).files
    assert all(data._order(one) < data._order(two) for one, two in pairwise(files))
