"""Checkpoints of sharded models, over real gloo groups of 1, 2 and 3 ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from headway_trainer.shards import chunk_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 5


class Ranks:
    """Runs jobs of checkpoint_processes.py in groups of fresh ranks."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        script = Path(__file__).with_name("checkpoint_processes.py")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def run(self, job: str, world_size: int, **arguments: Any) -> list[dict[str, Any]]:
        command = {"do": "group", "job": job, "world_size": world_size, "arguments": arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command | {"meeting": str(self._scratch / "meeting")}), file=self._process.stdin, flush=True)
        answers: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return answers

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Path]]:
    """For each world size: the folder with its checkpoint of step 5, and the whole state as it was."""
    found = {}
    for world_size in (1, 2, 3):
        root = tmp_path_factory.mktemp(f"saved-by-{world_size}")
        dump = root / "state"
        answers = ranks.run("save", world_size, root=str(root), step=STEP, dump=str(dump))
        assert answers == [{}] * world_size
        found[world_size] = (root, dump)
    return found


def assert_equal_files(one: Path, other: Path) -> None:
    first, second = torch.load(one), torch.load(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
        assert tensor.dtype == second[name].dtype, name


@pytest.mark.parametrize(("wrote", "reads"), [(2, 1), (2, 3), (3, 2), (1, 2), (2, 2), (3, 3), (1, 1)])
def test_loading_at_another_world_size_is_bit_equal(
    ranks: Ranks, saved: dict[int, tuple[Path, Path]], tmp_path: Path, wrote: int, reads: int
) -> None:
    """Every weight, buffer and optimizer state is the same bits, whoever wrote them and whoever reads them."""
    root, state = saved[wrote]
    dump = tmp_path / "state"
    answers = ranks.run("load", reads, roots=[str(root)], dump=str(dump))
    assert answers == [{"step": STEP, "rejected": []}] * reads
    assert_equal_files(dump, state)


def test_loading_into_a_used_optimizer_replaces_its_state(
    ranks: Ranks, saved: dict[int, tuple[Path, Path]], tmp_path: Path
) -> None:
    """A model that has trained on goes back exactly, and its next step is that of a fresh process."""
    root, state = saved[2]
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    ranks.run("load", 2, roots=[str(root)], dump=str(fresh))
    ranks.run("load", 2, roots=[str(root)], dump=str(used), steps_before=3)
    assert_equal_files(used, state)
    assert_equal_files(tmp_path / "used.next", tmp_path / "fresh.next")


def test_all_ranks_fall_back_when_one_shard_is_damaged(
    ranks: Ranks, saved: dict[int, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The rank that verifies the damaged shard takes the others along to the older checkpoint."""
    root = tmp_path / "checkpoints"
    shutil.copytree(saved[2][0], root)
    ranks.run("save", 2, root=str(root), step=STEP + 1, dump=str(tmp_path / "newer"))
    (shard,) = root.glob(f"step-{STEP + 1:08d}-*/shard-00001-of-00002.pt")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    dump = tmp_path / "state"
    answers = ranks.run("load", 2, roots=[str(root)], dump=str(dump))
    assert [answer["step"] for answer in answers] == [STEP, STEP]
    assert [[reason for _, _, reason in answer["rejected"]] for answer in answers] == [
        ["another rank rejected it"],
        ["shard-00001-of-00002.pt: its checksum is wrong (bytes changed after it was written)"],
    ]
    assert_equal_files(dump, saved[2][1])


def test_ranks_that_see_different_folders_load_the_same_checkpoint(
    ranks: Ranks, saved: dict[int, tuple[Path, Path]], tmp_path: Path
) -> None:
    """A rank whose view of the shared folder lags behind holds the others back; nobody loads another step alone."""
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    shutil.copytree(saved[2][0], ahead)
    shutil.copytree(saved[2][0], behind)
    ranks.run("save", 2, root=str(ahead), step=STEP + 1, dump=str(tmp_path / "newer"))
    for roots in ([ahead, behind], [behind, ahead]):
        answers = ranks.run("load", 2, roots=[str(root) for root in roots], dump=str(tmp_path / "state"))
        assert [answer["step"] for answer in answers] == [STEP, STEP]


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_rows_are_split_as_torch_splits_them(total: int, chunks: int) -> None:
    """The row ranges in the files agree with torch.chunk, which FSDP2 shards by, and cover everything once."""
    expected = [part.tolist() for part in torch.arange(total).chunk(chunks)] if total else []
    expected += [[]] * (chunks - len(expected))
    assert [list(range(*chunk_rows(total, index, chunks))) for index in range(chunks)] == expected
