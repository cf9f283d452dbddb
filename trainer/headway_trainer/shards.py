"""One rank's part of a checkpoint: taken from the model without a collective, and written by a process of its own.

`local_shard` copies what this rank holds into one flat CPU buffer per data type. That costs training one copy, and it
lets a model of thousands of tensors travel to the writer process as a few shared buffers: sent one by one, each tensor
would take a file descriptor. `write_shard` runs in the writer (or in the trainer, when saves are synchronous), turns
the buffers into tensors again and writes::

    {"version": 1, "step": 100, "rank": 0, "world_size": 2,
     "tensors":   {name: {"local": tensor, "rows": [start, stop], "shape": [...]}},
     "optimizer": {name of the parameter: {"exp_avg": {same as above}, "exp_avg_sq": {...}, "step": {...}}}}

which ``torch.load(..., weights_only=True, mmap=True)`` reads. `rows` is the part of dimension 0 that `local` is; what
is not sharded is its whole self in every rank's file. Nothing else says how the tensor was split, so any number of
ranks can load it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import torch
from torch.distributed.tensor import DTensor

from headway_trainer.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    ShardReceipt,
    encode_receipt,
    receipt_file,
    shard_file,
)
from headway_trainer.storage import HashingFile, WriteFault, digest, replace_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.process import BaseProcess

    from torch import Tensor, nn
    from torch.optim import Optimizer

FORMAT_VERSION: Final = 1
ORPHAN_POLL_SECONDS: Final = 0.5
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


def tensor_bytes(shard: Mapping[str, Any]) -> int:
    """How many bytes of tensors a shard holds."""
    return sum(buffer.nbytes for buffer in shard["buffers"].values())


def write_shard(
    shard: Mapping[str, Any], folder: str, rank: int, world_size: int, fault: WriteFault | None = None
) -> None:
    """Writes one rank's shard so that it is whole or absent, reads it back, and leaves a receipt.

    Temporary name, fsync, rename, fsync of the folder; then the file is read again from the disk and compared, and only
    then the receipt appears in the same way. Called in a writer process it also watches that the trainer lives, because
    an orphaned writer would stay for ever.

    Args:
        shard: What `local_shard` returned.
        folder: The save's folder (see `headway_trainer.manifest.save_folder`); made when missing.
        rank: This rank.
        world_size: Ranks that save.
        fault: Injected trouble.

    Raises:
        OSError: The storage failed.
        CheckpointError: What was read back is not what was written, or the folder is already published.
    """
    _end_with_the_trainer()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if (target / MANIFEST_NAME).exists():
        raise CheckpointError(f"{target} is already published; a save never changes a checkpoint")
    receipt_path = target / receipt_file(rank, world_size)
    receipt_path.unlink(missing_ok=True)  # of a failed try: it must not vouch for the file that is written now
    receipt = _write_tensors(shard, target, rank, world_size, fault)
    write_durably(receipt_path, encode_receipt(receipt))


def _write_tensors(
    shard: Mapping[str, Any], target: Path, rank: int, world_size: int, fault: WriteFault | None
) -> ShardReceipt:
    path = target / shard_file(rank, world_size)
    temporary = path.with_name(path.name + ".tmp")
    file = HashingFile(temporary, expected_bytes=tensor_bytes(shard), fault=fault)
    try:
        _save(_expand(shard, rank, world_size), file)
        file.sync()
    except BaseException:
        if fault is None:  # an injected failure leaves the torn file behind, as a crash at this very moment would
            with contextlib.suppress(OSError):
                temporary.unlink()  # on a full disk these bytes may be what the next save needs
        raise
    finally:
        file.close()
    replace_durably(temporary, path)
    read_back = digest(path, from_disk=True)
    if read_back != (file.size_bytes, file.sha256):
        raise CheckpointError(
            f"{path}: wrote {file.size_bytes} bytes with SHA-256 {file.sha256}, read back {read_back[0]} bytes with "
            f"{read_back[1]}; the storage does not keep what it is given"
        )
    return ShardReceipt(rank, path.name, file.size_bytes, file.sha256)


def _save(content: dict[str, Any], file: HashingFile) -> None:
    try:
        torch.save(content, cast("IO[bytes]", file))  # `write` and `flush` are all it uses
    except RuntimeError:
        if file.error is not None:
            raise file.error from None  # the storage's own words; torch's speak of positions in an archive
        raise


def _expand(shard: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """The file's content: the shard with views in place of offsets; `torch.save` stores each buffer once."""
    buffers: Mapping[str, Tensor] = shard["buffers"]

    def expand(entry: Mapping[str, Any]) -> dict[str, Any]:
        size = entry["size"]
        flat = buffers[entry["dtype"]].narrow(0, entry["offset"], _count(size))
        return {"local": flat.view(size), "rows": entry["rows"], "shape": entry["shape"]}

    return {
        "version": shard["version"],
        "step": shard["step"],
        "rank": rank,
        "world_size": world_size,
        "tensors": {name: expand(entry) for name, entry in shard["tensors"].items()},
        "optimizer": {
            name: {key: expand(entry) for key, entry in entries.items()} for name, entries in shard["optimizer"].items()
        },
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


def _count(size: list[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count


_watch_lock = threading.Lock()
_watched = False


def _end_with_the_trainer() -> None:
    """In a writer process, once: starts the thread that ends it when the trainer is gone. In the trainer: nothing."""
    global _watched
    trainer = multiprocessing.parent_process()
    with _watch_lock:
        if trainer is None or _watched:
            return
        _watched = True
    threading.Thread(target=_watch, args=(trainer, os.getppid()), name="headway-orphan-watch", daemon=True).start()


def _watch(trainer: BaseProcess, parent_pid: int) -> None:
    """Two signs, either is enough: adoption by another process, and the end of the pipe that the trainer keeps open.

    The pipe alone can be held open by forked children of the trainer; the parent's pid alone says nothing if the
    trainer died before the first save, or if a fork server is in between.
    """
    while os.getppid() == parent_pid and trainer.is_alive():
        time.sleep(ORPHAN_POLL_SECONDS)
    os._exit(1)
