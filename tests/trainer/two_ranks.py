"""Runs as a rank of a gloo group for test_parallel.py, and writes down what it saw: `two_ranks.py FOLDER TEXT VARIANT…`.

RANK and WORLD_SIZE come from the environment; the ranks meet through a file in FOLDER.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway_trainer import optim, parallel
from headway_trainer.architecture import Architecture
from headway_trainer.config import DataConfig, OptimizerConfig, ParallelConfig
from headway_trainer.data import Corpus
from headway_trainer.evaluate import evaluate
from headway_trainer.model import Decoder, token_loss

SHAPE = Architecture(dim=16, layers=2, heads=2, kv_heads=1, ffn_dim=33, vocabulary=257)
"""Odd numbers of rows, so that the ranks' shards differ in size."""

DATA = DataConfig(sequence_length=16, batch_size=2, held_out_fraction=0.1)
OPTIMIZER = OptimizerConfig(lr=1e-2, warmup_steps=2, clip_norm=0.5)
STEPS = 20
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputed": {"activation_checkpointing": True},
    "kept": {"reshard_after_forward": False},
}


def main(folder: Path, text: Path, variants: list[str]) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = ParallelConfig(device="cpu")
    device = parallel.choose_device(config, local_rank=rank)
    parallel.setup_determinism(config, device)
    corpus = Corpus.open(dataclasses.replace(DATA, paths=(str(text),)), seed=0)
    dist.init_process_group(
        parallel.backend_for(device), init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    seen = {name: train(dataclasses.replace(config, **VARIANTS[name]), corpus, rank, world_size) for name in variants}
    torch.save(seen, folder / f"seen-{rank}.pt")
    dist.destroy_process_group()


def train(config: ParallelConfig, corpus: Corpus, rank: int, world_size: int) -> dict[str, Any]:
    device = torch.device("cpu")
    mesh = parallel.build_mesh(device)
    model = parallel.build_model(SHAPE, config, seed=0, device=device, mesh=mesh)
    optimizer = optim.build_optimizer(model, OPTIMIZER)
    seen: dict[str, Any] = {"initial": shards(model), "losses": []}
    for step in range(1, STEPS + 1):
        batch = corpus.batch(step, rank, world_size)
        loss = token_loss(model(batch.tokens), batch.labels)
        loss.backward()
        norm = optim.clip_gradients(model.parameters(), 0.0)
        if step == 1:
            seen["norm"] = norm.item()
            seen["gradients"] = {
                n: parallel.local(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None
            }
        optim.set_lr(optimizer, optim.lr_at(step, OPTIMIZER, STEPS))
        optim.clip_gradients(model.parameters(), OPTIMIZER.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        seen["losses"].append(loss.item())
    seen["held_out"] = evaluate(model, corpus, batches=3, device=device, rank=rank, world_size=world_size)
    seen["rows"] = {name: parallel.local_rows(parameter) for name, parameter in model.named_parameters()}
    seen["final"] = shards(model)
    seen["digest"] = digest(model, optimizer)
    return seen


def shards(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: parallel.local(parameter).detach().clone() for name, parameter in model.named_parameters()}


def digest(model: Decoder, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over this rank's weights and optimizer state."""
    result = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter, *optimizer.state[parameter].values()):
            result.update(parallel.local(tensor).detach().contiguous().numpy().tobytes())
    return result.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
