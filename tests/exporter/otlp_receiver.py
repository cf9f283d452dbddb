"""An OTLP receiver for the tests: a real HTTP server that keeps what it is sent, decoded, and answers as it is told."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

KINDS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/logs": ExportLogsServiceRequest}


class Receiver(ThreadingHTTPServer):
    """Listens on a free port of the loopback; `status`, `content_type`, `body`, `location` and `hold` say how it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.content_type, self.body = "application/x-protobuf", b""
        self.location = ""
        self.hold = threading.Event()
        """Answers wait for it."""
        self.hold.set()
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        """Path, headers in lower case, message."""
        self.arrived = threading.Condition()

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Span]:
        """All spans, in their order."""
        found = [
            resource
            for path, _, message in list(self.requests)
            if path == "/v1/traces"
            for resource in message.resource_spans
        ]
        return [span for resource in found for scope in resource.scope_spans for span in scope.spans]

    @property
    def logs(self) -> list[LogRecord]:
        """All log records, in their order."""
        found = [
            resource
            for path, _, message in list(self.requests)
            if path == "/v1/logs"
            for resource in message.resource_logs
        ]
        return [log for resource in found for scope in resource.scope_logs for log in scope.log_records]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that went away is no news."""

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits until the condition holds."""
        deadline = time.monotonic() + 30
        with self.arrived:
            assert self.arrived.wait_for(condition, deadline - time.monotonic()), (
                f"{what}: not within 30 s: {self.requests}"
            )


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.arrived:
            self.server.requests.append((self.path, headers, KINDS[self.path].FromString(body)))
            self.server.arrived.notify_all()
        self.server.hold.wait(60)
        with contextlib.suppress(OSError):  # the sender may have given up
            self.send_response(self.server.status)
            self.send_header("Content-Type", self.server.content_type)
            self.send_header("Content-Length", str(len(self.server.body)))
            if self.server.location:
                self.send_header("Location", self.server.location)
            self.end_headers()
            self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A running one."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join()


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {one.key: _plain(one.value) for one in attributes}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))
