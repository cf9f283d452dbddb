"""Who is told: a webhook receiver that notes what Alertmanager sends to it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 1_000_000
"""Of one message; Alertmanager sends a few thousand."""


@dataclass(frozen=True)
class Notification:
    """One alert in one message.

    Attributes:
        wall: when the message came, seconds since 1970.
        receiver: Alertmanager's name of who is told: page, ticket or channel.
        status: firing or resolved.
        alert: its name.
        run: the run that it is about.
        started: when the alert began to fire, as Prometheus says.
        summary: what a person reads.
    """

    wall: float
    receiver: str
    status: str
    alert: str
    run: str
    started: str
    summary: str


class Webhook(ThreadingHTTPServer):
    """The receiver, on a free port of the loopback interface; messages go to the file `log` too, an alert a line."""

    daemon_threads = True

    def __init__(self, log: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._log = log
        self._lock = threading.Lock()
        self._notes: list[Notification] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def notes(self) -> list[Notification]:
        """Everything that came so far, in order, but for what had been told before."""
        with self._lock:
            return news(self._notes)

    def take(self, message: dict[str, Any]) -> None:
        """Notes a message."""
        notes = read(message, time.time())
        with self._lock, self._log.open("a", encoding="utf-8") as log:
            self._notes += notes
            log.writelines(json.dumps(asdict(note)) + "\n" for note in notes)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    """Takes messages; anything else is a bad request."""

    server: Webhook

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self.send_error(413)
            return
        try:
            self.server.take(json.loads(self.rfile.read(int(length))))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base class names it
        """The terminal belongs to the demo."""


def read(message: dict[str, Any], wall: float) -> list[Notification]:
    """The alerts in a message of Alertmanager's webhook."""
    return [
        Notification(
            wall,
            message["receiver"],
            one["status"],
            one["labels"].get("alertname", ""),
            one["labels"].get("run", ""),
            one["startsAt"],
            one["annotations"].get("summary", ""),
        )
        for one in message["alerts"]
    ]


def news(notes: list[Notification]) -> list[Notification]:
    """Those that say something new: a message repeats all alerts of its run, also those that nothing has changed in."""
    last: dict[tuple[str, str, str], tuple[str, str]] = {}
    found = []
    for note in notes:
        key, state = (note.receiver, note.alert, note.run), (note.status, note.started)
        if last.get(key) != state:
            found.append(note)
        last[key] = state
    return found


@contextlib.contextmanager
def webhook(log: Path) -> Iterator[Webhook]:
    """Listens until the end of the block."""
    with Webhook(log) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="webhook", daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
