"""From the pod's state to metric families, at scrape time.

A collector is a plain function that yields samples of metrics of the schema; nothing here keeps a value. Each one is timed, and one that
fails takes only its own metrics with it.
"""

from __future__ import annotations

import logging
import platform
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from headway import clock
from headway._version import __version__
from headway_exporter.health import cgroups
from headway_exporter.labels import (
    CAUSES,
    CLOCK_ANOMALIES,
    CONTAINER_ENDS,
    DISRUPTIONS,
    DROP_REASONS,
    EXPORT_OUTCOMES,
    INCIDENT_OUTCOMES,
    LAYERS,
    OUTCOMES,
    REASONS,
    RECOVERY_PHASES,
    REPLAY_RESULTS,
    SIGNALS,
    STATES,
    WAITING,
)
from headway_exporter.observations import NANOSECONDS
from headway_exporter.schema import COMMON_LABELS, METRICS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from headway_exporter.distribution import Distribution
    from headway_exporter.follow import Follower
    from headway_exporter.health.instruments import AnyInstrument
    from headway_exporter.pod import Pod
    from headway_exporter.schema import Metric
    from headway_exporter.seam import Seam
    from headway_exporter.store import Store

    Sample = tuple[str, tuple[str, ...], float | Distribution | None]
    """Metric, values of its own labels, value; None: no such series now."""

_log = logging.getLogger("headway.exporter")


def run(pod: Pod) -> Iterator[Sample]:
    """What runs, and with how many."""
    info = pod.info
    yield "headway_build_info", (__version__, platform.python_version()), 1
    if info.started_wall is not None:
        labels = (pod.run, info.nvrx_version, info.torch_version, info.backend, info.node)
        yield "headway_run_info", labels, 1
    yield "headway_run_start_timestamp_seconds", (), info.started_wall
    yield "headway_pods_expected", (), info.pods_expected
    for slot in pod.slots.values():
        if slot.life is not None and not slot.gone:
            uuid = pod.gpus.whole(slot.gpu_uuid)
            gpu = pod.gpus.labels_of(uuid)[0] or (str(slot.number) if uuid else "")
            yield "headway_rank_info", (str(slot.rank), str(slot.number), gpu, uuid), 1
    yield "headway_ranks", (), len(pod.alive)
    yield "headway_world_size", (), info.world_size
    for kind in ("initial", "rank"):
        yield "headway_heartbeat_timeout_seconds", (kind,), info.settings.get(f"heartbeat_{kind}_seconds")
    for phase, seconds in info.phase_gaps.items():
        yield "headway_phase_gap_max_seconds", (phase,), seconds
    yield from cgroups.samples(pod)


def steps(pod: Pod) -> Iterator[Sample]:
    """How far training is and how fast it goes."""
    books = pod.ledger.slots.values()
    seen = pod.steps
    yield "headway_step", (), seen.step
    yield "headway_high_water_step", (), None if seen.step is None else pod.mark
    yield "headway_last_step_timestamp_seconds", (), None if seen.completed is None else pod.wall_of(seen.completed)
    yield "headway_steps_total", ("productive",), max((slot.productive_steps for slot in books), default=0)
    yield "headway_steps_total", ("replay",), max((slot.replayed_steps for slot in books), default=0)
    yield "headway_steps_lost_total", (), max((slot.lost_steps for slot in books), default=0)
    yield "headway_tokens_total", (), seen.tokens
    yield "headway_loss", (), seen.loss
    yield "headway_step_duration_baseline_seconds", (), seen.baseline_seconds
    yield "headway_slowest_rank_ratio", (), seen.slowest_rank_ratio
    yield "headway_step_duration_seconds", (), seen.durations


def ledger(pod: Pod) -> Iterator[Sample]:
    """Where the time went."""
    totals = pod.ledger.totals(pod.now_ns)
    for state in STATES:
        yield "headway_rank_seconds_total", (state,), totals.states[state] / NANOSECONDS
    yield "headway_rank_elapsed_seconds_total", (), totals.elapsed / NANOSECONDS
    yield "headway_lost_rank_seconds_total", (), totals.lost / NANOSECONDS
    yield "headway_pending_rank_seconds", (), totals.pending / NANOSECONDS
    yield "headway_unregained_rank_seconds", (), totals.unregained / NANOSECONDS
    yield "headway_counted_rank_seconds", (), totals.counted / NANOSECONDS
    yield "headway_unavailable_rank_seconds", (), totals.unavailable / NANOSECONDS
    for state in (*STATES, "finished"):
        yield "headway_state", (state,), float(state == pod.state)
    yield "headway_state_since_timestamp_seconds", (), pod.state_since_wall
    if pod.state in WAITING:
        yield "headway_waiting_since_timestamp_seconds", (pod.state,), pod.state_since_wall


def checkpoints(pod: Pod) -> Iterator[Sample]:
    """Checkpoints and the queue they wait in; a queue dies with its process."""
    known, alive = pod.checkpoints, pod.alive
    yield "headway_checkpoint_requests_total", (), known.requests
    for outcome in OUTCOMES:
        yield "headway_checkpoint_saves_total", (outcome,), known.outcomes[outcome]
    yield "headway_checkpoint_saves_since_commit", (), known.since_commit
    yield "headway_checkpoint_durable_step", (), known.durable_step
    yield "headway_checkpoint_durable_timestamp_seconds", (), known.committed_wall
    yield "headway_checkpoint_content_timestamp_seconds", (), known.content_wall
    configured, observed = known.configured_interval, known.observed_interval_steps
    yield "headway_checkpoint_interval_steps", (), observed if configured is None else configured
    yield "headway_checkpoint_interval_seconds", (), known.interval_seconds
    yield "headway_checkpoint_last_write_seconds", (), known.last_write_seconds
    yield "headway_checkpoint_bytes", (), known.last_bytes
    yield "headway_checkpoint_blocking_seconds", (), known.blocking
    yield "headway_checkpoint_write_seconds", (), known.writing
    yield "headway_checkpoint_load_seconds", (), known.loading
    yield "headway_storage_written_bytes_total", (), known.written_bytes
    yield "headway_storage_read_bytes_total", (), known.read_bytes
    yield "headway_async_queue_depth", (), max((slot.depth for slot in alive), default=0)
    oldest = [slot.oldest_wall for slot in alive if slot.depth and slot.oldest_wall is not None]
    yield "headway_async_queue_oldest_timestamp_seconds", (), min(oldest, default=None)
    yield "headway_async_writer_up", (), pod.writer_up
    memory = [slot.writer_bytes for slot in alive if slot.writer_bytes is not None]
    yield "headway_async_writer_memory_bytes", (), sum(memory) if memory else None


def restarts(pod: Pod) -> Iterator[Sample]:
    """Restarts, their causes, and what they cost."""
    known, info = pod.failures, pod.info
    for layer in LAYERS:
        yield "headway_restarts_total", (layer,), known.restarts[layer]
        yield "headway_recoveries_total", (layer,), known.closed[layer]
        yield "headway_restart_budget_limit", (layer,), info.budget_limit.get(layer)
        yield "headway_restart_budget_remaining", (layer,), info.budget_remaining.get(layer)
        for cause in CAUSES:
            yield "headway_restart_causes_total", (layer, cause), known.causes[layer, cause] or None
        for phase in RECOVERY_PHASES:
            yield "headway_recovery_phase_seconds_total", (layer, phase), known.phases[layer, phase]
    for rank in sorted({slot.rank for slot in pod.slots.values() if slot.rank is not None} | set(known.rank_failures)):
        yield "headway_rank_failures_total", (str(rank),), known.rank_failures[rank]
    yield "headway_restarts_without_progress", (), known.without_progress
    yield "headway_same_checkpoint_loads", (), known.same_checkpoint_loads
    yield "headway_recovery_seconds", ("first_step",), known.first_step
    yield "headway_recovery_seconds", ("high_water",), known.high_water
    yield "headway_rollback_steps", (), known.rollbacks
    yield "headway_last_rollback_steps", (), known.last_rollback
    for result in REPLAY_RESULTS:
        yield "headway_replay_checks_total", (result,), pod.replay_checks.results[result]
    yield "headway_replay_diverged_timestamp_seconds", (), pod.replay_checks.diverged_wall


def incidents(pod: Pod) -> Iterator[Sample]:
    """The incident without a verdict, and those that had one."""
    known, incident = pod.failures, pod.failures.open
    yield "headway_incident_open", (), float(incident is not None)
    yield "headway_incident_attempts", (), 0 if incident is None else incident.attempts_now.count
    if incident is not None:
        yield "headway_incident_opened_timestamp_seconds", (), incident.opened_wall
        if known.recovering is not None:
            attempt = (incident.current.expected_layer,)
            started = incident.attempts_now.started_wall
            yield "headway_incident_attempt_started_timestamp_seconds", attempt, started
    offenders = known.repeat_offenders(pod.now)
    recurring = (known.recurring(incident) if incident else frozenset()) | ({"same_entity"} if offenders else set())
    for reason in REASONS:
        shown = incident is not None or reason in recurring
        yield "headway_incident_recurring", (reason,), float(reason in recurring) if shown else None
    for outcome in INCIDENT_OUTCOMES:
        for word, recurred in (("false", False), ("true", True)):
            yield "headway_incidents_total", (outcome, word), known.outcomes[outcome, recurred]
        yield "headway_incident_closed_timestamp_seconds", (outcome,), known.last_closed_wall.get(outcome)
    for layer in LAYERS:
        for cause in CAUSES:
            yield "headway_incident_causes_total", (layer, cause), known.incident_causes[layer, cause] or None
    for entity, count in offenders.items():
        yield "headway_entity_incidents", (entity.kind, entity.name), count


def orchestrator(pod: Pod) -> Iterator[Sample]:
    """What became of the pod's containers and of the pod, once there is somebody who tells."""
    known = pod.orchestrator
    if not known.heard:
        return
    for reason in CONTAINER_ENDS:
        yield "headway_container_ends_total", (reason,), known.container_ends[reason]
    for reason in DISRUPTIONS:
        yield "headway_pod_disruptions_total", (reason,), known.disruptions[reason]


def telemetry(pod: Pod) -> Iterator[Sample]:
    """Incidents that were sent elsewhere; all 0 when that is not asked for."""
    for signal in SIGNALS:
        for outcome in EXPORT_OUTCOMES:
            yield "headway_telemetry_exports_total", (signal, outcome), pod.exports[signal, outcome]


def gpus(pod: Pod) -> Iterator[Sample]:
    """What the GPUs' driver reported; how they are now is read elsewhere, and not remembered."""
    newest: dict[tuple[str, ...], float] = {}
    for (uuid, number), count in pod.gpus.xids.items():
        labels, (xid, cls) = pod.gpus.labels_of(uuid), pod.gpus.words_of(number)
        yield "headway_gpu_xid_errors_total", (*labels, xid, cls), count
        of_class = (*labels, cls)
        newest[of_class] = max(pod.gpus.last_xid_wall[uuid, number], newest.get(of_class, 0.0))
    for found, wall in newest.items():
        yield "headway_gpu_xid_last_timestamp_seconds", found, wall


def nics(pod: Pod) -> Iterator[Sample]:
    """What network cards count as errors, in sums that outlive their drivers and the sidecar."""
    for (device, kind), count in pod.nics.shown().items():
        yield "headway_nic_errors_total", (device, kind), count


def sources(pod: Pod, dropped: Counter[str], clock_went_back: int) -> Iterator[Sample]:
    """What the sidecar hears, and what it could not use."""
    for source, wall in pod.source_wall.items():
        yield "headway_source_last_update_timestamp_seconds", (source,), wall
    for reason in DROP_REASONS:
        yield "headway_events_dropped_total", (reason,), dropped[reason]
    anomalies = pod.clock_anomalies
    for reason in CLOCK_ANOMALIES:
        extra = clock_went_back if reason == "mono_backwards" else 0
        yield "headway_clock_anomalies_total", (reason,), anomalies[reason] + extra


def state(store: Store) -> Iterator[Sample]:
    """Whether what is shown is on disk."""
    yield "headway_source_last_update_timestamp_seconds", ("state",), store.published.wall
    yield "headway_collector_duration_seconds", ("state",), store.write_seconds
    yield "headway_collector_success", ("state",), float(store.trouble is None)


STANDS_STILL: Final = frozenset(
    {
        "headway_pending_rank_seconds",
        "headway_unregained_rank_seconds",
        "headway_counted_rank_seconds",
        "headway_unavailable_rank_seconds",
    }
)
"""Gauges that make sense only beside counters of the same moment."""


def with_live_gauges(persisted: Iterable[Sample], live: Iterable[Sample]) -> list[Sample]:
    """Counters, histograms and what belongs to them as they were persisted, all else as it is now: see `store`."""
    return [
        *(sample for sample in persisted if not _goes_live(sample)),
        *(sample for sample in live if _goes_live(sample)),
    ]


def _goes_live(sample: Sample) -> bool:
    return METRICS[sample[0]].type == "gauge" and sample[0] not in STANDS_STILL


class PodCollector(Collector):
    """All metrics of the pod, for a prometheus_client registry. `lock` guards the pod against the fold.

    Once there is a `store`, what is shown is what was persisted.
    """

    def __init__(self, pod: Pod, follower: Follower, lock: threading.Lock) -> None:
        self.store: Store | None = None
        self.seam: Seam | None = None
        """After a long absence."""
        self.instruments: Sequence[AnyInstrument] = ()
        """What is measured here and now, which no store keeps."""
        self._pod = pod
        self._follower = follower
        self._lock = lock
        self._collectors: dict[str, Callable[[], Iterable[Sample]]] = {
            "run": lambda: run(pod),
            "steps": lambda: steps(pod),
            "ledger": lambda: ledger(pod),
            "checkpoints": lambda: checkpoints(pod),
            "restarts": lambda: chain(restarts(pod), orchestrator(pod)),
            "incidents": lambda: chain(incidents(pod), gpus(pod), nics(pod)),
            "sources": lambda: sources(pod, self.dropped, follower.clock_went_back),
            "telemetry": lambda: telemetry(pod),
        }

    @property
    def dropped(self) -> Counter[str]:
        """What could not be used, by reason, wherever it was noticed."""
        return self._follower.dropped + self._pod.dropped + Counter(limit=self._pod.failures.unplaced)

    @property
    def common(self) -> tuple[str, ...]:
        """Values of the labels that every series has."""
        return self._pod.run, self._pod.pod_index

    def collect(self) -> Iterator[Family]:
        """One family for each metric that has a series now."""
        return families(self.shown(), self.common)

    def samples(self) -> list[Sample]:
        """All samples of now, which the fold changes no more; the caller holds the lock."""
        return [
            (name, labels, value if value is None or isinstance(value, (int, float)) else value.copy())
            for name, labels, value in self._samples()
        ]

    def _live(self) -> list[Sample]:
        with self._lock:
            return self.samples()

    def shown(self, client: str = "") -> list[Sample]:
        """What a scrape from this address shows now."""
        return [*self._remembered(client), *self.measured()]

    def measured(self) -> list[Sample]:
        """What the instruments measured last."""
        return list(chain.from_iterable(map(_measured, self.instruments)))

    def _remembered(self, client: str) -> list[Sample]:
        store = self.store
        if store is None:
            return self._live()
        if store.lost is not None:
            return [*self._live(), *state(store)]
        persisted = store.published.samples
        if store.trouble is not None and not store.superseded:
            persisted = with_live_gauges(persisted, self._live())
        if self.seam is not None and client and self.seam.first(client):
            persisted = with_live_gauges(self.seam.before, persisted)
        return [*persisted, *state(store)]

    def _samples(self) -> Iterator[Sample]:
        for name, collector in self._collectors.items():
            began = clock.monotonic()
            worked = True
            try:
                yield from list(collector())
            except Exception:  # noqa: BLE001 - one broken part must not cost the scrape
                _log.exception("collector %s failed; its metrics are missing from this scrape", name)
                worked = False
            yield "headway_collector_duration_seconds", (name,), clock.monotonic() - began
            yield "headway_collector_success", (name,), float(worked)


def _measured(one: AnyInstrument) -> list[Sample]:
    """What it measured; one whose answer makes no metrics must not cost the scrape."""
    try:
        return list(one.samples())
    except Exception:  # noqa: BLE001 - whatever it is, only its own metrics are lost
        _log.exception("%s: its answer makes no metrics; they are missing from this scrape", one.name)
        return [("headway_collector_success", (one.name,), 0.0)]


def families(samples: Iterable[Sample], common: tuple[str, ...]) -> Iterator[Family]:
    """Samples grouped into families, in the schema's order."""
    found = grouped(samples)
    for name, metric in METRICS.items():
        if name in found:
            yield family(metric, common, found[name])


def grouped(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples by metric, in the order given, without those that have no value now."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample[2] is not None:
            found.setdefault(sample[0], []).append(sample)
    return found


def _buckets(distribution: Distribution) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Bounds and counts, with exemplars, which only OpenMetrics shows."""
    found = {
        number: Exemplar({"trace_id": trace_id}, value, wall)
        for number, (trace_id, value, wall) in distribution.exemplars.items()
    }
    return [
        (bound, count, found[number]) if number in found else (bound, count)
        for number, (bound, count) in enumerate(distribution.cumulative())
    ]


def family(metric: Metric, common: tuple[str, ...], samples: Iterable[Sample]) -> Family:
    """The metric's series as prometheus_client has them."""
    labels = (*COMMON_LABELS, *metric.labels)
    if metric.type == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for _, own, value in samples:
            if value is not None and not isinstance(value, (int, float)):
                histogram.add_metric([*common, *own], _buckets(value), value.total)
        return histogram
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=labels)
    for _, own, value in samples:
        if isinstance(value, (int, float)):
            plain.add_metric([*common, *own], float(value))
    return plain
