"""Checkpoints as a folder of folders: published all or not at all, verified before they are believed, never in the way.

The life of a save: every rank takes its `local_shard` and has it written by `write_shard`; once all ranks' receipts are
there, rank 0 calls `publish`, and from the rename of the manifest on it is a checkpoint. A crash at any byte before
leaves a folder without a manifest, which nobody reads and `prune` removes later.

The life of a load: `load_newest` goes through the published ones, newest first. The ranks share the work of verifying
one and agree on the outcome; the first that is good on all of them is loaded. A folder that is damaged, in whatever
way, costs a call of `on_rejected` and nothing else. Only a sound checkpoint of another model is an error: starting from
scratch would then destroy work.
"""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING, Any

from headway_trainer.catalogue import Checkpoint, Damaged, Entry, candidates, inspect, newest_first, prune, scan
from headway_trainer.manifest import (
    MANIFEST_NAME,
    RECEIPT_LIMIT_BYTES,
    CheckpointError,
    CheckpointMismatchError,
    Manifest,
    ShardReceipt,
    encode_manifest,
    parse_folder,
    parse_receipt,
    receipt_file,
    save_folder,
)
from headway_trainer.restore import LoadPlan, plan_load
from headway_trainer.shards import local_shard
from headway_trainer.storage import WriteFault, describe, digest, read_bounded, sync_folder, write_durably
from headway_trainer.writing import write_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointMismatchError",
    "Manifest",
    "ShardReceipt",
    "WriteFault",
    "candidates",
    "load",
    "load_newest",
    "local_shard",
    "missing_receipts",
    "prune",
    "publish",
    "save_folder",
    "verify_shard",
    "write_shard",
]


def missing_receipts(folder: Path, world_size: int) -> list[int]:
    """The ranks whose shard is not written and read back yet."""
    return [rank for rank in range(world_size) if not (folder / receipt_file(rank, world_size)).is_file()]


def publish(folder: Path, step: int, world_size: int, save_id: str, extra: dict[str, Any] | None = None) -> Manifest:
    """Turns a complete save into a checkpoint; for rank 0, when every rank's write is done.

    Args:
        folder: The save's folder, as `save_folder` named it.
        step: Completed steps in it.
        world_size: Ranks that saved.
        save_id: The save's id.
        extra: What the trainer wants to find again (JSON: a fingerprint of the configuration, …).

    Returns:
        The manifest that is now on disk, durably.

    Raises:
        CheckpointError: A receipt is missing or wrong, or a shard has not the size that its receipt vouches for.
        OSError: The storage failed.
    """
    root = folder.parent
    if folder != save_folder(root, step, save_id):
        raise CheckpointError(f"{folder} is not the folder for step {step} of save {save_id}")
    receipts = tuple(_read_receipt(folder, rank, world_size) for rank in range(world_size))
    for receipt in receipts:
        _check_size(folder, receipt)
    sequence = 1 + max((checkpoint.manifest.sequence for checkpoint in candidates(root)), default=0)
    manifest = Manifest(step, world_size, save_id, receipts, extra or {}, time.time(), sequence)
    try:
        content = encode_manifest(manifest)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: extra cannot be written as JSON: {error}") from error
    write_durably(folder / MANIFEST_NAME, content)
    sync_folder(root)  # the folder's own entry
    return manifest


def verify_shard(folder: Path, receipt: ShardReceipt) -> str | None:
    """Reads a shard whole and compares size and checksum; None when it is good, else what is wrong, in words."""
    path = folder / receipt.file
    try:
        size = path.lstat().st_size
        if size != receipt.bytes:
            return f"{receipt.file}: has {size} bytes, the manifest says {receipt.bytes}"
        _, sha256 = digest(path)
    except FileNotFoundError:
        return f"{receipt.file}: is missing"
    except OSError as error:
        return describe(error)
    return (
        None
        if sha256 == receipt.sha256
        else f"{receipt.file}: its checksum is wrong (bytes changed after it was written)"
    )


def load(folder: Path, manifest: Manifest, model: nn.Module, optimizer: Optimizer, rank: int, world_size: int) -> None:
    """Loads one checkpoint, resharding it if another number of ranks wrote it; no verification, no collective.

    Raises:
        CheckpointMismatchError: It is a checkpoint of another model.
        CheckpointError: It is not readable; the model is unchanged.
    """
    outcome = _try_plan(Checkpoint(folder, manifest), model, optimizer, rank, world_size)
    if isinstance(outcome, str):
        raise CheckpointError(f"{folder}: {outcome}")
    if isinstance(outcome, CheckpointMismatchError):
        raise outcome
    outcome.apply()


def load_newest(
    root: Path,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    rank: int,
    world_size: int,
    all_ok: Callable[[bool], bool],
    on_rejected: Callable[[Path, int, str], None],
    share_names: Callable[[list[str]], list[str]] = list,
    on_loaded: Callable[[int], object] | None = None,
) -> int:
    """Loads the newest checkpoint that is good on every rank; every rank must call it.

    Args:
        root: The checkpoint folder; it may not exist yet.
        model: Plain, or sharded by ``fully_shard``.
        optimizer: Over its parameters.
        rank: This rank.
        world_size: Ranks that load; any number, whatever number saved.
        all_ok: Whether every rank said True (an all-reduce of MIN). Called equally often on all ranks.
        on_rejected: Called with folder, step and reason once for each folder that has a checkpoint's name and a
            manifest, or is no folder at all, and yet cannot be loaded. Unfinished saves (no manifest) are no
            checkpoints and are passed over.
        share_names: Rank 0's argument, on every rank (a broadcast). Ranks may see different listings of a shared
            folder; without it they might load different checkpoints. The default is right for one process only.
        on_loaded: Called once something was loaded, with the size in bytes of the shards that this rank took its rows
            from.

    Returns:
        Completed steps in what was loaded; 0 when there is nothing good, and model and optimizer are then untouched.

    Raises:
        CheckpointMismatchError: The newest good one is of another model.
        CheckpointError: `root` cannot be listed, on this or another rank.
    """
    entries, problem = _scan_or_problem(root)
    if not all_ok(problem is None):
        raise CheckpointError(problem or f"another rank cannot read the checkpoint folder {root}")
    rejections = _Rejections(on_rejected)
    for entry in entries:
        if isinstance(entry, Damaged):
            rejections.report(entry.folder, entry.step, entry.reason)
    for name in share_names([checkpoint.folder.name for checkpoint in newest_first(entries)]):
        plan = _agree_on_plan(root / name, model, optimizer, rank, world_size, all_ok, rejections)
        if plan is not None:
            plan.apply()
            if on_loaded is not None:
                on_loaded(plan.bytes)
            return _step_of(name)
    return 0


class _Rejections:
    """Passes each rejected folder on once, whoever found it and however often."""

    def __init__(self, on_rejected: Callable[[Path, int, str], None]) -> None:
        self._on_rejected = on_rejected
        self._reported: set[Path] = set()

    def report(self, folder: Path, step: int, reason: str) -> None:
        if folder not in self._reported:
            self._reported.add(folder)
            self._on_rejected(folder, step, reason)


def _agree_on_plan(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    rank: int,
    world_size: int,
    all_ok: Callable[[bool], bool],
    rejections: _Rejections,
) -> LoadPlan | None:
    """Two votes on one checkpoint: is every shard sound, and can every rank find its rows in them?"""
    entry = inspect(folder)
    reason = _why_not(entry, rank, world_size)
    if not all_ok(reason is None) or not isinstance(entry, Checkpoint):
        rejections.report(folder, _step_of(folder.name), reason or "another rank rejected it")
        return None
    outcome = _try_plan(entry, model, optimizer, rank, world_size)
    agreed = all_ok(isinstance(outcome, LoadPlan))
    if isinstance(outcome, CheckpointMismatchError):
        raise outcome
    if agreed and isinstance(outcome, LoadPlan):
        return outcome
    reason = outcome if isinstance(outcome, str) else "another rank could not read it"
    rejections.report(folder, entry.manifest.step, reason)
    return None


def _why_not(entry: Entry | None, rank: int, world_size: int) -> str | None:
    """Verifies this rank's share of the shards; None when they are good, else the first reason."""
    if isinstance(entry, Damaged):
        return entry.reason
    if not isinstance(entry, Checkpoint):
        return f"rank {rank} does not see it: is the checkpoint folder shared by all ranks?"
    reasons = (verify_shard(entry.folder, receipt) for receipt in entry.manifest.shards[rank::world_size])
    return next((reason for reason in reasons if reason is not None), None)


def _try_plan(
    checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer, rank: int, world_size: int
) -> LoadPlan | CheckpointMismatchError | str:
    """A plan, or a mismatch that the caller must raise, or the reason why this checkpoint is unusable."""
    try:
        return plan_load(checkpoint.folder, checkpoint.manifest, model, optimizer, rank, world_size)
    except CheckpointMismatchError as error:
        return CheckpointMismatchError(f"checkpoint {checkpoint.folder}: {error}")
    except OSError as error:
        return describe(error)
    except Exception as error:  # noqa: BLE001 - torch.load and a stranger's content can raise anything; none may stop a resume
        text = str(error).partition("\n")[0]
        return text if isinstance(error, CheckpointError) else f"{type(error).__name__} while reading it: {text:.200}"


def _read_receipt(folder: Path, rank: int, world_size: int) -> ShardReceipt:
    name = receipt_file(rank, world_size)
    try:
        return parse_receipt(read_bounded(folder / name, RECEIPT_LIMIT_BYTES), rank, world_size)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: rank {rank} left no receipt ({name}); its shard is not complete") from None
    except OSError as error:
        raise CheckpointError(f"{folder}: {describe(error)}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {name}: {error}") from error


def _check_size(folder: Path, receipt: ShardReceipt) -> None:
    try:
        status = (folder / receipt.file).lstat()
    except OSError as error:
        raise CheckpointError(f"{folder}: {describe(error)}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != receipt.bytes:
        raise CheckpointError(f"{folder}: {receipt.file} has {status.st_size} bytes, its receipt says {receipt.bytes}")


def _scan_or_problem(root: Path) -> tuple[list[Entry], str | None]:
    try:
        return scan(root), None
    except CheckpointError as error:
        return [], str(error)


def _step_of(name: str) -> int:
    parsed = parse_folder(name)
    return parsed[0] if parsed else 0
