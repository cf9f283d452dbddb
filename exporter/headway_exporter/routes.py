"""What the sidecar's port answers, path by path: a route is a function from a request to a response, and knows nothing of sockets.

A route only reads. It is found by the request's exact path, and runs in the connection's own thread, so that it may be called several times
at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from headway_exporter.rendering import Rendering
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from headway_exporter.rendering import Source
    from headway_exporter.schema import Metric

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """What a client asks for; all of it is untrusted.

    Attributes:
        path: the target up to the question mark, as it was sent: nothing is decoded.
        query: what follows it.
        headers: names in lower case.
        head: whether only the head of the answer is wanted; the server sees to that.
        client: the address that asks.
    """

    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    head: bool = False
    client: str = ""


@dataclass(frozen=True)
class Response:
    """What is answered; length and connection are told by the server.

    Attributes:
        status: the code.
        content_type: with its character set.
        body: all of it.
        headers: further ones, and ones in place of the server's own (`Cache-Control`, `X-Content-Type-Options`).
        sent: called once the client has the body.
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: Callable[[], None] | None = None


Route = Callable[[Request], Response]
Routes = Mapping[str, Route]
"""By exact path."""


def text(words: str, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """A line for people; `headers` with underscores for hyphens."""
    return Response(
        status, TEXT, f"{words}\n".encode(), {name.replace("_", "-"): value for name, value in headers.items()}
    )


def metrics(source: Source, catalogue: Mapping[str, Metric] = METRICS) -> Route:
    """Route: the exposition, in the format that the client asks for."""
    rendering = Rendering(source, catalogue)

    def answer(request: Request) -> Response:
        body, content_type = rendering.exposition(request.headers.get("accept", ""), request.client)
        return Response(HTTPStatus.OK, content_type, body)

    return answer


def health(alive: Callable[[], bool]) -> Route:
    """Route: 200 while the journals are being followed, else 503."""

    def answer(_: Request) -> Response:
        if alive():
            return text("ok")
        return text("the journals have not been read for a while", HTTPStatus.SERVICE_UNAVAILABLE)

    return answer


def json_document(make: Callable[[], Mapping[str, Any]]) -> Route:
    """Route: a JSON object."""
    return lambda _: Response(HTTPStatus.OK, "application/json", json.dumps(make(), allow_nan=False).encode())
