"""`python -m headway_exporter`: the sidecar."""

import sys

from headway_exporter.entry import main

sys.exit(main())
