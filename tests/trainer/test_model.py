"""The decoder: published sizes, causality, rotary embedding, grouped heads, and first weights that depend on the seed alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from headway_trainer.architecture import PRESETS, Architecture
from headway_trainer.config import ParallelConfig
from headway_trainer.model import (
    ROWS_PER_BLOCK,
    Attention,
    Decoder,
    RMSNorm,
    initial_rows,
    rotary_angles,
    rotate,
    token_loss,
)
from headway_trainer.parallel import build_model

CPU = torch.device("cpu")
TINY = Architecture(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48)


def tiny(config: ParallelConfig | None = None, *, seed: int = 0, shape: Architecture = TINY) -> Decoder:
    return build_model(shape, config or ParallelConfig(), seed=seed, device=CPU, mesh=None)


def text(length: int = 12, rows: int = 2) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("preset", "published"),
    [("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496), ("debug", None), ("small", None)],
)
def test_presets_have_the_published_sizes(preset: str, published: int | None) -> None:
    """`llama3-8b` must be that model to the last weight (counted on the meta device), and the formula must agree."""
    with torch.device("meta"):
        model = Decoder(PRESETS[preset])
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == PRESETS[preset].parameter_count()
    assert published in {None, counted}


def test_the_debug_preset_suits_a_cpu() -> None:
    """The default must train on two slow cores, so its size is kept in bounds."""
    assert 150_000 <= PRESETS["debug"].parameter_count() <= 500_000


def test_logits_have_the_vocabulary_and_start_near_uniform() -> None:
    """A fresh model knows nothing: its loss is about ln(256)."""
    tokens = text()
    logits = tiny()(tokens)
    assert logits.shape == (2, 12, 256)
    assert token_loss(logits, tokens).item() == pytest.approx(math.log(256), abs=0.2)


def test_a_token_cannot_see_its_future() -> None:
    """Changing the last byte must not change what is predicted before it, or the loss would be a lie."""
    model, tokens = tiny(), text()
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_rotary_embedding_depends_on_distance_only() -> None:
    """The product of a rotated query and key must be the same for the same distance, wherever the pair stands."""
    cos, sin = rotary_angles(20, 8, 10_000.0, CPU)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    everywhere = [rotate(x.expand(1, 1, 20, 8), cos.double(), sin.double())[0, 0] for x in (query, key)]
    products = everywhere[0] @ everywhere[1].T
    for distance in (0, 3, 11):
        diagonal = products.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)
    assert not torch.allclose(products[5, 5], products[8, 5])


def test_rotary_angles_stay_exact_in_half_precision() -> None:
    """Angles in bfloat16 would confuse positions beyond 256; they are float32 even if everything else is not."""
    cos, sin = rotary_angles(4096, 8, 500_000.0, CPU)
    assert cos.dtype == sin.dtype == torch.float32
    assert rotate(torch.ones(1, 1, 4096, 8, dtype=torch.bfloat16), cos, sin).dtype == torch.bfloat16


def test_grouped_heads_equal_repeated_heads() -> None:
    """Sharing a key head between two query heads is the same as giving each a copy of it."""
    grouped = Attention(TINY)
    full = Attention(Architecture(dim=32, layers=1, heads=4, kv_heads=4, ffn_dim=48))
    state = grouped.state_dict()
    for name in ("key.weight", "value.weight"):
        state[name] = state[name].view(2, 8, 32).repeat_interleave(2, dim=0).reshape(32, 32)
    full.load_state_dict(state)
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    angles = rotary_angles(6, 8, 10_000.0, CPU)
    assert torch.allclose(grouped(x, *angles), full(x, *angles), atol=1e-6)


def test_rms_norm_matches_its_definition() -> None:
    """X / √(mean(x²) + ε) · weight, computed in float32 whatever the input."""
    norm = RMSNorm(16, 1e-5)
    nn.init.uniform_(norm.weight)
    x = torch.randn(3, 16) * 100
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, atol=1e-5)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_first_weights_depend_on_seed_and_name_only() -> None:
    """Every restart and every rank must start with the same weights, and no two matrices with equal ones."""
    first, again, other = tiny(seed=3), tiny(seed=3), tiny(seed=4)
    weights = dict(first.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in again.named_parameters())
    matrices = [name for name, value in weights.items() if value.ndim == 2]
    assert not any(torch.equal(weights[name], dict(other.named_parameters())[name]) for name in matrices)
    twins = [weights[f"blocks.{block}.ffn.up.weight"] for block in (0, 1)]
    assert not torch.equal(*twins)


@pytest.mark.parametrize(
    "rows", [range(0), range(7), range(1000, 1030), range(1024, 2048), range(5, 3000), range(2990, 3000)]
)
def test_any_rows_can_be_drawn_alone(rows: range) -> None:
    """A rank draws only its shard; the numbers must be those of the whole parameter at any border."""
    shape = (3000, 3)
    assert shape[0] > 2 * ROWS_PER_BLOCK
    whole = initial_rows("embedding.weight", shape, 2, seed=0, rows=range(3000))
    assert torch.equal(initial_rows("embedding.weight", shape, 2, seed=0, rows=rows), whole[rows.start : rows.stop])


def test_first_weights_have_the_intended_scale() -> None:
    """Norms start at 1, matrices at 0.02, and what writes into the residual stream smaller with depth."""
    model = build_model(PRESETS["debug"], ParallelConfig(), seed=0, device=CPU, mesh=None)
    weights = dict(model.named_parameters())
    assert torch.all(weights["blocks.0.ffn_norm.weight"] == 1)
    assert weights["blocks.1.attention.query.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["blocks.1.ffn.down.weight"].std().item() == pytest.approx(0.02 / 2, rel=0.05)


def gradients(model: Decoder) -> dict[str, Tensor]:
    tokens = text()
    token_loss(model(tokens), tokens.roll(-1, dims=1)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_recomputation_changes_nothing_but_memory() -> None:
    """Activation checkpointing must give bit-equal gradients under the same names."""
    plain, recomputed = gradients(tiny()), gradients(tiny(ParallelConfig(activation_checkpointing=True)))
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


@pytest.mark.filterwarnings("ignore")  # the tracer provokes warnings and hides them, which "error" turns into failures
def test_compilation_keeps_names_and_gradients() -> None:
    """A compiled block must be the same block to a checkpoint (traced, but not lowered: that takes a minute)."""
    compiled = tiny()
    for block in compiled.decoder_blocks():
        block.compile_body(backend="eager")
    plain, traced = gradients(tiny()), gradients(compiled)
    assert plain.keys() == traced.keys()
    assert all(torch.allclose(plain[name], traced[name], atol=1e-6) for name in plain)


def test_the_loss_is_the_mean_over_tokens_in_float32() -> None:
    """A mean in bfloat16 would hide small changes; the loss is what the replay check compares."""
    logits, labels = torch.randn(2, 5, 256, dtype=torch.bfloat16), text(5)
    by_hand = -F.log_softmax(logits.float(), -1).gather(-1, labels[..., None]).mean()
    assert token_loss(logits, labels).dtype == torch.float32
    assert torch.allclose(token_loss(logits, labels), by_hand)
