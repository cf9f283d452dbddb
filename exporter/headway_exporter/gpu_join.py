"""Gives what happened to GPUs to the failures that it may explain: when a failure begins, what came before it; afterwards, what comes yet.

A failure's stretch of time begins a little before the rank was last known to be well, since a GPU may be gone long before a time-out
tells of it; and not before the restart of the failure before. It ends a little after the failure's last sign, or with the first step that
was made again.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Final

from headway_exporter import gpu_evidence
from headway_exporter.gpus import GONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headway_exporter.failures import Failures
    from headway_exporter.gpus import Gpus
    from headway_exporter.observations import GpuSeen
    from headway_exporter.recoveries import Recovery, Try
    from headway_exporter.scene import Marker
    from headway_exporter.thresholds import Thresholds

MOST_RECOVERIES: Final = 4
"""Recoveries, the newest ones, of which more may become known."""


def began(failures: Failures, gpus: Gpus) -> None:
    """A try has begun: what its GPUs told before, and those that are gone since then."""
    recovery, one, since = next(newest_first(failures))
    _give(failures, gpus, recovery, one, gpus.recent, since)


def arrived(failures: Failures, gpus: Gpus, seen: GpuSeen) -> None:
    """Something happened to a GPU: it may explain the newest failure, or when told late an earlier one."""
    for recovery, one, since in newest_first(failures):
        if seen.mono >= since:
            _give(failures, gpus, recovery, one, [seen], since)
            return


def newest_first(failures: Failures) -> Iterator[tuple[Recovery, Try, float]]:
    """Each try, and when the one before it had restarted."""
    newest = islice(reversed(failures.recoveries), MOST_RECOVERIES)
    pairs = [(recovery, one) for recovery in newest for one in reversed(recovery.tries)]
    for (recovery, one), before in zip(pairs, [*pairs[1:], None], strict=False):
        yield recovery, one, -math.inf if before is None or before[1].restarted is None else before[1].restarted


def _give(
    failures: Failures, gpus: Gpus, recovery: Recovery, one: Try, happenings: Iterable[GpuSeen], since: float
) -> None:
    limits, more = failures.limits, False
    for seen in happenings:
        for marker in one.markers:
            if gpu_evidence.is_gpu_of(marker, seen, gpus) and _is_in_time(
                seen, marker, recovery, one, since, gpus, limits
            ):
                found = gpu_evidence.evidence(seen, marker.slot, gpus.table, gpus.hint(seen, limits))
                more = (found is not None and one.add_gpu(found)) or more
    if more:
        failures.learnt(recovery, one)


def _is_in_time(
    seen: GpuSeen, marker: Marker, recovery: Recovery, one: Try, since: float, gpus: Gpus, limits: Thresholds
) -> bool:
    late = 0.0 if seen.kind == "xid" else gpu_evidence.LATE_SECONDS
    gone = seen.kind in GONE and not gpus.came_back(seen, min(item.at for item in one.evidence))
    begin, end = stretch(recovery, one, marker.step_end if gone else marker.progressed, limits, late)
    return (begin if gone else max(since, begin)) <= seen.mono <= end  # still gone, however often it was tried since


def stretch(recovery: Recovery, one: Try, well: float, limits: Thresholds, late: float) -> tuple[float, float]:
    """First and last moment of what may explain the try of a rank that was last `well` then; what is polled is seen some time `late`."""
    first, last = min(item.at for item in one.evidence), max(item.at for item in one.evidence)
    end = last + limits.gpu_after_seconds
    if recovery.closed is not None:
        end = min(end, recovery.closed + late)
    return min(first, well) - limits.gpu_before_seconds, end
