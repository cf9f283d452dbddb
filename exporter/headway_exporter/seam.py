"""After a long absence the first scrape still shows the counters of before it.

Prometheus makes a rate of samples that lie within its window. The time without a pod is booked as soon as the pod is back, and a jump
between two samples that are further apart than the window is in no rate: the longest outages would be missing from every goodput of the
last hours. So each who scrapes is shown the counters once as they were, and the jump lies between its first two scrapes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headway import clock
from headway_exporter.linger import MOST_CLIENTS, YOUNG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.collectors import Sample

ABSENCE_SECONDS: Final = 120.0
"""A shorter one is within the window of any rate."""


class Seam:
    """Whom the counters of before were shown.

    Attributes:
        before: the samples of before.
    """

    def __init__(self, before: Sequence[Sample]) -> None:
        self.before = before
        self._ends = clock.monotonic() + YOUNG_SECONDS
        self._guard = threading.Lock()
        self._shown: set[str] = set()

    def first(self, client: str) -> bool:
        """Whether it has not been here since the sidecar began; from the next time on it has."""
        with self._guard:
            if client in self._shown or len(self._shown) == MOST_CLIENTS or clock.monotonic() > self._ends:
                return False
            self._shown.add(client)
            return True
