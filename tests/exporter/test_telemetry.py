"""Incidents on their way to an OpenTelemetry endpoint that is well, slow, broken or gone."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from incident_record import T, one_try, record, recovery, sign
from otlp_receiver import Receiver, plain, receiver
from test_shared_verdicts import settle, three

from headway_exporter import records
from headway_exporter.telemetry import MOST_REMEMBERED, Plan, Telemetry, resource
from headway_exporter.traces import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from test_shared_verdicts import Telling

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def collector() -> Iterator[Receiver]:
    """A running receiver."""
    with receiver() as running:
        yield running


def telemetry(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Telemetry:
    """As the environment wants it; the SDK itself reads the process's own, so the variables must be there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    environ = {key: value for key, value in more.items() if key.isupper()}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    rest = {key: value for key, value in more.items() if not key.isupper()}
    return Telemetry(Plan.from_env(environ), resource("demo", "0", environ), **rest)


def test_a_trace_arrives_as_it_was(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """Ids, parents, times to the nanosecond, attributes, events and status, all in one request."""
    wanted = trace(record(recurring=["no_progress"]))
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(recurring=["no_progress"]))
    sent.stop(30)
    assert [path for path, _, _ in collector.requests] == ["/v1/traces", "/v1/logs"]
    assert len(collector.spans) == len(wanted.spans)
    for span, expected in zip(collector.spans, wanted.spans, strict=True):
        parent = b"" if expected.parent_id is None else expected.parent_id.to_bytes(8, "big")
        assert (span.trace_id.hex(), span.span_id) == (record()["trace_id"], expected.span_id.to_bytes(8, "big"))
        assert (span.name, span.parent_span_id) == (expected.name, parent)
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (expected.start_ns, expected.end_ns)
        assert (span.status.code == span.status.STATUS_CODE_ERROR, span.status.message) == (
            expected.error is not None,
            expected.error or "",
        )
        assert plain(span.attributes) == {
            name: list(value) if isinstance(value, tuple) else value for name, value in expected.attributes.items()
        }
        assert [(one.name, one.time_unix_nano, plain(one.attributes)) for one in span.events] == [
            (one.name, one.time_ns, dict(one.attributes)) for one in expected.events
        ]
    assert sent.counts == {("traces", "ok"): 1, ("logs", "ok"): 1}


def test_the_log_record_belongs_to_the_root_span(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """From the line in a log search one gets to the trace."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(outcome="abandoned"))
    sent.stop(30)
    [line], root = collector.logs, collector.spans[0]
    assert (line.trace_id, line.span_id) == (root.trace_id, root.span_id)
    assert (line.severity_text, line.severity_number) == ("ERROR", line.severity_number.__class__(17))
    assert line.body.string_value.startswith("incident 9f86d081884c7d65 of run demo was abandoned")
    assert line.time_unix_nano == round((T + 30) * 1e9)
    assert line.event_name == "headway.incident"
    assert plain(line.attributes)["headway.incident.id"] == "9f86d081884c7d65"


def test_a_later_revision_adds_what_is_new(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """Spans cannot be changed once they are sent, and sent again they would be there twice; those that come later belong to them."""
    early = recovery(high_water_wall=None, tries=[one_try(T, "launcher", {"detect": 1.0, "teardown": 14.0})])
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(recoveries=[early]))
    sent.export(record(recoveries=[early], revision=1, cause="host_oom"))
    sent.export(record(recoveries=[early | {"high_water_wall": T + 20.0}], revision=2))
    quiet(sent)
    assert [span.name for span in collector.spans] == [
        "incident: app_exception",
        "recovery",
        "try",
        "detect",
        "teardown",
        "catch_up",
    ]
    assert collector.spans[-1].parent_span_id == collector.spans[1].span_id
    assert len({span.span_id for span in collector.spans}) == 6
    assert {line.span_id for line in collector.logs} == {collector.spans[0].span_id}
    assert sent.counts == {("traces", "ok"): 2, ("logs", "ok"): 3}


def test_a_later_revision_alone_is_a_log_record(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """A sidecar that was started anew does not know which spans the one before it has sent."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(revision=1))
    quiet(sent)
    assert sent.counts == {("logs", "ok"): 1}


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "not answered"])
def test_a_later_revision_makes_up_for_a_failure(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, silent: bool
) -> None:
    """What the endpoint did not take the first time is sent with the next word on the incident."""
    collector.status = 500
    if silent:
        collector.hold.clear()
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url}, OTEL_LOGS_EXPORTER="none")
    sent.export(record())
    while sent.counts["traces", "failed"] == 0:
        time.sleep(0.01)
    collector.status = 200
    collector.hold.set()
    sent.export(record(revision=1))
    quiet(sent)
    assert sent.counts == {("traces", "failed"): 1, ("traces", "ok"): 1}
    told = {span.span_id for scope in collector.requests[-1][2].resource_spans[0].scope_spans for span in scope.spans}
    assert told == {span.span_id.to_bytes(8, "big") for span in trace(record()).spans}


def test_who_tells(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """The resource names run and pod and what Kubernetes tells; the standard variables have the last word."""
    environ = {ENDPOINT: collector.url, "POD_NAME": "demo-0-x7", "NODE_NAME": "n1"}
    sent = telemetry(
        monkeypatch,
        **environ,
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=lab,service.name=a",
        OTEL_SERVICE_NAME="b",
    )
    sent.export(record())
    sent.stop(30)
    for path, _, message in collector.requests:
        [one] = message.resource_spans if path == "/v1/traces" else message.resource_logs
        found = plain(one.resource.attributes)
        assert (found["service.name"], found["deployment.environment.name"]) == ("b", "lab")
        assert (found["headway.run"], found["headway.pod_index"]) == ("demo", "0")
        assert (found["k8s.pod.name"], found["k8s.node.name"]) == ("demo-0-x7", "n1")
    assert resource("demo", "0", {})["service.name"] == "headway"


def test_the_exporters_own_settings_are_heeded(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """Compression, headers and an endpoint for each signal are the SDK's business, and work."""
    sent = telemetry(
        monkeypatch,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=secret%20one",
    )
    sent.export(record())
    sent.stop(30)
    [(path, headers, _)] = collector.requests
    assert (path, headers["content-encoding"], headers["authorization"]) == ("/v1/traces", "gzip", "secret one")
    assert collector.spans[0].name == "incident: app_exception"
    assert sent.counts == {("traces", "ok"): 1}


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 503])
def test_a_refusal_is_counted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """An SDK's flush reports success whatever the endpoint said; and its log lines are many."""
    collector.status = status
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    with caplog.at_level(logging.WARNING):
        sent.export(record())
        sent.export(record(id="other"))
        sent.stop(30)
    assert sent.counts == {("traces", "failed"): 2, ("logs", "failed"): 2}
    said = [entry.getMessage() for entry in caplog.records]
    assert len(said) == 2, said
    assert "as traces: " in said[0]
    assert "as logs: " in said[1]
    assert {entry.name for entry in caplog.records} == {"headway.exporter"}


def test_it_works_again_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that was restarted gets the next incident, and the log says so."""
    collector.status = 500
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url}, OTEL_LOGS_EXPORTER="none")
    with caplog.at_level(logging.WARNING):
        sent.export(record())
        collector.until(lambda: collector.spans, "the first one")
        while sent.counts["traces", "failed"] == 0:
            time.sleep(0.01)
        collector.status = 200
        sent.export(record())
        sent.stop(30)
    assert sent.counts == {("traces", "failed"): 1, ("traces", "ok"): 1}
    assert [entry.getMessage() for entry in caplog.records][1:] == ["incidents are sent as traces again"]


def test_a_dead_endpoint_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody listens there: the failure shows in the counter, with its reason in one line."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    sent = telemetry(monkeypatch, **{ENDPOINT: f"http://127.0.0.1:{port}"}, OTEL_LOGS_EXPORTER="none")
    with caplog.at_level(logging.WARNING):
        sent.export(record())
        sent.stop(30)
    assert sent.counts == {("traces", "failed"): 1}
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "endpoint",
    ["name:sesame@127.0.0.1:1", "http://name:sesame@127.0.0.1:1", "http://127.0.0.1:1/?token=sesame&x=", "no scheme"],
)
def test_the_log_tells_no_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endpoint: str
) -> None:
    """An address may hold a password or a token, and errors quote addresses."""
    sent = telemetry(
        monkeypatch, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_HEADERS="authorization=sesame"
    )
    with caplog.at_level(logging.DEBUG, "headway.exporter"):
        sent.export(record())
        quiet(sent)
    assert sent.counts == {("traces", "failed"): 1}
    [line] = [entry.getMessage() for entry in caplog.records if entry.name == "headway.exporter"]
    assert "sesame" not in line
    assert "could not be sent as traces" in line


def test_a_slow_endpoint_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """What it is given beyond a bound is dropped and counted, and the end does not wait for it."""
    collector.hold.clear()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    environ = {ENDPOINT: collector.url}
    monkeypatch.setenv(ENDPOINT, collector.url)
    sent = Telemetry(Plan.from_env(environ), {}, most_waiting=5)
    sent.export(record())
    collector.until(lambda: len(collector.requests) == 1, "the first request")
    for number in range(1_000):
        sent.export(record(id=str(number)))
    assert sent.counts == {("traces", "dropped"): 995, ("logs", "dropped"): 995}
    sent.stop(0.1)
    assert sent.counts == {("traces", "dropped"): 1_000, ("logs", "dropped"): 1_000}
    sent.export(record())
    assert sent.counts["traces", "dropped"] == 1_001
    collector.hold.set()
    quiet(sent)
    assert len(collector.requests) == 1  # the request under way came to its end, and no other was begun
    assert sum(count for (signal, _), count in sent.counts.items() if signal == "logs") == 1_002
    assert sent.counts["traces", "ok"] == 1


def quiet(sent: Telemetry) -> None:
    """Waits until its thread has ended, which restores the libraries' loggers."""
    sent.stop(30)
    assert not any(thread.name == "headway-telemetry" for thread in threading.enumerate())


def test_what_waits_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """The last incident of a job closes when the job ends: just then the sidecar is told to end too."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    for number in range(20):
        sent.export(record(id=str(number), trace_id=f"{number + 1:032x}"))
    quiet(sent)
    assert sent.counts == {("traces", "ok"): 20, ("logs", "ok"): 20}
    assert len({span.trace_id for span in collector.spans}) == 20


def test_counts_are_taken_once(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """They are added to those of earlier sidecars of the pod: twice taken would be twice counted."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record())
    while sent.counts.total() < 2:
        time.sleep(0.01)
    first, nothing = sent.take_counts(), sent.take_counts()
    sent.export(record(id="other"))
    quiet(sent)
    assert nothing == {}
    assert first + sent.take_counts() == sent.counts == {("traces", "ok"): 2, ("logs", "ok"): 2}


def test_another_pods_incident_is_not_sent(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """Every pod has the record; the origin's pod tells of it."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(pods_expected=2, origin={"rank": 9, "pod_index": "1", "node": None, "gpu_uuid": None}))
    quiet(sent)
    assert (collector.requests, sent.counts) == ([], {})


AWAITED = {"pods_expected": 3, "decided_revision": None}
ELSEWHERE = {"rank": 9, "pod_index": "1", "node": None, "gpu_uuid": None}
NOBODY = {"rank": None, "pod_index": None, "node": None, "gpu_uuid": None}


@pytest.mark.parametrize("kill", [0, 1, 2])
def test_pods_that_settle_late_tell_once(monkeypatch: pytest.MonkeyPatch, collector: Receiver, kill: int) -> None:
    """All close the incident before the verdict, and some would guess that it is theirs: the pod of the verdict tells, all of it, once."""
    pods = three(kill=kill)
    senders = [telemetry(monkeypatch, **{ENDPOINT: collector.url}) for _ in pods]
    for one, sent in zip(pods, senders, strict=True):
        one.recover()
        tell(one, sent)
    settle(pods)
    for one, sent in zip(pods, senders, strict=True):
        tell(one, sent)
    for sent in senders:
        sent.stop(30)
    assert [sent.counts for sent in senders] == [
        {("traces", "ok"): 1, ("logs", "ok"): 1} if number == kill else {} for number in range(3)
    ]
    wanted = trace(records.record(pods[kill].pod, pods[kill].pod.failures.incidents[-1], T))
    assert [span.span_id for span in collector.spans] == [one.span_id.to_bytes(8, "big") for one in wanted.spans]


def tell(one: Telling, sent: Telemetry) -> None:
    """What a sidecar does with the records that are due."""
    for made in records.due(one.pod):
        records.written(one.pod, made)
        sent.export(made)


def test_a_verdict_after_the_sidecar_was_started_anew(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """The one before it held the incident back when it was killed: the whole trace is still to be sent."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(revision=2, decided_revision=2, pods_expected=3, claimed_by="0"))
    sent.export(record(revision=3, decided_revision=2, pods_expected=3, claimed_by="0"))
    quiet(sent)
    assert len(collector.spans) == len(trace(record()).spans)
    assert sent.counts == {("traces", "ok"): 1, ("logs", "ok"): 2}


@pytest.mark.parametrize(("origin", "told"), [(record()["origin"], True), (NOBODY, True), (ELSEWHERE, False)])
def test_a_pod_that_ends_before_the_verdict_tells_by_its_guess(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, origin: dict[str, Any], told: bool
) -> None:
    """The last incident of a job closes as the job ends, and nobody may be left to settle it: better twice than never."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(**AWAITED, origin=ELSEWHERE))
    sent.export(record(**AWAITED, origin=origin, revision=1))
    assert sent.counts == {}
    quiet(sent)
    assert sent.counts == ({("traces", "ok"): 1, ("logs", "ok"): 1} if told else {})
    assert len(collector.spans) == (len(trace(record()).spans) if told else 0)


def test_what_awaits_a_verdict_is_bounded(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """A folder that hangs for a day: the oldest are told as they stand."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url}, OTEL_TRACES_EXPORTER="none")
    for number in range(MOST_REMEMBERED + 3):
        sent.export(record(**AWAITED, id=str(number), trace_id=f"{number + 1:032x}"))
    collector.until(lambda: len(collector.logs) == 3, "the oldest")
    assert [int.from_bytes(line.trace_id, "big") for line in collector.logs] == [1, 2, 3]
    quiet(sent)


def test_an_incident_that_turns_out_to_be_this_pods_is_told_whole(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver
) -> None:
    """Pods that decide alone learn from the launcher's late line where it began; what was not sent before is sent then."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    sent.export(record(pods_expected=3, origin=ELSEWHERE))
    sent.export(record(pods_expected=3, revision=1))
    sent.export(record(pods_expected=3, revision=2))
    quiet(sent)
    assert len(collector.spans) == len(trace(record()).spans)
    assert sent.counts == {("traces", "ok"): 1, ("logs", "ok"): 2}


def test_a_record_that_cannot_be_told_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with one, the next one is sent."""
    sent = telemetry(monkeypatch, **{ENDPOINT: collector.url})
    with caplog.at_level(logging.WARNING):
        sent.export(record(trace_id="no number"))
        sent.export(record(opened_wall=1e300, closed_wall=None))
        sent.export(record(evidence=[sign("exit", T, "rank 1: exit code 3", exit_code=3)]))
        quiet(sent)
    assert sent.counts == {("traces", "failed"): 2, ("logs", "failed"): 2, ("traces", "ok"): 1, ("logs", "ok"): 1}
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(
    ("environ", "signals", "problems"),
    [
        ({}, (), ()),
        ({ENDPOINT: ""}, (), ()),
        ({ENDPOINT: "http://c:4318"}, ("traces", "logs"), ()),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, (), ()),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "false"}, ("traces", "logs"), ()),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ("logs",), ()),
        ({ENDPOINT: "http://c:4318", "OTEL_LOGS_EXPORTER": "console"}, ("traces",), ()),
        ({ENDPOINT: "http://c:4318", "OTEL_LOGS_EXPORTER": "console, otlp"}, ("traces", "logs"), ()),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c/x"}, ("logs",), ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("traces",), ()),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("traces", "logs"), ("traces", "logs")),
        (
            {
                ENDPOINT: "http://c",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/protobuf",
            },
            ("traces", "logs"),
            ("traces",),
        ),
        ({ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, ("traces", "logs"), ("traces",)),
    ],
)
def test_the_standard_variables_decide(
    environ: dict[str, str], signals: tuple[str, ...], problems: tuple[str, ...]
) -> None:
    """As in any other program with OpenTelemetry: nothing is sent unless an endpoint or an exporter is named."""
    plan = Plan.from_env(environ)
    assert (plan.signals, tuple(plan.problems)) == (signals, problems)


def test_another_protocol_is_said_and_counted(
    monkeypatch: pytest.MonkeyPatch, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks for gRPC must not wait for traces that never come; the other signal goes on."""
    with caplog.at_level(logging.WARNING):
        sent = telemetry(monkeypatch, **{ENDPOINT: collector.url}, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc")
        sent.export(record())
        quiet(sent)
    assert sent.counts == {("traces", "dropped"): 1, ("logs", "ok"): 1}
    [line] = [entry.getMessage() for entry in caplog.records]
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc is not supported; set it to http/protobuf" in line


WITHOUT = """
import logging, sys
sys.modules["opentelemetry"] = None
logging.basicConfig(format="%(message)s")
from headway_exporter.telemetry import Telemetry
sent = Telemetry.from_env("r", "0", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
sent.export({"pod_index": "0", "pods_expected": 1, "revision": 0})
sent.stop()
print(dict(sent.counts))
"""


def test_without_opentelemetry_it_says_what_to_install() -> None:
    """The sidecar works without it, and says once what is missing."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{('traces', 'dropped'): 1, ('logs', 'dropped'): 1}\n"
    assert len(done.stderr.splitlines()) == 2
    assert "pip install 'headway[exporter]'" in done.stderr


def test_nothing_is_loaded_unless_it_is_asked_for() -> None:
    """OpenTelemetry costs memory and start-up time, which a sidecar that sends nothing must not pay."""
    code = (
        "import sys; from headway_exporter.telemetry import Telemetry; import headway_exporter.cli; "
        "t = Telemetry.from_env('r', '0', {}); t.export({}); t.stop(); "
        "sys.exit(any(name.partition('.')[0] in ('opentelemetry', 'requests', 'google') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
