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
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
""",
    "accelerate": """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
""",
    "lightning": """
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
model, data = BoringModel(), torch.utils.data.DataLoader(RandomDataset(32, 64))
""",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(tmp_path: Path, example: str) -> None:
    """Copied beside a model and data, it trains six steps, which the sidecar counts, and finishes."""
    (around,) = (code for name, code in AROUND.items() if name in example)
    for package in re.findall(r"^from (lightning|transformers|accelerate)", around + example, re.MULTILINE):
        pytest.importorskip(package, reason=f"needs {package}: pip install {package}")
    (tmp_path / "train.py").write_text(around + example)
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path / "journals"), "HEADWAY_RUN": RUN, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "train.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = Watcher(tmp_path).look()
    assert seen.numbers() == [1, 2, 3, 4, 5, 6]
    assert seen.status["state"] == "finished"
