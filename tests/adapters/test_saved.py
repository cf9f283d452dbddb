"""What is called a complete checkpoint: real files of torch and safetensors, whole and torn at every kind of place."""

from __future__ import annotations

import json
import os
import pickle
import time
from typing import TYPE_CHECKING

import pytest

from headway.adapters.saved import complete

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="needs torch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One as Hugging Face's Trainer leaves it, written now."""
    torch.save({"weights": torch.zeros(64)}, tmp_path / "optimizer.pt")
    header = json.dumps({"w": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    (tmp_path / "trainer_state.json").write_text("{}")
    return tmp_path


def test_a_whole_folder_has_the_size_of_its_files(folder: Path) -> None:
    """The bytes that are told are those that are there."""
    assert complete(folder, since=time.time()) == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "trainer_state.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_torn_file_spoils_it(folder: Path, name: str, share: float) -> None:
    """A file that was cut anywhere makes no checkpoint."""
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    assert complete(folder, since=time.time()) is None
    assert name == "trainer_state.json" or complete(folder / name, since=time.time()) is None


def test_what_is_missing_or_old_is_not_this_save(folder: Path) -> None:
    """No file, no last file, or the file of an earlier save under the same name."""
    assert complete(folder / "other.pt", since=time.time()) is None
    os.utime(folder / "optimizer.pt", (1_000, 1_000))
    assert complete(folder / "optimizer.pt", since=time.time()) is None
    (folder / "trainer_state.json").unlink()
    assert complete(folder, since=time.time()) is None


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of `torch.distributed.checkpoint`, written now."""
    from torch.distributed import checkpoint

    model = torch.nn.Linear(64, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def test_a_sharded_checkpoint_is_complete_with_its_metadata(sharded: Path) -> None:
    """`torch.distributed.checkpoint` writes `.metadata` last."""
    assert (complete(sharded, since=time.time()) or 0) > 64 * 4 * 4 * 3
    (sharded / ".metadata").unlink()
    assert complete(sharded, since=time.time()) is None


@pytest.mark.parametrize("share", [None, 0.5, 0.99], ids=["missing", "half", "nearly all"])
def test_a_shard_that_is_not_all_there_spoils_it(sharded: Path, share: float | None) -> None:
    """Another rank's shard may lie on another machine's disk, and a full disk tears one: `.metadata` speaks of all."""
    (shard,) = sharded.glob("*.distcp")
    content = shard.read_bytes()
    shard.unlink() if share is None else shard.write_bytes(content[: int(len(content) * share)])
    (sharded / "other").write_text("as big as it likes")
    assert complete(sharded, since=time.time()) is None


def test_a_table_of_contents_runs_no_code(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`.metadata` is a pickle: it is read without its doing anything."""
    trace = tmp_path_factory.mktemp("trace") / "ran"
    (sharded / ".metadata").write_bytes(pickle.dumps(Hostile(str(trace))))
    complete(sharded, since=time.time())
    assert not trace.exists()
    (sharded / ".metadata").write_bytes(b"\x80\x05torn")
    assert complete(sharded, since=time.time()) is None


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self._folder,)


def test_a_folder_of_deepspeed_is_complete_with_what_it_calls_the_latest(tmp_path: Path) -> None:
    """As Lightning's strategy and `save_checkpoint` leave it: a folder of states, and beside it a file with the folder's name."""
    (tmp_path / "checkpoint").mkdir()
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({"state": torch.zeros(64)}, tmp_path / "checkpoint" / name)
    assert complete(tmp_path, since=time.time()) is None
    (tmp_path / "latest").write_text("checkpoint")
    assert (complete(tmp_path, since=time.time()) or 0) > 64 * 4 * 2
    (tmp_path / "latest").write_text("global_step7")
    assert complete(tmp_path, since=time.time()) is None
    (tmp_path / "latest").write_text("")
    assert complete(tmp_path, since=time.time()) is None
