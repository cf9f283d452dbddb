"""From evidence to a cause of the closed list, and to the rank where the failure began.

The mapping is fixed and is all in `RULES`, in order of precedence: the first rule that knows an answer decides, and what the others would
have said are the alternatives. What happened to the rank's GPU or the pod's network cards may then overrule
it (`gpu_evidence`, `nic_evidence`). It is a pure function of the evidence
of one try. What a rank reports because another one failed (a
broken collective, a kill by the launcher during the clean-up) is an echo: never a cause, unless there is nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.gpu_evidence import with_gpus
from headway_exporter.labels import CAUSES
from headway_exporter.nic_evidence import with_nics
from headway_exporter.orchestrator import CLOCKS_SECONDS
from headway_exporter.scene import ACCOUNT_KINDS, BESIDE_KINDS, LAUNCHER_KINDS, Evidence, Scene, laggard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIGKILL: Final = 9
SIGUSR1: Final = 10
"""What NVRx's monitor can be told to kill with, so that its kill is not mistaken for another's."""
SIGTERM: Final = 15
_KILLED_BY_SHELL: Final = 128 + SIGKILL
"""What a shell around a process that was killed ends with."""

VAGUE: Final = frozenset({"unknown", "collective_timeout", "peer_failure"})
"""Causes that say that the true one is not known here."""

TOGETHER_SECONDS: Final = 10.0
"""What came within this time before the end of a container may have come of the same."""
_SEEN_TO_FAIL: Final = frozenset({"exception", "echo", "death", "exit", "heartbeat", "interruption", "launcher_exit"})

Confidence = Literal["confirmed", "likely", "unknown"]
Fingerprint = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause of the closed list and the global rank it began on, None when nobody can tell."""

    cause: str
    origin: int | None = None
    confidence: Confidence = "unknown"
    """confirmed: somebody who knows said so; likely: it follows from what was seen; unknown: what broke is known, not why."""
    evidence: tuple[Evidence, ...] = ()
    """What it rests on."""
    alternatives: tuple[str, ...] = ()
    """Other causes that the evidence allows, best first."""
    signature: str | None = None
    """What the origin's exception has in common with others of its kind; None: the evidence tells."""

    @property
    def vague(self) -> bool:
        """The true cause is not known here."""
        return self.cause in VAGUE

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What a failure that comes again has in common with itself; None unless cause and origin are known, so never for an echo."""
        if self.vague or self.origin is None or self.confidence == "unknown":
            return None
        told = next((item.signature for item in self.evidence if item.signature), "")
        return self.cause, told if self.signature is None else self.signature, self.origin


UNKNOWN: Final = Diagnosis("unknown")


def diagnose(scene: Scene) -> Diagnosis:
    """The answer of the first rule that has one, beside those of the others, and with what is known of GPUs and network cards."""
    signs = (item for item in scene.evidence if item.kind not in ACCOUNT_KINDS)
    scene = replace(scene, evidence=tuple(sorted(signs, key=lambda item: item.at)))
    return with_nics(scene, with_gpus(scene, _without_hardware(scene)))


def _without_hardware(scene: Scene) -> Diagnosis:
    answers = [found for rule in RULES if (found := rule(scene)) is not None]
    if not answers:
        return replace(UNKNOWN, evidence=scene.evidence[:1])
    chosen = answers[0]
    others = [*chosen.alternatives, *(one.cause for one in answers[1:] if not one.vague)]
    return replace(chosen, alternatives=tuple(dict.fromkeys(cause for cause in others if cause != chosen.cause)))


def _taken_away(scene: Scene) -> Diagnosis | None:
    """The orchestrator took the pod away, or lost its node, before anything failed here; what was told to end then ends."""
    items = scene.of_kind("disruption")
    if not items:
        return None
    told, first = items[0], next((item for item in scene.evidence if item.kind in _SEEN_TO_FAIL), None)
    if first is not None and first.at < told.at - CLOCKS_SECONDS:
        return None
    sure: Confidence = "confirmed" if told.sure else "likely"
    return Diagnosis(told.category or "preempted", None, sure, (told, *_first_seen(scene)))


def _told_to_stop(scene: Scene) -> Diagnosis | None:
    """The launcher was told to end before anything failed."""
    first = scene.evidence[:1]
    return Diagnosis("preempted", None, "confirmed", first) if first and first[0].kind == "stop" else None


def _heartbeat(scene: Scene) -> Diagnosis | None:
    """The launcher's line is the surest sign that tells a hang from a kill: what follows it is the monitor's work."""
    missed = scene.of_kind("heartbeat")
    if not missed:
        return None
    first = scene.first_direct
    if first is not None:
        delay = 0.0 if first.kind == "exception" else scene.thresholds.heartbeat_delay_seconds
        if first.at < missed[0].at - delay:
            return None
    named = {item.slot for item in missed}
    origin = scene.rank_of(laggard(scene, named.pop() if len(named) == 1 else None))
    return Diagnosis("heartbeat_timeout", origin, "confirmed", tuple(missed))


# NVRx's records of an in-process restart.

_HANGS: Final = ("SOFT_TIMEOUT", "HARD_TIMEOUT")
_RAISED: Final = ("EXCEPTION", "BASE_EXCEPTION")
_GONE: Final = ("TERMINATED", "UNRESPONSIVE")


def _recorded(scene: Scene) -> Diagnosis | None:
    """The first record that is no echo decides, but one of a rank that is gone beats an exception that only a record tells of."""
    items = scene.of_kind("interruption")
    records = [record for item in items for record in item.records if not _is_echo(scene, record)]
    if not records:
        return None
    first = records[0]
    if first[1] in _RAISED and _raised(scene, first[0]) is None:
        first = next((record for record in records if record[1] in ("HARD_TIMEOUT", *_GONE)), first)
    found = _recorded_hang(scene, records) if first[1] in _HANGS else _recorded_end(scene, *first)
    return replace(found, evidence=(*found.evidence, *items[:1]))


def _is_echo(scene: Scene, record: tuple[int, str]) -> bool:
    rank, kind = record
    return kind in _RAISED and scene.slot_of(rank) in scene.echoing


def _raised(scene: Scene, rank: int) -> Evidence | None:
    """The exception that a rank in the records told of itself."""
    slot = scene.slot_of(rank)
    return None if slot is None else next((item for item in scene.own(slot) if item.kind == "exception"), None)


def _recorded_end(scene: Scene, rank: int, kind: str) -> Diagnosis:
    slot = scene.slot_of(rank)
    origin = rank if slot is None else scene.rank_of(slot)
    if kind == "MONITOR_PROCESS_EXCEPTION":
        return Diagnosis("monitor_failure", origin, "confirmed")
    own = None if slot is None else _of_slot(scene, slot)
    if own is not None:
        return replace(own, origin=origin)
    if kind in _RAISED:
        return Diagnosis("app_exception", origin, "likely")  # its class, known elsewhere, may tell more
    return Diagnosis("process_killed", origin, "likely") if kind in _GONE else Diagnosis("unknown", origin)


def _recorded_hang(scene: Scene, records: Sequence[tuple[int, str]]) -> Diagnosis:
    """Soft time-outs hit victims and culprit alike; the hard one only who never came to the barrier."""
    hard = next((rank for rank, kind in records if kind == "HARD_TIMEOUT"), None)
    if hard is not None:
        slot = scene.slot_of(hard)
        return Diagnosis("hang_hard", hard if slot is None else scene.rank_of(slot), "confirmed")
    return Diagnosis("hang_soft", scene.rank_of(_not_echoing(scene) if scene.echoing else laggard(scene)), "likely")


def _not_echoing(scene: Scene) -> int | None:
    """The one local rank whose collective was not broken: the others waited for it."""
    others = [marker.slot for marker in scene.markers if marker.slot not in scene.echoing]
    return others[0] if len(others) == 1 else laggard(scene)


# What the orchestrator says of the pod's containers.


def _container_oom(scene: Scene) -> Diagnosis | None:
    """A container ran out of its memory: all that was in it is gone at once, and can tell nothing but that it was running out.

    Not `sure`: something in it was once killed for memory, which need not be why it ended.
    """
    items = [item for item in scene.of_kind("container") if item.category == "host_oom" and item.sure]
    if not items:
        return None
    told, raised = items[0], scene.of_kind("exception")
    if raised and raised[0].at < told.at - TOGETHER_SECONDS:
        return None
    return Diagnosis("host_oom", None, "confirmed", (told, *_first_seen(scene)), alternatives=("process_killed",))


def _container_ended(scene: Scene) -> Diagnosis | None:
    """A container ended, and with it all its processes, of whose ends nobody else told."""
    items = [item for item in scene.of_kind("container") if item.exit_code is not None]
    if not items or scene.of_kind("exception", *LAUNCHER_KINDS):
        return None
    told, first = items[0], scene.first_direct
    if first is not None and first.at < told.at - TOGETHER_SECONDS:
        return None
    found = _by_exit_code(scene, told.exit_code)
    others = found.alternatives if told.category is None else (told.category, *found.alternatives)
    return replace(found, evidence=(told, *_first_seen(scene)), alternatives=tuple(dict.fromkeys(others)))


def _first_seen(scene: Scene) -> tuple[Evidence, ...]:
    """What the pod itself saw first: what the orchestrator tells is dated to the second, or when it got to know."""
    return tuple(item for item in scene.evidence if item.kind not in BESIDE_KINDS)[:1]


# What the pod itself saw.


def _pod_lost(scene: Scene) -> Diagnosis | None:
    """The pod was started again, and neither a rank nor the launcher nor the orchestrator had said why."""
    if scene.layer != "orchestrator" or scene.of_kind("exception", "container", *LAUNCHER_KINDS):
        return None
    return Diagnosis("node_lost", None, "likely", scene.evidence[:1])


def _began_elsewhere(scene: Scene) -> Diagnosis | None:
    """The launcher joined a restart that another node began, before anything failed here: what ends then was ended by it."""
    joined, first = scene.of_kind("joined"), scene.first_direct
    told = min((item.at for item in scene.of_kind("detected", "joined")), default=0.0)
    if not joined or (first is not None and first.at < told):
        return None
    return Diagnosis("peer_failure", None, "unknown", tuple(joined))


def _own_failure(scene: Scene) -> Diagnosis | None:
    """The earliest failure of a rank's own, or of the launcher."""
    first = scene.first_direct
    if first is None:
        return None
    if first.kind == "launcher_exit":
        return replace(_by_exit_code(scene, first.exit_code or 0), evidence=(first,))
    if first.slot is None:
        return None
    found = _of_slot(scene, first.slot) or UNKNOWN
    hung = found.cause == "heartbeat_timeout"  # by a monitor each: which one killed first says nothing
    return replace(found, origin=scene.rank_of(laggard(scene, first.slot) if hung else first.slot))


def _echo_only(scene: Scene) -> Diagnosis | None:
    """Collectives broke and nobody here told of a failure; the one rank that none broke for is who they waited for."""
    if not scene.echoing:
        return None
    echoes = tuple(scene.of_kind("echo"))
    if not scene.whole:
        return Diagnosis("peer_failure", None, "unknown", echoes)
    waited_for = _not_echoing(scene) if len(scene.echoing) < len(scene.markers) else laggard(scene)
    known = waited_for is not None
    return Diagnosis("collective_timeout", scene.rank_of(waited_for), "likely" if known else "unknown", echoes)


RULES: Final[tuple[Callable[[Scene], Diagnosis | None], ...]] = (
    _taken_away,
    _told_to_stop,
    _heartbeat,
    _recorded,
    _container_oom,
    _container_ended,
    _pod_lost,
    _began_elsewhere,
    _own_failure,
    _echo_only,
)


def _of_slot(scene: Scene, slot: int) -> Diagnosis | None:
    """What a rank's own evidence tells: its exception, else its exit code, else its death."""
    own = scene.own(slot)
    raised = next((item for item in own if item.kind == "exception"), None)
    if raised is not None:
        category = raised.category if raised.category in CAUSES else None
        return Diagnosis(category or "app_exception", None, "confirmed", (raised,))
    ends = [item for item in own if item.kind in ("death", "exit")]
    if not ends:
        return None
    code = next((item.exit_code for item in ends if item.kind == "exit"), None)
    return replace(_by_end(scene, slot, code, ends[0].silent_seconds), evidence=tuple(ends))


def _by_end(scene: Scene, slot: int, code: int | None, silent: float) -> Diagnosis:
    """A process ended without a word; `silent` seconds before, it had made its last step."""
    if code == -SIGTERM and silent >= _hard_timeout(scene, slot):
        return Diagnosis("hang_hard", None, "likely", alternatives=("process_killed",))
    found = _by_exit_code(scene, code)
    if found.cause == "process_killed":
        hang = _hang_by_silence(scene, slot, code, silent)
        if hang is not None:
            return Diagnosis(hang, None, "likely", alternatives=("process_killed",))
    return found


def _hang_by_silence(scene: Scene, slot: int, code: int | None, silent: float) -> str | None:
    """Without the launcher's line a hang is told from a kill by the signal, or else by the silence before the death."""
    if code == -SIGUSR1:
        return "heartbeat_timeout"
    if code not in (None, -SIGKILL):
        return None
    limits = scene.thresholds
    if scene.heartbeat_timeout is not None:
        return "heartbeat_timeout" if silent >= limits.timeout_share * scene.heartbeat_timeout else None
    marker = scene.marker(slot)
    sampled = None if marker is None else marker.sampled
    if silent < limits.hang_silence_seconds or marker is None or sampled is None or marker.phase is not None:
        return None
    frozen = marker.progressed + silent - max(sampled, marker.progressed) > limits.sample_silence_seconds
    return "hang_hard" if frozen else None


def _hard_timeout(scene: Scene, slot: int) -> float:
    """Silence after which NVRx ends the process itself, by SIGTERM; infinite when it does not."""
    marker = scene.marker(slot)
    found = None if marker is None else marker.hard_timeout
    return math.inf if found is None else scene.thresholds.timeout_share * found


def _by_exit_code(scene: Scene, code: int | None) -> Diagnosis:
    """None: a death that nobody told the code of, most likely a kill. The kernel's own count of such kills is beyond doubt."""
    oom = scene.oom_rose is not None and scene.oom_rose >= scene.begin
    if oom and code in (None, -SIGKILL, _KILLED_BY_SHELL):
        return Diagnosis("host_oom", None, "confirmed", alternatives=("process_killed",))
    if code is not None and code >= 0:
        return Diagnosis("process_exited", None, "confirmed")
    if code is None:
        return Diagnosis("process_killed", None, "likely", alternatives=("process_exited", "host_oom"))
    return Diagnosis("process_killed", None, "confirmed", alternatives=("host_oom",) if code == -SIGKILL else ())
