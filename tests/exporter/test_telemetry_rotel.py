"""Incidents through somebody else's collector: what we send is OTLP as others understand it, not only as our own receiver does."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from incident_record import record
from otlp_receiver import Receiver, plain, receiver

from headway_exporter.telemetry import Telemetry
from headway_exporter.traces import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

ROTEL = importlib.util.find_spec("rotel")
AGENT = Path(ROTEL.origin or "").with_name("rotel-agent") if ROTEL is not None else None

pytestmark = pytest.mark.skipif(
    AGENT is None or not AGENT.exists(), reason="needs the package rotel: pip install rotel"
)


@contextmanager
def rotel(behind: Receiver, folder: Path) -> Iterator[str]:
    """A running collector that passes everything on to our receiver; its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        grpc, http = one.getsockname()[1], two.getsockname()[1]
    options = {
        "--otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "--otlp-http-endpoint": f"127.0.0.1:{http}",
        "--exporter": "otlp",
        "--otlp-exporter-protocol": "http",
        "--otlp-exporter-endpoint": behind.url,
        "--pid-file": str(folder / "rotel.pid"),
        "--log-file": str(folder / "rotel.log"),
    }
    command = [str(AGENT), "start", *(word for option in options.items() for word in option)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "ROTEL_"))}
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
        try:
            _wait_for(http, process, folder)
            yield f"http://127.0.0.1:{http}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < deadline, "the collector does not listen"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_independent_collector_takes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compression: str) -> None:
    """It decodes what it gets and encodes it anew: what comes out of it is what it understood."""
    wanted = trace(record())
    with receiver() as behind, rotel(behind, tmp_path) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
        sent = Telemetry.from_env("demo", "0", os.environ)
        sent.export(record())
        sent.stop(30)
        assert sent.counts == {("traces", "ok"): 1, ("logs", "ok"): 1}
        behind.until(lambda: behind.spans and behind.logs, "what was passed on")
        spans, [line] = behind.spans, behind.logs
        [resource] = next(one for path, _, one in behind.requests if path == "/v1/traces").resource_spans
    assert {span.trace_id.hex() for span in spans} == {record()["trace_id"]}
    assert [(span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in spans] == [
        (span.name, span.start_ns, span.end_ns) for span in wanted.spans
    ]
    assert [len(span.events) for span in spans] == [len(span.events) for span in wanted.spans]
    assert plain(spans[0].attributes)["headway.cause"] == "app_exception"
    assert plain(resource.resource.attributes)["service.name"] == "headway"
    assert line.body.string_value.startswith("incident 9f86d081884c7d65 of run demo recovered")
    assert (line.trace_id, line.span_id) == (spans[0].trace_id, spans[0].span_id)
