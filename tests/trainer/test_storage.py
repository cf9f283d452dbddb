"""Files that survive a crash."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headway_trainer.storage import HashingFile, digest

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_knows_its_checksum_while_it_is_written(tmp_path: Path) -> None:
    """Size and SHA-256 taken on the way are those of the file, also for pieces larger than a chunk."""
    path = tmp_path / "file"
    file = HashingFile(path)
    for piece in (b"", b"abc", random.Random(1).randbytes(9 << 20), memoryview(b"end")):
        file.write(piece)
    file.sync()
    file.close()
    assert digest(path, from_disk=True) == (file.size_bytes, file.sha256)
