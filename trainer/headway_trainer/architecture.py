"""The shape of a model as plain numbers, and the presets.

Needs no torch, so that `--help` and the pod's supervisor start at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTE_VALUES: Final = 256
"""The text is read byte by byte, so a vocabulary needs at least these entries."""


@dataclass(frozen=True)
class Architecture:
    """Everything that decides the shapes of a Llama-style decoder."""

    dim: int
    """Width of the residual stream."""

    layers: int
    """Number of decoder blocks."""

    heads: int
    """Query heads; `dim` is split between them, so it must be a multiple of `heads`."""

    kv_heads: int
    """Key and value heads; each serves `heads / kv_heads` query heads."""

    ffn_dim: int
    """Width of the feed-forward part."""

    vocabulary: int = BYTE_VALUES
    """Rows of the embedding; text is bytes, so values from 256 on are never seen."""

    rope_theta: float = 10_000.0
    """Base of the rotary embedding's wavelengths: a larger one suits longer sequences."""

    norm_epsilon: float = 1e-5
    """Added to the mean square before the root in every RMSNorm."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    def problem(self) -> tuple[str, str] | None:
        """The first number that makes no model, as (field name, what to do); None for a sound architecture."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                return field.name, f"must be above 0, got {value}"
        if self.dim % self.heads:
            return "heads", f"must divide dim ({self.dim}), got {self.heads}"
        if self.head_dim % 2:
            got = f"{self.dim} / {self.heads}"
            return "heads", f"must leave each head an even width (rotary embedding turns pairs), got {got}"
        if self.heads % self.kv_heads:
            return "kv_heads", f"must divide heads ({self.heads}), got {self.kv_heads}"
        if self.vocabulary < BYTE_VALUES:
            return "vocabulary", f"must be at least {BYTE_VALUES}, because text is read as bytes, got {self.vocabulary}"
        return None

    def parameter_count(self) -> int:
        """Number of weights, counted by hand; the test compares it with the real model."""
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * self.head_dim
        block = attention + 3 * self.dim * self.ffn_dim + 2 * self.dim
        return 2 * self.vocabulary * self.dim + self.layers * block + self.dim


PRESETS: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "debug": Architecture(dim=128, layers=2, heads=4, kv_heads=2, ffn_dim=320),
        "small": Architecture(dim=384, layers=6, heads=6, kv_heads=2, ffn_dim=1024),
        "medium": Architecture(dim=1024, layers=24, heads=16, kv_heads=4, ffn_dim=2816),
        "llama3-8b": Architecture(
            dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14_336, vocabulary=128_256, rope_theta=500_000.0
        ),
        "llama3-70b": Architecture(
            dim=8192, layers=80, heads=64, kv_heads=8, ffn_dim=28_672, vocabulary=128_256, rope_theta=500_000.0
        ),
    }
)
"""`debug` is for a laptop's CPU, `small` for one GPU, `medium` for one node; the last two have the numbers
published for Llama 3."""
