"""The instruments of a sidecar, as its options and its environment ask for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headway_exporter.health import kubernetes
from headway_exporter.health.host import HostProbe
from headway_exporter.health.instruments import AnyInstrument, Instrument
from headway_exporter.health.nics import NicProbe
from headway_exporter.health.nvml import NvmlInstrument, NvmlProbe
from headway_exporter.health.storage import VolumeProbe, told

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def fitted(
    options: argparse.Namespace,
    checkpoint_dir: Callable[[], str] = str,
    linked_ports: Callable[[str], Iterable[tuple[str, str]]] = lambda _: (),
    known_gpus: Callable[[], Iterable[tuple[str, ...]]] = tuple,
    environ: Mapping[str, str] = os.environ,
) -> list[AnyInstrument]:
    """Those that the command line asks for; each finds out by itself whether there is anything to read.

    `checkpoint_dir` asks what the trainer says of where its checkpoints lie, empty while it says nothing; `linked_ports` which ports of
    network cards are known to have had a link since the machine's start of that name; `known_gpus` which GPUs a sidecar before this one
    saw here, values of their labels.
    """

    def checkpoints() -> Path | None:
        given: Path | None = options.checkpoint_dir
        return told(checkpoint_dir()) if given is None else given

    candidates: list[AnyInstrument | None] = [
        _kubernetes(options, environ),
        NvmlInstrument(NvmlProbe(known=known_gpus)) if options.gpus else None,
        Instrument(HostProbe()),
        Instrument(NicProbe(options.sysfs_root, linked_ports)),
        Instrument(VolumeProbe("checkpoints", checkpoints)),
        Instrument(VolumeProbe("state", lambda: options.state_dir)),
        Instrument(VolumeProbe("journal", lambda: options.dir)),
    ]
    return [one for one in candidates if one is not None]


def _kubernetes(options: argparse.Namespace, environ: Mapping[str, str]) -> AnyInstrument | None:
    if options.kubernetes == "off":
        return None
    place = kubernetes.Place(
        environ.get("POD_NAME", ""),
        environ.get("POD_NAMESPACE", ""),
        environ.get("CONTAINER_NAME", ""),
        options.service_account,
    )
    return kubernetes.instrument(place, environ)
