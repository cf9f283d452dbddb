"""Which instruments a sidecar has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_exporter.health.nvml import NvmlInstrument

if TYPE_CHECKING:
    import argparse

    from headway_exporter.health.instruments import AnyInstrument


def fitted(options: argparse.Namespace) -> list[AnyInstrument]:
    """Those that the command line asks for; each finds out by itself whether there is anything to read."""
    instruments: list[AnyInstrument] = []
    if options.gpus:
        instruments.append(NvmlInstrument())
    return instruments
