"""A Llama-style decoder in plain PyTorch: RMSNorm, rotary embedding, grouped-query attention, SwiGLU, untied output.

Three properties matter more here than speed records:

- **The first weights depend on the seed alone.** Each parameter is drawn in blocks of rows, and each block from a
  generator seeded with (seed, name, block). A rank can therefore draw just its own rows, and any world size starts
  with the same numbers.
- **No buffers.** The rotary angles are made in float32 in each forward pass (a few microseconds), so there is nothing
  that a meta-device start, a dtype cast, or a checkpoint could spoil.
- **Parameter names never change.** Recomputation and compilation happen inside a block's `forward`, not in wrapper
  modules, so a checkpoint written with one setting loads with another.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway_trainer.architecture import Architecture

INITIAL_STD: Final = 0.02
"""Standard deviation of the first weights, as in GPT-2 and Llama."""

RESIDUAL_WRITERS: Final = ("attention.output.weight", "ffn.down.weight")
"""Ends of the names of the matrices whose result is added to the residual stream."""

ROWS_PER_BLOCK: Final = 1024
"""Rows drawn from one generator. Part of what a seed means: changing it changes every run's first weights."""


class RMSNorm(nn.Module):
    """Divides by the root mean square over the last dimension, in float32 whatever the input's type, then scales."""

    def __init__(self, dim: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, dim) → (…, dim)."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.epsilon).to(x.dtype)


def rotary_angles(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle by which each pair of features turns at each position.

    Pair i of a head turns by `position / theta ** (2 i / head_dim)` (Su et al., RoFormer, 2021).

    Returns:
        Two float32 tensors of shape (length, head_dim / 2).
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, theta ** (-pairs / head_dim))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + head_dim / 2) of each head by their angle, in float32; returns the type of `x`.

    Shapes: x (batch, heads, length, head_dim); cos and sin (length, head_dim / 2).
    """
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention in which several query heads share one key and value head."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.grouped = shape.heads != shape.kv_heads
        self.query = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.key = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.value = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Shape (batch, length, dim) → (batch, length, dim)."""
        query = rotate(self._heads(self.query(x)), cos, sin)
        key = rotate(self._heads(self.key(x)), cos, sin)
        value = self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return merged

    def _heads(self, x: Tensor) -> Tensor:
        """Shape (batch, length, heads · head_dim) → (batch, heads, length, head_dim)."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020): one half of the widened stream gates the other."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, dim) → (batch, length, dim)."""
        widened: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return widened


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and added to the stream."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.dim, shape.norm_epsilon)
        self.attention = Attention(shape)
        self.ffn_norm = RMSNorm(shape.dim, shape.norm_epsilon)
        self.ffn = FeedForward(shape)
        self.recompute = False
        self._body: Callable[[Tensor, Tensor, Tensor], Tensor] = self._plain_body

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Shape (batch, length, dim) → (batch, length, dim)."""
        # FSDP's hooks are around this method, so recomputing inside it gathers no weights a second time.
        if self.recompute and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(self._body, x, cos, sin, use_reentrant=False)
            return recomputed
        return self._body(x, cos, sin)

    def compile_body(self, backend: str = "inductor") -> None:
        """Compile the mathematics of this block, and only that: FSDP's hooks stay outside the compiled graph."""
        self._body = torch.compile(self._plain_body, backend=backend)

    def _plain_body(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        mixed: Tensor = x + self.ffn(self.ffn_norm(x))
        return mixed


class Decoder(nn.Module):
    """Tokens to logits over the next token."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.dim, shape.norm_epsilon)
        self.output = nn.Linear(shape.dim, shape.vocabulary, bias=False)

    def decoder_blocks(self) -> list[Block]:
        """The blocks, first to last, with their type."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(self, tokens: Tensor) -> Tensor:
        """Integer tokens (batch, length) → logits (batch, length, vocabulary) in the type for computing."""
        cos, sin = rotary_angles(tokens.shape[1], self.shape.head_dim, self.shape.rope_theta, tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.output(self.norm(x))
        return logits


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy per token in nats, a float32 scalar.

    Shapes: logits (batch, length, vocabulary), labels (batch, length).
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def initial_rows(name: str, shape: tuple[int, ...], layers: int, *, seed: int, rows: range) -> Tensor:
    """The first values of some rows of one parameter, whoever asks for them.

    Norms start at 1. Matrices are normal with standard deviation 0.02, and those that write into the residual stream
    with 0.02 / √(2 · layers), so that the stream's variance does not grow with depth (GPT-2).

    Args:
        name: the parameter's name in `Decoder.named_parameters()`.
        shape: its whole shape, not the shard's.
        layers: number of blocks of the model.
        seed: the run's seed.
        rows: which rows (of dimension 0) to make; a contiguous range.

    Returns:
        float32 on the CPU, shape (len(rows), *shape[1:]). Always drawn on the CPU: a GPU's generator has other numbers.
    """
    if len(shape) == 1:
        return torch.ones(len(rows))
    std = INITIAL_STD / math.sqrt(2 * layers) if name.endswith(RESIDUAL_WRITERS) else INITIAL_STD
    parts = []
    for block in range(rows.start // ROWS_PER_BLOCK, -(-rows.stop // ROWS_PER_BLOCK)):
        start, stop = block * ROWS_PER_BLOCK, min((block + 1) * ROWS_PER_BLOCK, shape[0])
        drawn = torch.empty(stop - start, *shape[1:]).normal_(0.0, std, generator=_generator(seed, name, block))
        parts.append(drawn[max(rows.start - start, 0) : rows.stop - start])
    return torch.cat(parts) if rows else torch.empty(0, *shape[1:])


def _generator(seed: int, name: str, block: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
