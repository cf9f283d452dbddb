"""The instruments of a sidecar, as its options have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_exporter.health.host import HostProbe
from headway_exporter.health.instruments import AnyInstrument, Instrument
from headway_exporter.health.nics import NicProbe
from headway_exporter.health.nvml import NvmlInstrument
from headway_exporter.health.storage import VolumeProbe, told

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path


def fitted(options: argparse.Namespace, checkpoint_dir: Callable[[], str] = str) -> list[AnyInstrument]:
    """Those that the command line asks for; each finds out by itself whether there is anything to read.

    `checkpoint_dir` asks what the trainer says of where its checkpoints lie, empty while it says nothing.
    """

    def checkpoints() -> Path | None:
        given: Path | None = options.checkpoint_dir
        return told(checkpoint_dir()) if given is None else given

    gpus: list[AnyInstrument] = [NvmlInstrument()] if options.gpus else []
    return [
        *gpus,
        Instrument(HostProbe()),
        Instrument(NicProbe(options.sysfs_root)),
        Instrument(VolumeProbe("checkpoints", checkpoints)),
        Instrument(VolumeProbe("state", lambda: options.state_dir)),
        Instrument(VolumeProbe("journal", lambda: options.dir)),
    ]
