"""Failures that wait for the verdict of all pods before they are counted.

Where a run has several pods, one failure is seen by all of them, and who began it is known only when they have told each other. Until
then nothing of it is counted. Plain state of the fold: a restart of the sidecar keeps what waits, so that nothing counts twice or never.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headway_exporter.causes import Diagnosis
from headway_exporter.incident_ids import incident_id
from headway_exporter.nic_evidence import SEEN_CAUSES, YIELDS

if TYPE_CHECKING:
    from headway_exporter.incidents import Incident
    from headway_exporter.origins import OriginVerdict
    from headway_exporter.recoveries import Try

MOST_WAITING: Final = 64
"""Failures that wait at once; the oldest beyond are decided by this pod alone."""
_MOST_INCARNATIONS: Final = 64


class Undecided:
    """What waits, and the names under which pods exchange what they know."""

    def __init__(self, run: str, pod_index: str, *, shared: bool) -> None:
        self.shared = shared
        """Other pods can be asked: there is a folder that all of them share."""
        self.tries: list[Try] = []
        self.incidents: deque[Incident] = deque(maxlen=4 * MOST_WAITING)
        """Closed, and waiting for a verdict on one of their tries."""
        self._run = run
        self._pod_index = pod_index
        self._failed: Counter[str] = Counter()

    def name(self, incarnation: str | None) -> str | None:
        """The id under which all pods know this failure of the incarnation; None: only this pod can name it.

        Failures before an incarnation is made anew belong to the one before: the second one of those has a name of its own.
        """
        if incarnation is None:
            return None
        name = self.next_name(incarnation)
        self._failed[incarnation] = self._failed.pop(incarnation, 0) + 1
        if len(self._failed) > _MOST_INCARNATIONS:
            del self._failed[next(iter(self._failed))]
        return name

    def next_name(self, incarnation: str) -> str:
        """What the next failure of the incarnation will be called."""
        before = self._failed[incarnation]
        name = incarnation if before == 0 else f"{incarnation} again {before}"
        return incident_id(self._run, name, self._pod_index, 0.0)

    def add(self, one: Try, name: str | None, pods: int) -> None:
        """A failure; with one pod, or without a folder to share, or without a name, this pod decides alone."""
        if self.shared and pods > 1 and name is not None:
            one.exchange, one.decided_by = name, None
            self.tries.append(one)

    def withdraw(self, one: Try, incarnation: str | None) -> None:
        """The newest failure, which was one of that incarnation, was none."""
        self.tries = [other for other in self.tries if other is not one]
        if incarnation is not None:
            self._failed[incarnation] -= 1

    def take(self, name: str) -> list[Try]:
        """The failures of that name, which wait no more."""
        found = [one for one in self.tries if one.exchange == name]
        self.tries = [one for one in self.tries if one.exchange != name]
        return found

    @property
    def overdue(self) -> str | None:
        """A failure that has waited while too many others came."""
        return self.tries[0].exchange if len(self.tries) > MOST_WAITING else None

    def take_decided_incidents(self) -> list[Incident]:
        """Those that need not wait any more."""
        found = [incident for incident in self.incidents if incident.decided]
        self.incidents = deque((one for one in self.incidents if not one.decided), self.incidents.maxlen)
        return found


def agreed(verdict: OriginVerdict, local: Diagnosis) -> Diagnosis:
    """The verdict of all pods as a diagnosis, beside what this pod saw.

    What came to light of the GPU or the network card of the rank that they settled on, after they did, is known here alone and stands; that
    of a network card too where they could settle on none.
    """
    same_rank = local.origin is not None and local.origin == verdict.rank
    unplaced = local.cause == "nic" and verdict.pod_index is None and verdict.cause in YIELDS
    if (local.cause in SEEN_CAUSES and same_rank) or unplaced:
        others = [verdict.cause, *local.alternatives, *verdict.alternatives]
        return replace(local, alternatives=tuple(dict.fromkeys(one for one in others if one != local.cause)))
    return Diagnosis(
        verdict.cause, verdict.rank, verdict.confidence, local.evidence, verdict.alternatives, verdict.signature
    )
