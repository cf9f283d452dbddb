"""A real sidecar that tells an OpenTelemetry endpoint of what it saw."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest
from hostile_files import peak_megabytes
from journal_folder import RUN, finish, launcher, meet, trainer, wait_ready
from otlp_receiver import plain, receiver
from sidecar_process import OPENMETRICS, Sidecar, sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from otlp_receiver import Receiver


def exports(exporter: Sidecar, signal: str, outcome: str) -> float | None:
    """The counter."""
    return exporter.value("headway_telemetry_exports_total", signal=signal, outcome=outcome)


def killed_and_recovered(folder: Path, exporter: Sidecar) -> None:
    """Two ranks, one is killed, the launcher restarts both, and the run is completed."""
    (folder / RUN).mkdir()
    say = launcher(folder)
    say("launcher_started", pid=1)
    acts = ("meet", "enter=a", "load=0", "steps=1-6", "commit=4", "ready", "wait")
    first = [trainer(folder, slot, *acts) for slot in (0, 1)]
    meet(*first)
    for process in first:
        wait_ready(process)
    exporter.until(lambda status: [rank["step"] for rank in status["ranks"]] == [6, 6], "the first steps")
    first[1].kill()
    exporter.until(lambda status: status["state"] == "restart", "the death")
    first[0].kill()
    finish(*first)
    exporter.until(lambda status: not any(rank["alive"] for rank in status["ranks"]), "the other death")
    say("worker_exited", local_rank=1, pid=first[1].pid, exit_code=-9)
    say("worker_group_failed", restarts_left=3, restarts_limit=3)
    second = [trainer(folder, slot, "meet", "enter=b", "load=4", "steps=5-8", "finish=8", cycle=1) for slot in (0, 1)]
    meet(*second)
    finish(*second)
    exporter.until(lambda status: status["finished"], "the end")


def told(behind: Receiver) -> None:
    """The trace of such a run."""
    root = behind.spans[0]
    names = {span.span_id: span.name for span in behind.spans}
    assert (root.name, root.parent_span_id) == ("incident: process_killed", b"")
    assert {span.trace_id for span in behind.spans} == {root.trace_id}
    assert all(span.parent_span_id in names for span in behind.spans[1:])
    attributes = plain(root.attributes)
    assert (attributes["headway.run"], attributes["headway.origin.rank"]) == (RUN, 1)
    assert (attributes["headway.layer"], attributes["headway.incident.outcome"]) == ("launcher", "recovered")
    assert {"recovery", "try", "respawn", "load", "catch_up"} <= set(names.values())
    [one] = [span for span in behind.spans if span.name == "try"]
    assert any(plain(event.attributes).get("process.exit.code") == -9 for event in one.events)
    assert root.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano <= time.time_ns()
    assert len(names) == len(behind.spans)


def test_a_kill_arrives_as_a_trace(tmp_path: Path) -> None:
    """From SIGKILL to the collector: the trace that the scrape's exemplar and the log record name."""
    with receiver() as behind, sidecar(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=behind.url) as exporter:
        killed_and_recovered(tmp_path, exporter)
        behind.until(lambda: behind.spans and behind.logs, "the trace and the log record")
        told(behind)
        assert behind.logs[0].trace_id == behind.spans[0].trace_id
        assert "process_killed" in behind.logs[0].body.string_value
        family = exporter.families(OPENMETRICS)["headway_recovery_seconds"]
        found = {sample.exemplar.labels["trace_id"] for sample in family.samples if sample.exemplar is not None}
        assert found == {behind.spans[0].trace_id.hex()}
        deadline = time.monotonic() + 20
        while exports(exporter, "logs", "ok") != len(behind.logs) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert exports(exporter, "traces", "ok") == 1
        assert exports(exporter, "traces", "failed") == exports(exporter, "logs", "failed") == 0
        assert exporter.stop() == (0, "")


def test_the_last_incident_is_sent_at_the_end(tmp_path: Path) -> None:
    """A job's end closes its last incident, and the sidecar is told to end before its next look."""
    acts = ("enter=a", "load=0", "steps=1-6", "fault", "enter=b", "load=3", "steps=4-9", "commit=9", "meet")
    last = ("fault", "enter=c", "load=9", "steps=10-12", "finish=12")
    with receiver() as behind, sidecar(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=behind.url) as exporter:
        process = trainer(tmp_path, 0, *acts, *last, ranks=1)
        behind.until(lambda: behind.logs, "the first incident")  # so the next look is a while away
        meet(process)
        finish(process)
        assert exporter.stop() == (0, "")
        roots = [span for span in behind.spans if not span.parent_span_id]
    assert [root.name for root in roots] == ["incident: app_exception"] * 2
    assert len({root.trace_id for root in roots}) == 2
    assert {line.trace_id for line in behind.logs} == {root.trace_id for root in roots}


def test_what_became_of_the_last_incident_is_remembered(tmp_path: Path) -> None:
    """It is sent after the last word was written, and must be in the counters that the next sidecar begins with all the same."""
    acts = ("enter=a", "load=0", "steps=1-6", "fault", "enter=b", "load=3", "steps=4-9", "finish=9")
    state = ("--state-dir", str(tmp_path / "state"))
    pod = tmp_path / "pod"
    with receiver() as behind:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": behind.url}
        with sidecar(pod, *state, **environ) as exporter:
            finish(trainer(pod, 0, *acts, ranks=1))
            assert exporter.stop() == (0, "")
        sent = sum(not span.parent_span_id for span in behind.spans), len(behind.logs)
        with sidecar(pod, *state, **environ) as exporter:
            assert (exports(exporter, "traces", "ok"), exports(exporter, "logs", "ok")) == sent
    assert sent[0] == 1
    assert sent[1] >= 1


@pytest.mark.parametrize("fault", ["dead", "hung"])
def test_an_endpoint_that_is_gone_costs_nothing_else(tmp_path: Path, fault: str) -> None:
    """Scrapes, verdicts and an orderly end are the same; the counter and one line tell what is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if fault == "dead":
            server.close()
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        with sidecar(tmp_path, **environ) as exporter:
            killed_and_recovered(tmp_path, exporter)
            deadline = time.monotonic() + 20
            while exports(exporter, "logs", "failed") == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert exports(exporter, "traces", "failed") == 1
            assert exports(exporter, "traces", "ok") == exports(exporter, "logs", "ok") == 0
            assert exporter.status()["incidents"][0]["state"] == "recovered"
            code, errors = exporter.stop(signal.SIGTERM)
    assert code == 0
    assert len(errors.splitlines()) == 2, errors
    assert "an incident could not be sent as traces" in errors


@pytest.mark.parametrize(
    ("status", "content_type", "words"),
    [
        (302, "text/plain", "it answers 302 and sends us elsewhere"),
        (200, "text/html; charset=utf-8", "a page for people"),
    ],
    ids=["a redirection", "a login page"],
)
def test_a_gateway_that_swallows_incidents_is_told_of(
    tmp_path: Path, status: int, content_type: str, words: str
) -> None:
    """Whoever is no collector has accepted nothing, though HTTP calls it a success."""
    with receiver() as behind:
        behind.status, behind.content_type, behind.body = status, content_type, b"<html>log in, please</html>"
        behind.location = f"{behind.url}/login" if status == 302 else ""
        with sidecar(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=behind.url) as exporter:
            killed_and_recovered(tmp_path, exporter)
            deadline = time.monotonic() + 20
            while exports(exporter, "logs", "failed") == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            told = [exports(exporter, kind, outcome) for kind in ("traces", "logs") for outcome in ("ok", "failed")]
            assert told == [0, 1, 0, 1]
            _, errors = exporter.stop()
    assert errors.count(words) == 2, errors


def test_an_answer_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """The sidecar has 64 MB for everything; what an endpoint writes back must not be kept, however much it is."""
    with receiver() as behind:
        behind.body = bytes(100 << 20)
        with sidecar(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=behind.url) as exporter:
            killed_and_recovered(tmp_path, exporter)
            deadline = time.monotonic() + 20
            while exports(exporter, "logs", "ok") == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert exports(exporter, "logs", "ok") == 1
            assert peak_megabytes(exporter.process.pid) < 100


def test_nothing_is_sent_unless_it_is_asked_for(tmp_path: Path) -> None:
    """The counter is there, at 0, before anybody sets up anything."""
    with sidecar(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="", OTEL_TRACES_EXPORTER="") as exporter:
        for kind in ("traces", "logs"):
            assert [exports(exporter, kind, outcome) for outcome in ("ok", "failed", "dropped")] == [0, 0, 0]
