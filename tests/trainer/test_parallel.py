"""Sharding over real gloo processes: the same mathematics as on one process, and the same bits in every repetition."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from headway_trainer import optim, parallel
from headway_trainer.architecture import PRESETS
from headway_trainer.config import ConfigError, ParallelConfig
from headway_trainer.data import Corpus
from headway_trainer.evaluate import evaluate
from headway_trainer.model import Decoder, token_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).with_name("two_ranks.py")
CPU = torch.device("cpu")
Seen = list[dict[str, dict[str, Any]]]


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text(" ".join(map(str, range(3000))))
    return path


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory, text: Path) -> list[Seen]:
    """What two ranks saw, in two launches that share nothing but the text; for each launch one entry a rank."""
    variants = [["plain", "recomputed", "kept"], ["plain"]]
    return [launch(tmp_path_factory.mktemp("launch"), text, names) for names in variants]


def launch(folder: Path, text: Path, variants: list[str]) -> Seen:
    command = [sys.executable, str(SCRIPT), str(folder), str(text), *variants]
    strict = "error,ignore:The pynvml package is deprecated:FutureWarning"
    environment = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": strict}
    processes = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}) for rank in range(2)]
    try:
        assert [process.wait(120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Undo what `setup_determinism` changes in this process."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


def whole(launched: Seen, kind: str) -> dict[str, torch.Tensor]:
    """The ranks' shards of the plain run put together."""
    parts = [rank["plain"][kind] for rank in launched]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def alone() -> Decoder:
    return parallel.build_model(load_script().SHAPE, ParallelConfig(), seed=0, device=CPU, mesh=None)


def test_two_launches_are_bit_equal(launches: list[Seen]) -> None:
    """The demo and the fault tests compare recovered runs with uninterrupted ones bit by bit; this is what that rests on."""
    one, two = launches
    for rank in range(2):
        assert one[rank]["plain"]["losses"] == two[rank]["plain"]["losses"]
        assert one[rank]["plain"]["digest"] == two[rank]["plain"]["digest"]
        assert one[rank]["plain"]["held_out"] == two[rank]["plain"]["held_out"]


def test_memory_options_do_not_change_a_bit(launches: list[Seen]) -> None:
    """Recomputing activations or keeping gathered weights trades memory for time, never results."""
    for rank in launches[0]:
        assert rank["plain"]["digest"] == rank["recomputed"]["digest"] == rank["kept"]["digest"]


def test_it_learns(launches: list[Seen]) -> None:
    """Equal bits of a model that does not learn would prove nothing."""
    losses = launches[0][0]["plain"]["losses"]
    assert losses[-1] < losses[0] - 1.0


def test_any_world_size_starts_with_the_same_weights(launches: list[Seen]) -> None:
    """A run that comes back with another number of ranks, or from scratch, must be the same run."""
    initial = whole(launches[0], "initial")
    for name, parameter in alone().named_parameters():
        assert torch.equal(initial[name], parameter), name


def test_shards_are_rows_as_torch_chunk_splits_them(launches: list[Seen]) -> None:
    """Resharding a checkpoint relies on this layout, odd sizes included."""
    weights = dict(alone().named_parameters())
    for name, parameter in weights.items():
        expected = [len(part) for part in parameter.chunk(2)]
        rows = [rank["plain"]["rows"][name] for rank in launches[0]]
        assert [len(part) for part in rows] == expected
        assert rows[0].stop == rows[1].start
        assert rows[1].stop == len(parameter)


def test_sharded_gradients_are_those_of_the_global_batch(launches: list[Seen], text: Path) -> None:
    """Two ranks with half the batch each must compute what one process computes on all of it."""
    script, model = load_script(), alone()
    config = dataclasses.replace(script.DATA, paths=(str(text),), batch_size=4)
    batch = Corpus.open(config, seed=0).batch(1, 0, 1)
    token_loss(model(batch.tokens), batch.labels).backward()
    gradients = whole(launches[0], "gradients")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-7), name
    norm = optim.clip_gradients(model.parameters(), 0.0).item()
    assert [rank["plain"]["norm"] for rank in launches[0]] == pytest.approx([norm, norm], rel=1e-5)


def test_every_rank_gets_the_held_out_loss_of_one_process(launches: list[Seen], text: Path) -> None:
    """Three batches on two ranks do not come out even; the mean must still be over three, and equal everywhere."""
    script, model = load_script(), alone()
    final = whole(launches[0], "final")
    model.load_state_dict(final)
    corpus = Corpus.open(dataclasses.replace(script.DATA, paths=(str(text),)), seed=0)
    expected = evaluate(model, corpus, batches=3, device=CPU)
    seen = [rank[kind]["held_out"] for rank in launches[0] for kind in ("plain", "kept")]
    assert len(set(seen)) == 1
    assert seen[0] == pytest.approx(expected, rel=1e-5)


def test_large_presets_are_built_without_memory() -> None:
    """`llama3-8b` is made on the meta device; only a shard's worth of memory may ever be asked for."""
    with torch.device("meta"):
        model = Decoder(PRESETS["llama3-8b"])
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not list(model.buffers()), "a buffer would be garbage after the meta device"


def test_a_missing_gpu_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--parallel.device cuda` on a machine without GPUs must not end in a CUDA traceback."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"--parallel\.device: local rank 0 needs its own GPU, but PyTorch sees 0"):
        parallel.choose_device(ParallelConfig(device="cuda"), local_rank=0)


def test_types_follow_the_device() -> None:
    """bfloat16 on GPUs and float32 on CPUs, unless told otherwise; NCCL only moves CUDA tensors."""
    cuda = torch.device("cuda", 0)
    assert parallel.choose_dtype(ParallelConfig(), CPU) == torch.float32
    assert parallel.choose_dtype(ParallelConfig(), cuda) == torch.bfloat16
    assert parallel.choose_dtype(ParallelConfig(dtype="bfloat16"), CPU) == torch.bfloat16
    assert parallel.choose_dtype(ParallelConfig(dtype="float32"), cuda) == torch.float32
    assert (parallel.backend_for(CPU), parallel.backend_for(cuda)) == ("gloo", "nccl")


def test_an_unsharded_model_computes_in_the_chosen_type() -> None:
    """One process on one GPU has no FSDP to cast for it."""
    config, model = ParallelConfig(dtype="bfloat16"), alone()
    with parallel.autocast(model, config, CPU):
        assert model(torch.zeros(1, 4, dtype=torch.int64)).dtype == torch.bfloat16
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.usefixtures("_one_thread")
def test_determinism_is_on_for_cpus_and_can_be_switched_off() -> None:
    """Bit-equality is the default on CPUs; the thread count is part of it."""
    parallel.setup_determinism(ParallelConfig(), CPU)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1
    parallel.setup_determinism(ParallelConfig(deterministic="off"), CPU)
    assert not torch.are_deterministic_algorithms_enabled()
