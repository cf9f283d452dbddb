"""Writes one rank's shard: whole or absent, read back, with a receipt.

It runs in the writer process, or in the trainer when saves are synchronous. The file holds::

    {"version": 1, "step": 100, "rank": 0, "world_size": 2,
     "tensors":   {name: {"local": tensor, "rows": [start, stop], "shape": [...]}},
     "optimizer": {name of the parameter: {"exp_avg": {same as above}, "exp_avg_sq": {...}, "step": {...}}}}

which ``torch.load(..., weights_only=True, mmap=True)`` reads. `rows` is the part of dimension 0 that `local` is; what
is not sharded is its whole self in every rank's file. Nothing else says how the tensor was split, so any number of
ranks can load it.

A spawned writer imports this module, so it needs no more of torch than `torch.save`: the distributed part would make
every start of a writer two seconds slower.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import torch

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
    from collections.abc import Mapping

    from torch import Tensor


def tensor_bytes(shard: Mapping[str, Any]) -> int:
    """How many bytes of tensors a shard holds."""
    return sum(buffer.nbytes for buffer in shard["buffers"].values())


def write_shard(
    shard: Mapping[str, Any],
    folder: str,
    rank: int,
    world_size: int,
    fault: WriteFault | None = None,
    bytes_per_second: float = 0.0,
) -> None:
    """Writes one rank's shard so that it is whole or absent, reads it back, and leaves a receipt.

    Temporary name, fsync, rename, fsync of the folder; then the file is read again from the disk and compared, and only
    then the receipt appears in the same way.

    Args:
        shard: What `headway_trainer.shards.local_shard` returned.
        folder: The save's folder (see `headway_trainer.manifest.save_folder`); made when missing.
        rank: This rank.
        world_size: Ranks that save.
        fault: Injected trouble.
        bytes_per_second: Writes no faster than that; 0: as fast as it goes.

    Raises:
        OSError: The storage failed.
        CheckpointError: What was read back is not what was written, or the folder is already published.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if (target / MANIFEST_NAME).exists():
        raise CheckpointError(f"{target} is already published; a save never changes a checkpoint")
    receipt_path = target / receipt_file(rank, world_size)
    receipt_path.unlink(missing_ok=True)  # of a failed try: it must not vouch for the file that is written now
    receipt = _write_tensors(shard, target, rank, world_size, fault, bytes_per_second)
    write_durably(receipt_path, encode_receipt(receipt))


def _write_tensors(
    shard: Mapping[str, Any],
    target: Path,
    rank: int,
    world_size: int,
    fault: WriteFault | None,
    bytes_per_second: float,
) -> ShardReceipt:
    path = target / shard_file(rank, world_size)
    temporary = path.with_name(path.name + ".tmp")
    file = HashingFile(temporary, expected_bytes=tensor_bytes(shard), fault=fault, bytes_per_second=bytes_per_second)
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
        flat = buffers[entry["dtype"]].narrow(0, entry["offset"], math.prod(size))
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
