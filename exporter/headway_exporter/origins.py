"""Where a failure of several pods began: from what each pod claims to one verdict that all of them take.

A pure function. Precedence is by the class of evidence, whatever the clocks say: NVRx's records, then what a pod saw of its own ranks,
then the silence of a pod, then echoes. Time decides only inside a class, on the clock of the file server, and only beyond what the
clocks may be wrong by; closer than that the verdict is the best guess and says `ambiguous`. A hang has no time of its own: monitors
kill victims and culprit alike, so it is the rank that the others waited for, or a pod that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.causes import VAGUE, Confidence
from headway_exporter.nic_evidence import SEEN_CAUSES
from headway_exporter.scene import Evidence, Marker, Scene, laggard
from headway_exporter.state_files import pod_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

EvidenceClass = Literal["recorded", "direct", "silence", "echo", "none"]
"""recorded: NVRx's records; direct: a rank's own exception, death or missed heartbeat; silence: the pod was gone and came back; echo: a
collective that broke, or a process that was told to end; none: something ended here, nobody said why."""

HANGS: Final = frozenset({"hang_soft", "hang_hard", "heartbeat_timeout"})
RAISED: Final = frozenset({"EXCEPTION", "BASE_EXCEPTION"})
BEGAN_SLACK_SECONDS: Final = 30.0
"""A pod whose last sign is older than the failed incarnation by more than this was gone before, and had no part in the failure."""
SIGN_SECONDS: Final = 10.0
"""How exact a pod's last sign tells when it went silent."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stood when its pod noticed the failure. Ages are seconds before that moment."""

    rank: int
    initial_rank: int | None = None
    """Its rank at the start of its process: what NVRx's records use."""
    step: int | None = None
    step_age_seconds: float = 0.0
    sampled_age_seconds: float | None = None
    in_collective: bool | None = None
    phase: str | None = None
    gpu_uuid: str = ""
    echoes: bool = False
    """A collective broke in it."""
    raised: str | None = None
    """Cause that its own exception tells; None: it told of none."""
    signature: str = ""
    """What that exception has in common with others of its kind."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod knows of where a failure began."""

    incident: str
    pod_index: str
    evidence: EvidenceClass = "none"
    cause: str = "unknown"
    confidence: Confidence = "unknown"
    alternatives: tuple[str, ...] = ()
    signature: str = ""
    origin_rank: int | None = None
    """Global rank."""
    node: str = ""
    wall: float = 0.0
    """Of the first evidence of that class, by the pod's own clock; seconds since 1970."""
    began_wall: float = 0.0
    """When the incarnation that failed began here."""
    standings: tuple[Standing, ...] = ()
    """The pod's ranks."""
    records: tuple[tuple[int, str], ...] = ()
    """NVRx's, in their order: rank at the start of its process, kind."""
    pods_expected: int | None = None
    dated: bool = True
    """`wall` is when it happened; False: a process was found gone, and `wall` is its last sign."""
    pod_ended: bool = False
    """All of the pod's processes ended, launcher included: only the orchestrator can start it again."""
    offset_seconds: float = 0.0
    """Own clock minus the file server's."""
    uncertainty_seconds: float = 0.0
    """How wrong that may be."""

    @property
    def at(self) -> float:
        """Time of the evidence on the file server's clock."""
        return round(self.wall - self.offset_seconds, 6)

    @property
    def began(self) -> float:
        """When the incarnation began, on the file server's clock."""
        return round(self.began_wall - self.offset_seconds, 6)


@dataclass(frozen=True, slots=True)
class SilentPod:
    """A pod that gives no sign of life any more."""

    pod_index: str
    last_sign: float
    """On the file server's clock, seconds since 1970."""
    node: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OriginVerdict:
    """Where a failure began and why, for all pods."""

    cause: str
    confidence: Confidence
    evidence: EvidenceClass
    """What it rests on."""
    alternatives: tuple[str, ...] = ()
    signature: str = ""
    rank: int | None = None
    pod_index: str | None = None
    node: str = ""
    gpu_uuid: str = ""
    ambiguous: bool = False
    """The evidence allows another origin: this is the best guess."""
    claimed_by: str = ""
    """The one pod that counts it."""
    pod_ended: bool = False
    """The pod where it began is gone as a whole, or was: only the orchestrator can start it again."""


@dataclass(frozen=True, slots=True)
class _Case:
    """All that is known."""

    claims: tuple[Claim, ...]
    lost: tuple[SilentPod, ...]

    @property
    def complete(self) -> bool:
        """Every pod of the run has told what it knows."""
        return len(self.claims) >= max((claim.pods_expected or 1 for claim in self.claims), default=1)

    def owner(self, initial_rank: int) -> tuple[Claim, Standing] | None:
        """The pod and the standing of a rank in NVRx's records; None when its pod claims nothing."""
        return next(
            ((claim, one) for claim in self.claims for one in claim.standings if one.initial_rank == initial_rank), None
        )


def resolve(claims: Iterable[Claim], live: Collection[str], silent: Iterable[SilentPod] = ()) -> OriginVerdict:
    """The verdict; `live` are the pods that give signs of life, `silent` those that do not any more. At least one claim is needed.

    The pod where it began counts the failure when it is live and made a claim, else the lowest live pod that did.
    """
    by_pod = {claim.pod_index: claim for claim in sorted(claims, key=repr)}
    told = tuple(sorted(by_pod.values(), key=lambda claim: pod_order(claim.pod_index)))
    began = min(claim.began for claim in told)
    lost = [pod for pod in silent if pod.pod_index not in by_pod and pod.last_sign >= began - BEGAN_SLACK_SECONDS]
    case = _Case(told, tuple(sorted(lost, key=lambda pod: (pod.last_sign, pod_order(pod.pod_index)))))
    found = next(verdict for rule in RULES if (verdict := rule(case)) is not None)
    present = [pod for pod in by_pod if pod in live] or list(by_pod)
    counts = found.pod_index if found.pod_index in present else min(present, key=pod_order)
    others = dict.fromkeys([*found.alternatives, *_other_causes(told)])
    ended = {claim.pod_index for claim in told if claim.pod_ended} | {pod.pod_index for pod in lost}
    return replace(
        found,
        claimed_by=counts or "",
        alternatives=tuple(cause for cause in others if cause != found.cause),
        pod_ended=found.pod_index in ended,
    )


def _other_causes(claims: Sequence[Claim]) -> list[str]:
    return [claim.cause for claim in claims if claim.evidence == "direct" and claim.cause not in VAGUE]


# NVRx's records.


def _recorded(case: _Case) -> OriginVerdict | None:
    """The first record that is no echo; a rank that is gone, or that told of its own exception, beats an exception only recorded.

    A soft time-out hits victims and culprit alike: no record of one names an origin.
    """
    echoing = {one.initial_rank for claim in case.claims for one in claim.standings if one.echoes}
    records = {
        (position, rank, kind)
        for claim in case.claims
        for position, (rank, kind) in enumerate(claim.records)
        if kind != "SOFT_TIMEOUT" and not (kind in RAISED and rank in echoing)
    }
    if not records:
        return None
    _, rank, kind = min(records, key=lambda item: (item[2] in RAISED and not _told(case, item[1]), item))
    return _of_record(case, rank, kind)


def _told(case: _Case, initial_rank: int) -> bool:
    owner = case.owner(initial_rank)
    return owner is not None and owner[1].raised is not None


def _of_record(case: _Case, initial_rank: int, kind: str) -> OriginVerdict:
    owner = case.owner(initial_rank)
    if owner is None:
        return _of_unclaimed_record(case, initial_rank, kind)
    claim, standing = owner
    found = _placed(claim, standing, "recorded", *_cause_of_record(kind))
    if claim.origin_rank == standing.rank and claim.cause in SEEN_CAUSES:  # of its own GPU or network card
        return _as_claimed(claim, "recorded")
    if kind in RAISED and standing.raised is not None:
        return replace(found, cause=standing.raised, confidence="confirmed", signature=standing.signature)
    if kind in ("TERMINATED", "UNRESPONSIVE") and claim.origin_rank == standing.rank and claim.cause not in VAGUE:
        return _as_claimed(claim, "recorded")
    return found


def _of_unclaimed_record(case: _Case, rank: int, kind: str) -> OriginVerdict:
    cause, confidence = _cause_of_record(kind)
    pod = next((pod for pod in case.lost if rank in pod.ranks), case.lost[0] if len(case.lost) == 1 else None)
    if pod is None:
        return OriginVerdict(cause, confidence, "recorded", rank=rank)
    if cause == "process_killed":
        cause = "node_lost"  # the rank is gone, and so is all that was around it
    return OriginVerdict(cause, confidence, "recorded", rank=rank, pod_index=pod.pod_index, node=pod.node)


def _cause_of_record(kind: str) -> tuple[str, Confidence]:
    known: dict[str, tuple[str, Confidence]] = {
        "MONITOR_PROCESS_EXCEPTION": ("monitor_failure", "confirmed"),
        "HARD_TIMEOUT": ("hang_hard", "confirmed"),
        "TERMINATED": ("process_killed", "likely"),
        "UNRESPONSIVE": ("process_killed", "likely"),
    }
    return known.get(kind, ("app_exception", "likely") if kind in RAISED else ("unknown", "unknown"))


# What pods saw of their own.


def _direct(case: _Case) -> OriginVerdict | None:
    hung = [claim for claim in case.claims if claim.evidence == "recorded" and claim.cause in HANGS]
    candidates = [claim for claim in case.claims if claim.evidence == "direct"] + hung
    if not candidates:
        return None
    dated = [claim for claim in candidates if claim.dated]
    tied = _earliest(dated or candidates)
    first = min(tied, key=lambda claim: (claim.cause in HANGS, claim.at, pod_order(claim.pod_index)))
    if first.cause in HANGS:
        return None if case.lost else _hang(case, first, tied)
    perhaps = [claim for claim in candidates if not claim.dated and claim.at < first.at] if dated else []
    return _guess(first, [*tied, *perhaps], "direct")


def _earliest(claims: Sequence[Claim]) -> list[Claim]:
    """The earliest claim, and those that the clocks cannot tell from it."""
    first = min(claims, key=lambda claim: (claim.at, pod_order(claim.pod_index)))
    return [one for one in claims if one.at - first.at <= first.uncertainty_seconds + one.uncertainty_seconds]


def _hang(case: _Case, first: Claim, tied: Sequence[Claim]) -> OriginVerdict:
    """The rank that the others waited for, on whichever pod; else the one whose monitor alone was the first."""
    found = _behind(case)
    if found is not None:
        claim, standing = found
        same = next((one for one in tied if one.pod_index == claim.pod_index), first)
        return _placed(claim, standing, "direct", same.cause, same.confidence)
    if len(tied) == 1 and first.origin_rank is not None:
        return _as_claimed(first, "direct")
    return OriginVerdict(first.cause, "unknown", "direct", ambiguous=True)


def _behind(case: _Case, *, waited_for: bool = False) -> tuple[Claim, Standing] | None:
    """The rank that the others waited for, if one stands out; `waited_for`: of those whose collectives were not broken."""
    known = [(claim, one) for claim in case.claims for one in claim.standings if not (waited_for and one.echoes)]
    markers = tuple(
        Marker(
            slot=number,
            rank=one.rank,
            initial_rank=one.initial_rank,
            step=one.step,
            step_end=-one.step_age_seconds,
            sampled=None if one.sampled_age_seconds is None else -one.sampled_age_seconds,
            in_collective=one.in_collective,
            phase=one.phase,
            began=-one.step_age_seconds,
        )
        for number, (_, one) in enumerate(known)
    )
    found = laggard(Scene((Evidence("heartbeat", 0.0, 0.0, ""),), markers, None))
    return None if found is None else known[found]


# Silence.


def _silence(case: _Case) -> OriginVerdict | None:
    """A pod that is gone for good, or that was gone and came back."""
    back = [claim for claim in case.claims if claim.evidence == "silence"]
    gone = [(pod.last_sign, SIGN_SECONDS, pod.pod_index, pod.node) for pod in case.lost]
    gone += [(claim.at, claim.uncertainty_seconds + SIGN_SECONDS, claim.pod_index, claim.node) for claim in back]
    if not gone:
        return None
    at, uncertainty, pod_index, node = min(gone, key=lambda one: (one[0], pod_order(one[2])))
    tied = [one for one in gone if one[0] - at <= uncertainty + one[1]]
    return OriginVerdict("node_lost", "likely", "silence", pod_index=pod_index, node=node, ambiguous=len(tied) > 1)


# Echoes.


def _echo(case: _Case) -> OriginVerdict:
    """Nobody told of a failure of its own; the one rank in which no collective broke is who the others waited for."""
    blamed = [claim for claim in case.claims if claim.evidence == "echo" and claim.cause not in VAGUE]
    if blamed:
        tied = _earliest(blamed)
        return _guess(min(tied, key=lambda claim: (claim.at, pod_order(claim.pod_index))), tied, "echo")
    echoes = any(one.echoes for claim in case.claims for one in claim.standings)
    if not echoes:
        return OriginVerdict("unknown", "unknown", "none")
    if not case.complete:
        return OriginVerdict("peer_failure", "unknown", "echo")
    found = _behind(case, waited_for=True)
    if found is None:
        return OriginVerdict("collective_timeout", "unknown", "echo")
    return _placed(*found, "echo", "collective_timeout", "likely")


RULES: Final[tuple[Callable[[_Case], OriginVerdict | None], ...]] = (_recorded, _direct, _silence, _echo)


# Verdicts from claims.


def _placed(
    claim: Claim, standing: Standing, evidence: EvidenceClass, cause: str, confidence: Confidence
) -> OriginVerdict:
    return OriginVerdict(
        cause,
        confidence,
        evidence,
        rank=standing.rank,
        pod_index=claim.pod_index,
        node=claim.node,
        gpu_uuid=standing.gpu_uuid,
    )


def _as_claimed(claim: Claim, evidence: EvidenceClass) -> OriginVerdict:
    standing = next((one for one in claim.standings if one.rank == claim.origin_rank), None)
    return OriginVerdict(
        claim.cause,
        claim.confidence,
        evidence,
        alternatives=claim.alternatives,
        signature=claim.signature,
        rank=claim.origin_rank,
        pod_index=claim.pod_index,
        node=claim.node,
        gpu_uuid="" if standing is None else standing.gpu_uuid,
    )


def _guess(first: Claim, tied: Sequence[Claim], evidence: EvidenceClass) -> OriginVerdict:
    """As the claim says, and how sure that is when others may have been as early."""
    found = _as_claimed(first, evidence)
    if len(tied) == 1:
        return found
    agreed = len({claim.cause for claim in tied}) == 1
    return replace(found, ambiguous=True, confidence=found.confidence if agreed else "unknown")
