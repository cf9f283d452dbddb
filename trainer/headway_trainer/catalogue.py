"""What lies in a checkpoint root: published checkpoints, unfinished saves, damaged folders; and what of it may go.

Needs no torch: whoever wants to know which checkpoint is the newest can ask.
"""

from __future__ import annotations

import errno
import logging
import secrets
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_trainer.manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    CheckpointError,
    Manifest,
    parse_folder,
    parse_manifest,
)
from headway_trainer.storage import describe, read_bounded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_log = logging.getLogger(__name__)
_TRASH_PREFIX: Final = ".trash-"


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint: its folder and what its manifest says. Its shards may be damaged."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class Damaged:
    """A folder with a checkpoint's name and a manifest that cannot be used, or something that is no folder at all."""

    folder: Path
    step: int
    reason: str


@dataclass(frozen=True)
class Unfinished:
    """A save that was never published: perhaps under way, perhaps left by a crash."""

    folder: Path
    step: int


Entry = Checkpoint | Damaged | Unfinished


def scan(root: Path) -> list[Entry]:
    """Everything in `root` that has a checkpoint's name; nothing when there is no such folder.

    Raises:
        CheckpointError: `root` cannot be listed. Taking that for "no checkpoints" would throw away work.
    """
    try:
        names = sorted((path.name for path in root.iterdir()), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list the checkpoint folder {root}: {describe(error)}") from error
    inspected = (inspect(root / name) for name in names)
    return [entry for entry in inspected if entry is not None]


def inspect(folder: Path) -> Entry | None:
    """What a path is; None when it is gone, or when its name is none of ours."""
    parsed = parse_folder(folder.name)
    if parsed is None:
        return None
    step, save_id = parsed
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return Damaged(folder, step, "it is not a folder (a file or a symbolic link)")
        content = read_bounded(folder / MANIFEST_NAME, MANIFEST_LIMIT_BYTES)
        return Checkpoint(folder, parse_manifest(content, step, save_id))
    except FileNotFoundError:
        return Unfinished(folder, step) if folder.exists() else None
    except OSError as error:
        words = "it cannot be opened: permission denied" if error.errno == errno.EACCES else describe(error)
        return Damaged(folder, step, words)
    except CheckpointError as error:
        return Damaged(folder, step, f"{MANIFEST_NAME}: {error}")


def newest_first(entries: Iterable[Entry]) -> list[Checkpoint]:
    """The published checkpoints among them, in the order in which they should be tried."""
    found = [entry for entry in entries if isinstance(entry, Checkpoint)]
    return sorted(
        found, key=lambda found: (found.manifest.sequence, found.manifest.step, found.folder.name), reverse=True
    )


def candidates(root: Path) -> list[Checkpoint]:
    """The published checkpoints in `root`, newest first; CheckpointError when it cannot be listed."""
    return newest_first(scan(root))


def prune(root: Path, keep: int, protect: Collection[Path] = ()) -> None:
    """Removes what is no longer needed; for rank 0, after a commit.

    It keeps the `keep` newest checkpoints and all folders in `protect` (saves under way). Unfinished saves go once a
    newer step is published. Damaged folders stay: it may be the reading that failed. Each folder is renamed before it
    is emptied, so that a crash half-way leaves no checkpoint with missing shards; what an earlier crash left is removed
    too. Errors are logged, as a folder too many must not stop training.
    """
    if keep < 1:
        raise ValueError(f"keep at least 1 checkpoint, not {keep}")
    try:
        entries = scan(root)
    except CheckpointError as error:
        _log.warning("no checkpoint was removed: %s", error)
        return
    protected = {path.name for path in protect}
    for folder in _superfluous(entries, keep):
        if folder.name not in protected:
            _discard(folder)
    for leftover in root.glob(f"{_TRASH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _superfluous(entries: list[Entry], keep: int) -> list[Path]:
    published = newest_first(entries)
    if not published:
        return []
    newest_step = published[0].manifest.step
    unfinished = [entry.folder for entry in entries if isinstance(entry, Unfinished) and entry.step <= newest_step]
    return [checkpoint.folder for checkpoint in published[keep:]] + unfinished


def _discard(folder: Path) -> None:
    trash = folder.with_name(f"{_TRASH_PREFIX}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return  # an earlier call, still at work in another thread, took it
    except OSError as error:
        _log.warning("could not remove the old checkpoint %s: %s", folder, describe(error))
    shutil.rmtree(trash, ignore_errors=True)
