"""Checkpoints in one process: written whole or not at all, believed only when verified, never in the way."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from headway_trainer import checkpoint
from headway_trainer.checkpoint import CheckpointError, CheckpointMismatchError, WriteFault
from headway_trainer.manifest import shard_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def build(seed: int, width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        tensors |= {f"{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def save(root: Path, step: int, seed: int, save_id: str = "0a1b2c3d", width: int = 8) -> Path:
    model, optimizer = build(seed, width)
    folder = checkpoint.save_folder(root, step, save_id)
    checkpoint.write_shard(checkpoint.local_shard(model, optimizer, step), str(folder), 0, 1)
    checkpoint.publish(folder, step, 1, save_id, {"seed": seed})
    return folder


class Loaded:
    """The outcome of `load_newest` into a model of its own."""

    def __init__(self, root: Path, width: int = 8) -> None:
        self.model, self.optimizer = build(seed=99, width=width)
        self.rejected: list[tuple[Path, int, str]] = []
        self.sizes: list[int] = []
        self.step = checkpoint.load_newest(
            root,
            self.model,
            self.optimizer,
            rank=0,
            world_size=1,
            all_ok=lambda ok: ok,
            on_rejected=lambda *rejection: self.rejected.append(rejection),
            on_loaded=self.sizes.append,
        )

    def assert_is(self, seed: int) -> None:
        assert_same(state(self.model, self.optimizer), state(*build(seed)))


def test_a_checkpoint_comes_back_bit_equal(tmp_path: Path) -> None:
    """Weights and optimizer state survive the way to the disk and back, and the manifest says what was given to it."""
    save(tmp_path, 10, seed=1)
    loaded = Loaded(tmp_path)
    assert (loaded.step, loaded.rejected) == (10, [])
    loaded.assert_is(seed=1)
    (found,) = checkpoint.candidates(tmp_path)
    assert (found.manifest.step, found.manifest.extra) == (10, {"seed": 1})
    assert found.manifest.shards[0].bytes == found.manifest.total_bytes
    assert loaded.sizes == [found.manifest.total_bytes]


def test_a_shard_is_a_copy(tmp_path: Path) -> None:
    """Training that goes on while a save is under way does not change what is saved."""
    model, optimizer = build(seed=1)
    shard = checkpoint.local_shard(model, optimizer, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.0)
    folder = checkpoint.save_folder(tmp_path, 1, "ab")
    checkpoint.write_shard(shard, str(folder), 0, 1)
    checkpoint.publish(folder, 1, 1, "ab")
    Loaded(tmp_path).assert_is(seed=1)


def test_no_checkpoints_means_from_scratch(tmp_path: Path) -> None:
    """A folder that is empty or does not exist is the normal start of a run, and leaves the model alone."""
    for root in (tmp_path, tmp_path / "none"):
        loaded = Loaded(root)
        assert (loaded.step, loaded.rejected, loaded.sizes) == (0, [], [])
        loaded.assert_is(seed=99)


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    """It is not taken for a fresh start, which would throw away all work."""
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(CheckpointError, match="cannot list the checkpoint folder"):
        Loaded(root)


@pytest.mark.parametrize(
    ("width", "pattern"),
    [(6, r"0\.weight has shape \[8, 4\] in it and \[6, 4\] in the model"), (8, "its extra is not in the model")],
)
def test_another_model_is_an_error(tmp_path: Path, width: int, pattern: str) -> None:
    """A changed configuration stops the run with both shapes in words, and does not start from scratch."""
    folder = save(tmp_path, 10, seed=1)
    if width == 8:
        model, optimizer = build(seed=1)
        model.register_buffer("extra", torch.zeros(1))
        shutil.rmtree(folder)
        checkpoint.write_shard(checkpoint.local_shard(model, optimizer, 10), str(folder), 0, 1)
        checkpoint.publish(folder, 10, 1, "0a1b2c3d")
    with pytest.raises(CheckpointMismatchError, match=pattern) as caught:
        Loaded(tmp_path, width=width)
    assert str(folder) in str(caught.value)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    """A parameter with two names takes no second place, and comes back tied."""

    def tied(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    model, folder = tied(1), checkpoint.save_folder(tmp_path, 1, "ab")
    shard = checkpoint.local_shard(model, torch.optim.AdamW(model.parameters()), 1)
    assert list(shard["tensors"]) == ["embed.weight"]
    checkpoint.write_shard(shard, str(folder), 0, 1)
    manifest, other = checkpoint.publish(folder, 1, 1, "ab"), tied(2)
    checkpoint.load(folder, manifest, other, torch.optim.AdamW(other.parameters()), 0, 1)
    assert torch.equal(other["head"].weight, tied(1)["embed"].weight)


# --- hostile folders ---------------------------------------------------------------------------------------------


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_shard_row(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    table = json.loads(path.read_text())
    table["shards"][0] |= changes
    path.write_text(json.dumps(table))


def write_manifest(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "manifest.json").write_bytes(content)


def truncate(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def flip_bit(folder: Path) -> None:
    path = folder / SHARD
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def replace_with(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


def replace_folder(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        folder.rename(folder.with_name("elsewhere"))
        make(folder)

    return spoil


def valid_shard_of_something_else(folder: Path) -> None:
    """Checksum and size are right; the content is no shard."""
    torch.save({"version": 1, "step": 20, "rank": 0, "world_size": 1, "tensors": 5}, folder / SHARD)
    receipt(folder)


def pickle_that_wants_code(folder: Path) -> None:
    torch.save({"version": 1, "danger": signal.Signals}, folder / SHARD)
    receipt(folder)


def receipt(folder: Path) -> None:
    """Makes the manifest vouch for whatever the shard is now."""
    from headway_trainer.storage import digest

    size, sha256 = digest(folder / SHARD)
    edit_shard_row(folder, bytes=size, sha256=sha256)


SHARD = shard_file(0, 1)
NOBODY = 65_534
SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "manifest empty": (write_manifest(b""), "not JSON"),
    "manifest truncated": (truncate("manifest.json"), "not JSON"),
    "manifest garbage": (write_manifest(bytes(range(256))), "not JSON"),
    "manifest nested without end": (write_manifest(b"[" * 200_000), "not JSON"),
    "manifest a list": (write_manifest(b"[]"), "not a JSON object"),
    "manifest number of too many digits": (write_manifest(b'{"step": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "manifest huge": (lambda folder: os.truncate(folder / "manifest.json", 1 << 40), "larger than"),
    "manifest of another version": (lambda folder: edit_manifest(folder, version=2), "version 2"),
    "manifest of another step": (lambda folder: edit_manifest(folder, step=21), "another folder"),
    "manifest of another save": (lambda folder: edit_manifest(folder, save_id="ffff"), "another folder"),
    "manifest with no ranks": (lambda folder: edit_manifest(folder, world_size=0), "world_size is 0"),
    "manifest with a wrong type": (lambda folder: edit_manifest(folder, world_size="1"), "world_size is '1'"),
    "manifest with more ranks than shards": (lambda folder: edit_manifest(folder, world_size=10**9), "does not list"),
    "manifest without a sequence": (lambda folder: edit_manifest(folder, sequence=None), "sequence is None"),
    "manifest with shards of a wrong type": (lambda folder: edit_manifest(folder, shards=[7]), "is not a table"),
    "manifest with an infinite time": (lambda folder: edit_manifest(folder, created_wall=float("inf")), "not a time"),
    "manifest with a wrong extra": (lambda folder: edit_manifest(folder, extra=[]), "extra is not a table"),
    "manifest that names a file outside": (
        lambda folder: edit_shard_row(folder, file=f"../{SHARD}"),
        "names '../shard",
    ),
    "manifest with an absolute path": (
        lambda folder: edit_shard_row(folder, file="/etc/passwd"),
        "names '/etc/passwd'",
    ),
    "manifest with a wrong checksum field": (lambda folder: edit_shard_row(folder, sha256="0"), "has no SHA-256"),
    "manifest with a negative size": (lambda folder: edit_shard_row(folder, bytes=-1), "bytes is -1"),
    "manifest a symbolic link": (replace_with("manifest.json", lambda path: path.symlink_to(SHARD)), "symbolic link"),
    "manifest a link to itself": (replace_with("manifest.json", lambda path: path.symlink_to(path)), "symbolic link"),
    "manifest a FIFO": (replace_with("manifest.json", os.mkfifo), "not a regular file"),
    "manifest a folder": (replace_with("manifest.json", Path.mkdir), "not a regular file"),
    "shard missing": (lambda folder: (folder / SHARD).unlink(), f"{SHARD}: is missing"),
    "shard empty": (lambda folder: (folder / SHARD).write_bytes(b""), "has 0 bytes"),
    "shard truncated": (truncate(SHARD), "the manifest says"),
    "shard with one flipped bit": (flip_bit, "its checksum is wrong"),
    "shard a symbolic link": (replace_with(SHARD, lambda path: path.symlink_to("/dev/zero")), "the manifest says"),
    "shard a FIFO": (replace_with(SHARD, os.mkfifo), "the manifest says"),
    "shard of something else": (valid_shard_of_something_else, "while reading it"),
    "shard with code in it": (pickle_that_wants_code, "while reading it"),
    "a file in place of the folder": (replace_folder(lambda path: path.write_text("")), "not a folder"),
    "a symbolic link in place of the folder": (
        replace_folder(lambda path: path.symlink_to("elsewhere")),
        "not a folder",
    ),
    "a FIFO in place of the folder": (replace_folder(os.mkfifo), "not a folder"),
}


@pytest.mark.parametrize("name", SPOILS)
@pytest.mark.timeout(30)
def test_a_damaged_checkpoint_is_passed_over_with_a_reason(tmp_path: Path, name: str) -> None:
    """Whatever is wrong with the newest, it is reported once, and the one before is loaded, bit-equal."""
    save(tmp_path, 10, seed=1)
    folder = save(tmp_path, 20, seed=2)
    spoil, reason = SPOILS[name]
    spoil(folder)
    loaded = Loaded(tmp_path)
    assert loaded.step == 10
    loaded.assert_is(seed=1)
    ((rejected, step, words),) = loaded.rejected
    assert (rejected, step) == (folder, 20)
    assert reason in words


def test_nothing_good_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """A start from scratch starts from the initial weights, not from what a damaged checkpoint left in them."""
    for step, spoil in ((10, flip_bit), (20, valid_shard_of_something_else), (30, truncate("manifest.json"))):
        spoil(save(tmp_path, step, seed=1))
    loaded = Loaded(tmp_path)
    assert loaded.step == 0
    assert sorted(step for _, step, _ in loaded.rejected) == [10, 20, 30]
    loaded.assert_is(seed=99)


def test_unfinished_saves_are_no_checkpoints(tmp_path: Path) -> None:
    """A folder without a manifest (empty, only temporary files, a shard without the others) is passed over in silence."""
    save(tmp_path, 10, seed=1)
    checkpoint.save_folder(tmp_path, 20, "aa").mkdir()
    only_temporary = checkpoint.save_folder(tmp_path, 30, "aa")
    only_temporary.mkdir()
    (only_temporary / f"{SHARD}.tmp").write_bytes(b"PK")
    (only_temporary / "manifest.json.tmp").write_bytes(b"{")
    whole_shard = checkpoint.save_folder(tmp_path, 40, "aa")
    checkpoint.write_shard(checkpoint.local_shard(*build(3), 40), str(whole_shard), 0, 2)
    (tmp_path / "step-notes.txt").write_text("a user's own")
    loaded = Loaded(tmp_path)
    assert (loaded.step, loaded.rejected) == (10, [])
    assert checkpoint.missing_receipts(whole_shard, 2) == [1]


@contextlib.contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Root, who may read everything, is `nobody` for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_folder_is_passed_over() -> None:
    """Missing permissions are a reason like any other."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        save(root, 10, seed=1)
        folder = save(root, 20, seed=2)
        assert Loaded(root).step == 20  # also imports what loading needs, which nobody may not
        folder.chmod(0)
        with bound_by_permissions():
            loaded = Loaded(root)
        folder.chmod(0o755)
    assert (loaded.step, loaded.rejected) == (10, [(folder, 20, "it cannot be opened: permission denied")])


# --- publishing and pruning --------------------------------------------------------------------------------------


def test_publish_wants_every_shard(tmp_path: Path) -> None:
    """A manifest is never written over a missing receipt, a strange receipt, or a shard of another size."""
    folder = checkpoint.save_folder(tmp_path, 5, "ab")
    shard = checkpoint.local_shard(*build(1), 5)
    checkpoint.write_shard(shard, str(folder), 0, 2)
    with pytest.raises(CheckpointError, match="rank 1 left no receipt"):
        checkpoint.publish(folder, 5, 2, "ab")
    checkpoint.write_shard(shard, str(folder), 1, 2)
    receipt_path = folder / "shard-00001-of-00002.json"
    good = receipt_path.read_bytes()
    for bad in (b"", b"{}", good.replace(b'"rank": 1', b'"rank": 0')):
        receipt_path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"shard-00001-of-00002\.json"):
            checkpoint.publish(folder, 5, 2, "ab")
    receipt_path.write_bytes(good)
    with (folder / "shard-00001-of-00002.pt").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="its receipt says"):
        checkpoint.publish(folder, 5, 2, "ab")
    with pytest.raises(CheckpointError, match="is not the folder for step 6"):
        checkpoint.publish(folder, 6, 2, "ab")
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        checkpoint.publish(save(tmp_path, 7, seed=1, save_id="cd"), 7, 1, "cd", {"bad": object()})
    assert [found.manifest.step for found in checkpoint.candidates(tmp_path)] == [7]


def test_a_published_checkpoint_is_never_written_again(tmp_path: Path) -> None:
    """A late writer cannot change what others may be loading."""
    folder = save(tmp_path, 5, seed=1)
    with pytest.raises(CheckpointError, match="already published"):
        checkpoint.write_shard(checkpoint.local_shard(*build(2), 5), str(folder), 0, 1)


def test_the_newest_is_the_one_published_last(tmp_path: Path) -> None:
    """After a fall-back the lower step of the new line of work counts: it is loaded, and pruning keeps it."""
    abandoned = save(tmp_path, 300, seed=3, save_id="aa")
    older = save(tmp_path, 200, seed=2, save_id="bb")
    newest = save(tmp_path, 250, seed=4, save_id="cc")
    assert [found.folder for found in checkpoint.candidates(tmp_path)] == [newest, older, abandoned]
    checkpoint.prune(tmp_path, keep=1)
    assert Loaded(tmp_path).step == 250


def test_prune_keeps_the_newest_and_what_is_under_way(tmp_path: Path) -> None:
    """Old checkpoints, saves that a crash left behind, and half-removed folders go; nothing else does."""
    folders = [save(tmp_path, step, seed=1) for step in (10, 20, 30)]
    left_behind, under_way, newer = (checkpoint.save_folder(tmp_path, step, "ab") for step in (15, 25, 40))
    for folder in (left_behind, under_way, newer):
        folder.mkdir()
    damaged = save(tmp_path, 5, seed=1)
    write_manifest(b"{")(damaged)
    (tmp_path / ".trash-step-00000001-ab-0123").mkdir()
    (tmp_path / "notes").mkdir()
    link = checkpoint.save_folder(tmp_path, 1, "ab")
    link.symlink_to(tmp_path / "notes")
    checkpoint.prune(tmp_path, keep=2, protect=[under_way])
    kept = {folders[1], folders[2], under_way, newer, damaged, link, tmp_path / "notes"}
    assert set(tmp_path.iterdir()) == kept
    with pytest.raises(ValueError, match="at least 1"):
        checkpoint.prune(tmp_path, keep=0)
    checkpoint.prune(tmp_path / "none", keep=1)


# --- writing -----------------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_as_such_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    """The injected ENOSPC comes out as the OSError it is, with a torn temporary file, and a second try succeeds."""
    model, optimizer = build(1)
    shard = checkpoint.local_shard(model, optimizer, 5)
    folder = checkpoint.save_folder(tmp_path, 5, "ab")
    with pytest.raises(OSError, match="No space left") as caught:
        checkpoint.write_shard(shard, str(folder), 0, 1, WriteFault(out_of_space=True))
    assert caught.value.errno == errno.ENOSPC
    (torn,) = folder.iterdir()
    assert torn.name == f"{SHARD}.tmp"
    assert 0 < torn.stat().st_size < sum(buffer.nbytes for buffer in shard["buffers"].values())
    checkpoint.write_shard(shard, str(folder), 0, 1)
    checkpoint.publish(folder, 5, 1, "ab")
    Loaded(tmp_path).assert_is(seed=1)


def test_a_slow_disk_takes_longer_and_nothing_else(tmp_path: Path) -> None:
    """The injected delay is inside the write, which then ends well."""
    folder = checkpoint.save_folder(tmp_path, 5, "ab")
    before = time.monotonic()
    checkpoint.write_shard(checkpoint.local_shard(*build(1), 5), str(folder), 0, 1, WriteFault(slow_seconds=0.3))
    assert time.monotonic() - before >= 0.3
    checkpoint.publish(folder, 5, 1, "ab")
    Loaded(tmp_path).assert_is(seed=1)


def test_a_slow_storage_takes_its_time_over_every_byte(tmp_path: Path) -> None:
    """A write at a given rate takes no less than the shard's bytes over it, and is the same checkpoint in the end."""
    folder = checkpoint.save_folder(tmp_path, 5, "ab")
    shard = checkpoint.local_shard(*build(1), 5)
    size = sum(buffer.nbytes for buffer in shard["buffers"].values())
    before = time.monotonic()
    checkpoint.write_shard(shard, str(folder), 0, 1, bytes_per_second=size / 0.4)
    assert time.monotonic() - before >= 0.4
    checkpoint.publish(folder, 5, 1, "ab")
    Loaded(tmp_path).assert_is(seed=1)


def test_a_really_full_disk_gets_its_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write removes its temporary file: on a full disk those bytes are what the next save needs."""
    written = os.write

    def nearly_full(fd: int, data: bytes) -> int:
        if os.fstat(fd).st_size + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(fd, data)

    monkeypatch.setattr(os, "write", nearly_full)
    folder = checkpoint.save_folder(tmp_path, 5, "ab")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_shard(checkpoint.local_shard(*build(1), 5), str(folder), 0, 1)
    assert list(folder.iterdir()) == []
