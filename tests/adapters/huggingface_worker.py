"""A training process with the real Hugging Face Trainer: its argument is a JSON object.

`args`: training arguments. `resume`: a folder. `only`: evaluate or predict instead. `fail_at`: forward pass that raises, by `fail_with`.
`stop_early`. `rows`: of the data. `twice`: with two of our callbacks. `again`: train a second time, `anew`: by a new Trainer. `caught`:
an exception of the first training is caught. At the end it writes the Trainer's own count of steps into the file `result-RANK` of the
working folder.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from headway.adapters.huggingface import HeadwayCallback

ROWS = 16


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Rows of eight tokens."""

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(row, row + 8)
        return {"input_ids": ids, "labels": ids}


class Fault:
    """A hook before each forward pass: in the pass that is told, training fails."""

    def __init__(self, at: int | None, kind: str) -> None:
        self._at, self._kind, self._passes = at, kind, 0

    def __call__(self, model: torch.nn.Module, _inputs: Any) -> None:
        self._passes += model.training
        if model.training and self._passes == self._at:
            raise getattr(builtins, self._kind)("as the test wants")


def main(told: dict[str, Any]) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            use_cache=False,
        )
    )
    model.register_forward_pre_hook(Fault(told.get("fail_at"), told.get("fail_with", "ValueError")))
    options = {"output_dir": "saved", "per_device_train_batch_size": 2, "num_train_epochs": 2, "use_cpu": True}
    options |= {
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    callbacks: list[Any] = [HeadwayCallback()]
    if told.get("stop_early"):
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=1e9))
    if told.get("twice"):
        callbacks.append(HeadwayCallback())
    rows = told.get("rows", ROWS)

    def make() -> Trainer:
        arguments = TrainingArguments(**(options | told.get("args", {})))
        return Trainer(
            model=model, args=arguments, train_dataset=Tokens(rows), eval_dataset=Tokens(rows), callbacks=callbacks
        )

    trainer = make()
    if told.get("only") == "evaluate":
        trainer.evaluate()
    elif told.get("only") == "predict":
        trainer.predict(Tokens())
    else:
        with contextlib.suppress(ValueError if told.get("caught") else ()):
            trainer.train(resume_from_checkpoint=told.get("resume"))
        trainer.evaluate()
        if told.get("again"):
            trainer.train()
        if told.get("anew"):
            callbacks[:] = [HeadwayCallback()]
            trainer = make()
            trainer.train()
    Path(f"result-{trainer.args.process_index}").write_text(str(trainer.state.global_step))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
