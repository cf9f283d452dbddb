"""How an answer to OTLP over HTTP is taken: what the SDK wrongly takes for success is a failure, and none is too large or too slow.

The SDK counts every status below 400 as accepted and follows no redirection, so a gateway that sends the sidecar to its login page would
swallow all incidents in silence; and it reads an answer to its end, however long that is.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidURL

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES: Final = 8 << 10
"""Of an answer: a collector's are of a few bytes, or tell what it refused."""
MOST_SECONDS: Final = 10.0
"""For the body of an answer."""
_PROVIDER: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"


def session(signal: str, environ: Mapping[str, str] = os.environ) -> Session | None:
    """What the exporter of the signal (`TRACES`, `LOGS`) is to send with; None: the environment names a provider of its own."""
    if environ.get(_PROVIDER.format("")) or environ.get(_PROVIDER.format(f"{signal}_")):
        return None
    made = Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Careful())
    return made


class _Careful(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """As of the base class.

        Raises:
            InvalidURL: whoever answers there is no collector.
        """
        response = super().send(request, *args, **options | {"stream": True})
        body = _beginning(response)
        response.close()
        response.raw = BytesIO(body)
        problem = _problem(response)
        if problem is not None:
            raise InvalidURL(problem)  # one that is not tried again
        return response


def _beginning(response: Response) -> bytes:
    """The body, as far as it comes in time and is of a sensible size.

    Byte by byte, since one read of more waits for all of them; what is asked for comes out of a buffer.
    """
    body, deadline = bytearray(), clock.monotonic() + MOST_SECONDS
    while len(body) < MOST_BYTES and clock.monotonic() < deadline:
        byte = response.raw.read(1)
        if not byte:
            break
        body += byte
    return bytes(body)


def _problem(response: Response) -> str | None:
    """Why an answer that looks like success is none."""
    if 300 <= response.status_code < 400:
        return f"it answers {response.status_code} and sends us elsewhere, which is not followed; set the endpoint to the collector itself"
    if response.ok and response.headers.get("Content-Type", "").strip().lower().startswith("text/html"):
        return "it answers with a page for people; set the endpoint to a collector"
    return None
