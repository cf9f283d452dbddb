"""What the port answers for the page and its API.

However many look on, there is one look at the pod in two seconds, and one rendering of it: they all get the same bytes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from headway import clock
from headway_exporter.page import snapshot
from headway_exporter.page.api import json_text
from headway_exporter.page.html import content_security_policy, html, longer
from headway_exporter.page.others import Others
from headway_exporter.page.taking import MOST_INCIDENTS, Taking
from headway_exporter.routes import Response, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headway_exporter.page.model import Status
    from headway_exporter.page.taking import Taken
    from headway_exporter.report.model import Pod, Run
    from headway_exporter.report.picture import Picture
    from headway_exporter.routes import Request
    from headway_exporter.sidecar import Sidecar

LEAST_SECONDS: Final = 2.0
"""Between two looks at the pod."""
LONGER_SECONDS: Final = 60.0
"""Between two drawings of the whole run: of more than an hour, a minute is hardly to be seen."""
USUAL_INCIDENTS: Final = 20
WINDOWS: Final = ("hour", "run")
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
_SAFE: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass
class _Look:
    """One look at the pod, and what was made of it so far."""

    mono: float
    taken: Taken
    own: Pod
    run: Run
    status: Status
    bodies: dict[str, bytes] = field(default_factory=dict)


class Page:
    """The routes of one sidecar's page."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._taking = Taking(sidecar)
        self._others: Others | None = None
        if sidecar.state_dir is not None:
            where = sidecar.where
            self._others = Others(sidecar.state_dir / where.run, where.run, where.pod_index)
            sidecar.every_second(self._others.turn)
        self._guard = threading.Lock()
        self._newest: _Look | None = None
        self._longer: tuple[float, Picture | None] | None = None

    def page(self, _: Request) -> Response:
        """Route: `/`."""
        return html_response(self._body("page", self._html))

    def status(self, _: Request) -> Response:
        """Route: `/api/v1/status`."""
        return _json(self._body("status", lambda look: json_text(look.status)))

    def incidents(self, request: Request) -> Response:
        """Route: `/api/v1/incidents?limit=20`."""
        asked = _query(request).get("limit", str(USUAL_INCIDENTS))
        if not (asked.isascii() and asked.isdigit() and len(asked) < 10 and 1 <= int(asked) <= MOST_INCIDENTS):
            return text(f"limit must be a number from 1 to {MOST_INCIDENTS}", HTTPStatus.BAD_REQUEST)
        limit = int(asked)
        return _json(
            self._body(f"incidents {limit}", lambda look: json_text(snapshot.incidents(look.taken, look.run, limit)))
        )

    def timeline(self, request: Request) -> Response:
        """Route: `/api/v1/timeline?window=hour`."""
        window = _query(request).get("window", WINDOWS[0])
        if window not in WINDOWS:
            return text(f"window must be one of {', '.join(WINDOWS)}", HTTPStatus.BAD_REQUEST)
        return _json(self._body(f"timeline {window}", lambda look: json_text(snapshot.timeline(look.taken, window))))

    def _body(self, name: str, make: Callable[[_Look], bytes]) -> bytes:
        """What was made of the newest look; who comes while another one makes it waits for that."""
        with self._guard:
            look = self._newest
            if look is None or clock.monotonic() - look.mono >= LEAST_SECONDS:
                look = self._newest = self._look()
            if name not in look.bodies:
                look.bodies[name] = make(look)
            return look.bodies[name]

    def _html(self, look: _Look) -> bytes:
        total = max(snapshot.incidents(look.taken, look.run, 1).total, len(look.run.incidents))
        if self._longer is None or look.mono - self._longer[0] >= LONGER_SECONDS:
            self._longer = look.mono, longer(look.taken, look.run, look.own, total)
        return html(look.status, look.taken, look.run, look.own, total, self._longer[1]).encode()

    def _look(self) -> _Look:
        mono = clock.monotonic()
        if self._others is not None:
            self._others.watched()
        words = {} if self._others is None else self._others.words
        taken = self._taking.take()
        own = snapshot.own_pod(taken)
        run = snapshot.whole_run(taken, own, words)
        return _Look(mono, taken, own, run, snapshot.status(taken, run, own, words))


def html_response(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A page that a browser is to take for nothing else, and that may run nothing but its own script."""
    return Response(status, HTML, body, {**_SAFE, "Content-Security-Policy": content_security_policy()})


def _json(body: bytes) -> Response:
    return Response(HTTPStatus.OK, JSON, body, _SAFE)


def _query(request: Request) -> dict[str, str]:
    """The last one of each name; a query that is none asks for nothing."""
    try:
        return dict(parse_qsl(request.query, max_num_fields=8))
    except ValueError:
        return {}
