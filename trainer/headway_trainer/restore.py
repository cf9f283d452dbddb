"""Reads a checkpoint into a model, whatever number of ranks wrote it and whatever number reads it.

Loading has two halves. `plan_load` opens shards (memory-mapped: only the rows that are needed are ever read), compares
names, shapes and data types, and finds a source for every row. It changes nothing. `LoadPlan.apply` then copies. So a
checkpoint that turns out to be unusable leaves the model as it was, and the next candidate, or a start from scratch, is
still possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from headway_trainer.manifest import CheckpointError, CheckpointMismatchError, Manifest, ShardReceipt
from headway_trainer.shards import FORMAT_VERSION, layout, model_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass
class LoadPlan:
    """All that `apply` needs; it keeps the shards' files mapped."""

    optimizer: Optimizer
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    optimizer_state: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    bytes: int = 0
    """Size of the shards that the rows come from."""

    def apply(self) -> None:
        """Copies the rows into model and optimizer; the optimizer keeps its own settings (learning rate, …)."""
        with torch.no_grad():
            for destination, source in self.copies:
                destination.copy_(source)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": self.optimizer_state, "param_groups": groups})
        self.copies.clear()


def plan_load(
    folder: Path, manifest: Manifest, model: nn.Module, optimizer: Optimizer, rank: int, world_size: int
) -> LoadPlan:
    """Finds a source for every row that this rank holds.

    Args:
        folder: The checkpoint's folder, its shards verified.
        manifest: Its manifest.
        model: Of this rank; plain or sharded.
        optimizer: Over the model's parameters.
        rank: This rank, and
        world_size: how many there are now. They only decide which shards are opened first.

    Raises:
        CheckpointMismatchError: It is a checkpoint of another model.
        CheckpointError: Its shards are not what the manifest promises.
        OSError: A shard cannot be opened.
    """
    plan = LoadPlan(optimizer)
    targets: list[_Target] | None = None
    for receipt in _nearest_first(manifest, rank, world_size):
        content = _open_shard(folder, manifest, receipt)
        plan.bytes += receipt.bytes
        if targets is None:
            targets = [*_model_targets(content, model), *_optimizer_targets(content, model, plan)]
        for target in targets:
            plan.copies.extend(target.take(content))
        if not any(target.missing for target in targets):
            return plan
    lacking = next(target for target in targets or () if target.missing)
    raise CheckpointError(f"{lacking.name}: rows {lacking.missing} are in no shard")


def _nearest_first(manifest: Manifest, rank: int, world_size: int) -> list[ShardReceipt]:
    """Most likely holders of this rank's rows first: among as many ranks as saved, its own shard is all it opens."""
    middle = (rank + 0.5) / world_size
    return sorted(manifest.shards, key=lambda shard: abs((shard.rank + 0.5) / manifest.world_size - middle))


def _open_shard(folder: Path, manifest: Manifest, receipt: ShardReceipt) -> dict[str, Any]:
    path = folder / receipt.file
    content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    found = {key: content.get(key) for key in ("version", "step", "rank", "world_size")}
    expected = {
        "version": FORMAT_VERSION,
        "step": manifest.step,
        "rank": receipt.rank,
        "world_size": manifest.world_size,
    }
    if found != expected:
        raise CheckpointError(f"{receipt.file} holds {found}, expected {expected}")
    return dict(content)


@dataclass
class _Target:
    """A tensor to be filled, and which of its rows have no source yet."""

    name: str
    path: tuple[str, ...]
    local: Tensor
    first_row: int
    missing: list[tuple[int, int]]

    def take(self, content: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of (destination, source) for the missing rows that a shard's content has."""
        entry: Any = content
        for key in self.path:
            entry = entry[key]
        source, (start, stop) = _as_rows(entry["local"]), entry["rows"]
        if source.shape[0] != stop - start:
            raise CheckpointError(f"{self.name}: {source.shape[0]} rows are stored as rows {start} to {stop}")
        still: list[tuple[int, int]] = []
        for begin, end in self.missing:
            low, high = max(begin, start), min(end, stop)
            if low >= high:
                still.append((begin, end))
                continue
            yield self.local[low - self.first_row : high - self.first_row], source[low - start : high - start]
            still += [part for part in ((begin, low), (high, end)) if part[0] < part[1]]
        self.missing = still


def _target(name: str, path: tuple[str, ...], tensor: Tensor) -> _Target:
    held = layout(name, tensor)
    start, stop = held.rows
    return _Target(name, path, _as_rows(held.local), start, [(start, stop)] if start < stop else [])


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim else tensor.view(1)


def _model_targets(content: Mapping[str, Any], model: nn.Module) -> Iterator[_Target]:
    stored: Mapping[str, Any] = content["tensors"]
    tensors = model_tensors(model)
    _compare_names(stored, tensors)
    for name, tensor in tensors.items():
        _compare(name, stored[name], tensor)
        yield _target(name, ("tensors", name), tensor)


def _optimizer_targets(content: Mapping[str, Any], model: nn.Module, plan: LoadPlan) -> Iterator[_Target]:
    """Makes the optimizer's state, empty, in the plan, and yields what is to be filled."""
    stored: Mapping[str, Mapping[str, Any]] = content["optimizer"]
    name_of = {id(tensor): name for name, tensor in model_tensors(model).items()}
    parameters = [parameter for group in plan.optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        name = name_of.get(id(parameter))
        if name is None:
            raise CheckpointError(
                f"the optimizer holds a parameter of shape {list(parameter.shape)} that is not in the model"
            )
        for key, entry in stored.get(name, {}).items():
            value = _new_state(f"{key} of {name}", entry, parameter)
            plan.optimizer_state.setdefault(index, {})[key] = value
            yield _target(f"{key} of {name}", ("optimizer", name, key), value)


def _new_state(name: str, entry: Mapping[str, Any], parameter: Tensor) -> Tensor:
    shape, dtype = entry["shape"], entry["local"].dtype
    if not shape and parameter.ndim:
        return torch.empty(
            (), dtype=dtype
        )  # a counter: `load_state_dict` puts it on the device where the optimizer wants it
    if shape != list(parameter.shape):
        raise CheckpointError(f"{name} has shape {shape}, its parameter {list(parameter.shape)}")
    if not isinstance(parameter, DTensor):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    local = torch.empty_like(parameter.to_local(), dtype=dtype, requires_grad=False)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _compare_names(stored: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    lacking = sorted(tensors.keys() - stored.keys())
    if lacking:
        raise CheckpointMismatchError(
            f"the model's {lacking[0]} is not in it ({len(lacking)} tensors are missing); {_CHANGED}"
        )
    unknown = sorted(stored.keys() - tensors.keys())
    if unknown:
        raise CheckpointMismatchError(
            f"its {unknown[0]} is not in the model ({len(unknown)} tensors are unknown); {_CHANGED}"
        )


def _compare(name: str, entry: Mapping[str, Any], tensor: Tensor) -> None:
    if entry["shape"] != list(tensor.shape):
        raise CheckpointMismatchError(
            f"{name} has shape {entry['shape']} in it and {list(tensor.shape)} in the model; {_CHANGED}"
        )
    if entry["local"].dtype != tensor.dtype:
        raise CheckpointMismatchError(
            f"{name} is {entry['local'].dtype} in it and {tensor.dtype} in the model; {_CHANGED}"
        )


_CHANGED = "the configuration changed since it was saved: take the old configuration, or another checkpoint folder"
