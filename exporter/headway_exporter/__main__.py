"""`python -m headway_exporter`: the sidecar."""

import sys

from headway_exporter.cli import main

sys.exit(main())
