"""Puts the times of another clock on the fold's own.

CLOCK_MONOTONIC begins anew when the machine is started, and is another one on another machine. The fold's time goes on, so whatever
enters it is moved by a constant. All that a pod ever saw lies on one line of time this way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway_exporter.observations import NANOSECONDS, EventSeen, Run, StepSeen, StepsSeen

if TYPE_CHECKING:
    from headway.ring import StepColumns
    from headway_exporter.observations import Observation


def moved(seen: Observation, nanoseconds: int) -> Observation:
    """The same, so much later."""
    seconds = nanoseconds / NANOSECONDS
    if isinstance(seen, EventSeen):
        return EventSeen(seen.slot, replace(seen.event, mono=seen.event.mono + seconds))
    if isinstance(seen, StepSeen):
        return replace(seen, record=seen.record._replace(start_ns=seen.record.start_ns + nanoseconds))
    if isinstance(seen, StepsSeen):
        return StepsSeen(tuple(Run(run.slot, run.life, _columns(run.columns, nanoseconds)) for run in seen.runs))
    return replace(seen, mono=seen.mono + seconds)


def _columns(columns: StepColumns, nanoseconds: int) -> StepColumns:
    return replace(
        columns,
        starts=[start + nanoseconds for start in columns.starts],
        ends=[end + nanoseconds for end in columns.ends],
    )
