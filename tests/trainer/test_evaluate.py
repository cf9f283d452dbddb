"""The held-out loss on one process (for several, see test_parallel.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from headway_trainer.architecture import Architecture
from headway_trainer.config import DataConfig, ParallelConfig
from headway_trainer.data import Corpus
from headway_trainer.evaluate import evaluate
from headway_trainer.model import token_loss
from headway_trainer.parallel import build_model

if TYPE_CHECKING:
    from pathlib import Path

    from headway_trainer.model import Decoder

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """A few kilobytes of numbers in words of bytes."""
    (tmp_path / "numbers.txt").write_text(" ".join(map(str, range(3000))))
    config = DataConfig(paths=(str(tmp_path),), sequence_length=16, batch_size=4, held_out_fraction=0.1)
    return Corpus.open(config, seed=0)


@pytest.fixture
def model() -> Decoder:
    """A fresh, tiny decoder."""
    shape = Architecture(dim=16, layers=1, heads=2, kv_heads=1, ffn_dim=24)
    return build_model(shape, ParallelConfig(), seed=0, device=CPU, mesh=None)


def test_it_is_the_mean_over_fixed_batches(model: Decoder, corpus: Corpus) -> None:
    """Two evaluations of the same weights give the same number, and it is the plain mean."""
    with torch.no_grad():
        batches = [corpus.held_out_batch(number, of=3) for number in range(3)]
        losses = [token_loss(model(batch.tokens), batch.labels).item() for batch in batches]
    first, again = (evaluate(model, corpus, batches=3, device=CPU) for _ in range(2))
    assert first == again == pytest.approx(sum(losses) / 3, abs=1e-6)


def test_it_leaves_the_model_as_it_was(model: Decoder, corpus: Corpus) -> None:
    """Evaluation must not change weights, gradients or the training mode, or a replayed step would differ."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    evaluate(model, corpus, batches=2, device=CPU)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_it_notices_learning(model: Decoder, corpus: Corpus) -> None:
    """A model that was trained on the training part does better on the held-out part."""
    untrained = evaluate(model, corpus, batches=4, device=CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 31):
        batch = corpus.batch(step, 0, 1)
        token_loss(model(batch.tokens), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert evaluate(model, corpus, batches=4, device=CPU) < untrained - 1.0
