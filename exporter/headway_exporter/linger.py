"""The last word: who is told to end serves on until the final numbers were scraped, else nobody ever sees them."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway_exporter.routes import Request, Response, Route
    from headway_exporter.sidecar import Sidecar

YOUNG_SECONDS: Final = 120.0
"""Whoever scrapes at all has come by in this time."""
LAST_WORDS_SECONDS: Final = 10.0
"""How long a launcher may take to end after its last rank. One that was killed never says that it has."""
MOST_CLIENTS: Final = 16
_LOOK_SECONDS: Final = 0.05


def see_out(sidecar: Sidecar, seconds: float, told_again: Callable[[], bool]) -> None:
    """Waits for the trainer to end, at most so long, and not when told to end again.

    Slurm, Docker and systemd tell everybody at the same time. How the trainer then ends is part of its story, and may be gone with its
    journals before the next sidecar comes.
    """
    deadline = clock.monotonic() + seconds
    while sidecar.ranks_live and clock.monotonic() < deadline and not told_again():
        time.sleep(_LOOK_SECONDS)
    deadline = min(deadline, clock.monotonic() + LAST_WORDS_SECONDS)
    while sidecar.launcher_lives and clock.monotonic() < deadline and not told_again():
        time.sleep(_LOOK_SECONDS)


class Scrapes:
    """Notices scrapes of a route, and who scrapes again and again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._began = clock.monotonic()
        self._times: dict[str, tuple[float, float]] = {}
        """When each client was last here, and the time before."""
        self._final = False
        self._seen: set[str] = set()

    def noticed(self, route: Route) -> Route:
        """The route, with its scrapes noticed once the client has all of the answer."""

        def answer(request: Request) -> Response:
            with self._guard:
                self._came(request.client)
                final = self._final
            return replace(route(request), sent=partial(self._has_it, request.client) if final else None)

        return answer

    def linger(self, seconds: float, told_again: Callable[[], bool]) -> None:
        """Waits for a scrape that begins from now on by each who scrapes, at most so long, and not when told to end again.

        Nobody is waited for who never came: in a pod that lived for minutes without a scrape, there is nobody to see the last word. Of two
        Prometheus that scrape the same pods, one that missed it would see a pod that is lost.
        """
        began = clock.monotonic()
        with self._guard:
            self._final = True
            awaited = {one for one, (_, before) in self._times.items() if began - before < YOUNG_SECONDS}
            if not self._times and began - self._began > YOUNG_SECONDS:
                return
        while clock.monotonic() < began + seconds and not self._done(awaited) and not told_again():
            time.sleep(_LOOK_SECONDS)

    def _came(self, client: str) -> None:
        before = self._times.pop(client, (-math.inf, -math.inf))[0]
        self._times[client] = (clock.monotonic(), before)
        if len(self._times) > MOST_CLIENTS:
            del self._times[next(iter(self._times))]

    def _has_it(self, client: str) -> None:
        with self._guard:
            self._seen.add(client)

    def _done(self, awaited: set[str]) -> bool:
        with self._guard:
            return bool(self._seen) and awaited <= self._seen
