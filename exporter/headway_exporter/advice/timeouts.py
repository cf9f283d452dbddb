"""Which time-outs would fit a run, all of them together: each layer must be given its time before the next one acts.

longest silence of a rank that is well  <  soft  <  hard  <  heartbeat time-out of the launcher
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.advice.model import Confidence, many, round_up, seconds

if TYPE_CHECKING:
    from headway_exporter.advice.observed import Observed

MARGIN: Final = 3.0
"""A time-out is this many times the longest silence: the longest one is still to come."""
TIGHT: Final = 1.5
"""Less than this many times the longest silence is too little."""
WIDE: Final = 5.0
"""More than this many times the advised time-out is too much."""
FLOOR: Final = 30.0
"""Never advised below this, in seconds: a busy machine, a slow file system or the start of a checkpoint writer takes so long."""
HARD_RATIO: Final = 1.5
"""The hard time-out is this many times the soft one, so that the gentle way has time to work."""
HEARTBEAT_RATIO: Final = 1.2
"""The launcher's time-out is this many times the hard one."""
STARTING: Final = ("init", "rendezvous", "checkpoint_load")
"""Phases before the first step."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds; soft and hard are None where in-process restart is not in use."""

    soft: float | None
    hard: float | None
    heartbeat: float
    initial: float
    soft_wide: bool = False
    """The soft time-out in force is much longer than needed, and enough was seen to say so."""


def fitting(seen: Observed) -> Timeouts | None:
    """The time-outs to advise; those of in-process restart stay as they are where they fit. None when no silence was measured."""
    if not seen.silences:
        return None
    longest = max(seen.silences.values())
    base = max(FLOOR, round_up(MARGIN * longest))
    starting = max((silence for phase, silence in seen.silences.items() if phase in STARTING), default=0.0)
    soft, hard = (seen.settings.get(f"{kind}_timeout_seconds") for kind in ("soft", "hard"))
    wide = soft is not None and soft > WIDE * base and how_sure(seen)[0] != "low"
    if soft is not None and (wide or soft < TIGHT * longest or soft < FLOOR / 2):
        soft, hard = base, round_up(HARD_RATIO * base)
    elif soft is not None and (hard is None or hard <= soft):
        hard = round_up(HARD_RATIO * soft)
    heartbeat = max(base, round_up(HEARTBEAT_RATIO * (hard or 0.0)))
    return Timeouts(soft, hard, heartbeat, max(heartbeat, round_up(MARGIN * starting)), wide)


def how_sure(seen: Observed) -> tuple[Confidence, str]:
    """Long silences are rare: they need time, starts and saves to show up."""
    facts = f"{seconds(seen.watched)} watched, {many(seen.starts, 'start')}, {many(seen.saves.ended, 'save')}"
    if seen.watched >= 6 * 3_600 and seen.starts >= 3 and seen.saves.ended >= 10:
        return "high", facts
    if seen.watched >= 3_600 and (seen.starts >= 2 or seen.saves.ended >= 5):
        return "medium", facts
    return "low", f"only {facts}"
