"""Sends traces and log records by OTLP over HTTP. The only module that imports OpenTelemetry; import it only where that is asked for.

The SDK makes the spans, with ids and times of our choice, and its exporters send them: endpoint, headers, time limit, compression and
certificates are what the standard `OTEL_EXPORTER_OTLP_…` variables say. Every incident is sent: `OTEL_TRACES_SAMPLER` is for the many
requests of a service, not for the few incidents of a run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from headway._version import __version__
from headway_exporter.otlp_session import session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

    from headway_exporter.traces import Log, Span, Trace

_SCOPE: Final = "headway_exporter"
_LIBRARIES: Final = ("opentelemetry", "urllib3")
_SEVERITIES: Final = {"INFO": SeverityNumber.INFO, "WARN": SeverityNumber.WARN, "ERROR": SeverityNumber.ERROR}


class TraceSender:
    """Sends traces; one at a time."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._exporter = OTLPSpanExporter(session=session("TRACES"))
        self._ids = _Ids()
        self._finished = _Spans()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=_resource(attributes), shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(SimpleSpanProcessor(self._finished))
        self._tracer = provider.get_tracer(_SCOPE, __version__)

    def send(self, trace: Trace) -> bool:
        """Whether it was accepted."""
        self._finished.taken.clear()
        for span in trace.spans:
            self._make(trace.trace_id, span)
        return self._exporter.export(tuple(self._finished.taken)) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Ends waiting for the next attempt; may be called while another thread sends."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, trace_id: int, span: Span) -> None:
        self._ids.trace_id, self._ids.span_id = trace_id, span.span_id
        parent = _context(trace_id, span.parent_id)
        made = self._tracer.start_span(
            span.name, parent, attributes=dict(span.attributes), start_time=span.start_ns, record_exception=False
        )
        for event in span.events:
            made.add_event(event.name, dict(event.attributes), event.time_ns)
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end_ns)


class LogSender:
    """Sends log records; one at a time."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._exporter = OTLPLogExporter(session=session("LOGS"))
        self._made = _Logs()
        provider = LoggerProvider(resource=_resource(attributes), shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(self._made))
        self._logger = provider.get_logger(_SCOPE, __version__)

    def send(self, log: Log) -> bool:
        """Whether it was accepted."""
        self._made.taken.clear()
        self._logger.emit(
            LogRecord(
                timestamp=log.time_ns,
                observed_timestamp=log.observed_ns,
                context=_context(log.trace_id, log.span_id),
                severity_text=log.severity,
                severity_number=_SEVERITIES[log.severity],
                body=log.body,
                attributes=dict(log.attributes),
                event_name="headway.incident",
            )
        )
        return self._exporter.export(tuple(self._made.taken)) is LogRecordExportResult.SUCCESS

    def close(self) -> None:
        """Ends waiting for the next attempt; may be called while another thread sends."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class Quiet(logging.Handler):
    """While it is entered the libraries' own log lines, one for each retry, go nowhere but here: the last tells why sending failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps its text."""
        self.said = record.getMessage()

    def __enter__(self) -> Quiet:
        for name in _LIBRARIES:
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LIBRARIES:
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).propagate = True


class _Ids(IdGenerator):
    """Hands out the ids that were set."""

    trace_id = span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Spans(SpanExporter):
    """Keeps finished spans, so that a whole trace goes into one request."""

    def __init__(self) -> None:
        self.taken: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += spans
        return SpanExportResult.SUCCESS


class _Logs(LogRecordExporter):
    """Keeps log records."""

    def __init__(self) -> None:
        self.taken: list[ReadableLogRecord] = []

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        self.taken += batch
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002 - the base class's signature
        return True

    def shutdown(self) -> None:
        pass


def _resource(attributes: Mapping[str, str]) -> Resource:
    """Ours, unless `OTEL_RESOURCE_ATTRIBUTES` or `OTEL_SERVICE_NAME` say otherwise."""
    return Resource.create(dict(attributes)).merge(OTELResourceDetector().detect())


def _context(trace_id: int, span_id: int | None) -> Context | None:
    if span_id is None:
        return None
    return set_span_in_context(
        NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    )
