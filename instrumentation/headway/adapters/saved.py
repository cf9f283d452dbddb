"""What can be said of a checkpoint that a framework has written: that its files are there, whole by their own tables of contents.

No checksum of the content is compared and no file is flushed here: both would take as long as the save. So `committed` by an adapter
says that the checkpoint outlives the process, not that it outlives the storage.
"""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os

CLOCK_SLACK_SECONDS: Final = 2.0
"""A file may be stamped by another machine's clock, and with whole seconds."""
_MOST_HEADER: Final = 100_000_000


def complete(path: str | os.PathLike[str], *, since: float) -> int | None:
    """Bytes of a checkpoint that is complete and was written after `since` (seconds since 1970); None: it is not, or not yet.

    A file is one of `torch.save` or safetensors. A folder is one of `torch.distributed.checkpoint`, whose `.metadata` is
    written last, or one of Hugging Face's Trainer, with its `trainer_state.json`.
    """
    try:
        place = Path(path)
        if not place.is_dir():
            return _whole(place) if _fresh(place, since) else None
        if not any(
            (place / last).is_file() and _fresh(place / last, since) for last in (".metadata", "trainer_state.json")
        ):
            return None
        sizes = [_whole(file) for file in sorted(place.rglob("*")) if file.is_file()]
    except (OSError, ValueError):
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _fresh(file: Path, since: float) -> bool:
    return file.stat().st_mtime >= since - CLOCK_SLACK_SECONDS


def _whole(file: Path) -> int | None:
    """Size of a file that ends where its table of contents says; of a kind without one, of a file that is not empty."""
    size = file.stat().st_size
    if file.suffix == ".safetensors":
        whole = _safetensors_size(file) == size
    elif file.suffix in {".ckpt", ".pt", ".pth", ".bin"}:
        whole = _archive_fits(file)
    elif file.suffix == ".json":
        whole = isinstance(json.loads(file.read_bytes()), (dict, list))
    else:
        whole = size > 0
    return size if whole else None


def _safetensors_size(file: Path) -> int | None:
    """What the header says: https://huggingface.co/docs/safetensors, "Format"."""
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            return None
        length: int = struct.unpack("<Q", start)[0]
        if length > _MOST_HEADER:
            return None
        header = json.loads(opened.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def _archive_fits(file: Path) -> bool:
    """`torch.save` writes a zip archive, its directory last."""
    try:
        with zipfile.ZipFile(file) as archive:
            return bool(archive.infolist())
    except zipfile.BadZipFile:
        return False
