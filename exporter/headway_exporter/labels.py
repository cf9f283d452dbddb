"""The closed sets of label values. A label that is not here is bounded by what the pod has: its ranks."""

from __future__ import annotations

from typing import Final

LAYERS: Final = ("in_process", "launcher", "orchestrator")
"""Who recovered, from the innermost to the outermost."""

STATES: Final = (
    "productive",
    "replay",
    "checkpoint_save",
    "checkpoint_load",
    "data_wait",
    "eval",
    "init",
    "detect",
    "restart",
    "down",
    "standby",
    "other",
)
"""What a rank's time is spent on; see the ledger."""

WAITING: Final = ("checkpoint_save", "checkpoint_load", "eval", "init", "detect", "restart", "down", "standby")
"""States in which no step is made."""

CAUSES: Final = (
    "app_exception",
    "numeric_nan",
    "cuda_oom",
    "host_oom",
    "illegal_access",
    "hang_soft",
    "hang_hard",
    "heartbeat_timeout",
    "collective_timeout",
    "process_killed",
    "process_exited",
    "monitor_failure",
    "gpu_memory",
    "gpu_fell_off_bus",
    "gpu_driver",
    "nvlink",
    "pcie",
    "nic",
    "storage_io",
    "checkpoint_write",
    "checkpoint_corrupt",
    "node_lost",
    "preempted",
    "config_error",
    "peer_failure",
    "unknown",
)
"""Why a restart was needed. `unknown` is an honest answer."""

RECOVERY_PHASES: Final = ("detect", "teardown", "respawn", "rendezvous", "init", "load", "first_step", "catch_up")
"""What a recovery spends its time on; see phases."""

REASONS: Final = (
    "no_progress",
    "no_durable_progress",
    "same_fingerprint",
    "same_checkpoint",
    "same_step",
    "same_entity",
)
"""Why a failure is said to keep coming back; see verdicts. `same_entity` stands apart: it does not make an incident recurring."""

INCIDENT_OUTCOMES: Final = ("recovered", "abandoned", "cancelled")

ENTITY_KINDS: Final = ("rank", "node", "gpu")

VOLUMES: Final = ("checkpoints", "state", "journal")
"""Folders whose space is watched: where the trainer's checkpoints lie, the state folder, and the one shared with the trainer."""

NIC_ERRORS: Final = ("link_downed", "symbol", "retry", "timeout")
"""What network cards count.

`link_downed`: a port lost its link; `symbol`: broken symbols on the line, of a bad cable or transceiver; `retry`: packets that had to
be sent again; `timeout`: answers that did not come in time, and peers that were slow or silent (EFA's word for it).
"""

MEMORY_SCOPES: Final = ("container", "node")
"""Whose memory: the trainer's container, or the machine with all that runs on it."""

_INSTRUMENTS: Final = ("kubernetes", "nvml", "host", "nics", *(f"storage_{volume}" for volume in VOLUMES))
"""What the sidecar measures itself; see health."""

SOURCES: Final = ("trainer", "launcher", "state", *_INSTRUMENTS)
CONTAINER_ENDS: Final = ("completed", "error", "oom_killed", "other")
"""How a container of the pod ended, as the orchestrator says. `other`: it lost sight of it, or the container could not be started."""

DISRUPTIONS: Final = ("preempted", "evicted", "node_lost", "node_shutdown", "deadline", "other")
"""Why the orchestrator took the pod away. `evicted`: its node ran short of something, or is being drained; `deadline`: its time was up."""


PHASES: Final = (
    "init",
    "rendezvous",
    "checkpoint_load",
    "checkpoint_save",
    "data_wait",
    "eval",
    "step",
    "other",
)
"""Phases of `headway_phase_gap_max_seconds`; a user's own names count as `other`."""

OUTCOMES: Final = ("committed", "failed", "aborted")
REPLAY_RESULTS: Final = ("valid", "diverged", "unverifiable")

DROP_WORDS: Final = {
    "torn": "a line of a journal that was cut off: its process died while it wrote it",
    "too_long": "a line of a journal that is longer than any that Headway writes",
    "version": "written by a version of Headway that this one does not read",
    "malformed": "a line that is no event, or one that contradicts what is known",
    "unknown_kind": "an event of a kind that is not known here",
    "gap": "events that the journal itself lost; also once each time that XIDs may be missing, as the driver was not listened to",
    "overwritten": "step records that the ring overwrote before they were read",
    "torn_step": "step records that are damaged",
    "bad_ring": "a file of steps that is none, or damaged in its head",
    "ring_gone": "a file of steps that was gone before its end was read: lives came and went too fast, or while no sidecar looked, "
    "or the pod went (nobody knows how many steps; those that a checkpoint or a later record vouches for count, without times)",
    "unreadable": "a file or folder that could not be read: permissions, or an error of the disk",
    "other_run": "journals of another run in the same folder",
    "limit": "beyond what the sidecar is willing to track",
    "future": "a time that has not come yet",
    "writer": "what the trainer could not record: a full or read-only disk; once it can write again there is a `gap` as well: do not "
    "add the two",
    "state_corrupt": "a damaged file of the state folder, set aside",
    "state_foreign": "another pod's file in this pod's place of the state folder, set aside",
    "state_newer": "a file of the state folder by a newer version, set aside",
}
"""Why something of the journals is not in the numbers, and what that means."""

DROP_REASONS: Final = tuple(DROP_WORDS)

CLOCK_ANOMALIES: Final = ("wall_stepped", "mono_backwards", "negative_duration")

SIGNALS: Final = ("traces", "logs")
"""What incidents are sent as; see telemetry."""
EXPORT_OUTCOMES: Final = ("ok", "failed", "dropped")
"""`failed`: the endpoint did not take it; `dropped`: it was never tried."""

REFUSAL_WORDS: Final = {
    "tls": "no TLS, or not the right certificate",
    "credentials": "no right name and password",
    "busy": "too many requests at a time, or passwords to check",
    "malformed": "no request that is understood",
    "timeout": "too slow",
    "crowded": "its place was needed for another one",
    "configuration": "the web configuration cannot be used",
}
"""Why the port turned a client away."""

REFUSALS: Final = tuple(REFUSAL_WORDS)

GPU_SENSORS: Final = ("gpu", "memory")
GPU_CLOCKS: Final = ("sm", "memory")
GPU_THROTTLE_REASONS: Final = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
)
"""Why a clock is held down, less what is no trouble: being idle, and clocks that somebody chose."""
ECC_TYPES: Final = ("corrected", "uncorrected")
ECC_COUNTERS: Final = ("volatile", "aggregate")
"""Since the driver was loaded; in the GPU's life."""
REMAPPED_ROWS: Final = ("correctable", "uncorrectable")
"""What the errors were for which a row of memory was replaced."""
NVLINK_ERRORS: Final = ("crc", "replay", "recovery", "ecc", "receive", "integrity")
"""Kinds that a GPU counts differ by its generation."""
XID_CLASSES: Final = ("application", "driver", "hardware", "fabric", "informational", "echo", "unknown")

COLLECTORS: Final = (
    "run",
    "steps",
    "ledger",
    "checkpoints",
    "restarts",
    "incidents",
    "sources",
    "telemetry",
    "state",
    *_INSTRUMENTS,
)
