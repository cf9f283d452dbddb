"""The README's code does what it says: each block is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import readme

from headway.journal import JournalReader
from headway.ring import RingReader
from headway_trainer.demo import runner

if TYPE_CHECKING:
    from pathlib import Path

OWN_TRAINER = readme.README.read_text().partition("## Add it to your own trainer")[2].partition("\n#")[0]
THREE_LINES, HOOKS = re.findall(r"```python\n(.*?)```", OWN_TRAINER, re.DOTALL)

AROUND_THREE_LINES = """
start, steps = 0, 3
def train_step(n): return 1.0 / n
"""

AROUND_HOOKS = """
import os, time
import torch, torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
import headway
import readme_write
from readme_write import write
if __name__ == "__main__":
    os.environ |= {{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}}
    recorder = headway.Recorder.from_env()
    start, steps = 0, 200
    failed = []
    def make_process_group(iteration):
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        return store, 0, 1
    def state(): return {{"weights": torch.zeros(3)}}
    def train_step(n):
        time.sleep(0.01)
        if n == 50 and not failed:
            failed.append(n)
            raise ValueError("once")
        return 1.0 / n
"""


def test_three_lines_make_a_loop_visible(tmp_path: Path) -> None:
    """Copied into a loop, they leave the steps and their losses."""
    run(AROUND_THREE_LINES + THREE_LINES, tmp_path)
    (ring,) = (tmp_path / "r").glob("slot-0.*.steps")
    assert [(step.step, step.loss) for step in RingReader.open(ring).poll()] == [(1, 1.0), (2, 1 / 2), (3, 1 / 3)]


@pytest.mark.alone
def test_hooks_tell_of_a_restart_and_of_saves(tmp_path: Path) -> None:
    """With NVRx's real layers around it, the example restarts in process, saves, and the journal has the story."""
    (tmp_path / "readme_write.py").write_text("def write(state, step): pass\n")
    body = "".join("    " + line + "\n" for line in HOOKS.splitlines())
    run(
        AROUND_HOOKS.format(port=runner.free_ports())
        + body
        + "    train()\n    checkpointer.close(20)\n    recorder.train_finished(steps)\n",
        tmp_path,
    )
    events = JournalReader(tmp_path / "r" / "slot-0.jsonl").poll()
    kinds = [event.kind for event in events]
    assert kinds.count("train_entered") == 2
    assert [event.fields["message"] for event in events if event.kind == "fault_caught"] == ["once"]
    assert "interruption" in kinds
    stages = [event.fields["stage"] for event in events if event.kind == "checkpoint"]
    assert stages.count("requested") == stages.count("staged") == stages.count("written") == 2
    assert kinds[-1] == "process_exited"


def run(code: str, folder: Path) -> None:
    """In a process of its own, as a user would."""
    script = folder / "train.py"
    script.write_text(code)
    environ = os.environ | {"HEADWAY_DIR": str(folder), "HEADWAY_RUN": "r", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
