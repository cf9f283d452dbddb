"""What an incident cost its pod: rank-seconds that went into detection, restart, loads and replay because of it.

The ledger books time by state and knows no incidents, so an incident's share is what the books have more than when it opened. It is taken
when the incident closes, and for good once every rank has regained the mark: from then on nothing more is lost by it. A further
incident takes over where it opens, so no second counts twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_exporter.observations import NANOSECONDS

if TYPE_CHECKING:
    from headway_exporter.incidents import Incident
    from headway_exporter.pod import Pod

STATES: Final = ("detect", "restart", "down", "init", "checkpoint_load", "replay")
"""States that there would be none of, after the first start, without failures."""


def settle(pod: Pod) -> None:
    """Takes an incident's losses when it closes, and again when the mark is regained."""
    incident = pod.failures.unsettled
    if incident is None or incident.closed is None:
        return
    if not incident.lost:
        incident.lost = so_far(pod, incident, round(incident.closed * NANOSECONDS))
    if _regained(pod, incident):
        incident.lost = so_far(pod, incident, 0)
        pod.failures.unsettled = None


def so_far(pod: Pod, incident: Incident, now: int) -> dict[str, int]:
    """Nanoseconds by state since the incident opened, with what is open at `now`."""
    return incident.more_than_when_opened(pod.ledger.so_far(STATES, now))


def _regained(pod: Pod, incident: Incident) -> bool:
    """Every rank that lives has done again what it had done before."""
    if any(recovery.regained is None for recovery in incident.recoveries[-1:]):
        return False
    books = (pod.ledger.slot(slot.number) for slot in pod.alive)
    return all(one.tip is None or one.tip >= one.mark for one in books)
