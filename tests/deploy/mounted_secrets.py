"""A projected volume of Secrets as a kubelet lays it out: each file is a link into a folder that is exchanged as a whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manifests import Object, Secrets

_numbers: Final = itertools.count()


def mount(volume: Object, secrets: Secrets, folder: Path) -> None:
    """Lays the files out, or exchanges them.

    Raises:
        LookupError: a Secret that is not optional is missing, or has not a key: the kubelet would keep the whole pod waiting.
    """
    folder.mkdir(exist_ok=True)
    kept = folder / f"..{next(_numbers)}"
    kept.mkdir()
    files = dict(_files(volume, secrets))
    for name, content in files.items():
        (kept / name).write_text(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    fresh = folder / "..data_tmp"
    fresh.symlink_to(kept.name)
    fresh.replace(folder / "..data")


def _files(volume: Object, secrets: Secrets) -> Iterator[tuple[str, str]]:
    for source in volume["projected"]["sources"]:
        asked = source["secret"]
        held = secrets.get(asked["name"], {})
        for item in asked["items"]:
            if item["key"] in held or not asked.get("optional"):
                yield item["path"], held[item["key"]]
