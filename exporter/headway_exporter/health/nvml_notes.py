"""What the process that asks the driver notes before each question, in a file in memory that both ends have."""

from __future__ import annotations

import struct
from typing import Final

NOTE: Final = struct.Struct("=id")
"""Number of the GPU that the driver is asked about, and since when: CLOCK_MONOTONIC seconds."""
NOBODY: Final = -1
