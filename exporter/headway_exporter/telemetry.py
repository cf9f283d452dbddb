"""Sends each incident to an OpenTelemetry collector, as a trace and as a log record, when the standard variables ask for it.

A thread of its own does it, from a bounded queue: an endpoint that is slow or gone holds up nobody. What became of each incident is
counted for each signal, since nothing else tells: SDKs report a flush as done whose every request failed.

| variable | meaning here |
|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT`, `…_TRACES_ENDPOINT`, `…_LOGS_ENDPOINT` | where to send; one of them switches its signals on |
| `OTEL_TRACES_EXPORTER`, `OTEL_LOGS_EXPORTER` | `none` switches a signal off, `otlp` on (to localhost:4318 without an endpoint) |
| `OTEL_SDK_DISABLED` | `true` switches all off |
| `OTEL_EXPORTER_OTLP_PROTOCOL`, `…_TRACES_PROTOCOL`, `…_LOGS_PROTOCOL` | only `http/protobuf` |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | added to the resource, and win |
| other `OTEL_EXPORTER_OTLP_…` | headers, time limit, compression, certificates: as the SDK has them |
"""

from __future__ import annotations

import importlib
import logging
import re
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from headway._version import __version__
from headway_exporter import traces
from headway_exporter.labels import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from headway_exporter.trace_words import Record

_log = logging.getLogger("headway.exporter")

MOST_WAITING: Final = 64
"""Incidents that wait to be sent; further ones are dropped."""
MOST_REMEMBERED: Final = 64
"""Incidents of which is known what was sent."""
STOP_SECONDS: Final = 3.0
"""Longest wait at the end for what is still to be sent."""
PROTOCOL: Final = "http/protobuf"
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SECRET: Final = re.compile(r"[^\s/'\"]+(?=@)|(?<=\?)[^\s'\"]+")
_OUTCOMES: Final = {True: "ok", False: "failed", None: "dropped"}
_KUBERNETES: Final = {
    "POD_NAME": "k8s.pod.name",
    "POD_UID": "k8s.pod.uid",
    "POD_NAMESPACE": "k8s.namespace.name",
    "NODE_NAME": "k8s.node.name",
    "CONTAINER_NAME": "k8s.container.name",
}
"""The names that manifests usually give to what the downward API tells."""


class Sender(Protocol):
    """Sends one signal."""

    def send(self, what: Any, /) -> bool:
        """Whether it was accepted."""

    def close(self) -> None:
        """Gives up what is under way."""


@dataclass(frozen=True)
class Plan:
    """What the environment asks for."""

    signals: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    """Signals that are asked for in a way that cannot be had, and why."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Plan:
        """Reads the standard variables."""
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls()
        signals = tuple(signal for signal in SIGNALS if _asked_for(environ, signal.upper()))
        problems = {signal: _problem(environ, signal.upper()) for signal in signals}
        return cls(signals, {signal: text for signal, text in problems.items() if text})


def _asked_for(environ: Mapping[str, str], signal: str) -> bool:
    chosen = [one.strip().lower() for one in environ.get(f"OTEL_{signal}_EXPORTER", "").split(",") if one.strip()]
    if chosen:
        return "otlp" in chosen
    return bool(environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environ.get(_ENDPOINT))


def _problem(environ: Mapping[str, str], signal: str) -> str:
    names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    for name in names:
        protocol = environ.get(name, "").strip()
        if protocol:
            return (
                "" if protocol.lower() == PROTOCOL else f"{name}={protocol[:40]} is not supported; set it to {PROTOCOL}"
            )
    return ""


def resource(run: str, pod_index: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Who tells, by the names of OpenTelemetry's conventions."""
    return {
        "service.name": "headway",
        "service.version": __version__,
        "service.instance.id": f"{run}/{pod_index}",
        "headway.run": run,
        "headway.pod_index": pod_index,
        **{attribute: environ[name] for name, attribute in _KUBERNETES.items() if environ.get(name)},
    }


class Telemetry:
    """Tells of incidents; `export` from any thread, `stop` once at the end."""

    def __init__(self, plan: Plan, attributes: Mapping[str, str], *, most_waiting: int = MOST_WAITING) -> None:
        self._plan = plan
        self._attributes = attributes
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Record] = deque()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._stopping = False
        self._senders: dict[str, Sender] = {}
        self._failing: set[str] = set()
        self._told: dict[str, frozenset[int]] = {}
        """Ids of the spans that were accepted, by incident, the newest last."""
        self._held: dict[str, Record] = {}
        """The newest word on incidents of which the pods have yet to settle who tells."""
        self._passed: deque[str] = deque(maxlen=MOST_REMEMBERED)
        """Incidents that were another pod's to tell of when they were last heard of."""
        self._thread: threading.Thread | None = None
        if plan.signals:
            self._thread = threading.Thread(target=self._work, name="headway-telemetry", daemon=True)
            self._thread.start()

    @classmethod
    def from_env(cls, run: str, pod_index: str, environ: Mapping[str, str]) -> Telemetry:
        """As the environment wants it, which may be not at all; says so when it wants what cannot be had."""
        return cls(Plan.from_env(environ), resource(run, pod_index, environ))

    @classmethod
    def off(cls) -> Telemetry:
        """Tells nobody."""
        return cls(Plan(), {})

    @property
    def wanted(self) -> bool:
        """Whether anything is to be told at all."""
        return bool(self._plan.signals)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Incidents by signal and outcome."""
        with self._changed:
            return self._counts.copy()

    def take_counts(self) -> Counter[tuple[str, str]]:
        """What was added to `counts` since the last call."""
        with self._changed:
            more = self._counts - self._taken
            self._taken = self._counts.copy()
        return more

    def export(self, record: Record) -> None:
        """Tells of the incident soon, if this pod is to tell of it at all. Never waits, never raises."""
        if not self.wanted:
            return
        with self._changed:
            name = str(record.get("id"))
            self._held.pop(name, None)
            if not traces.awaits_verdict(record):
                self._queue(record)
                return
            self._held[name] = record
            if self._stopping or len(self._held) > MOST_REMEMBERED:
                self._queue(self._held.pop(next(iter(self._held))))

    def _queue(self, record: Record) -> None:
        """Puts it in the queue if this pod is to tell of it; the caller holds the lock."""
        if not traces.told_here(record):
            self._passed.append(str(record.get("id")))
        elif self._stopping or len(self._waiting) >= self._most_waiting:
            self._count(record, "dropped")
        else:
            self._waiting.append(record)
            self._changed.notify_all()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Sends what waits, but no longer than so many seconds; what is left is dropped, and counted.

        Of incidents whose verdict has not come by now this pod tells as it sees them: perhaps nobody else would.
        """
        if self._thread is None:
            return
        with self._changed:
            for record in self._held.values():
                self._queue(record)
            self._held.clear()
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            for record in self._waiting:
                self._count(record, "dropped")
            self._waiting.clear()
            senders = tuple(self._senders.values()) if self._thread.is_alive() else ()
        for sender in senders:
            sender.close()  # ends its wait for the next attempt; a request under way ends with the process

    def _count(self, record: Record, outcome: str) -> None:
        for signal in self._signals(record):
            self._counts[signal, outcome] += 1

    def _signals(self, record: Record) -> list[str]:
        """What it must be counted for: a later revision is always a log record, and spans only where there are new ones."""
        return [signal for signal in self._plan.signals if signal == "logs" or traces.first_word(record)]

    # In the thread.

    def _work(self) -> None:
        otlp = self._load()
        if otlp is None:
            self._drop_all()
            return
        with otlp.Quiet() as libraries:
            self._make_senders(otlp)
            while (record := self._next()) is not None:
                for signal in self._plan.signals:
                    libraries.said = ""
                    accepted, reason = self._send(signal, record)
                    self._tell(signal, accepted, reason or libraries.said)
            for sender in self._senders.values():
                sender.close()

    def _load(self) -> ModuleType | None:
        """The module that needs OpenTelemetry; None: not wanted after all, or not there."""
        for signal, problem in self._plan.problems.items():
            self._cannot(signal, problem)
        wanted = self._wanted()
        try:
            return importlib.import_module("headway_exporter.otlp") if wanted else None
        except ImportError as error:
            for signal in wanted:
                self._cannot(signal, f"{error}; pip install 'headway[exporter]'")
            return None

    def _wanted(self) -> list[str]:
        return [signal for signal in self._plan.signals if signal not in self._plan.problems]

    def _make_senders(self, otlp: ModuleType) -> None:
        kinds = {"traces": otlp.TraceSender, "logs": otlp.LogSender}
        for signal in self._wanted():
            sender = self._made(signal, kinds[signal])
            if sender is not None:
                with self._changed:
                    self._senders[signal] = sender

    def _made(self, signal: str, kind: Callable[[Mapping[str, str]], Sender]) -> Sender | None:
        try:
            return kind(self._attributes)
        except Exception as error:  # noqa: BLE001 - a setting that the SDK refuses; the other signal may work
            self._cannot(signal, _fit_for_a_log(str(error)))
            return None

    def _cannot(self, signal: str, reason: str) -> None:
        _log.warning("incidents are not sent as %s: %.300s; each is counted as dropped", signal, reason)

    def _drop_all(self) -> None:
        while (record := self._next()) is not None:
            with self._changed:
                self._count(record, "dropped")

    def _next(self) -> Record | None:
        """The next incident, waited for; None: it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            return self._waiting.popleft() if self._waiting else None

    def _send(self, signal: str, record: Record) -> tuple[bool | None, str]:
        """Whether it was accepted (None: nothing was to be sent, or there is nobody to send it), and what went wrong on the way."""
        what, accepted, reason = None, None, ""
        try:
            what = traces.log(record) if signal == "logs" else self._untold(traces.trace(record), record)
            if what is None:
                return None, ""
            if signal in self._senders:
                accepted = self._senders[signal].send(what)
        except Exception as error:  # noqa: BLE001 - whatever it was, the next incident is to be told
            accepted, reason = False, f"{type(error).__name__}: {error}"
        if what is not None:
            self._remember(what, record, accepted)
        with self._changed:
            self._counts[signal, _OUTCOMES[accepted]] += 1
        return accepted, reason

    def _untold(self, trace: traces.Trace, record: Record) -> traces.Trace | None:
        """The spans that were not sent before; of an incident that is not remembered only the first word is told.

        Unless it was another pod's before: late evidence may show that it began here.
        """
        told = self._told.get(str(record["id"]))
        with self._changed:
            passed = str(record["id"]) in self._passed
        if told is None and not passed and not traces.first_word(record):
            return None
        spans = tuple(span for span in trace.spans if span.span_id not in (told or ()))
        return traces.Trace(trace.trace_id, spans) if spans else None

    def _remember(self, what: traces.Trace | traces.Log, record: Record, accepted: bool | None) -> None:
        if isinstance(what, traces.Log):
            return
        told = self._told.pop(str(record["id"]), frozenset())
        self._told[str(record["id"])] = told | (
            frozenset(span.span_id for span in what.spans) if accepted else frozenset()
        )
        if len(self._told) > MOST_REMEMBERED:
            del self._told[next(iter(self._told))]

    def _tell(self, signal: str, accepted: bool | None, reason: str) -> None:
        """A line when it begins to fail and one when it works again, not one for each incident."""
        if accepted is False and signal not in self._failing:
            self._failing.add(signal)
            _log.warning(
                "an incident could not be sent as %s: %.300s; further ones are tried and counted in headway_telemetry_exports_total",
                signal,
                _fit_for_a_log(reason) or "no reason is known",
            )
        elif accepted and signal in self._failing:
            self._failing.remove(signal)
            _log.warning("incidents are sent as %s again", signal)


def _fit_for_a_log(reason: str) -> str:
    """One line, without what an endpoint's address may hold of passwords and tokens."""
    return _SECRET.sub("***", " ".join(reason.split()))
