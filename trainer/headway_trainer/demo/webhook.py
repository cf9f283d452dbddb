"""Who is told: a webhook receiver that notes what Alertmanager sends to it.

Also a program of its own, which prints a line for each alert: `python -m headway_trainer.demo.webhook --listen 127.0.0.1:9000`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from headway.command_line import Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MOST_BYTES: Final = 1_000_000
"""Of one message; Alertmanager sends a few thousand."""
MOST_NOTES: Final = 10_000
"""Remembered."""


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
    """The receiver. What is new goes to `tell` too; a message repeats all alerts of its run, also those that nothing has changed in."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], tell: Callable[[Notification], None]) -> None:
        super().__init__(address, _Handler)
        self._tell = tell
        self._lock = threading.Lock()
        self._notes: deque[Notification] = deque(maxlen=MOST_NOTES)
        self._last: dict[tuple[str, str, str], tuple[str, str]] = {}

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def notes(self) -> list[Notification]:
        """What came that was new, in order."""
        with self._lock:
            return list(self._notes)

    def take(self, message: dict[str, Any]) -> None:
        """Notes a message."""
        notes = read(message, time.time())
        with self._lock:
            for note in notes:
                key, state = (note.receiver, note.alert, note.run), (note.status, note.started)
                if self._last.get(key) != state:
                    self._last[key] = state
                    self._notes.append(note)
                    self._tell(note)

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


@contextlib.contextmanager
def webhook(path: Path) -> Iterator[Webhook]:
    """Listens on a free port of the loopback interface until the end of the block; what is new goes to a file too, a line each."""
    with (
        path.open("w", encoding="utf-8", buffering=1) as file,
        Webhook(("127.0.0.1", 0), lambda note: print(json.dumps(asdict(note)), file=file)) as server,
    ):
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="webhook", daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def line(note: Notification) -> str:
    """For people."""
    return f"{datetime.fromtimestamp(note.wall):%H:%M:%S} {note.receiver}: {note.status}: {note.alert} of {note.run}: {note.summary}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what comes until it is told to end; 2 for an address that cannot be used."""
    parser = Parser(
        "python -m headway_trainer.demo.webhook", description="Prints what Alertmanager sends, a line an alert."
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:9000", metavar="ADDRESS", help="host:port (default: %(default)s)"
    )
    listen = parser.parse_args(argv).listen
    host, _, port = listen.rpartition(":")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            Webhook((host, int(port)), lambda note: print(line(note), flush=True)) as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            server.serve_forever()
    except (ValueError, OverflowError, OSError) as error:
        parser.error(f"--listen: cannot listen on {listen!r}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
