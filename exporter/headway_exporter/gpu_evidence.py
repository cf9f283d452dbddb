"""What happened to GPUs as evidence for a failure: what a happening says, and how it changes the diagnosis. Pure functions.

A happening counts only on the GPU of the rank where the failure began. Where nobody can tell where that was, or where the rank that
seems to be it was only cleared away because of another, the one GPU with a fault names the rank. What a happening may overrule depends
on its class (`BEATS`): a hardware fault overrules whatever software said of it, a fault of the links only what a lost link looks like.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.scene import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from headway_exporter.causes import Confidence, Diagnosis
    from headway_exporter.gpus import Gpus
    from headway_exporter.health.xids import XidTable
    from headway_exporter.observations import GpuSeen
    from headway_exporter.scene import Marker, Scene

Hint = Literal["", "gpu", "program"]
"""What it says that a program's fault came again: `gpu`, on the same GPU only; `program`, on others too; empty, it did not."""

HARDWARE_CAUSES: Final = frozenset({"gpu_memory", "gpu_fell_off_bus", "gpu_driver", "nvlink", "pcie"})
MOST_TEXT: Final = 300
LATE_SECONDS: Final = 15.0
"""What is polled is seen so late; what was reported later than this is no reason for an exception that came before it."""
CLEARING_SECONDS: Final = 10.0
"""The kernel clears away a dead process, XID 45 and all, before it tells of the death: it takes so long with much memory."""

_ENDS: Final = frozenset({"process_killed", "process_exited", "node_lost"})
HANGS: Final = frozenset({"hang_soft", "hang_hard", "heartbeat_timeout", "collective_timeout", "peer_failure"})
_LOOKS_LIKE_A_LOST_LINK: Final = _ENDS | HANGS | {"unknown"}
_OWN_EXCEPTIONS: Final = frozenset({"app_exception", "numeric_nan", "cuda_oom", "illegal_access"})
BEATS: Final = {
    "hardware": _LOOKS_LIKE_A_LOST_LINK | _OWN_EXCEPTIONS | HARDWARE_CAUSES,
    "fabric": _LOOKS_LIKE_A_LOST_LINK,
    "driver": _LOOKS_LIKE_A_LOST_LINK | {"app_exception"},
    "application": _LOOKS_LIKE_A_LOST_LINK | {"app_exception"},
}
"""Causes that a happening of this class overrules. Of the others it is an alternative."""
_STRENGTH: Final = {"hardware": 0, "fabric": 1, "driver": 2, "application": 2}
"""The less, the stronger; at equal strength the first one led to the others."""
_TELLING_KINDS: Final = frozenset({"death", "exit", "exception", "interrupted"})

_SEEN: Final = {
    "ecc": ("hardware", "gpu_memory", "uncorrectable memory errors"),
    "remap": ("hardware", "gpu_memory", "a bad row of memory could not be replaced"),
    "lost": ("hardware", "gpu_fell_off_bus", "does not answer any more"),
    "hung": ("driver", "gpu_driver", "the driver hangs when it is asked about it"),
    "nvlink": ("fabric", "nvlink", "NVLink errors"),
}
"""Class, cause and words of what is no XID."""


def evidence(seen: GpuSeen, slot: int, table: XidTable, hint: Hint = "") -> Evidence | None:
    """What the happening says of the rank at `slot`; None: nothing."""
    cls: str
    cause: str | None
    if seen.kind == "xid":
        row = table.of(seen.xid)
        cls, cause = row.cls, row.cause
        number = f"XID {seen.xid}" if seen.xid >= 0 else "an XID of no known number"
        text = f"{number} on {seen.uuid}: {row.name}{_again(hint)}; {row.action}"
    elif seen.kind in _SEEN:
        cls, cause, words = _SEEN[seen.kind]
        text = f"{seen.uuid}: {words}" + (f" ({seen.text})" if seen.text else "")
    else:
        return None
    return Evidence(
        "gpu",
        seen.mono,
        seen.wall,
        text[:MOST_TEXT],
        slot,
        cause,
        gpu=seen.uuid,
        gpu_class=cls,
        xid=seen.xid if seen.kind == "xid" else None,
        hint=hint,
    )


def _again(hint: Hint) -> str:
    return {
        "": "",
        "gpu": ", again on this GPU and on no other lately: suspect the GPU",
        "program": ", on other GPUs lately too: suspect the program",
    }[hint]


def is_gpu_of(marker: Marker, seen: GpuSeen, gpus: Gpus) -> bool:
    """Whether the rank ran on that GPU, or on a MIG part of it; its name may be cut, as CUDA allows where it still names one GPU only."""
    return bool(marker.gpu) and (marker.gpu in seen.parts or gpus.whole(marker.gpu) == seen.uuid)


def telling(happenings: Iterable[Evidence], signs: Collection[Evidence]) -> list[Evidence]:
    """The happenings without those that only echo something else, earliest first.

    XID 45 is what every killed process leaves behind. It says something only alone: no other error on that GPU, no other GPU with it,
    and nothing else that tells of the rank's end.
    """
    found = sorted(happenings, key=lambda item: item.at)
    return [item for item in found if item.gpu_class != "echo" or _alone(item, found, signs)]


def _alone(echo: Evidence, happenings: Sequence[Evidence], signs: Collection[Evidence]) -> bool:
    others = [item for item in happenings if item is not echo]
    if any(item.gpu == echo.gpu or item.gpu_class == "echo" for item in others):
        return False
    return not any(
        item.kind == "stop"
        or (item.slot == echo.slot and item.kind in _TELLING_KINDS and item.at <= echo.at + CLEARING_SECONDS)
        for item in signs
    )


def ended_for_others(items: Collection[Evidence]) -> bool:
    """A process was ended because of something elsewhere: by its launcher's signal, or by the watchdog of its collectives."""
    ended = any(item.terminated is not None or item.exit_code in _ON_OTHERS_ACCOUNT for item in items)
    return ended and all(item.kind in ("death", "exit") for item in items)


_ON_OTHERS_ACCOUNT: Final = frozenset({-signal.SIGABRT, -signal.SIGTERM})
"""How processes end whose collectives hang (NCCL's watchdog aborts) or whose launcher cleans up."""


# What it does to a diagnosis.


def with_gpus(scene: Scene, found: Diagnosis) -> Diagnosis:
    """The diagnosis with what happened to the GPU of the rank where it began."""
    happenings = telling(scene.gpu, scene.evidence)
    slot = _slot_of(scene, found.origin)
    own = [item for item in happenings if item.slot == slot] if slot is not None else []
    if not any(item.category for item in own) and (found.origin is None or ended_for_others(found.evidence)):
        own = _named(happenings) or (happenings if found.origin is None else own)
        if len({item.slot for item in own}) > 1:  # which of them it was nobody can tell
            return _alternative(found, *(item.category or "" for item in _faults(own)))
    best = next(iter(_faults(own)), None)
    if best is None:
        return _alternative(found, "gpu_driver") if any(item.gpu_class == "echo" for item in own) else found
    if best.category == found.cause:
        return _confirmed(found, best)
    if not _may_overrule(scene, found, best):
        return _alternative(found, best.category or "")
    return _overruled(scene, found, best, own)


def _may_overrule(scene: Scene, found: Diagnosis, best: Evidence) -> bool:
    """By its class, by its time, and by how the process ended: neither a program's fault nor a lost link sends SIGKILL."""
    soft = best.gpu_class in ("fabric", "application")
    if soft and any(item.exit_code == -signal.SIGKILL for item in found.evidence):
        return False
    if found.cause in _ENDS and best.gpu_class == "fabric" and best.xid is None:
        return False  # a counter that rose: links try again, and no process ends of it
    in_time = not _late(scene, best) or not (found.cause in _OWN_EXCEPTIONS or best.gpu_class == "application")
    return in_time and found.cause in BEATS[best.gpu_class]


def _slot_of(scene: Scene, origin: int | None) -> int | None:
    return next((marker.slot for marker in scene.markers if origin is not None and marker.rank == origin), None)


def _named(happenings: Sequence[Evidence]) -> list[Evidence]:
    """What happened to the only GPU with a fault of the strongest class that there is."""
    faults = _faults(happenings)
    strongest = _STRENGTH[faults[0].gpu_class] if faults else None
    slots = {item.slot for item in faults if _STRENGTH[item.gpu_class] == strongest}
    return [item for item in happenings if item.slot in slots] if len(slots) == 1 else []


def _faults(happenings: Iterable[Evidence]) -> list[Evidence]:
    """Those that explain a failure, the strongest first."""
    return sorted((item for item in happenings if item.category and item.gpu_class in _STRENGTH), key=_strength)


def _strength(item: Evidence) -> tuple[int, bool, float]:
    return _STRENGTH[item.gpu_class], item.xid is None, item.at


def _late(scene: Scene, item: Evidence) -> bool:
    return item.at > scene.begin + LATE_SECONDS


def _overruled(scene: Scene, found: Diagnosis, best: Evidence, own: Sequence[Evidence]) -> Diagnosis:
    reported = best.xid is not None and not _late(scene, best)
    fits = found.cause in _LOOKS_LIKE_A_LOST_LINK or found.cause in (
        "app_exception",
        "illegal_access",
        *HARDWARE_CAUSES,
    )
    told = best.gpu_class == "hardware" or (best.gpu_class == "application" and found.cause == "app_exception")
    confidence: Confidence = "confirmed" if reported and fits and told else "likely"
    others = [item.category for item in _faults(own)]
    changed = replace(
        found,
        cause=best.category or found.cause,
        origin=scene.rank_of(best.slot),
        confidence=confidence,
        evidence=(*found.evidence, best),
        alternatives=_distinct([*others, "" if found.vague else found.cause, *found.alternatives], best.category),
    )
    return _hinted(changed, best)


def _confirmed(found: Diagnosis, best: Evidence) -> Diagnosis:
    """Two that say the same."""
    surer = best.gpu_class in ("hardware", "application") and best.xid is not None
    confidence: Confidence = "confirmed" if surer else found.confidence
    return _hinted(replace(found, confidence=confidence, evidence=(*found.evidence, best)), best)


def _hinted(found: Diagnosis, best: Evidence) -> Diagnosis:
    """A program's fault that stays with one GPU may be the GPU's."""
    if best.hint != "gpu":
        return found
    return replace(found, confidence="likely", alternatives=_distinct(["gpu_memory", *found.alternatives], found.cause))


def _alternative(found: Diagnosis, *causes: str) -> Diagnosis:
    return replace(found, alternatives=_distinct([*found.alternatives, *causes], found.cause))


def _distinct(causes: Iterable[str | None], chosen: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cause for cause in causes if cause and cause != chosen))
