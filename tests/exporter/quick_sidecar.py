"""A sidecar for the tests that waits seconds where a real one waits half a minute; its options are those of `headway exporter`."""

from __future__ import annotations

import sys

from headway_exporter.cli import main
from headway_exporter.thresholds import Thresholds

QUICK = Thresholds(
    verdict_after_seconds=4.0, verdict_timeout_seconds=60.0, pod_silent_seconds=12.0, pod_live_seconds=2.5
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], QUICK))
