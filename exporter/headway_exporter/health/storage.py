"""Space of the volumes that the run writes to.

Each volume is an instrument of its own: a network file system whose server is gone keeps whoever asks it waiting for ever.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway_exporter.health.instruments import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

_LOOK_AGAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Space:
    """Of a file system: bytes, and files; 0 files of 0: it has no such limit."""

    available: int
    size: int
    files_available: int
    files: int


class VolumeProbe:
    """See `Probe`. `volume` is one of the schema's; `where` names its folder, None while nobody has told."""

    every_seconds = 15.0
    deadline_seconds = 10.0

    def __init__(self, volume: str, where: Callable[[], Path | None]) -> None:
        self.name = f"storage_{volume}"
        self._volume = volume
        self._where = where

    def read(self) -> Space:
        """See `Probe`."""
        folder = self._where()
        if folder is None:
            raise AbsentError("nobody has said yet where that is", _LOOK_AGAIN_SECONDS)
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            raise AbsentError(f"{folder} is not there, or not mounted in this container", _LOOK_AGAIN_SECONDS) from None
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)

    def samples(self, value: Space) -> Iterator[Sample]:
        """See `Probe`."""
        if value.size:
            yield "headway_storage_available_bytes", (self._volume,), value.available
            yield "headway_storage_size_bytes", (self._volume,), value.size
        if value.files:
            ratio = value.files_available / value.files
            yield "headway_storage_inodes_available_ratio", (self._volume,), ratio

    def lost(self, value: Space) -> tuple[Sample, ...]:  # noqa: ARG002 - nothing of it holds any more
        """See `Probe`."""
        return ()

    def observations(self, value: Space) -> tuple[Observation, ...]:  # noqa: ARG002 - no event of the run
        """See `Probe`."""
        return ()


def told(folder: str) -> Path | None:
    """The folder that a trainer names; None when it names none, or one that means nothing in another container."""
    path = Path(folder)
    return path if folder and path.is_absolute() and "\0" not in folder else None
