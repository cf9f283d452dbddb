"""What the API tells: each class is an object of its JSON, each attribute a field of the same name.

Fields are added, never renamed or given another meaning: that would be `/api/v2/`. Times named `_wall` are seconds since 1970 (UTC),
`_seconds` durations, `_bytes` bytes, `_ratio` and goodputs shares between 0 and 1, steps are optimizer steps. null is what nobody
knows. Texts come from journals that anybody in the trainer's container may write: they are cut and hold no control characters, and
are still text, not HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

API_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Note:
    """Something that whoever looks on should know of what is shown: what is missing, and what to do."""

    level: str
    """`attention` or `bad`; `info` explains what is empty."""
    text: str
    """One or two sentences."""


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What would be lost if the run failed now: all since the newest durable checkpoint."""

    steps: int | None
    """Steps above the durable checkpoint, or all when none is durable; null before the first step."""
    exposure_seconds: float | None
    """Time since the step of the durable checkpoint was complete, or since the run began when none is durable."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Checkpoints as this pod knows them."""

    durable_step: int | None
    """Step of the newest checkpoint that is complete and verified."""
    committed_wall: float | None
    """When it became durable."""
    age_seconds: float | None
    """Time since then."""
    interval_steps: float | None
    """Steps from one save to the next, as configured or else observed."""
    interval_seconds: float | None
    """Time from one save to the next, observed."""
    overdue: bool
    """No checkpoint became durable for more than three intervals."""
    last_write_seconds: float | None
    """How long the last save took until it was written, by the slowest rank."""
    requests: int
    """Saves that were asked for."""
    committed: int
    """Saves that became durable."""
    failed: int
    """Saves that failed."""
    aborted: int
    """Saves that were given up, as by a restart."""
    failed_since_commit: int
    """Saves that failed or were given up since the last one that became durable."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Asynchronous saves that are not written yet."""

    depth: int
    """Saves that wait or are being written, of the rank that has most."""
    oldest_seconds: float | None
    """How long the oldest of them waits; null when none does."""
    writer_up: bool | None
    """Whether the writer processes of all local ranks live; null before one was needed."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Restarts that a layer may make."""

    limit: float | None
    """In all."""
    remaining: float | None
    """That are left."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A process place of this pod."""

    slot: int
    """Local rank."""
    rank: int | None
    """Global rank."""
    alive: bool
    """Its process lives."""
    state: str | None
    """What it does, one of `rank_seconds`; or `finished`."""
    step: int | None
    """Last step of this life of the process."""
    gpu_uuid: str | None
    """The GPU that it uses."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, as the driver describes it."""

    gpu: str
    """Its number, as nvidia-smi counts."""
    uuid: str
    """What tells it from all others."""
    model: str
    """Its model's name."""
    up: bool
    """It answers; if not, no measurement is shown."""
    ranks: tuple[int, ...]
    """Global ranks that use it."""
    utilization_ratio: float | None
    """Share of the time in which something ran on it."""
    memory_used_bytes: float | None
    """Memory in use."""
    memory_total_bytes: float | None
    """Memory that it has."""
    temperature_celsius: float | None
    """Of the chip."""
    power_watts: float | None
    """Power drawn."""
    power_limit_watts: float | None
    """Power that it may draw."""
    throttled: tuple[str, ...]
    """Why its clocks are held down: values of the label `reason` of `headway_gpu_throttle_active`."""
    uncorrected_errors: float | None
    """Memory errors that could not be corrected since the driver was loaded."""
    xids: Mapping[str, int]
    """Errors that the driver reported, by XID, since the sidecar's memory began."""


@dataclass(frozen=True, slots=True)
class PodGlance:
    """A pod of the run, by its newest word in the shared state folder."""

    pod_index: str
    """Its place in the run."""
    node: str
    """The machine that it is on."""
    state: str | None
    """What it did then; null also when its word is too old to be believed."""
    step: int | None
    """Where its weights stood."""
    heard_wall: float | None
    """When its word was written; null: it never wrote one that can be read."""
    silent: bool
    """Nothing was heard of it for two minutes, and it had not finished."""
    training_goodput: float | None
    """Share of its rank time that made steps which are still in the weights."""
    here: bool
    """It is the pod whose sidecar answers."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The run over all pods that share the state folder."""

    pods_expected: int | None
    """Pods that the run should have."""
    pods_heard: int
    """Pods that were heard in the last two minutes, or have finished."""
    step: int | None
    """Where the weights stand, by the pod that is furthest."""
    high_water_step: int | None
    """Highest step that was ever complete (the mark)."""
    durable_step: int | None
    """Newest durable checkpoint that any pod knows."""
    training_goodput: float | None
    """Of all these pods' rank time, reserves left out."""
    infrastructure_goodput: float | None
    """Likewise."""
    pods: tuple[PodGlance, ...]
    """At most 256 pods."""


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody whom the sidecar hears or reads."""

    name: str
    """A value of the label `source` of `headway_source_last_update_timestamp_seconds`."""
    heard_wall: float | None
    """When it last told something."""
    trouble: bool
    """It does not answer, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Status:
    """`/api/v1/status`: the pod and its run at one moment."""

    v: int
    """Version of the API: 1."""
    headway_version: str
    """Version of the sidecar."""
    taken_wall: float
    """When this was so."""
    run: str
    """Name of the run."""
    pod_index: str
    """The pod whose sidecar answers."""
    node: str
    """The machine that it is on."""
    level: str
    """`good`, `attention` or `bad`: whether somebody should look."""
    fate: str
    """`waiting` (no trainer yet), `running`, `failing` (in an incident), `finished`, `silent`, `stopped` or `abandoned`."""
    headline: str
    """The same in a sentence."""
    facts: tuple[str, ...]
    """A few sentences more, the most important first."""
    notes: tuple[Note, ...]
    """What is missing or empty, and what to do about it."""
    state: str | None
    """What the pod does: one of `rank_seconds`, or `finished`; null before there is a trainer."""
    state_since_wall: float | None
    """Since when."""
    started_wall: float | None
    """First sign of life of a trainer in this pod."""
    step: int | None
    """Last step that is in the weights."""
    high_water_step: int | None
    """Highest step that was ever complete (the mark)."""
    total_steps: int | None
    """Steps that the run should make."""
    last_step_wall: float | None
    """When the last step was complete."""
    step_seconds: float | None
    """Usual duration of a step."""
    slowest_rank_ratio: float | None
    """Step time of the slowest local rank over the median of them all."""
    loss: float | None
    """Of the last step."""
    training_goodput: float | None
    """Share of this pod's rank time that made steps which are still in the weights."""
    infrastructure_goodput: float | None
    """Share of this pod's rank time in which it was able to train."""
    at_risk: AtRisk
    """What a failure now would cost."""
    checkpoint: Checkpoint
    """Checkpoints and how fresh the durable one is."""
    queue: Queue
    """Asynchronous saves under way."""
    restarts: Mapping[str, int]
    """Restarts so far, by layer."""
    budget: Mapping[str, Budget]
    """Restarts that are left, by layer, as far as a budget is known."""
    incidents: Mapping[str, int]
    """Incidents that are over, by outcome, and `open` (0 or 1)."""
    rank_seconds: Mapping[str, float]
    """Where this pod's time went: rank-seconds by state."""
    elapsed_rank_seconds: float
    """All of it; with `pending_rank_seconds` the states add up to this."""
    pending_rank_seconds: float
    """Rank-seconds that are not over yet, so that their state is open."""
    unregained_rank_seconds: float
    """Rank-seconds of steps that a failure undid and that are not done again yet."""
    ranks: tuple[Rank, ...]
    """This pod's, by slot: at most 64."""
    gpus: tuple[Gpu, ...]
    """This machine's: at most 64."""
    whole: Whole | None
    """The run over all pods; null: only this pod is known (no shared state folder, or nobody else in it)."""
    sources: tuple[Source, ...]
    """Whom the sidecar hears."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that was seen of a failure."""

    kind: str
    """Where it came from, as `launcher`, `fault_caught`, `death`."""
    wall: float | None
    """When it was so."""
    rank: int | None
    """Of which rank."""
    text: str
    """What was seen."""


@dataclass(frozen=True, slots=True)
class IncidentGlance:
    """An incident, as this pod knows it."""

    id: str
    """The same on every pod, and in the state folder."""
    outcome: str
    """`open`, `recovered`, `abandoned` or `cancelled`."""
    state: str
    """Where it is: `open`, `restarting`, `resumed`, `progressing`, or its outcome."""
    recurring: tuple[str, ...]
    """Why it is said to keep coming back; empty: it is not. Values of the label `reason` of `headway_incident_recurring`."""
    opened_wall: float
    """First evidence."""
    closed_wall: float | None
    """Its verdict."""
    cause: str
    """A value of the label `cause`; `unknown` is an honest answer."""
    confidence: str
    """`confirmed`, `likely` or `unknown`."""
    alternatives: tuple[str, ...]
    """Causes that it may also have been."""
    origin_rank: int | None
    """Global rank where it began."""
    origin_pod_index: str | None
    """Pod where it began."""
    origin_node: str | None
    """Machine where it began."""
    origin_gpu_uuid: str | None
    """GPU of the rank where it began."""
    ambiguous: bool
    """It may have begun elsewhere just as well."""
    decided_by: str
    """Who settled the origin: `verdict` (all pods together), `alone` (this pod), `timeout` (this pod, as no word came)."""
    layer: str | None
    """The outermost layer that restarted: `in_process`, `launcher`, `orchestrator`."""
    escalated: bool
    """An outer layer had to take over."""
    attempts: int
    """Attempts to recover."""
    steps_lost: int
    """Steps to be done again."""
    first_step_seconds: float | None
    """From its first evidence to the first step of the last recovery; null: training does not go on yet."""
    lost_rank_seconds: float
    """What it cost this pod."""
    evidence: tuple[Sign, ...]
    """In the order of time, at most 50."""


@dataclass(frozen=True, slots=True)
class Incidents:
    """`/api/v1/incidents?limit=20`: the newest incidents first."""

    v: int
    """Version of the API: 1."""
    taken_wall: float
    """When this was so."""
    limit: int
    """Incidents that are told at most: 1 to 50, 20 if not given."""
    total: int
    """Incidents so far, of which older ones are only in the state folder (`headway incidents`)."""
    incidents: tuple[IncidentGlance, ...]
    """The newest first."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a rank's time went to in one stretch of time."""

    n: int
    """Number of the stretch: it begins `n` widths after `begin_wall`."""
    rank_seconds: Mapping[str, float]
    """By state; `pending` is a step that is not complete yet."""


@dataclass(frozen=True, slots=True)
class SlotTimeline:
    """One rank's timeline."""

    slot: int
    """Local rank."""
    rank: int | None
    """Global rank."""
    buckets: tuple[Bucket, ...]
    """In order; stretches in which nothing is known are left out."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """`/api/v1/timeline?window=hour`: what each local rank's time went to, stretch by stretch."""

    v: int
    """Version of the API: 1."""
    taken_wall: float
    """When this was so."""
    window: str
    """`hour`: the last hour, in stretches of 16 s; `run`: all of it, in stretches that widen with its length."""
    begin_wall: float
    """Begin of the first stretch."""
    width_seconds: float
    """Length of each stretch."""
    slots: tuple[SlotTimeline, ...]
    """By slot: at most 64."""
