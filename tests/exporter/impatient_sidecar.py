"""A sidecar for the tests that looks often and waits only a moment; its options are those of `headway exporter`."""

from __future__ import annotations

import sys

from headway_exporter.cli import main
from headway_exporter.health import kubernetes_client, storage
from headway_exporter.health.kubernetes import PodProbe
from headway_exporter.health.nics import NicProbe
from headway_exporter.health.storage import VolumeProbe

NicProbe.every_seconds = 0.1
PodProbe.every_seconds = 0.2
kubernetes_client.WHOLE_SECONDS = 3.0  # type: ignore[misc]
VolumeProbe.every_seconds = 0.1
VolumeProbe.deadline_seconds = 0.5
storage._LOOK_AGAIN_SECONDS = 0.1  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
