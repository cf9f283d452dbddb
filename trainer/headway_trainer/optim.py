"""AdamW, its learning rate as a pure function of the step, and clipping that knows about shards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway_trainer.parallel import local

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_trainer.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW in two groups: matrices decay, norms do not. The learning rate is set before each step by `set_lr`."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)


def lr_at(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """The learning rate of one step: linear warm-up to `lr`, then a half cosine down to `lr · min_lr_ratio`.

    A function of the step alone, so there is no scheduler state to save, lose or restore.

    Args:
        step: the step about to be made, from 1 to `total_steps`.
        config: of the optimizer.
        total_steps: length of the whole run; later steps get the final rate.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down together so that their common L2 norm is at most `max_norm`.

    Works on shards and on whole tensors: with a process group, sharded gradients make one small all-reduce for the
    whole model. Every rank must call it. A NaN or infinite norm spoils every gradient, on every rank alike, and shows
    in what is returned.

    Args:
        parameters: all parameters of the model, in the same order on every rank.
        max_norm: largest norm let through; 0 only measures.

    Returns:
        The norm before clipping, a float32 scalar on the gradients' device, equal on all ranks. Reading it
        synchronises CUDA.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [local(gradient) for gradient in gradients]
    norm = nn.utils.get_total_norm(parts)
    if any(part is not gradient for part, gradient in zip(parts, gradients, strict=True)):
        squared = norm.square()
        dist.all_reduce(squared)
        norm = squared.sqrt()
    if max_norm > 0:
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for part in parts:
            part.mul_(scale)
    return norm
