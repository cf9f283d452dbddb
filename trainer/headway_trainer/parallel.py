"""Where a model runs and how it is split: device, types, FSDP2, recomputation, compilation, determinism.

`build_model` takes one path for every size and every world: the model is made on the meta device (no memory),
sharded, given memory for this rank's shard alone, and filled with numbers that depend on the seed and not on the
world size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from headway_trainer.config import ConfigError
from headway_trainer.model import Decoder, initial_rows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from headway_trainer.architecture import Architecture
    from headway_trainer.config import ParallelConfig


def choose_device(config: ParallelConfig, *, local_rank: int) -> torch.device:
    """The device of this rank, which is also made the current one.

    Raises:
        ConfigError: CUDA was asked for, or `local_rank` needs a GPU that is not there.
    """
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise ConfigError(
            "--parallel.device",
            f"local rank {local_rank} needs its own GPU, but PyTorch sees {found}; use cpu or fewer ranks",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_dtype(config: ParallelConfig, device: torch.device) -> torch.dtype:
    """The type for computing; weights, optimizer state and gradient sums are float32 in any case."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def backend_for(device: torch.device) -> str:
    """The `torch.distributed` backend that moves tensors of this device."""
    return "nccl" if device.type == "cuda" else "gloo"


def setup_determinism(config: ParallelConfig, device: torch.device) -> None:
    """Make two runs of the same configuration on the same kind of machine bit-equal.

    Call it before any other work on the device. On the CPU it costs nothing; on CUDA it is slower, hence an option.
    The number of threads is fixed too, because it decides in which order sums are made.
    """
    torch.set_num_threads(config.threads_per_rank)
    strict = config.deterministic == "on" or (config.deterministic == "auto" and device.type == "cpu")
    if strict and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses to promise anything without it
    torch.use_deterministic_algorithms(strict)
    # A debugging aid that fills every new tensor (set this way because the module says nothing to type checkers).
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


def build_mesh(device: torch.device) -> DeviceMesh | None:
    """One dimension over all ranks of the process group; None when there is no group, or only one rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))


def build_model(
    architecture: Architecture, config: ParallelConfig, *, seed: int, device: torch.device, mesh: DeviceMesh | None
) -> Decoder:
    """A decoder with its first weights, sharded over the mesh (whole if that is None)."""
    with torch.device("meta"):
        model = Decoder(architecture)
    for block in model.decoder_blocks():
        block.recompute = config.activation_checkpointing
        if config.compile:
            block.compile_body()
    if mesh is not None:
        _shard(model, config, mesh, choose_dtype(config, device))
    model.to_empty(device=device)
    initialize_weights(model, seed=seed)
    return model


def autocast(model: nn.Module, config: ParallelConfig, device: torch.device) -> torch.autocast:
    """The context for a forward pass. It matters for a whole model in bfloat16 only: FSDP casts by itself."""
    dtype = choose_dtype(config, device)
    needed = dtype != torch.float32 and not isinstance(model, FSDPModule)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=needed)


def reshard(model: nn.Module) -> None:
    """Free weights that a forward pass without a backward pass left gathered.

    While they are, `model.parameters()` gives whole weights instead of shards, and a checkpoint would take those.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@torch.no_grad()
def initialize_weights(model: Decoder, *, seed: int) -> None:
    """Overwrite this rank's part of every parameter with its first values (see `model.initial_rows`)."""
    for name, parameter in model.named_parameters():
        rows = local_rows(parameter)
        first = initial_rows(name, tuple(parameter.shape), model.shape.layers, seed=seed, rows=rows)
        local(parameter).copy_(first)


def local_rows(parameter: Tensor) -> range:
    """Which rows of dimension 0 this rank holds. Some ranks hold none when there are fewer rows than ranks.

    FSDP2 splits as `torch.chunk` does: every rank takes ⌈rows / ranks⌉ until none are left.
    """
    rows = parameter.shape[0]
    if not isinstance(parameter, DTensor):
        return range(rows)
    if parameter.placements != (Shard(0),):
        raise NotImplementedError(
            f"parameters are expected to be split by rows over one mesh dimension, not {parameter.placements}"
        )
    chunk = -(-rows // parameter.device_mesh.size())
    start = min(parameter.device_mesh.get_local_rank() * chunk, rows)
    return range(start, min(start + chunk, rows))


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: Tensor = tensor.to_local()
    return part


def _shard(model: Decoder, config: ParallelConfig, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    # Inputs are not cast: tokens are integers, and the rotary angles must stay float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy)
