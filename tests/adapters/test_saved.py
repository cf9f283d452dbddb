"""What is called a complete checkpoint: real files of torch and safetensors, whole and torn at every kind of place."""

from __future__ import annotations

import json
import os
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


def test_a_sharded_checkpoint_is_complete_with_its_metadata(tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` writes `.metadata` last."""
    from torch.distributed import checkpoint

    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({"weights": torch.zeros(64)}, checkpoint_id=tmp_path, no_dist=True)
    assert (complete(tmp_path, since=time.time()) or 0) > 256
    (tmp_path / ".metadata").unlink()
    assert complete(tmp_path, since=time.time()) is None
