"""The instruments of a sidecar, as its options and its environment ask for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headway_exporter.health import kubernetes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from headway_exporter.health.instruments import AnyInstrument


def fitted(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> list[AnyInstrument]:
    """All that is to be read here; one whose thing is missing says so itself."""
    candidates: list[AnyInstrument | None] = [
        _kubernetes(options, environ),
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
