"""The optimizer: a learning rate that is a function of the step, decay for matrices only, clipping as PyTorch does it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from headway_trainer.architecture import Architecture
from headway_trainer.config import OptimizerConfig, ParallelConfig
from headway_trainer.optim import build_optimizer, clip_gradients, lr_at, set_lr
from headway_trainer.parallel import build_model

if TYPE_CHECKING:
    from headway_trainer.model import Decoder

CONFIG = OptimizerConfig(lr=1.0, warmup_steps=10, min_lr_ratio=0.1)


def tiny() -> Decoder:
    shape = Architecture(dim=16, layers=1, heads=2, kv_heads=1, ffn_dim=24)
    return build_model(shape, ParallelConfig(), seed=0, device=torch.device("cpu"), mesh=None)


def test_the_rate_rises_linearly_then_falls_along_a_cosine() -> None:
    """The values a reader can check by hand: half-way up, top, half-way down, end, and beyond the end."""
    assert lr_at(1, CONFIG, 110) == pytest.approx(0.1)
    assert lr_at(5, CONFIG, 110) == pytest.approx(0.5)
    assert lr_at(10, CONFIG, 110) == pytest.approx(1.0)
    assert lr_at(60, CONFIG, 110) == pytest.approx(0.55)
    assert lr_at(110, CONFIG, 110) == pytest.approx(0.1)
    assert lr_at(500, CONFIG, 110) == pytest.approx(0.1)


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 50), (10, 5), (10, 10), (1, 1), (10, 11)])
def test_the_rate_is_sound_for_any_length(warmup: int, total: int) -> None:
    """Short runs and runs that end in their warm-up must not divide by zero or exceed the highest rate."""
    config = OptimizerConfig(lr=2.0, warmup_steps=warmup, min_lr_ratio=0.0)
    rates = [lr_at(step, config, total) for step in range(1, total + 1)]
    assert all(0 <= rate <= 2.0 for rate in rates)
    assert all(later >= earlier for earlier, later in pairwise(rates[:warmup]))


def test_norms_do_not_decay() -> None:
    """Pulling a norm's scale towards 0 would shrink the whole block; every parameter must be in exactly one group."""
    model = tiny()
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3))
    decay, no_decay = optimizer.param_groups
    assert (decay["weight_decay"], no_decay["weight_decay"]) == (0.3, 0.0)
    assert {id(p) for p in no_decay["params"]} == {
        id(m.weight) for m in model.modules() if type(m).__name__ == "RMSNorm"
    }
    assert sorted(map(id, decay["params"] + no_decay["params"])) == sorted(map(id, model.parameters()))


def test_the_rate_reaches_every_group() -> None:
    """A group that keeps its old rate would train norms and matrices differently."""
    optimizer = build_optimizer(tiny(), CONFIG)
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e9])
def test_clipping_agrees_with_pytorch(max_norm: float) -> None:
    """The reference is torch's own function on the same gradients."""
    ours, theirs = tiny(), tiny()
    for model in (ours, theirs):
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    norm = clip_gradients(ours.parameters(), max_norm)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs.parameters(), max_norm))
    for clipped, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert clipped.grad is not None
        assert reference.grad is not None
        assert torch.equal(clipped.grad, reference.grad)


def test_clipping_can_be_switched_off_and_then_only_measures() -> None:
    """`--optimizer.clip-norm 0` must leave the gradients alone and still report their norm."""
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([weight], 0.0).item() == pytest.approx(5.0)
    assert weight.grad.tolist() == [3.0, 4.0]


def test_a_spoilt_gradient_shows_in_the_norm() -> None:
    """The norm is where a NaN gradient is noticed before it reaches the weights."""
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([math.nan, 1.0])
    assert math.isnan(clip_gradients([weight], 1.0).item())
