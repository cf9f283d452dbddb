"""What can be said of a checkpoint that a framework has written: that its files are there, whole by their own tables of contents.

No checksum of the content is compared and no file is flushed here: both would take as long as the save. So `committed` by an adapter
says that the checkpoint outlives the process, not that it outlives the storage.
"""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os

CLOCK_SLACK_SECONDS: Final = 2.0
"""A file may be stamped by another machine's clock, and with whole seconds."""
_MOST_HEADER: Final = 100_000_000
_MOST_METADATA: Final = 16_000_000
"""A larger table of contents takes seconds to read, in which training would wait: that it is there must do."""


def complete(path: str | os.PathLike[str], *, since: float) -> int | None:
    """Bytes of a checkpoint that is complete and was written after `since` (seconds since 1970); None: it is not, or not yet.

    A file is one of `torch.save` or safetensors. A folder is one of `torch.distributed.checkpoint`, whose `.metadata` is
    written last, one of Hugging Face's Trainer, with its `trainer_state.json`, or one of DeepSpeed, whose file `latest` names the
    folder in it that is meant.
    """
    try:
        place = Path(path)
        if not place.is_dir():
            return _whole(place) if _fresh(place, since) else None
        if not any(_ends(place / last, since) for last in (".metadata", "trainer_state.json", "latest")):
            return None
        sizes = [_whole(file) for file in sorted(place.rglob("*")) if file.is_file()]
    except (OSError, ValueError):
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _ends(last: Path, since: float) -> bool:
    """Whether what is written last is there, and of this save."""
    if not last.is_file() or not _fresh(last, since):
        return False
    return last.name != "latest" or (last.parent / (last.read_text().strip() or "none")).is_dir()


def _fresh(file: Path, since: float) -> bool:
    return file.stat().st_mtime >= since - CLOCK_SLACK_SECONDS


def _whole(file: Path) -> int | None:
    """Size of a file that ends where its table of contents says; of a kind without one, of a file that is not empty."""
    size = file.stat().st_size
    if file.suffix == ".safetensors":
        whole = _safetensors_size(file) == size
    elif file.suffix in {".ckpt", ".pt", ".pth", ".bin"}:
        whole = _archive_fits(file)
    elif file.name == ".metadata":
        whole = size > 0 and (size > _MOST_METADATA or _shards_fit(file))
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


def _shards_fit(metadata: Path) -> bool:
    """Whether each file that `torch.distributed.checkpoint` speaks of reaches as far as it says; on another node's disk it does not."""
    ends: dict[str, int] = defaultdict(int)
    try:
        with metadata.open("rb") as opened:
            shards = list(_Reader(opened).load().storage_data.values())
        for shard in shards:
            ends[shard.relative_path] = max(ends[shard.relative_path], shard.offset + shard.length)
    except (pickle.UnpicklingError, EOFError):
        return False
    except Exception:  # noqa: BLE001 - another writer's own kind of table
        return True
    return all((metadata.parent / name).stat().st_size >= end for name, end in ends.items())


class _Inert:
    """Stands for every object of a pickle, which so is read without any code of it being run."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setitem__(self, _key: Any, _value: Any) -> None: ...

    def append(self, _item: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Reader(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> Any:
        return _Inert
