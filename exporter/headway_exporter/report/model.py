"""A run as its readers see it: what all pods wrote down, checked and merged.

Times named `_wall` are seconds since 1970, all durations seconds; a rank-second is a second of one rank. Nothing here is NaN or infinite,
texts hold no control characters, and None or an empty collection stands for what nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from headway_exporter.thresholds import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headway_exporter.thresholds import Thresholds

Setting = float | str
_Item = TypeVar("_Item")
UNAVAILABLE = ("init", "detect", "restart", "down")
"""States that infrastructure goodput counts as bad."""


class Later(Sequence[_Item], Generic[_Item]):
    """A sequence that is made when somebody first looks into it: of ten thousand incidents a few hundred are told in full."""

    __slots__ = ("_items", "_make")

    def __init__(self, make: Callable[[], tuple[_Item, ...]]) -> None:
        self._make: Callable[[], tuple[_Item, ...]] | None = make
        self._items: tuple[_Item, ...] = ()

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, place: int | slice) -> _Item | tuple[_Item, ...]:
        return self._made()[place]

    def __len__(self) -> int:
        return len(self._made())

    def _made(self) -> tuple[_Item, ...]:
        if self._make is not None:
            self._items, self._make = self._make(), None
        return self._items


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a failure began, as far as anybody knows."""

    rank: int | None = None
    pod_index: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen of a failure."""

    kind: str
    wall: float | None
    slot: int | None
    rank: int | None
    text: str
    exit_code: int | None = None
    signature: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to get going again."""

    opened_wall: float | None
    layer: str | None
    cause: str
    confidence: str
    origin_rank: int | None
    alternatives: tuple[str, ...]
    restarted_wall: float | None
    loaded_step: int | None
    phases: Mapping[str, float]
    """Seconds by recovery phase (labels.RECOVERY_PHASES)."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a failure to the first step after it; it may take several tries."""

    opened_wall: float | None
    layer: str | None
    cause: str
    confidence: str
    origin_rank: int | None
    attempts: int
    tip_step: int | None
    mark_step: int | None
    loaded_step: int | None
    rejected_steps: tuple[int, ...]
    steps_lost: int | None
    first_step_wall: float | None
    high_water_wall: float | None
    replay_check: str | None
    tries: tuple[Try, ...]

    @property
    def seconds_to_first_step(self) -> float | None:
        """Until training went on; None when it did not."""
        return _between(self.opened_wall, self.first_step_wall)

    @property
    def seconds_to_high_water(self) -> float | None:
        """Until the mark at the failure was regained; None when it was not."""
        return _between(self.opened_wall, self.high_water_wall)


@dataclass(frozen=True, slots=True)
class Record:
    """What one pod wrote down of an incident, in its newest revision."""

    id: str
    pod_index: str
    revision: int
    written_wall: float | None
    outcome: str
    """recovered, cancelled, abandoned, or open: it is not over."""
    state: str
    recurring: tuple[str, ...]
    opened_wall: float
    closed_wall: float | None
    layer: str | None
    escalated: bool
    attempts: int
    cause: str
    confidence: str
    alternatives: tuple[str, ...]
    origin: Origin
    decided_by: str
    """verdict: all pods together; alone: there was no other pod; timeout: no word came from the others."""
    ambiguous: bool
    mark_step: int | None
    durable_step: int | None
    loads: Mapping[int, int]
    """Loads of a checkpoint by its step."""
    world_size: int | None
    node: str
    evidence: Sequence[Evidence]
    recoveries: tuple[Recovery, ...]
    """The first and the last ones, where there were many."""
    recoveries_left_out: int
    """Of these only the number is known, and the steps that they lost."""
    steps_lost: int
    """By all recoveries."""
    lost_rank_seconds: Mapping[str, float]
    """This pod's, by state, from the failure until the mark was regained."""
    trace_id: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident of the run, whoever saw it."""

    id: str
    records: tuple[Record, ...]
    """What each pod wrote down, by pod index; `lead` is one of them."""
    lead: Record
    """Of the pod where it began if that wrote one, else of the one that is surest: cause, evidence and recoveries are its."""
    outcome: str
    recurring: tuple[str, ...]
    opened_wall: float
    closed_wall: float | None
    lost_rank_seconds: Mapping[str, float]
    """Of all pods together, by state."""

    @property
    def pods(self) -> tuple[str, ...]:
        """Indices of the pods that saw it."""
        return tuple(one.pod_index for one in self.records)

    @property
    def lost(self) -> float:
        """Rank-seconds that it cost, all states together."""
        return sum(self.lost_rank_seconds.values())

    @property
    def steps_lost(self) -> int:
        """Steps that had to be done again."""
        return self.lead.steps_lost

    @property
    def seconds_to_first_step(self) -> float | None:
        """Until training went on for good: from the failure to the first step of the last recovery; None when it did not."""
        last = self.lead.recoveries[-1:]
        return _between(self.opened_wall, last[0].first_step_wall) if last else None

    @property
    def attempts(self) -> int:
        """The most that any pod counted: the others may have been gone for some of them."""
        return max(one.attempts for one in self.records)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram: `counts` of values up to each of `bounds`, the last one above them all."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0

    @property
    def count(self) -> int:
        """Values in it."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saving and loading, as one pod saw it."""

    durable_step: int | None = None
    committed_wall: float | None = None
    content_wall: float | None = None
    saves: Mapping[str, int] = field(default_factory=dict)
    """Ended saves by outcome."""
    requests: int | None = None
    interval_steps: float | None = None
    interval_seconds: float | None = None
    last_write_seconds: float | None = None
    bytes: float | None = None
    contention: float | None = None
    """Extra step time while a save is in flight, as a ratio."""
    blocking_seconds: Distribution = field(default_factory=Distribution)
    write_seconds: Distribution = field(default_factory=Distribution)
    load_seconds: Distribution = field(default_factory=Distribution)


@dataclass(frozen=True, slots=True)
class Budget:
    """Restarts that a layer may still make."""

    limit: float | None
    remaining: float | None


@dataclass(frozen=True, slots=True)
class SlotHistory:
    """What a slot's time went to, stretch by stretch."""

    slot: str
    rank: int | None
    buckets: tuple[tuple[int, Mapping[str, float]], ...]
    """`(number of the stretch, rank-seconds by state)`, in order; what is left out is empty."""


@dataclass(frozen=True, slots=True)
class History:
    """A pod's states over time: stretch `i` begins at `begin_wall + i * width_seconds`."""

    begin_wall: float
    width_seconds: float
    slots: tuple[SlotHistory, ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """The summary in a pod's ledger."""

    index: str
    node: str
    written_wall: float
    started_wall: float | None
    state: str | None
    state_since_wall: float | None
    finished: bool
    step: int | None
    high_water_step: int | None
    total_steps: int | None
    loss: float | None
    world_size: int | None
    pods_expected: int | None
    backend: str | None
    versions: Mapping[str, str]
    settings: Mapping[str, Setting]
    rank_seconds: Mapping[str, float]
    elapsed_rank_seconds: float
    pending_rank_seconds: float
    unregained_rank_seconds: float
    infrastructure_goodput: float | None
    checkpoint: Checkpoints
    budget: Mapping[str, Budget]
    """By layer."""
    restarts: Mapping[str, int]
    """By layer."""
    phase_gap_seconds: Mapping[str, float]
    """Longest silence between heartbeats, by phase."""
    productive_steps: int
    replayed_steps: int
    lost_steps: int
    baseline_step_seconds: float | None
    tokens: float | None
    lost_rank_seconds: float
    first_step_seconds: Distribution
    high_water_seconds: Distribution
    recovery_phases: tuple[tuple[str, str, float], ...]
    """`(layer, phase, seconds)`."""
    replay_checks: Mapping[str, int]
    thresholds: Thresholds
    """Those in force."""
    dropped: Mapping[str, int]
    """What of the journals is not in the numbers, by reason."""
    history: History | None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that should have been readable and was not."""

    what: str
    """A file, or a pod."""
    message: str
    """What is wrong with it and what that means for the report."""


@dataclass(frozen=True)
class Run:
    """All that the state folder tells of a run."""

    name: str
    pods: tuple[Pod, ...]
    """Those whose ledger could be read, by pod index."""
    incidents: tuple[Incident, ...]
    """By the time they opened."""
    problems: tuple[Problem, ...]
    read_wall: float
    """When the folder was read."""

    @property
    def started_wall(self) -> float | None:
        """First sign of life; None when no pod tells."""
        known = [pod.started_wall for pod in self.pods if pod.started_wall is not None]
        known += [one.opened_wall for one in self.incidents[:1]] if not known else []
        return min(known, default=None)

    @property
    def last_wall(self) -> float | None:
        """Newest word of any pod: what happened later is not known."""
        walls = [pod.written_wall for pod in self.pods]
        walls += [record.written_wall for one in self.incidents for record in one.records if record.written_wall]
        return max(walls, default=None)

    @property
    def duration_seconds(self) -> float | None:
        """From the first sign of life to the newest word."""
        return _between(self.started_wall, self.last_wall)

    @property
    def finished(self) -> bool:
        """Some pod saw the run complete: pods finish together."""
        return any(pod.finished for pod in self.pods)

    @property
    def step(self) -> int | None:
        """Where the weights stand."""
        return max((pod.step for pod in self.pods if pod.step is not None), default=None)

    @property
    def high_water_step(self) -> int | None:
        """Highest step ever completed."""
        return max((pod.high_water_step for pod in self.pods if pod.high_water_step is not None), default=None)

    @property
    def total_steps(self) -> int | None:
        """Steps that the run should make."""
        return max((pod.total_steps for pod in self.pods if pod.total_steps is not None), default=None)

    @property
    def durable_step(self) -> int | None:
        """Newest durable checkpoint."""
        return max(
            (pod.checkpoint.durable_step for pod in self.pods if pod.checkpoint.durable_step is not None), default=None
        )

    @property
    def world_size(self) -> int | None:
        """Ranks of the job; where no pod tells, those of the records."""
        sizes = [pod.world_size for pod in self.pods] + [one.lead.world_size for one in self.incidents[-1:]]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def pods_expected(self) -> int | None:
        """Pods that the run should have."""
        return max((pod.pods_expected for pod in self.pods if pod.pods_expected is not None), default=None)

    @property
    def on_gpus(self) -> bool:
        """A rank-hour is a GPU-hour: the ranks talk through NCCL."""
        return any("nccl" in (pod.backend or "").lower() for pod in self.pods)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The newest configuration in force, of the lowest pod that tells it."""
        return next((pod.settings for pod in self.pods if pod.settings), {})

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the software, of the lowest pod that tells them."""
        return next((pod.versions for pod in self.pods if pod.versions), {})

    @property
    def rank_seconds(self) -> Mapping[str, float]:
        """Rank-seconds by state, of all pods."""
        total: Counter[str] = Counter()
        for pod in self.pods:
            total.update(pod.rank_seconds)
        return dict(total)

    @property
    def elapsed_rank_seconds(self) -> float:
        """Rank-seconds that goodput is measured against: of all pods, without reserves."""
        return sum(_in_use(pod) for pod in self.pods)

    @property
    def abandoned_seconds(self) -> float:
        """Silence after which the run is given up; where the pods differ, the most patient one's."""
        return max((pod.thresholds.abandoned_seconds for pod in self.pods), default=DEFAULT.abandoned_seconds)

    @property
    def training_goodput(self) -> float | None:
        """Share of the time that made steps which are still in the weights."""
        elapsed = self.elapsed_rank_seconds
        if elapsed <= 0:
            return None
        kept = self.rank_seconds.get("productive", 0.0) - sum(pod.unregained_rank_seconds for pod in self.pods)
        return min(max(kept / elapsed, 0.0), 1.0)

    @property
    def infrastructure_goodput(self) -> float | None:
        """Share of the time in which the job was able to train; each pod's own word, weighted by its time."""
        elapsed = self.elapsed_rank_seconds
        if elapsed <= 0:
            return None
        return min(max(1 - sum(_unavailable(pod) for pod in self.pods) / elapsed, 0.0), 1.0)


def _in_use(pod: Pod) -> float:
    return max(pod.elapsed_rank_seconds - pod.rank_seconds.get("standby", 0.0), 0.0)


def _unavailable(pod: Pod) -> float:
    if pod.infrastructure_goodput is not None:
        return (1 - pod.infrastructure_goodput) * _in_use(pod)
    return sum(pod.rank_seconds.get(state, 0.0) for state in UNAVAILABLE)


def _between(begin: float | None, end: float | None) -> float | None:
    """Seconds; a clock that was set back meanwhile makes them 0."""
    return None if begin is None or end is None else max(end - begin, 0.0)
