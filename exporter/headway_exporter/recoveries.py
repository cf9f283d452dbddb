"""Recoveries: from the first evidence of a failure to the first step after it, and the tries that it took.

All evidence up to a restart belongs to one try. A try that fails before its first step leads to a further one in the same recovery, whose
layer is the outermost that was needed. What a recovery is part of, and whether it was worth anything, is the business of `incidents`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.causes import UNKNOWN, Diagnosis
from headway_exporter.labels import LAYERS
from headway_exporter.scene import BESIDE_KINDS, ORCHESTRATOR_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.origins import OriginVerdict
    from headway_exporter.phases import Timeline
    from headway_exporter.scene import Evidence, Marker
    from headway_exporter.slots import Slot

DecidedBy = Literal["verdict", "alone", "timeout"]
"""verdict: all pods took the one that the lowest of them wrote; alone: there was nobody to ask; timeout: no verdict came in time."""

MOST_EVIDENCE: Final = 32
MOST_GPU: Final = 8
"""Happenings of each class that are kept of a try's GPUs: many echoes must not leave out the one fault."""
MOST_NICS: Final = 8
"""Happenings that are kept of the pod's network cards."""
MOST_OLD_EVIDENCE: Final = 4
"""Of a try that nobody judges any more."""
MOST_TRIES: Final = 8
"""Tries of one recovery that are kept in detail, the first and the last ones; all are counted."""

MOST_BESIDE: Final = 16
"""What is no sign of a failure and has room beyond that: it comes last, and tells most."""

_BY_ORCHESTRATOR: Final = frozenset({"launcher_exit", "vanished", *ORCHESTRATOR_KINDS})
_BY_LAUNCHER: Final = frozenset({"death", "exit", "heartbeat", "group_failed", "detected", "joined", "replaced"})


@dataclass(slots=True)
class Try:
    """One try to go on. Times are CLOCK_MONOTONIC seconds."""

    timeline: Timeline
    tip: int
    """Last step that the weights contained."""
    markers: tuple[Marker, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    restarted: float | None = None
    layer: str | None = None
    loaded: int | None = None
    diagnosis: Diagnosis = UNKNOWN
    mark_changes: int = 0
    """New marks of the incident before it: between two tries with the same number there was none."""
    reloaded: bool = False
    """Weights had been restored, or steps made, since the failure before: so it says something at which step it failed."""
    stopped: bool = False
    """The launcher was told to end."""
    local: Diagnosis = UNKNOWN
    """What this pod alone makes of it."""
    exchange: str = ""
    """Id under which the pods tell each other what they know of it; empty: this pod decides alone."""
    decided_by: DecidedBy | None = "alone"
    """None: the verdict of all pods is awaited, and nothing is counted before it."""
    verdict: OriginVerdict | None = None
    """Of all pods."""
    over: bool = False
    """It ended, by a step or by another failure."""
    restarted_wall: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by recovery phase, once it is over."""
    gpu: list[Evidence] = field(default_factory=list)
    """What happened to the GPUs of its ranks, apart from the signs: it may be older than the failure."""
    nics: list[Evidence] = field(default_factory=list)
    """What happened to the pod's network cards, likewise."""

    def add(self, evidence: Evidence) -> bool:
        """One more sign; False beyond a bound: the first ones tell the story."""
        self.stopped = self.stopped or evidence.kind == "stop"
        if evidence.kind == "death":
            self.timeline.died(evidence.at)
        most = MOST_EVIDENCE + MOST_BESIDE if evidence.kind in BESIDE_KINDS else MOST_EVIDENCE
        room = len(self.evidence) < most
        if room:
            self.evidence.append(evidence)
        return room

    def add_gpu(self, happening: Evidence) -> bool:
        """Something that happened to a rank's GPU; False: the same is known already, or too much of its class."""
        alike = [item for item in self.gpu if item.gpu_class == happening.gpu_class]
        known = {(item.slot, item.gpu, item.xid, item.category) for item in alike}
        if len(alike) >= MOST_GPU or (happening.slot, happening.gpu, happening.xid, happening.category) in known:
            return False
        self.gpu.append(happening)
        return True

    def add_nic(self, happening: Evidence) -> bool:
        """Something that happened to a network card; False: the same is known already, or too much."""
        if len(self.nics) >= MOST_NICS or happening.text in {item.text for item in self.nics}:
            return False
        self.nics.append(happening)
        return True

    @property
    def seen_here(self) -> list[Evidence]:
        """The signs in the pod's own journals: what opened and dates it."""
        return [item for item in self.evidence if item.kind not in BESIDE_KINDS]

    @property
    def container_ended(self) -> bool:
        """A container ended, so that no launcher can have restarted."""
        return any(item.kind == "container" for item in self.evidence)

    @property
    def pod_ended(self) -> bool:
        """All pods agree that one of them was gone as a whole."""
        return self.verdict is not None and self.verdict.pod_ended

    @property
    def cancelled(self) -> bool:
        """The launcher was told to end, and not because the orchestrator takes the pod away, to make another one."""
        return self.stopped and not any(item.kind == "disruption" for item in self.evidence)

    def meet(self, markers: Iterable[Marker], slot: int | None) -> None:
        """A sign tells of a rank of this pod that started only after the first one, among the present `markers`."""
        if slot not in {marker.slot for marker in self.markers}:
            self.markers += tuple(marker for marker in markers if marker.slot == slot)

    def let_go(self) -> None:
        """It will not be judged again: what only a judgement needs is forgotten, else a crash loop of many ranks fills the memory."""
        if self.over and self.decided_by is not None:
            self.markers = tuple(marker for marker in self.markers if marker.rank == self.diagnosis.origin)
            del self.evidence[MOST_OLD_EVIDENCE:]

    @property
    def expected_layer(self) -> str:
        """Who restarted, or while nobody did, the innermost layer that still can."""
        kinds = {item.kind for item in self.evidence}
        if self.layer is not None:
            return self.layer
        if self.pod_ended:
            return "orchestrator"
        if kinds & _BY_ORCHESTRATOR or (self.evidence and self.evidence[0].kind == "stop"):
            return "orchestrator"
        return "launcher" if kinds & _BY_LAUNCHER else "in_process"


@dataclass(slots=True)
class Recovery:
    """A failure of the pod and how a step was made again. Times are CLOCK_MONOTONIC seconds unless named wall."""

    opened: float
    opened_wall: float
    tip: int
    """Last step that the weights contained."""
    mark: int
    """Highest step ever completed."""
    tries: list[Try]
    try_count: int = 1
    layer: str | None = None
    loaded: int | None = None
    rejected: list[int] = field(default_factory=list)
    """Checkpoints that were found bad on the way."""
    closed: float | None = None
    regained: float | None = None
    """When the mark was reached again."""
    steps_lost: int | None = None
    caught_up: bool = False
    """The time of its phase catch_up is booked."""
    diagnosis: Diagnosis = UNKNOWN
    closed_wall: float | None = None
    regained_wall: float | None = None
    replay_check: str | None = None
    """Whether the replayed steps' losses were those of before; None: not known (yet), or nothing was replayed."""

    @property
    def current(self) -> Try:
        """The try under way."""
        return self.tries[-1]

    @property
    def evidence(self) -> list[Evidence]:
        """All of it, in the order of its tries."""
        return [item for one in self.tries for item in one.evidence]

    def try_again(self, one: Try) -> None:
        """The try before failed."""
        self.try_count += 1
        self.tries.append(one)
        if len(self.tries) > MOST_TRIES:
            del self.tries[1]  # the first one tells how it began

    def let_go(self) -> None:
        """As `Try.let_go`, for all of them."""
        for one in self.tries:
            one.let_go()

    def restarted_by(self, layer: str, at: float) -> None:
        """The try under way got as far as a new process, or into training again."""
        self.current.restarted, self.current.layer = at, layer
        self.layer = max(self.layer or layer, layer, key=LAYERS.index)

    def reject(self, step: int) -> None:
        """A checkpoint was found bad."""
        if step not in self.rejected and len(self.rejected) < MOST_EVIDENCE:
            self.rejected.append(step)

    def late_step(self, step: int) -> None:
        """A peer's last step from before the failure."""
        self.tip, self.mark = max(self.tip, step), max(self.mark, step)
        self.current.tip = max(self.current.tip, step)

    def close(self, end: float, step: int) -> None:
        """The first step after it all."""
        came_back_at = step - 1 if self.loaded is None else self.loaded
        self.closed, self.steps_lost = end, max(0, self.tip - came_back_at)

    def goes_on(self, slot: Slot, begin: float) -> bool:
        """Whether a step of this slot that began then shows that training goes on.

        A peer may finish a step that it began before it noticed. So the slot must have started or entered training since the failure, or
        itself have told of it and then begun a step without either (a loop that swallows exceptions and says little).
        """
        since = slot.began
        restarted = self.current.restarted
        if restarted is not None and since >= restarted:
            return begin >= since
        own = [item.at for item in self.current.seen_here if item.slot == slot.number and item.kind != "interruption"]
        return bool(own) and begin >= max(own)


def first_known(diagnoses: list[Diagnosis]) -> Diagnosis:
    """The failure began where its first try did; a later one answers only when that one stayed vague."""
    clear = (one for one in diagnoses if not one.vague)
    return next(clear, diagnoses[0] if diagnoses else UNKNOWN)
