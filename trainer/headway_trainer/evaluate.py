"""The loss on held-out text."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from headway_trainer import parallel
from headway_trainer.model import token_loss

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from headway_trainer.data import Corpus


@torch.no_grad()
def evaluate(
    model: nn.Module,
    corpus: Corpus,
    *,
    batches: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    forward: AbstractContextManager[object] | None = None,
    after_batch: Callable[[], object] = lambda: None,
) -> float:
    """Mean loss per token, in nats, over fixed batches of held-out text.

    Every rank must call it, and all get the same number. The batches are dealt out to the ranks, so the result does
    not depend on the world size (but for rounding). When they do not come out even, some ranks repeat one with weight
    0, because FSDP's forward pass is a collective that all must join.

    Args:
        model: sharded or whole.
        corpus: opened with the same configuration on every rank.
        batches: how many batches make up an evaluation, over all ranks together.
        device: of this rank.
        rank: of this process.
        world_size: number of ranks.
        forward: context for the forward passes (see `parallel.autocast`).
        after_batch: called after each batch: an evaluation may last longer than a watchdog waits.
    """
    was_training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    with forward or nullcontext():
        for first in range(0, batches, world_size):
            number = first + rank
            batch = corpus.held_out_batch(min(number, batches - 1), of=batches).to(device)
            loss = token_loss(model(batch.tokens), batch.labels)
            total += loss.double() * float(number < batches)
            after_batch()
    if world_size > 1:
        dist.all_reduce(total)
    parallel.reshard(model)
    model.train(was_training)
    return float(total) / batches
