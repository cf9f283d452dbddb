"""A training process with the real Lightning: its argument is a JSON object.

`trainer`: options of the Trainer. `fits`: how often `fit` is called, each with two more epochs. `only`: validate, test or predict
instead. `fail_at`: batch of the first epoch in which training fails, by `fail_with` (`ValueError`, `KeyboardInterrupt`). `save_every`:
steps. `resume`: a file. `stop_early`. `profiler`: simple. `nvrx`: the name of NVRx's own callback. `twice`: with two of our callbacks.
`bad_callback`: another one raises after the second batch. `sharded`: FSDP2, and checkpoints that are folders. `anew`: a second Trainer
afterwards. `tune`: a learning rate is looked for `before` `fit` or `in` it. At the end it writes what it counted into the file
`result-RANK` of the working folder.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.tuner import Tuner
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from headway.adapters.lightning import HeadwayCallback

ROWS, BATCH = 16, 2
TRIES = 5


class Model(LightningModule):
    """One linear layer."""

    def __init__(self, fail_at: int | None, fail_with: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.batches, self.lr = 0, 0.01
        self._fail_at, self._fail_with = fail_at, fail_with

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.batches += 1
        if batch_idx == self._fail_at and self.current_epoch == 0:
            raise getattr(builtins, self._fail_with)("as the test wants")
        return self.layer(batch[0]).square().mean()

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def validation_step(self, *_: Any) -> None:
        self.log("val", torch.tensor(1.0))

    def test_step(self, *_: Any) -> None:
        self.validation_step()

    def predict_step(self, batch: list[torch.Tensor], *_: Any) -> torch.Tensor:
        return self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Bad(Callback):
    """Somebody else's callback, with a bug."""

    def on_train_batch_end(self, _trainer: Any, _module: Any, _outputs: Any, _batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            raise RuntimeError("a bug of somebody else's")


def nvrx(name: str) -> Callback:
    """NVRx's own callback, with what it must be told."""
    from nvidia_resiliency_ext import ptl_resiliency

    os.environ["FAULT_TOL_FINISHED_FLAG_FILE"] = "nvrx-finished"
    kind = getattr(ptl_resiliency, name)
    return kind(autoresume=True, calculate_timeouts=False, exp_dir=".")  # type: ignore[no-any-return]


def main(told: dict[str, Any]) -> None:
    data = DataLoader(TensorDataset(torch.randn(ROWS, 4)), batch_size=BATCH)
    callbacks: list[Any] = [HeadwayCallback()]
    if "save_every" in told:
        callbacks.append(ModelCheckpoint(dirpath="saved", every_n_train_steps=told["save_every"], save_top_k=-1))
    if told.get("nvrx"):
        callbacks.append(nvrx(told["nvrx"]))
    if told.get("bad_callback"):
        callbacks.append(Bad())
    if told.get("twice"):
        callbacks.append(HeadwayCallback())
    if told.get("stop_early"):
        callbacks.append(EarlyStopping("val", patience=1, check_on_train_epoch_end=False))
    if told.get("tune") == "in":
        callbacks.append(LearningRateFinder(num_training_steps=TRIES, early_stop_threshold=None))
    options = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    options |= {
        "profiler": told.get("profiler"),
        "enable_model_summary": False,
        "enable_checkpointing": "save_every" in told,
        "max_epochs": 2,
    }
    if told.get("sharded"):
        options["strategy"] = ModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=1, save_distributed_checkpoint=True
        )
    trainer = Trainer(callbacks=callbacks, **(options | told.get("trainer", {})))
    model = Model(told.get("fail_at"), told.get("fail_with", "ValueError"))
    own = trainer.profiler
    if told.get("tune") == "before":
        Tuner(trainer).lr_find(model, data, data, num_training=TRIES, early_stop_threshold=None)
    if "only" in told:
        getattr(trainer, told["only"])(model, data)
    for count in range(told.get("fits", 0 if "only" in told else 1)):
        if count:
            trainer.fit_loop.max_epochs += 2
        trainer.fit(model, data, data, ckpt_path=told.get("resume"))
    assert trainer.profiler is own
    if told.get("anew"):
        Trainer(callbacks=[HeadwayCallback()], **options).fit(model, data)
    result = {"global_step": trainer.global_step, "batches": model.batches}
    Path(f"result-{trainer.global_rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
