"""The door is open from the first moment: what is answered while the sidecar's memory is still being read.

A state folder on a network may take half a minute before it is given up. Who scrapes meanwhile gets an answer, so that nobody takes the
sidecar for dead, but no counter: where it stands is what is being read, and one that began at 0 would step. The journals are not looked
at yet, and the process is well all the same: `/healthz` says so, because starting it again would help nobody and a trainer may wait
for it.
"""

from __future__ import annotations

import platform
import signal
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from headway import clock
from headway._version import __version__
from headway_exporter.labels import REFUSALS
from headway_exporter.routes import health, json_document, text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.page.routes import Page
    from headway_exporter.routes import Request, Response, Route
    from headway_exporter.sidecar import Sidecar

TOLD_SECONDS: Final = 2.0
"""Longest wait for a folder by somebody who is to end."""
_LOOK_SECONDS: Final = 0.02
_READING: Final = "the state folder is being read: ask again in a few seconds"

Part = Literal["page", "status", "incidents", "timeline"]
"""Of the status page: a method of `headway_exporter.page.routes.Page`."""


class Opening:
    """What routes answer: of the sidecar once it is there, before that what is known without it.

    Attributes:
        refused: requests that the server refused, by reason.
    """

    def __init__(self, run: str, pod_index: str) -> None:
        self.common = (run, pod_index)
        self.sidecar: Sidecar | None = None
        self.refused: Mapping[str, int] = {}
        self._began = clock.monotonic()
        self._guard = threading.Lock()
        self._page: Page | None = None

    def shown(self, client: str = "") -> list[Sample]:
        """The samples of a scrape."""
        if self.sidecar is not None:
            return [*self.sidecar.collector.shown(client), *self._refusals()]
        return [
            ("headway_build_info", (__version__, platform.python_version()), 1),
            ("headway_collector_duration_seconds", ("state",), clock.monotonic() - self._began),
            ("headway_collector_success", ("state",), 0.0),
        ]

    def _refusals(self) -> Iterator[Sample]:
        for reason in REFUSALS:
            if self.refused.get(reason):
                yield "headway_requests_refused_total", (reason,), self.refused[reason]

    def health(self, request: Request) -> Response:
        """Route: `/healthz`."""
        sidecar = self.sidecar
        if sidecar is None:
            return text("ok: the state folder is being read; there are no counters before it has answered")
        return health(lambda: sidecar.healthy)(request)

    def status(self, request: Request) -> Response:
        """Route: `/status.json`."""
        if self.sidecar is None:
            return text(_READING, HTTPStatus.SERVICE_UNAVAILABLE)
        return json_document(self.sidecar.status)(request)

    def page(self, part: Part) -> Route:
        """Route: a part of the status page. What it takes is imported when somebody first asks: most pods are never looked at."""

        def answer(request: Request) -> Response:
            sidecar = self.sidecar
            if sidecar is None:
                return self._not_yet(part)
            with self._guard:
                if self._page is None:
                    from headway_exporter.page.routes import Page

                    self._page = Page(sidecar)
            route: Route = getattr(self._page, part)
            return route(request)

        return answer

    def _not_yet(self, part: Part) -> Response:
        if part != "page":
            return text(_READING, HTTPStatus.SERVICE_UNAVAILABLE)
        from headway_exporter.page import html
        from headway_exporter.page.routes import html_response

        return html_response(html.opening(self.common[0]).encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    def let_in(self, make: Callable[[], Sidecar], signals: Collection[signal.Signals]) -> signal.Signals | None:
        """Makes the sidecar, in a thread of its own since that may take long.

        Returns which of the `signals`, all blocked, came meanwhile: then there may be no sidecar after all.
        """
        failures: list[Exception] = []

        def work() -> None:
            try:
                self.sidecar = make()
            except Exception as error:  # noqa: BLE001 - raised again by who waits
                failures.append(error)

        thread = threading.Thread(target=work, name="headway-opening", daemon=True)
        thread.start()
        told, patience = None, TOLD_SECONDS
        while thread.is_alive() and patience > 0:
            thread.join(_LOOK_SECONDS)
            if told is None:
                told = signal.sigtimedwait(signals, 0)
            else:
                patience -= _LOOK_SECONDS
        if failures:
            raise failures[0]
        return None if told is None else signal.Signals(told.si_signo)
