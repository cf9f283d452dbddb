"""A sidecar for the tests that looks at its volumes often and waits for them only a moment; its options are those of `headway exporter`."""

from __future__ import annotations

import sys

from headway_exporter.cli import main
from headway_exporter.health.storage import VolumeProbe

VolumeProbe.every_seconds = 0.1
VolumeProbe.deadline_seconds = 0.5

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
