"""What happened to network cards as evidence for a failure: what a happening says, and how it changes the diagnosis. Pure functions.

A link that was lost explains what a lost link looks like: collectives that time out, peers that seem to fail, ranks that hang. It ends no
process by itself, and raises no exception of the program's own. Which rank used the card is not known: any of the pod's may have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headway_exporter.gpu_evidence import HANGS, HARDWARE_CAUSES, ended_for_others
from headway_exporter.scene import Evidence

if TYPE_CHECKING:
    from headway_exporter.causes import Diagnosis
    from headway_exporter.nics import NicHappening
    from headway_exporter.scene import Scene

SEEN_CAUSES: Final = HARDWARE_CAUSES | {"nic"}
"""Causes that only the pod can know on which it was seen."""
YIELDS: Final = HANGS | {"unknown"}
"""Causes that a lost link overrules."""
_MAY_COME_OF_IT: Final = HARDWARE_CAUSES | {
    "process_killed",
    "process_exited",
    "node_lost",
    "storage_io",
    "checkpoint_write",
}
"""Causes of which it is an alternative: storage may lie behind the same card."""
_NAME_LIMIT: Final = 64


def evidence(happened: NicHappening) -> Evidence | None:
    """What the happening says of a failure; None: nothing."""
    port = f"network card {happened.device[:_NAME_LIMIT]} port {happened.number[:_NAME_LIMIT]}"
    if happened.kind == "down":
        text = f"{port} lost its link"
    elif happened.kind == "flapped":
        times = "" if happened.count == 1 else f", {happened.count} times"
        text = f"{port} lost its link for a moment{times}"
    else:
        return None
    return Evidence("nic", happened.mono, happened.wall, text, category="nic")


def with_nics(scene: Scene, found: Diagnosis) -> Diagnosis:
    """The diagnosis with what happened to the pod's network cards, unless it began on another pod."""
    if not scene.nics or not _began_here(scene, found):
        return found
    if found.cause in YIELDS or ended_for_others(found.evidence):
        first = min(scene.nics, key=lambda item: item.at)
        others = ("" if found.vague else found.cause, *found.alternatives)
        return replace(
            found,
            cause="nic",
            confidence="likely",
            evidence=(*found.evidence, first),
            alternatives=tuple(dict.fromkeys(cause for cause in others if cause not in ("", "nic"))),
        )
    if found.cause in _MAY_COME_OF_IT:
        return replace(found, alternatives=tuple(dict.fromkeys((*found.alternatives, "nic"))))
    return found


def _began_here(scene: Scene, found: Diagnosis) -> bool:
    return found.origin is None or any(marker.rank == found.origin for marker in scene.markers)
