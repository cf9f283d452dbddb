"""From evidence to a cause of the closed list, and to the rank where the failure began.

The mapping is fixed and is all in `RULES`, in order of precedence: the first rule that knows an answer decides. It is a pure function of
the evidence of one attempt. What a rank reports because another one failed (a broken collective, a kill by the launcher during
the clean-up) is an echo: never a cause, unless there is nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.labels import CAUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EvidenceKind = Literal[
    "exception",  # a rank's own exception
    "echo",  # a collective that was broken or timed out
    "interrupted",  # a restart, an exit or a keyboard interrupt passed through: it tells that something happened, not what
    "death",  # the process is gone
    "exit",  # the launcher told a worker's exit code
    "heartbeat",  # a rank monitor waited in vain
    "interruption",  # NVRx's records
    "group_failed",  # the launcher restarts its workers or gives up
    "launcher_exit",
    "stop",  # the launcher was told to end
    "replaced",  # a new life without a word about the end of the old one
    "vanished",  # the pod was started again without a word about its end
]
LAUNCHER_KINDS: Final = frozenset({"exit", "heartbeat", "group_failed", "launcher_exit"})

HEARTBEAT_DELAY_SECONDS: Final = 2.0
"""A monitor's line reaches us through a pipe, its kill through the kernel: within this time the kill may be seen first."""
SAMPLE_SILENCE_SECONDS: Final = 12.0
"""Samples come every 5 s: a process that missed two does not run Python any more."""
SIGKILL: Final = 9
SIGTERM: Final = 15


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
    """A cause that the exception itself tells."""
    exit_code: int | None = None
    records: tuple[tuple[int, str], ...] = ()
    """NVRx's records: rank at the start of its process, kind."""
    terminated: float | None = None
    """When the process had been told to end by a signal."""
    silent_seconds: float = 0.0
    """Time since the process completed its last step."""


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

    @property
    def echoing(self) -> frozenset[int]:
        """Slots that reported a broken collective."""
        return frozenset(item.slot for item in self.evidence if item.kind == "echo" and item.slot is not None)

    def of_kind(self, *kinds: str) -> list[Evidence]:
        """The evidence of these kinds, earliest first."""
        return [item for item in self.evidence if item.kind in kinds]

    def rank_of(self, slot: int | None) -> int | None:
        """Global rank of a local slot."""
        return next((marker.rank for marker in self.markers if marker.slot == slot), slot)

    def slot_of(self, initial_rank: int) -> int | None:
        """Local slot of a rank in NVRx's records, None when it is on another pod."""
        return next((marker.slot for marker in self.markers if marker.initial_rank == initial_rank), None)

    @property
    def first_direct(self) -> Evidence | None:
        """Earliest evidence of a rank's own failure."""
        return next(iter(self.direct()), None)

    def direct(self) -> list[Evidence]:
        """Evidence of ranks' own failures, earliest first; those killed in the clean-up and those that echo left out."""
        items = self.of_kind("exception", "death", "exit", "launcher_exit")
        begin = self.evidence[0].at if self.evidence else 0.0
        return [item for item in items if not self._consequence(item, begin)]

    def _consequence(self, item: Evidence, begin: float) -> bool:
        if item.kind not in ("death", "exit"):
            return False
        return item.slot in self.echoing or (item.terminated is not None and item.terminated > begin)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause of the closed list and the global rank it began on, None when nobody can tell."""

    cause: str
    origin: int | None = None


def diagnose(scene: Scene) -> Diagnosis:
    """The answer of the first rule that has one."""
    scene = replace(scene, evidence=tuple(sorted(scene.evidence, key=lambda item: item.at)))
    return next((found for rule in RULES if (found := rule(scene)) is not None), Diagnosis("unknown"))


def _told_to_stop(scene: Scene) -> Diagnosis | None:
    """The launcher was told to end before anything failed."""
    return Diagnosis("preempted") if scene.evidence and scene.evidence[0].kind == "stop" else None


def _heartbeat(scene: Scene) -> Diagnosis | None:
    """A missed heartbeat is the only sign that tells a hang from a kill: what follows it is the monitor's work."""
    missed = scene.of_kind("heartbeat")
    if not missed:
        return None
    first = scene.first_direct
    if first is not None:
        delay = 0.0 if first.kind == "exception" else HEARTBEAT_DELAY_SECONDS
        if first.at < missed[0].at - delay:
            return None
    named = {item.slot for item in missed}
    return Diagnosis("heartbeat_timeout", scene.rank_of(laggard(scene, named.pop() if len(named) == 1 else None)))


def _recorded(scene: Scene) -> Diagnosis | None:
    """NVRx's records of an in-process restart; the first that is no echo decides."""
    records = [record for item in scene.of_kind("interruption") for record in item.records]
    for rank, kind in records:
        slot = scene.slot_of(rank)
        if kind in ("EXCEPTION", "BASE_EXCEPTION") and slot in scene.echoing:
            continue
        if kind in _HANGS:
            return _recorded_hang(scene, records)
        origin = rank if slot is None else scene.rank_of(slot)
        if kind == "MONITOR_PROCESS_EXCEPTION":
            return Diagnosis("monitor_failure", origin)
        own = None if slot is None else _cause_of_slot(scene, slot)
        return Diagnosis(own or _BY_RECORD.get(kind, "unknown"), origin)
    return None


_HANGS: Final = ("SOFT_TIMEOUT", "HARD_TIMEOUT")
_BY_RECORD: Final = {
    "EXCEPTION": "app_exception",
    "BASE_EXCEPTION": "app_exception",
    "TERMINATED": "process_killed",
    "UNRESPONSIVE": "process_killed",
}


def _recorded_hang(scene: Scene, records: Sequence[tuple[int, str]]) -> Diagnosis:
    """Soft time-outs hit victims and culprit alike; the hard one only who never came to the barrier."""
    hard = next((rank for rank, kind in records if kind == "HARD_TIMEOUT"), None)
    if hard is not None:
        slot = scene.slot_of(hard)
        return Diagnosis("hang_hard", hard if slot is None else scene.rank_of(slot))
    return Diagnosis("hang_soft", scene.rank_of(_not_echoing(scene) if scene.echoing else laggard(scene)))


def _not_echoing(scene: Scene) -> int | None:
    """The one local rank whose collective was not broken: the others waited for it."""
    others = [marker.slot for marker in scene.markers if marker.slot not in scene.echoing]
    return others[0] if len(others) == 1 else laggard(scene)


def _pod_lost(scene: Scene) -> Diagnosis | None:
    """The pod was started again, and neither a rank nor the launcher had said why."""
    if scene.layer != "orchestrator" or scene.of_kind("exception", *LAUNCHER_KINDS):
        return None
    return Diagnosis("node_lost")


def _own_failure(scene: Scene) -> Diagnosis | None:
    """The earliest failure of a rank's own, or of the launcher."""
    first = scene.first_direct
    if first is None:
        return None
    if first.kind == "launcher_exit":
        return Diagnosis(_by_exit_code(scene, first.exit_code or 0))
    if first.slot is None:
        return None
    return Diagnosis(_cause_of_slot(scene, first.slot) or "unknown", scene.rank_of(first.slot))


def _echo_only(scene: Scene) -> Diagnosis | None:
    """Collectives broke and nobody here is to blame."""
    if not scene.echoing:
        return None
    elsewhere = scene.world_size is not None and scene.world_size > len(scene.markers)
    return Diagnosis("peer_failure" if elsewhere else "collective_timeout")


RULES: Final[tuple[Callable[[Scene], Diagnosis | None], ...]] = (
    _told_to_stop,
    _heartbeat,
    _recorded,
    _pod_lost,
    _own_failure,
    _echo_only,
)


def _cause_of_slot(scene: Scene, slot: int) -> str | None:
    """The cause that a rank's own evidence tells: its exception, else its exit code, else its death."""
    own = [item for item in scene.evidence if item.slot == slot]
    raised = next((item for item in own if item.kind == "exception"), None)
    if raised is not None:
        return raised.category if raised.category in CAUSES else "app_exception"
    code = next((item.exit_code for item in own if item.kind == "exit"), None)
    death = next((item for item in own if item.kind in ("death", "exit")), None)
    if death is None:
        return None
    if code == -SIGTERM and death.silent_seconds >= _hard_timeout(scene, slot):
        return "hang_hard"
    return _by_exit_code(scene, -SIGKILL if code is None else code)


def _hard_timeout(scene: Scene, slot: int) -> float:
    """Silence after which NVRx ends the process itself, by SIGTERM; infinite when it does not."""
    found = next((marker.hard_timeout for marker in scene.markers if marker.slot == slot), None)
    return math.inf if found is None else 0.9 * found  # the last sign of progress may be younger than the last step


def _by_exit_code(scene: Scene, code: int) -> str:
    if code >= 0:
        return "process_exited"
    begin = scene.evidence[0].at
    return (
        "host_oom" if code == -SIGKILL and scene.oom_rose is not None and scene.oom_rose >= begin else "process_killed"
    )


def laggard(scene: Scene, named: int | None = None) -> int | None:
    """The local slot that the others waited for, by what the ranks were doing when the hang was noticed.

    In order: the one outside of a collective while another is inside; the one that cannot even take samples any more while
    another can; `named`, the only one whose monitor complained; the one with the fewest steps. None when that leaves a tie.
    """
    at = scene.evidence[0].at if scene.evidence else 0.0
    fresh = [marker for marker in scene.markers if marker.sampled is not None and marker.sampled > marker.step_end]
    recent = [
        marker for marker in fresh if marker.sampled is not None and at - marker.sampled <= SAMPLE_SILENCE_SECONDS
    ]
    inside = [marker for marker in recent if marker.in_collective]
    outside = [marker for marker in recent if marker.in_collective is False]
    silent = [marker for marker in scene.markers if marker not in recent]
    if inside and len(outside) == 1:
        return outside[0].slot
    if inside and not outside and len(silent) == 1:
        return silent[0].slot
    return _fewest_steps(outside if inside and outside else scene.markers, named)


def _fewest_steps(markers: Sequence[Marker], named: int | None) -> int | None:
    if named is not None and any(marker.slot == named for marker in markers):
        return named
    least = min((marker.step or 0 for marker in markers), default=0)
    behind = [marker.slot for marker in markers if (marker.step or 0) == least]
    return behind[0] if len(behind) == 1 else None
