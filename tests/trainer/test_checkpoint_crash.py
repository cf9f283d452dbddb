"""Real writer processes that are killed, or whose trainer is."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway_trainer import checkpoint
from headway_trainer.manifest import shard_file

pytestmark = pytest.mark.alone

HERE = Path(__file__).parent
SHARD = shard_file(0, 1)


def test_killing_the_writer_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    """SIGKILL 30 times at random: the newest checkpoint is always whole, bit-equal, and never older than one seen before."""
    root, chance = tmp_path / "checkpoints", random.Random(7)
    newest, moments, weights = 0, set(), torch.arange(300_000, dtype=torch.float32)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "checkpoint_processes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None

        def ask(**command: Any) -> int:
            print(json.dumps(command), file=parent.stdin, flush=True)
            return int(parent.stdout.readline())

        for attempt in range(30):
            writer = ask(
                do="writer", root=str(root), first_step=newest + 1, save_id=f"{attempt:08x}", floats=len(weights)
            )
            time.sleep(chance.uniform(0.0, 0.25))
            os.kill(writer, signal.SIGKILL)
            assert os.WTERMSIG(ask(do="wait", pid=writer)) == signal.SIGKILL
            moments.add(frozenset(path.suffix for path in root.rglob("*") if path.is_file()))

            model = nn.Module()
            model.register_parameter("weight", nn.Parameter(torch.zeros_like(weights)))
            step = checkpoint.load_newest(
                root,
                model,
                torch.optim.AdamW(model.parameters()),
                rank=0,
                world_size=1,
                all_ok=lambda ok: ok,
                on_rejected=lambda *rejection: pytest.fail(f"rejected: {rejection}"),
            )
            assert step >= newest
            assert torch.equal(model.weight, weights * step)
            newest = step
        parent.stdin.close()
    assert newest > 0
    assert len(moments) > 1  # the kills did hit different stages


def test_the_writer_process_takes_many_tensors_and_ends_with_its_trainer(tmp_path: Path) -> None:
    """NVRx's own writer: more tensors than files may be open, and no orphan when the trainer is killed."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "checkpoint_trainer.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as trainer:
        assert trainer.stdout is not None
        writer = int(trainer.stdout.readline())
        assert is_running(writer)
        trainer.kill()
    deadline = time.monotonic() + 30
    while is_running(writer) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(writer)

    (found,) = checkpoint.candidates(tmp_path)
    content = torch.load(found.folder / SHARD, weights_only=True, mmap=True)
    assert len(content["tensors"]) == 300
    for number in range(300):
        entry = content["tensors"][str(number)]
        expected = torch.full((number % 4,), float(number))
        assert entry["rows"] == [0, number % 4]
        assert torch.allclose(entry["local"], expected, rtol=1e-2, atol=2e-3)


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
