"""What the orchestrator told of the pod: counted for good, each thing once, and joined to the failures that it explains.

It tells from outside, late (it is asked every few seconds), and to the second. So it opens no failure; but one that the journals tell of,
before or after, is judged with what the orchestrator knows of the same moment.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from headway_exporter.scene import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.observations import PodStatusSeen
    from headway_exporter.recoveries import Recovery, Try
    from headway_exporter.thresholds import Thresholds

MOST_KNOWN: Final = 256
"""Happenings that are known again when they are told again."""
MOST_KEPT: Final = 64
"""Happenings kept for failures that are noticed after them."""
CLOCKS_SECONDS: Final = 5.0
"""How far two clocks, and two who write down the same end, may lie apart."""
_TEXT_LIMIT: Final = 160


class Orchestrator:
    """The fold of `PodStatusSeen`."""

    def __init__(self) -> None:
        self.heard = False
        """It has answered."""
        self.container_ends: Counter[str] = Counter()
        self.disruptions: Counter[str] = Counter()
        self._known: deque[str] = deque(maxlen=MOST_KNOWN)

    def fold(self, seen: PodStatusSeen) -> bool:
        """Whether that is something that happened, and new."""
        self.heard = True
        if seen.kind == "heard" or seen.happening in self._known:
            return False
        self._known.append(seen.happening)
        (self.container_ends if seen.kind == "container" else self.disruptions)[seen.reason] += 1
        return True


def evidence(seen: PodStatusSeen, at: float) -> Evidence | None:
    """What it tells of a failure, if anything; `at`: when it happened, in the fold's time."""
    if seen.kind == "heard" or seen.reason == "completed" or not seen.trains:
        return None
    text = seen.text[:_TEXT_LIMIT]
    return Evidence(seen.kind, at, seen.wall, text, category=seen.cause, exit_code=seen.exit_code, sure=seen.sure)


def belongs(told: Evidence, one: Try, limits: Thresholds) -> bool:
    """Whether that may be the reason of this try: it came before anybody restarted, and not long before the failure.

    A pod that is taken away has time to end in order, a container that ended takes its processes with it at once. A rank whose group was
    torn down keeps its trace before anybody there says why.
    """
    first = min((item.at for item in one.seen_here), default=math.inf)
    before = CLOCKS_SECONDS if told.kind == "container" else limits.stop_seconds
    until = math.inf if one.restarted is None else one.restarted + 1.0
    return first - before <= told.at <= until


def explained(told: Evidence, recoveries: Iterable[Recovery], limits: Thresholds) -> tuple[Recovery, Try] | None:
    """The newest try that it may be the reason of; `recoveries` newest first."""
    tries = ((recovery, one) for recovery in recoveries for one in reversed(recovery.tries))
    return next((pair for pair in tries if belongs(told, pair[1], limits)), None)
