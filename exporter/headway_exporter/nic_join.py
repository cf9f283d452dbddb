"""Gives what happened to network cards to the failures that it may explain, in the stretch of time that holds for GPUs too (`gpu_join`).

The pod was last well when any of its ranks last made a step: over a link that was lost before that, nobody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_exporter import nic_evidence
from headway_exporter.gpu_evidence import LATE_SECONDS
from headway_exporter.gpu_join import newest_first, stretch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.failures import Failures
    from headway_exporter.nics import NicHappening, Nics
    from headway_exporter.recoveries import Recovery, Try


def began(failures: Failures, nics: Nics) -> None:
    """A try has begun: what the cards went through before, and those whose link is gone since then."""
    recovery, one, since = next(newest_first(failures))
    _give(failures, nics, recovery, one, nics.recent, since)


def arrived(failures: Failures, nics: Nics, happened: NicHappening) -> None:
    """Something happened to a card: it may explain the newest failure, or when told late an earlier one."""
    for recovery, one, since in newest_first(failures):
        if happened.mono >= since:
            _give(failures, nics, recovery, one, [happened], since)
            return


def _give(
    failures: Failures, nics: Nics, recovery: Recovery, one: Try, happenings: Iterable[NicHappening], since: float
) -> None:
    first, more = min(item.at for item in one.evidence), False
    for happened in happenings:
        gone = happened.kind == "down" and not nics.came_back(happened, first)
        steps = (marker.step_end if gone else marker.progressed for marker in one.markers)
        begin, end = stretch(recovery, one, max(steps, default=first), failures.limits, LATE_SECONDS)
        found = nic_evidence.evidence(happened)
        if found is not None and (begin if gone else max(since, begin)) <= happened.mono <= end:
            more = one.add_nic(found) or more
    if more:
        failures.learnt(recovery, one)
