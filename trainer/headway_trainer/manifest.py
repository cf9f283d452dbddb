"""What a checkpoint folder is made of: names, receipts and the manifest, as values. No I/O here.

``<checkpoint folder>/step-00000100-1f0c9a2e/`` holds one ``shard-00000-of-00002.pt`` and one receipt
``shard-00000-of-00002.json`` for each rank, and ``manifest.json``, which is published last. A folder without a manifest
is not a checkpoint. The name ends with a save id, so that a writer that outlived its trainer never writes into the
folder of a newer incarnation that saves the same step.

The manifest is JSON::

    {"version": 1, "step": 100, "sequence": 7, "save_id": "1f0c9a2e", "world_size": 2, "created_wall": 1790000000.5,
     "shards": [{"rank": 0, "file": "shard-00000-of-00002.pt", "bytes": 4096, "sha256": "…"}, …], "extra": {…}}

`sequence` grows by one with every checkpoint published in the same root. It, not the step, says which is newest: after
falling back from a damaged checkpoint of step 300 to step 200, the one of step 250 that follows is the newer. It needs
no clock either.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
MANIFEST_LIMIT_BYTES: Final = 64 << 20
"""About 400,000 ranks; a larger file is none of ours."""
RECEIPT_LIMIT_BYTES: Final = 64 << 10

_FOLDER: Final = re.compile(r"step-([0-9]{8,18})-([0-9a-z]{1,32})")
_SAVE_ID: Final = re.compile(r"[0-9a-z]{1,32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class CheckpointError(Exception):
    """A checkpoint cannot be written, published or read; the text says which one and why."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint is sound, but of another model than the one to load it into: the configuration changed."""


@dataclass(frozen=True)
class ShardReceipt:
    """What the writer of a shard vouches for, having read the file back."""

    rank: int
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A published checkpoint; see the module's text for the fields and the file's format."""

    step: int
    world_size: int
    save_id: str
    shards: tuple[ShardReceipt, ...]
    extra: dict[str, Any] = field(default_factory=dict)
    created_wall: float = 0.0
    sequence: int = 1

    @property
    def total_bytes(self) -> int:
        """Size of all shards together."""
        return sum(shard.bytes for shard in self.shards)


def save_folder(root: Path, step: int, save_id: str) -> Path:
    """Where the save of `step` goes; `save_id` is 1 to 32 of ``0-9a-z``."""
    if step < 0 or not _SAVE_ID.fullmatch(save_id):
        raise ValueError(
            f"a save needs a step >= 0 and an id of 1 to 32 digits and small letters, not {step} and {save_id!r}"
        )
    return root / f"step-{step:08d}-{save_id}"


def parse_folder(name: str) -> tuple[int, str] | None:
    """The step and the save id in a folder's name, or None when the name is none of ours."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def shard_file(rank: int, world_size: int) -> str:
    """The file name of one rank's shard."""
    return f"shard-{rank:05d}-of-{world_size:05d}.pt"


def receipt_file(rank: int, world_size: int) -> str:
    """The file name of one rank's receipt."""
    return f"shard-{rank:05d}-of-{world_size:05d}.json"


def encode_receipt(receipt: ShardReceipt) -> bytes:
    """The receipt's file."""
    return (json.dumps(asdict(receipt)) + "\n").encode()


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's file; TypeError or ValueError when `extra` holds what JSON cannot."""
    return (json.dumps({"version": VERSION, **asdict(manifest)}, indent=1, allow_nan=False) + "\n").encode()


def parse_receipt(content: bytes, rank: int, world_size: int) -> ShardReceipt:
    """Reads a receipt's file; CheckpointError when it is not that rank's receipt."""
    return _receipt(_json_object(content), rank, world_size)


def parse_manifest(content: bytes, step: int, save_id: str) -> Manifest:
    """Reads a manifest's file; CheckpointError with the reason when anything in it is not as it was written.

    File names are not believed but computed and compared, so a manifest cannot name a file outside its folder.
    """
    table = _json_object(content)
    if table.get("version") != VERSION:
        raise CheckpointError(f"version {table.get('version')!r:.40}, this trainer reads {VERSION}")
    if (table.get("step"), table.get("save_id")) != (step, save_id):
        raise CheckpointError("it belongs to another folder (step or save id differ from the folder's name)")
    world_size = _integer(table, "world_size", minimum=1)
    rows = table.get("shards")
    if not isinstance(rows, list) or len(rows) != world_size:
        raise CheckpointError(f"it does not list the {world_size} shards it should")
    created = table.get("created_wall")
    if not isinstance(created, float) or not math.isfinite(created):
        raise CheckpointError("created_wall is not a time")
    extra = table.get("extra")
    if not isinstance(extra, dict):
        raise CheckpointError("extra is not a table")
    try:
        json.dumps(extra, allow_nan=False)
    except ValueError:
        raise CheckpointError("extra holds a number that JSON does not have") from None
    return Manifest(
        step=_integer(table, "step"),
        world_size=world_size,
        save_id=save_id,
        shards=tuple(_receipt(row, rank, world_size) for rank, row in enumerate(rows)),
        extra=extra,
        created_wall=created,
        sequence=_integer(table, "sequence"),
    )


def _receipt(table: object, rank: int, world_size: int) -> ShardReceipt:
    if not isinstance(table, dict):
        raise CheckpointError(f"the entry of shard {rank} is not a table")
    expected = shard_file(rank, world_size)
    if _integer(table, "rank") != rank or table.get("file") != expected:
        raise CheckpointError(f"the entry of shard {rank} names {table.get('file')!r:.80} instead of {expected}")
    sha256 = table.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CheckpointError(f"the entry of shard {rank} has no SHA-256")
    return ShardReceipt(rank, expected, _integer(table, "bytes"), sha256)


def _integer(table: Mapping[str, object], name: str, minimum: int = 0) -> int:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise CheckpointError(f"{name} is {value!r:.40}, not a whole number >= {minimum}")
    return value


def _json_object(content: bytes) -> dict[str, object]:
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, a number of too many digits
        raise CheckpointError("it is not JSON (cut off, or overwritten)") from error
    if not isinstance(table, dict):
        raise CheckpointError("it is not a JSON object")
    return table
