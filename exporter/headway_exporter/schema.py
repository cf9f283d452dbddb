"""The metric catalogue: the only place that knows a metric's name, type, labels and meaning.

The exporter takes every family it serves from here; rules, dashboards and the README's table are checked against it. A label is
either a closed set of `labels`, or bounded by what the pod has (its ranks). A metric that may be missing from a scrape says when:
a dead or unknown source is shown by absence or by 0, never by its last good value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from headway_exporter.labels import (
    CAUSES,
    CLOCK_ANOMALIES,
    COLLECTORS,
    CONTAINER_ENDS,
    DISRUPTIONS,
    DROP_REASONS,
    ECC_COUNTERS,
    ECC_TYPES,
    ENTITY_KINDS,
    EXPORT_OUTCOMES,
    GPU_CLOCKS,
    GPU_SENSORS,
    GPU_THROTTLE_REASONS,
    INCIDENT_OUTCOMES,
    LAYERS,
    MEMORY_SCOPES,
    NIC_ERRORS,
    NVLINK_ERRORS,
    OUTCOMES,
    PHASES,
    REASONS,
    RECOVERY_PHASES,
    REFUSALS,
    REMAPPED_ROWS,
    REPLAY_RESULTS,
    SIGNALS,
    SOURCES,
    STATES,
    VOLUMES,
    WAITING,
    XID_CLASSES,
)

Type = Literal["gauge", "counter", "histogram"]
Labels = Mapping[str, "tuple[str, ...] | None"]

COMMON_LABELS: Final = ("run", "pod_index")
"""On every series, in this order, before the metric's own labels."""

STEP_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)
IO_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)
RECOVERY_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
ROLLBACK_BUCKETS: Final = (0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)


@dataclass(frozen=True)
class Metric:
    """One family of series."""

    name: str
    type: Type
    help: str
    labels: Labels = field(default_factory=dict)
    """Own labels: name to the closed set of values, or None when the pod bounds it."""
    absent: str = ""
    """When a scrape lacks it; empty: every scrape has it, from the first on."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""

    @property
    def unit(self) -> str:
        """Base unit by the name's suffix, empty for a plain number."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes", "ratio", "steps") if stem.endswith(f"_{unit}")), "")


_LAYER: Final[Labels] = {"layer": LAYERS}
_NO_TRAINER: Final = "before the first trainer process"
_NO_STEP: Final = "before the first step"
_NO_COMMIT: Final = "before the first durable checkpoint"
_NO_INCIDENT: Final = "no incident is open"
_NO_KUBERNETES: Final = "not in Kubernetes, or its API may not be asked"
_NO_HOST: Final = "the machine could not be looked at"
_NO_VOLUME: Final = "per volume: the folder is not known, not mounted here, or does not answer"
_GPU: Final[Labels] = {"gpu": None, "UUID": None, "pci_bus_id": None, "modelName": None}
_NO_GPU: Final = "no driver, or it does not answer for the GPU, or the GPU does not measure it"
_NO_XID: Final = "per GPU: none was reported yet"
_NO_CAUSE: Final = "per layer and cause: none yet (two in five of all series would be such zeros)"
_NO_SAVE: Final = "before the first save was written"

_CATALOGUE: Final = (
    # The run.
    Metric(
        "headway_build_info", "gauge", "Version of the sidecar; always 1.", {"version": None, "python_version": None}
    ),
    Metric(
        "headway_run_info",
        "gauge",
        "What the trainer runs on; always 1.",
        {"job_name": None, "nvrx_version": None, "torch_version": None, "backend": None, "node": None},
        absent=_NO_TRAINER,
    ),
    Metric(
        "headway_run_start_timestamp_seconds",
        "gauge",
        "When the first trainer process was seen to start.",
        absent=_NO_TRAINER,
    ),
    Metric("headway_pods_expected", "gauge", "Pods that the run should have.", absent="the trainer does not say"),
    Metric(
        "headway_rank_info",
        "gauge",
        "A local rank and the GPU it uses; always 1. Join GPUs to ranks by UUID.",
        {"rank": None, "slot": None, "gpu": None, "UUID": None},
        absent=_NO_TRAINER,
    ),
    Metric("headway_ranks", "gauge", "Local ranks whose process is alive."),
    Metric("headway_world_size", "gauge", "Ranks in the whole group.", absent=_NO_TRAINER),
    # Steps.
    Metric("headway_step", "gauge", "Last completed step that the current weights contain.", absent=_NO_STEP),
    Metric("headway_high_water_step", "gauge", "Highest step ever completed.", absent=_NO_STEP),
    Metric("headway_last_step_timestamp_seconds", "gauge", "When the last step completed.", absent=_NO_STEP),
    Metric(
        "headway_steps_total",
        "counter",
        "Steps completed: productive the first time, replay when repeated after a rollback.",
        {"kind": ("productive", "replay")},
    ),
    Metric(
        "headway_steps_lost_total", "counter", "Completed steps whose result was lost by returning to an earlier step."
    ),
    Metric(
        "headway_tokens_total", "counter", "Tokens of all completed steps of the local ranks, repeated ones included."
    ),
    Metric("headway_loss", "gauge", "Loss of the last step that reported one.", absent="no step reported a loss"),
    Metric(
        "headway_step_duration_baseline_seconds",
        "gauge",
        "Median duration of the last 200 steps.",
        absent="before the fifth step",
    ),
    Metric(
        "headway_slowest_rank_ratio",
        "gauge",
        "Median step duration of the slowest local rank over that of the median local rank.",
        absent=_NO_STEP,
    ),
    Metric(
        "headway_step_duration_seconds",
        "histogram",
        "Duration of a step on the pod's first rank.",
        buckets=STEP_BUCKETS,
    ),
    # The ledger.
    Metric(
        "headway_rank_seconds_total", "counter", "Time of the local ranks by what it was spent on.", {"state": STATES}
    ),
    Metric(
        "headway_rank_elapsed_seconds_total",
        "counter",
        "Time of the local ranks from first start to the end of training.",
    ),
    Metric(
        "headway_lost_rank_seconds_total",
        "counter",
        "Time of the local ranks that went into steps that were lost later.",
    ),
    Metric(
        "headway_pending_rank_seconds",
        "gauge",
        "Time in intervals that are still open; states and pending add up to elapsed.",
    ),
    Metric("headway_unregained_rank_seconds", "gauge", "Productive time of steps that were lost and not regained yet."),
    Metric(
        "headway_counted_rank_seconds",
        "gauge",
        "Time of which goodput is a share: elapsed, but for what was spent in reserve.",
    ),
    Metric(
        "headway_unavailable_rank_seconds",
        "gauge",
        "The part of it in which the infrastructure kept ranks from training, what is still open included.",
    ),
    Metric(
        "headway_state", "gauge", "1 for what the pod is doing now, 0 for the rest.", {"state": (*STATES, "finished")}
    ),
    Metric("headway_state_since_timestamp_seconds", "gauge", "When that state began.", absent=_NO_TRAINER),
    Metric(
        "headway_waiting_since_timestamp_seconds",
        "gauge",
        "When it began, of a state in which no step is made: one series to read of those that wait, instead of one a state of all.",
        {"state": WAITING},
        absent="steps are made, or the run has finished",
    ),
    # Checkpoints.
    Metric("headway_checkpoint_requests_total", "counter", "Checkpoints that the trainer asked for."),
    Metric(
        "headway_checkpoint_saves_total",
        "counter",
        "Checkpoints by how they ended; committed is durable on all ranks.",
        {"outcome": OUTCOMES},
    ),
    Metric(
        "headway_checkpoint_saves_since_commit", "gauge", "Failed or aborted checkpoints since the last durable one."
    ),
    Metric("headway_checkpoint_durable_step", "gauge", "Step of the newest durable checkpoint.", absent=_NO_COMMIT),
    Metric(
        "headway_checkpoint_durable_timestamp_seconds",
        "gauge",
        "When that checkpoint became durable.",
        absent=_NO_COMMIT,
    ),
    Metric(
        "headway_checkpoint_content_timestamp_seconds",
        "gauge",
        "When the step in that checkpoint completed.",
        absent=_NO_COMMIT,
    ),
    Metric(
        "headway_checkpoint_interval_steps",
        "gauge",
        "Steps between checkpoints, as configured, else as observed.",
        absent="not configured and fewer than two requests",
    ),
    Metric(
        "headway_checkpoint_interval_seconds",
        "gauge",
        "Time between the last two requests.",
        absent="fewer than two requests",
    ),
    Metric(
        "headway_checkpoint_last_write_seconds",
        "gauge",
        "Write time of the last save, slowest local rank.",
        absent=_NO_SAVE,
    ),
    Metric("headway_checkpoint_bytes", "gauge", "Size of this pod's shards in the last save.", absent=_NO_SAVE),
    Metric(
        "headway_checkpoint_blocking_seconds",
        "histogram",
        "Time that a save held up training, slowest local rank.",
        buckets=IO_BUCKETS,
    ),
    Metric(
        "headway_checkpoint_write_seconds",
        "histogram",
        "Time that a save took to write, slowest local rank.",
        buckets=IO_BUCKETS,
    ),
    Metric(
        "headway_checkpoint_load_seconds", "histogram", "Time that a load took, slowest local rank.", buckets=IO_BUCKETS
    ),
    # The asynchronous queue.
    Metric(
        "headway_async_queue_depth",
        "gauge",
        "Saves accepted and not finished, fullest queue of the local ranks; 0 when no trainer lives.",
    ),
    Metric(
        "headway_async_queue_oldest_timestamp_seconds",
        "gauge",
        "When the oldest of them was accepted.",
        absent="the queue is empty",
    ),
    Metric(
        "headway_async_writer_up",
        "gauge",
        "1 when the checkpoint writers of all local ranks live, 0 when one is gone.",
        absent="before a writer was needed",
    ),
    Metric(
        "headway_async_writer_memory_bytes",
        "gauge",
        "Resident memory of the checkpoint writers.",
        absent="no writer lives, or none was sampled yet",
    ),
    # Restarts and recoveries.
    Metric("headway_restarts_total", "counter", "Restarts by who made them.", _LAYER),
    Metric(
        "headway_restart_causes_total",
        "counter",
        "Restarts by cause, counted on the pod where the failure began, once it is decided.",
        {"layer": LAYERS, "cause": CAUSES},
        absent=_NO_CAUSE,
    ),
    Metric(
        "headway_rank_failures_total",
        "counter",
        "Failures that began on this local rank.",
        {"rank": None},
        absent=_NO_TRAINER,
    ),
    Metric(
        "headway_restart_budget_limit",
        "gauge",
        "Restarts that the layer may make.",
        _LAYER,
        absent="per layer: nothing tells its budget",
    ),
    Metric(
        "headway_restart_budget_remaining",
        "gauge",
        "Restarts that the layer has left.",
        _LAYER,
        absent="per layer: nothing tells its budget",
    ),
    Metric(
        "headway_restarts_without_progress", "gauge", "Restarts since the last step that was never completed before."
    ),
    Metric(
        "headway_same_checkpoint_loads",
        "gauge",
        "Times in a row that the same checkpoint was loaded after a failure; from scratch is a checkpoint too.",
    ),
    Metric(
        "headway_recovery_seconds",
        "histogram",
        "From the first evidence of a failure to the first step after it, or to the highest step before it.",
        {"to": ("first_step", "high_water")},
        buckets=RECOVERY_BUCKETS,
    ),
    Metric(
        "headway_recoveries_total",
        "counter",
        "Failures after which training made a step again, by the outermost layer.",
        _LAYER,
    ),
    Metric(
        "headway_recovery_phase_seconds_total",
        "counter",
        "From the last step before a failure to the mark regained, by what it was spent on and who restarted.",
        {"layer": LAYERS, "phase": RECOVERY_PHASES},
    ),
    Metric("headway_rollback_steps", "histogram", "Steps lost by a recovery.", buckets=ROLLBACK_BUCKETS),
    Metric(
        "headway_last_rollback_steps", "gauge", "Steps lost by the last recovery.", absent="before the first recovery"
    ),
    Metric(
        "headway_replay_checks_total",
        "counter",
        "Recoveries whose replayed steps were compared with their first pass: valid is bit-equal.",
        {"result": REPLAY_RESULTS},
    ),
    Metric(
        "headway_replay_diverged_timestamp_seconds",
        "gauge",
        "When such a comparison last said diverged.",
        absent="none did",
    ),
    Metric(
        "headway_phase_gap_max_seconds",
        "gauge",
        "Longest silence between heartbeats in a phase: what a time-out must exceed.",
        {"phase": PHASES},
        absent="per phase: no heartbeat in it yet",
    ),
    Metric(
        "headway_heartbeat_timeout_seconds",
        "gauge",
        "Heartbeat time-outs in force.",
        {"kind": ("initial", "rank")},
        absent="per kind: the trainer does not say",
    ),
    # Incidents.
    Metric("headway_incident_open", "gauge", "1 from the first evidence of a failure to the verdict, else 0."),
    Metric("headway_incident_attempts", "gauge", "Attempts of the open incident, nested ones counted as one; else 0."),
    Metric("headway_incident_opened_timestamp_seconds", "gauge", "When the open incident began.", absent=_NO_INCIDENT),
    Metric(
        "headway_incident_attempt_started_timestamp_seconds",
        "gauge",
        "When the attempt under way began, by the layer that makes it or, before its restart, that is expected to.",
        _LAYER,
        absent="no attempt lacks its first step",
    ),
    Metric(
        "headway_incident_recurring",
        "gauge",
        "1 for each reason to call the open incident recurring; same_entity: that incidents keep beginning in one place.",
        {"reason": REASONS},
        absent="no incident is open; same_entity: it is not so either",
    ),
    Metric(
        "headway_incidents_total",
        "counter",
        "Incidents by their verdict, counted when it is made; recurring: whether there was a reason other than same_entity.",
        {"outcome": INCIDENT_OUTCOMES, "recurring": ("false", "true")},
    ),
    Metric(
        "headway_incident_closed_timestamp_seconds",
        "gauge",
        "When an incident last had this verdict.",
        {"outcome": INCIDENT_OUTCOMES},
        absent="no incident has had it yet",
    ),
    Metric(
        "headway_incident_causes_total",
        "counter",
        "Incidents by outermost layer and first cause, counted with the verdict on the pod where they began.",
        {"layer": LAYERS, "cause": CAUSES},
        absent=_NO_CAUSE,
    ),
    Metric(
        "headway_entity_incidents",
        "gauge",
        "Incidents of the last 24 hours that began on one rank, node or GPU: the eight with the most.",
        {"entity_kind": ENTITY_KINDS, "entity": None},
        absent="per entity: fewer than two",
    ),
    # The host.
    Metric(
        "headway_host_memory_used_bytes",
        "gauge",
        "Memory in use that the kernel cannot take back at once: by the trainer's container, or on the whole node.",
        {"scope": MEMORY_SCOPES},
        absent="container: no trainer lives, or its samples do not tell",
    ),
    Metric(
        "headway_host_memory_limit_bytes",
        "gauge",
        "What may be used: the container's limit, or all memory of the node.",
        {"scope": MEMORY_SCOPES},
        absent="container: likewise, or it has no limit",
    ),
    Metric(
        "headway_host_memory_pressure_ratio",
        "gauge",
        "Share of the last minute in which some process of the node waited for memory (PSI).",
        absent="the kernel does not tell",
    ),
    Metric(
        "headway_host_cpu_ratio",
        "gauge",
        "Share of the node's processors that were busy since the last look, ten seconds ago.",
        absent="before the second look",
    ),
    Metric(
        "headway_host_load_ratio",
        "gauge",
        "Processes of the node that ran or waited to, mean of the last minute, for each processor: above 1 they wait.",
        absent=_NO_HOST,
    ),
    Metric(
        "headway_host_oom_kills_total",
        "counter",
        "Processes of the trainer's container that were killed for lack of memory, while a trainer looked.",
    ),
    Metric(
        "headway_host_trainer_memory_bytes",
        "gauge",
        "Resident memory of the local ranks, without their checkpoint writers; shared pages count for each.",
        absent="no trainer lives, or none was sampled yet",
    ),
    Metric(
        "headway_host_open_files",
        "gauge",
        "Open files of the local rank that has the most.",
        absent="no trainer lives, or none was sampled yet",
    ),
    # Network cards.
    Metric(
        "headway_nic_up",
        "gauge",
        "1 when each port of an InfiniBand, RoCE or EFA device that ever had a link has one, 0 when one has lost it.",
        {"device": None},
        absent="there is no such device, or its ports never had a link",
    ),
    Metric(
        "headway_nic_errors_total",
        "counter",
        "Errors that a device counts, a driver's new start included; device is `all` for the sum where there are more than twelve.",
        {"device": None, "kind": NIC_ERRORS},
        absent="per device and kind: it does not count them",
    ),
    # Storage.
    Metric(
        "headway_storage_available_bytes",
        "gauge",
        "Free space of a volume.",
        {"volume": VOLUMES},
        absent=_NO_VOLUME,
    ),
    Metric("headway_storage_size_bytes", "gauge", "Size of a volume.", {"volume": VOLUMES}, absent=_NO_VOLUME),
    Metric(
        "headway_storage_inodes_available_ratio",
        "gauge",
        "Free share of the files that a volume can hold.",
        {"volume": VOLUMES},
        absent=_NO_VOLUME + ", or has no such limit",
    ),
    Metric(
        "headway_storage_written_bytes_total",
        "counter",
        "Sizes of the saves in headway_checkpoint_write_seconds: over its sum, the pod's throughput.",
    ),
    Metric(
        "headway_storage_read_bytes_total",
        "counter",
        "Sizes of the loads in headway_checkpoint_load_seconds: over its sum, the pod's throughput.",
    ),
    # GPUs, as their driver tells.
    Metric(
        "headway_gpu_up",
        "gauge",
        "1 when the driver answers for the GPU, 0 when it does not any more, or hangs or crashes at it.",
        _GPU,
        absent="no driver, or it never answered",
    ),
    Metric(
        "headway_gpu_utilization_ratio",
        "gauge",
        "Share of the last moments in which a kernel ran.",
        _GPU,
        absent=_NO_GPU,
    ),
    Metric("headway_gpu_memory_used_bytes", "gauge", "Memory in use.", _GPU, absent=_NO_GPU),
    Metric("headway_gpu_memory_total_bytes", "gauge", "Memory that it has.", _GPU, absent=_NO_GPU),
    Metric("headway_gpu_temperature_celsius", "gauge", "Temperature.", {**_GPU, "sensor": GPU_SENSORS}, absent=_NO_GPU),
    Metric("headway_gpu_power_watts", "gauge", "Power that it draws.", _GPU, absent=_NO_GPU),
    Metric("headway_gpu_power_limit_watts", "gauge", "Power that it may draw.", _GPU, absent=_NO_GPU),
    Metric(
        "headway_gpu_energy_joules_total", "counter", "Energy used since the driver was loaded.", _GPU, absent=_NO_GPU
    ),
    Metric("headway_gpu_clock_hertz", "gauge", "Clock.", {**_GPU, "domain": GPU_CLOCKS}, absent=_NO_GPU),
    Metric(
        "headway_gpu_throttle_active",
        "gauge",
        "1 for each reason that holds the clock down now.",
        {**_GPU, "reason": GPU_THROTTLE_REASONS},
        absent=_NO_GPU,
    ),
    Metric(
        "headway_gpu_ecc_errors_total",
        "counter",
        "Memory errors: volatile since the driver was loaded, aggregate in the GPU's life.",
        {**_GPU, "type": ECC_TYPES, "counter": ECC_COUNTERS},
        absent=_NO_GPU,
    ),
    Metric(
        "headway_gpu_remapped_rows",
        "gauge",
        "Rows of memory that were replaced, by the errors that were the reason.",
        {**_GPU, "state": REMAPPED_ROWS},
        absent=_NO_GPU,
    ),
    Metric(
        "headway_gpu_row_remap_pending",
        "gauge",
        "1 when a row waits to be replaced at the next reset.",
        _GPU,
        absent=_NO_GPU,
    ),
    Metric("headway_gpu_row_remap_failed", "gauge", "1 when a bad row could not be replaced.", _GPU, absent=_NO_GPU),
    Metric(
        "headway_gpu_retired_pages",
        "gauge",
        "Pages of memory that are not used any more; GPUs that remap rows have none.",
        _GPU,
        absent=_NO_GPU,
    ),
    Metric(
        "headway_gpu_pcie_replays_total", "counter", "Packets on the bus that were sent again.", _GPU, absent=_NO_GPU
    ),
    Metric(
        "headway_gpu_nvlink_errors_total",
        "counter",
        "Errors of all its NVLinks together.",
        {**_GPU, "kind": NVLINK_ERRORS},
        absent=_NO_GPU,
    ),
    Metric("headway_gpu_nvlinks_active", "gauge", "NVLinks that are up.", _GPU, absent=_NO_GPU),
    Metric(
        "headway_gpu_recovery_action",
        "gauge",
        "What the driver asks for: 0 nothing, 1 a reset of the GPU, 2 a reboot, 3 to drain peers, 4 to drain and reset; see its manual.",
        _GPU,
        absent=_NO_GPU,
    ),
    Metric(
        "headway_gpu_xid_errors_total",
        "counter",
        "Errors that the driver reported, by number (XID); `other`: further numbers of a GPU that has had many.",
        {**_GPU, "xid": None, "class": XID_CLASSES},
        absent=_NO_XID,
    ),
    Metric(
        "headway_gpu_xid_last_timestamp_seconds",
        "gauge",
        "When the last of a class was reported.",
        {**_GPU, "class": XID_CLASSES},
        absent=_NO_XID,
    ),
    # The orchestrator.
    Metric(
        "headway_container_restarts",
        "gauge",
        "Restarts of a container of this pod, as Kubernetes counts them.",
        {"container": None},
        absent=_NO_KUBERNETES,
    ),
    Metric(
        "headway_container_ends_total",
        "counter",
        "Ends of the pod's containers, and of those of the pods before it in its place, by how Kubernetes says that they ended.",
        {"reason": CONTAINER_ENDS},
        absent=_NO_KUBERNETES,
    ),
    Metric(
        "headway_pod_disruptions_total",
        "counter",
        "How often Kubernetes took the pod, or one before it in its place, away, by why.",
        {"reason": DISRUPTIONS},
        absent=_NO_KUBERNETES,
    ),
    # The sidecar itself.
    Metric(
        "headway_sidecar_memory_bytes",
        "gauge",
        "Resident memory of the sidecar and of its process that asks the GPUs' driver.",
        absent=_NO_HOST,
    ),
    Metric(
        "headway_sidecar_cpu_ratio",
        "gauge",
        "Share of one processor that the sidecar used since its last look, ten seconds ago; so did its process that asks the GPUs' driver.",
        absent="before the second look",
    ),
    Metric(
        "headway_source_last_update_timestamp_seconds",
        "gauge",
        "When a source last wrote something.",
        {"source": SOURCES},
        absent="per source: nothing was written yet",
    ),
    Metric(
        "headway_events_dropped_total",
        "counter",
        "Events, steps or files that are not in these numbers; `gap` also counts each time that XIDs may have been missed.",
        {"reason": DROP_REASONS},
    ),
    Metric(
        "headway_clock_anomalies_total", "counter", "Times that contradicted each other.", {"reason": CLOCK_ANOMALIES}
    ),
    Metric(
        "headway_telemetry_exports_total",
        "counter",
        "Incidents sent to an OpenTelemetry endpoint; failed: it did not take them, dropped: too many waited or it is set up wrong.",
        {"signal": SIGNALS, "outcome": EXPORT_OUTCOMES},
    ),
    Metric(
        "headway_requests_refused_total",
        "counter",
        "Connections and requests that the sidecar's port turned away since it listens, by why.",
        {"reason": REFUSALS},
        absent="per reason: none yet",
    ),
    Metric(
        "headway_collector_duration_seconds",
        "gauge",
        "Time that a part of this scrape took.",
        {"collector": COLLECTORS},
    ),
    Metric("headway_collector_success", "gauge", "Whether a part of this scrape worked.", {"collector": COLLECTORS}),
)

METRICS: Final[Mapping[str, Metric]] = MappingProxyType({metric.name: metric for metric in _CATALOGUE})


def markdown_table() -> str:
    """The catalogue as `exporter/METRICS.md` shows it."""
    rows = [
        f"| `{metric.name}` | {metric.type} | {_labels(metric)} | {_meaning(metric)} |" for metric in METRICS.values()
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{name}`" for name in metric.labels)


def _meaning(metric: Metric) -> str:
    return f"{metric.help} Absent: {metric.absent}." if metric.absent else metric.help
