"""The last word: who is told to end serves on until the final numbers were scraped, else nobody ever sees them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
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
    """Notices scrapes of a route."""

    def __init__(self) -> None:
        self._began = clock.monotonic()
        self._any = False
        self._final = threading.Event()
        self._seen = threading.Event()

    def noticed(self, route: Route) -> Route:
        """The route, with its scrapes noticed once the client has all of the answer."""

        def answer(request: Request) -> Response:
            self._any = True
            sent = self._seen.set if self._final.is_set() else None
            return replace(route(request), sent=sent)

        return answer

    def linger(self, seconds: float, told_again: Callable[[], bool]) -> None:
        """Waits for a scrape that begins from now on, at most so long, and not when told to end again.

        Nobody is waited for who never came: in a pod that lived for minutes without a scrape, there is nobody to see the last word.
        """
        self._final.set()
        if not self._any and clock.monotonic() - self._began > YOUNG_SECONDS:
            return
        deadline = clock.monotonic() + seconds
        while clock.monotonic() < deadline and not self._seen.is_set() and not told_again():
            time.sleep(_LOOK_SECONDS)
