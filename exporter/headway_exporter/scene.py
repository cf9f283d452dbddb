"""What a judgement may use: the signs of one failure, where every local rank stood, and what is known of the circumstances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.thresholds import DEFAULT, Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable

EvidenceKind = Literal[
    "exception",  # a rank's own exception
    "echo",  # a collective that was broken or timed out
    "interrupted",  # a restart, an exit or a keyboard interrupt passed through: it tells that something happened, not what
    "death",  # the process is gone
    "exit",  # the launcher told a worker's exit code
    "heartbeat",  # a rank monitor waited in vain
    "interruption",  # NVRx's records
    "group_failed",  # the launcher restarts its workers or gives up
    "detected",  # the launcher's own moment of having noticed
    "joined",  # the launcher joins a restart that another node began
    "relaunch",  # what took the launcher's time
    "nodes",  # which nodes take part from here on
    "launcher_exit",
    "stop",  # the launcher was told to end
    "replaced",  # a new life without a word about the end of the old one
    "oom",  # the kernel killed a process of the container for lack of memory
    "vanished",  # the pod was started again without a word about its end
    "gpu",  # something happened to a rank's GPU, as its driver tells; kept apart from the other signs
    "nic",  # a network card of the pod lost its link; kept apart likewise
    "container",  # a container of the pod ended, says the orchestrator
    "disruption",  # the orchestrator takes the pod away, or its node is gone
    "trace",  # a rank's last collectives are in a file
    "standing",  # where the ranks stood when it was noticed: what names the one that the others waited for
]
ORCHESTRATOR_KINDS: Final = frozenset({"container", "disruption"})
"""Told from outside, late, and to the second: they explain a failure, and never open or date one."""
ACCOUNT_KINDS: Final = frozenset({"trace", "relaunch", "nodes"})
"""Told for people; no judgement uses them."""
BESIDE_KINDS: Final = ORCHESTRATOR_KINDS | ACCOUNT_KINDS
"""What belongs to a failure and is no sign of one."""
LAUNCHER_KINDS: Final = frozenset({"exit", "heartbeat", "group_failed", "detected", "joined", "launcher_exit"})
IN_PHASE: Final = frozenset({"checkpoint_load", "checkpoint_save", "data_wait", "eval"})
"""States in which a rank is on its own business while others may wait for it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign of a failure. `at` is CLOCK_MONOTONIC seconds, `wall` seconds since 1970."""

    kind: EvidenceKind
    at: float
    wall: float
    text: str
    """For people, short."""
    slot: int | None = None
    category: str | None = None
    """A cause that the exception itself tells, or the orchestrator."""
    signature: str = ""
    """What it has in common with other exceptions of its kind."""
    exit_code: int | None = None
    records: tuple[tuple[int, str], ...] = ()
    """NVRx's records: rank at the start of its process, kind."""
    terminated: float | None = None
    """When the process had been told to end by a signal."""
    silent_seconds: float = 0.0
    """Time since the process completed its last step; 0 when the time of its death is not known."""
    traceback: str = ""
    """The innermost frames of an exception, as far as they are kept."""
    gpu: str = ""
    """UUID of the GPU that it happened to."""
    gpu_class: str = ""
    """One of `xids.XidClass`."""
    xid: int | None = None
    hint: Literal["", "gpu", "program"] = ""
    """What it says that a program's fault came again (`gpu_evidence.Hint`)."""
    sure: bool = True
    """What `category` says is beyond doubt."""
    dated: bool = True
    """Somebody saw it happen at that time. Of a process that was only found gone `at` is its last sign, and it may have lived on."""
    path: str = ""
    """File that was kept, as the trainer's container sees it."""
    size_bytes: int | None = None
    """Of that file."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Where a local rank stood when a failure was first noticed: what finds the rank that hung."""

    slot: int
    rank: int | None
    initial_rank: int | None
    step: int | None
    step_end: float
    sampled: float | None
    in_collective: bool | None
    hard_timeout: float | None = None
    phase: str | None = None
    """One of IN_PHASE that it was in, outside of a step."""
    gpu: str = ""
    """UUID of its GPU."""
    began: float = 0.0
    """When it entered training or its process started."""

    @property
    def progressed(self) -> float:
        """When it was last known to be well."""
        return max(self.step_end, self.began)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a judgement may use."""

    evidence: tuple[Evidence, ...]
    markers: tuple[Marker, ...]
    layer: str | None
    """Who restarted, None while nobody did."""
    world_size: int | None = None
    oom_rose: float | None = None
    """When the container's count of out-of-memory kills was last seen to have risen."""
    heartbeat_timeout: float | None = None
    """Seconds without a heartbeat after which a monitor kills its rank; None: not in force or not known."""
    thresholds: Thresholds = DEFAULT
    gpu: tuple[Evidence, ...] = ()
    """What happened to the GPUs of these ranks, apart from the evidence: it may be older than the failure."""
    nics: tuple[Evidence, ...] = ()
    """What happened to the network cards of this pod, likewise."""

    @property
    def begin(self) -> float:
        """When the first sign came."""
        return self.evidence[0].at if self.evidence else 0.0

    @property
    def echoing(self) -> frozenset[int]:
        """Slots that reported a broken collective."""
        return frozenset(item.slot for item in self.evidence if item.kind == "echo" and item.slot is not None)

    @property
    def whole(self) -> bool:
        """Every rank of the group is on this pod."""
        return self.world_size is None or self.world_size <= len(self.markers)

    def of_kind(self, *kinds: str) -> list[Evidence]:
        """The evidence of these kinds, earliest first."""
        return [item for item in self.evidence if item.kind in kinds]

    def own(self, slot: int) -> list[Evidence]:
        """What tells of this slot, NVRx's records left out: they are written by one rank about others."""
        return [item for item in self.evidence if item.slot == slot and item.kind != "interruption"]

    def marker(self, slot: int | None) -> Marker | None:
        """Where this slot stood."""
        return next((marker for marker in self.markers if marker.slot == slot), None)

    def rank_of(self, slot: int | None) -> int | None:
        """Global rank of a local slot."""
        marker = self.marker(slot)
        return slot if marker is None else marker.rank

    def slot_of(self, initial_rank: int) -> int | None:
        """Local slot of a rank in NVRx's records, None when it is on another pod."""
        return next((marker.slot for marker in self.markers if marker.initial_rank == initial_rank), None)

    @property
    def first_direct(self) -> Evidence | None:
        """Earliest evidence of a rank's own failure; before a process that was only found gone, one of whose end somebody told."""
        found = self.direct()
        if not found or found[0].dated:
            return next(iter(found), None)
        return next((item for item in found if item.kind in ("exception", "exit")), found[0])

    def direct(self) -> list[Evidence]:
        """Evidence of ranks' own failures, earliest first; those killed in the clean-up and those that echo left out."""
        items = self.of_kind("exception", "death", "exit", "launcher_exit")
        return [item for item in items if not self._consequence(item)]

    def _consequence(self, item: Evidence) -> bool:
        if item.kind not in ("death", "exit"):
            return False
        return item.slot in self.echoing or (item.terminated is not None and item.terminated > self.begin)


def laggard(scene: Scene, named: int | None = None) -> int | None:
    """The local slot that the others waited for, by what the ranks were doing when the hang was noticed.

    In order: the one with the fewest steps; the only one in a phase of its own; the one outside of a collective while another is
    inside; the one that cannot even take samples any more while another can; `named`, the only one whose monitor complained.
    None when all that leaves a tie.
    """
    behind = _behind(scene.markers)
    if len(behind) == 1:
        return behind[0].slot
    apart = [marker for marker in behind if marker.phase is not None]
    if len(apart) == 1:
        return apart[0].slot
    return _by_samples(scene, behind, named)


def standing(markers: Iterable[Marker], at: float) -> str:
    """Where the ranks stood at that moment, in words, those with the fewest steps first; ranks that stood alike together."""
    alike: dict[str, list[int]] = {}
    for marker in sorted(markers, key=lambda one: (one.step or 0, one.slot)):
        alike.setdefault(_stood(marker, at), []).append(marker.slot if marker.rank is None else marker.rank)
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {words}"
        for words, ranks in alike.items()
    )


def _stood(marker: Marker, at: float) -> str:
    words = "steps not known" if marker.step is None else f"step {marker.step} done"
    if marker.phase is not None:
        words += f", in {marker.phase}"
    if marker.sampled is None or marker.sampled <= marker.step_end:
        return f"{words}, no sample since"
    where = {True: ", inside a collective", False: ", outside of collectives", None: ", alive"}[marker.in_collective]
    return f"{words}{where} {max(at - marker.sampled, 0):.0f} s before"


def _behind(markers: tuple[Marker, ...]) -> list[Marker]:
    """The ranks with the fewest steps; all of them when one does not tell its steps."""
    least = min((marker.step or 0 for marker in markers), default=0)
    if any(marker.step is None for marker in markers):
        return list(markers)
    return [marker for marker in markers if marker.step == least]


def _by_samples(scene: Scene, markers: list[Marker], named: int | None) -> int | None:
    fresh = scene.begin - scene.thresholds.sample_silence_seconds
    recent = [
        marker for marker in markers if marker.sampled is not None and marker.sampled > max(marker.step_end, fresh)
    ]
    inside = [marker for marker in recent if marker.in_collective]
    outside = [marker for marker in recent if marker.in_collective is False]
    silent = [marker for marker in markers if marker not in recent]
    if inside and len(outside) == 1:
        return outside[0].slot
    if inside and not outside and len(silent) == 1:
        return silent[0].slot
    candidates = outside if inside and outside else markers
    return named if any(marker.slot == named for marker in candidates) else None
