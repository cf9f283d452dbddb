"""The only place that reads clocks.

Durations, and all that is compared inside one machine, come from CLOCK_MONOTONIC, which all of its processes share;
wall time is for people and for comparing pods. These are the bare built-in functions: a wrapper would double their
cost in the step recorder.
"""

from __future__ import annotations

import time

monotonic_ns = time.monotonic_ns
"""CLOCK_MONOTONIC in nanoseconds."""

monotonic = time.monotonic
"""CLOCK_MONOTONIC in seconds."""

wall = time.time
"""Seconds since 1970, UTC."""

processor = time.thread_time
"""Processor time that this thread has used, seconds."""

processors = time.process_time
"""Processor time that all threads of this process have used, seconds."""
