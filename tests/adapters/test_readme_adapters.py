"""The README's examples for training frameworks do what it says: each is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from adapted import RUN, Watcher

README = Path(__file__).parents[2] / "README.md"
SECTION = README.read_text().partition("### With a training framework")[2].partition("\n### ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)

AROUND = {
    "huggingface": """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
""",
    "accelerate": """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(torch.randn(128, 4), batch_size=4)
""",
    "class Trainer": """
import torch
class Model(torch.nn.Linear):
    calls = 0
    def forward(self, batch):
        self.calls += 1
        if self.calls == FAIL_AT:
            raise ValueError("once")
        return super().forward(batch)
model = Model(4, 1)
batches = torch.utils.data.DataLoader(torch.randn(128, 4), batch_size=4)
FAIL_AT = None
""",
    "lightning": """
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
model, data = BoringModel(), torch.utils.data.DataLoader(RandomDataset(32, 64))
""",
}


NAMES = [next(name for name in AROUND if name in example) for example in EXAMPLES]
WHOLE = {name: AROUND[name] + example for name, example in zip(NAMES, EXAMPLES, strict=True)}
FRAMEWORKS = {"huggingface": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(folder: Path, code: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    """In a folder that has nothing but the script, as a user would."""
    (folder / "train.py").write_text(code)
    environ = os.environ | {"HEADWAY_DIR": str(folder / "journals"), "HEADWAY_RUN": RUN, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, "train.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_example(tmp_path: Path, name: str) -> None:
    """Copied beside a model and data, it trains six steps, which the sidecar counts, and finishes."""
    if name in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[name], reason=f"needs {FRAMEWORKS[name]}: pip install {FRAMEWORKS[name]}")
    done = run(tmp_path, WHOLE[name])
    assert done.returncode == 0, done.stderr
    seen = Watcher(tmp_path).look()
    assert seen.numbers() == [1, 2, 3, 4, 5, 6]
    assert seen.status["state"] == "finished"


def test_each_example_is_of_another_kind() -> None:
    """None is left out because it looks like another."""
    assert sorted(NAMES) == sorted(AROUND)


def test_the_loop_with_accelerate_runs_on_two_ranks(tmp_path: Path) -> None:
    """Each rank has its slot, its steps and its end."""
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")
    done = run(tmp_path, WHOLE["accelerate"], *TORCHRUN)
    assert done.returncode == 0, done.stderr
    seen = Watcher(tmp_path).look()
    assert seen.numbers(0) == seen.numbers(1) == [1, 2, 3, 4, 5, 6]
    assert (seen.status["state"], seen.status["incidents"]) == ("finished", [])


def test_the_bare_loop_resumes(tmp_path: Path) -> None:
    """After an exception the same script goes on from its checkpoint: one step is replayed, and the incident is recovered."""
    watcher, script = Watcher(tmp_path), WHOLE["class Trainer"]
    assert "ValueError: once" in run(tmp_path, script.replace("FAIL_AT = None", "FAIL_AT = 5")).stderr
    watcher.look()
    done = run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    seen = watcher.look()
    assert seen.numbers() == [1, 2, 3, 4, 4, 5, 6]
    assert (seen.saves("loaded"), seen.saves("committed")) == ([0, 3], [3, 6])
    assert seen.pod.ledger.slots[0].productive_steps == 6
    (incident,) = seen.status["incidents"]
    assert (incident["cause"], incident["state"]) == ("app_exception", "recovered")
