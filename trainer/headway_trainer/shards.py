"""One rank's part of a checkpoint, taken from the model without a collective.

`local_shard` copies what this rank holds into one flat CPU buffer per data type. That costs training one copy, and it
lets a model of thousands of tensors travel to the writer process as a few shared buffers: sent one by one, each tensor
would take a file descriptor. `headway_trainer.writing` turns it into a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.tensor import DTensor

from headway_trainer.manifest import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer

FORMAT_VERSION: Final = 1
_COMPILED_PREFIX: Final = "_orig_mod."


@dataclass(frozen=True)
class Layout:
    """A tensor as this rank holds it: the local part, which rows of dimension 0 that is, and the whole shape.

    A tensor without dimensions counts as one row.
    """

    local: Tensor
    rows: tuple[int, int]
    shape: tuple[int, ...]


def chunk_rows(total: int, index: int, chunks: int) -> tuple[int, int]:
    """Start and stop of chunk `index` of `chunks`, as `torch.chunk` and FSDP2 split: the last may be short or empty."""
    size = -(-total // chunks)
    return min(index * size, total), min((index + 1) * size, total)


def layout(name: str, tensor: Tensor) -> Layout:
    """Describes a plain tensor, or a DTensor that is split along dimension 0 of one mesh dimension at most."""
    shape = tuple(tensor.shape)
    total = shape[0] if shape else 1
    if not isinstance(tensor, DTensor):
        return Layout(tensor.detach(), (0, total), shape)
    local = tensor.to_local().detach()
    split = [dim for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if not split:
        return Layout(local, (0, total), shape)
    if len(split) > 1 or not tensor.placements[split[0]].is_shard(0):
        raise CheckpointError(f"{name} is laid out as {tensor.placements}; only sharding of dimension 0 can be saved")
    mesh = tensor.device_mesh
    start, stop = chunk_rows(total, mesh.get_local_rank(split[0]), mesh.size(split[0]))
    if local.shape[0] != stop - start:
        raise CheckpointError(
            f"{name} holds {local.shape[0]} rows where rows {start} to {stop} of {total} were expected"
        )
    return Layout(local, (start, stop), shape)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each once (tied weights under their first name)."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{name} in the model's state is a {type(value).__name__}; only tensors can be saved")
        if id(value) not in seen:
            seen.add(id(value))
            tensors[name.replace(_COMPILED_PREFIX, "")] = value
    return tensors


def local_shard(model: nn.Module, optimizer: Optimizer, step: int) -> dict[str, Any]:
    """Copies this rank's part of model and optimizer to CPU buffers of its own; no collective, no file.

    Args:
        model: Plain, or sharded by FSDP2's ``fully_shard``.
        optimizer: Over parameters of that model; its state may hold tensors shaped like the parameter, or single
            numbers.
        step: Completed steps that the weights contain.

    Returns:
        A picklable table for `write_shard`. It shares no memory with the model, so that training may go on at once.

    Raises:
        CheckpointError: Something in it has a layout that cannot be saved.
    """
    names = model_tensors(model)
    packer = _Packer()
    tensors = {name: packer.add(layout(name, tensor)) for name, tensor in names.items()}
    optimizer_tables: dict[str, dict[str, Any]] = {}
    for name, key, value in _optimizer_tensors(names, optimizer):
        optimizer_tables.setdefault(name, {})[key] = packer.add(layout(f"{key} of {name}", value))
    return {
        "version": FORMAT_VERSION,
        "step": step,
        "buffers": packer.buffers(),
        "tensors": tensors,
        "optimizer": optimizer_tables,
    }


def _optimizer_tensors(names: Mapping[str, Tensor], optimizer: Optimizer) -> Iterator[tuple[str, str, Tensor]]:
    """Every tensor of the optimizer's state, after the names of its parameter and of itself."""
    name_of = {id(tensor): name for name, tensor in names.items()}
    for parameter, state in optimizer.state.items():
        name = name_of.get(id(parameter))
        if name is None:
            raise CheckpointError(
                f"the optimizer holds a parameter of shape {list(parameter.shape)} that is not in the model"
            )
        for key, value in state.items():
            if not isinstance(value, torch.Tensor) or value.shape not in (parameter.shape, torch.Size()):
                raise CheckpointError(
                    f"{key} of {name} in the optimizer's state is neither one number nor shaped like the parameter"
                )
            yield name, key, value


class _Packer:
    """Lays tensors out one after another, one flat buffer for each data type, and copies them there at the end."""

    def __init__(self) -> None:
        self._parts: dict[torch.dtype, list[Tensor]] = {}
        self._used: dict[torch.dtype, int] = {}

    def add(self, part: Layout) -> dict[str, Any]:
        """Takes in a tensor and says where it will be."""
        dtype = part.local.dtype
        offset = self._used.get(dtype, 0)
        self._parts.setdefault(dtype, []).append(part.local)
        self._used[dtype] = offset + part.local.numel()
        return {
            "dtype": str(dtype),
            "offset": offset,
            "size": list(part.local.shape),
            "rows": list(part.rows),
            "shape": list(part.shape),
        }

    def buffers(self) -> dict[str, Tensor]:
        return {str(dtype): self._fill(dtype, parts) for dtype, parts in self._parts.items()}

    def _fill(self, dtype: torch.dtype, parts: list[Tensor]) -> Tensor:
        buffer = torch.empty(self._used[dtype], dtype=dtype)
        offset = 0
        for part in parts:
            buffer.narrow(0, offset, part.numel()).view(part.shape).copy_(part)
            offset += part.numel()
        return buffer
