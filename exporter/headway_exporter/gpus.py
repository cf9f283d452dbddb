"""What happened to the machine's GPUs: counted for good, and the latest kept as evidence for failures."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from headway_exporter.health import xids

if TYPE_CHECKING:
    from headway_exporter.gpu_evidence import Hint
    from headway_exporter.observations import GpuSeen
    from headway_exporter.thresholds import Thresholds

MOST_KEPT: Final = 512
"""Happenings kept, of all GPUs together: one that repeats itself by the thousand must not fill the memory."""
MOST_COUNTED: Final = 1024
"""Pairs of GPU and XID that are counted."""
MOST_GPUS: Final = 128
"""GPUs whose programs' faults are remembered."""
MOST_OCCASIONS: Final = 8
REPEAT_SECONDS: Final = 10.0
"""The same happening again within this time adds nothing to know."""
OCCASION_SECONDS: Final = 60.0
"""One fault is reported several times; after this long without a report, the next one is another fault."""


class Gpus:
    """The fold of `GpuSeen`."""

    def __init__(self, table: xids.XidTable | None = None) -> None:
        """`table`: what the XIDs mean; None: the built-in table."""
        self.table = xids.load() if table is None else table
        self.xids: Counter[tuple[str, int]] = Counter()
        """XIDs since the sidecar's memory began, by UUID and number."""
        self.last_xid_wall: dict[tuple[str, int], float] = {}
        """When each of them was last reported, seconds since 1970."""
        self.recent: deque[GpuSeen] = deque(maxlen=MOST_KEPT)
        self.faults: dict[str, list[list[float]]] = {}
        """By UUID, when a program's fault was reported: first and last report of each occasion, CLOCK_MONOTONIC seconds."""

    def fold(self, seen: GpuSeen) -> None:
        """One happening."""
        if not self._just_told(seen):
            self.recent.append(seen)
        if seen.kind != "xid":
            return
        if self._is_programs_fault(seen):
            self._note_fault(seen)
        pair = seen.uuid, seen.xid
        if pair in self.xids or len(self.xids) < MOST_COUNTED:
            self.xids[pair] += 1
            self.last_xid_wall[pair] = seen.wall

    def hint(self, seen: GpuSeen, limits: Thresholds) -> Hint:
        """What it says that a program's fault was seen before, within the window of `limits`."""
        if not self._is_programs_fault(seen):
            return ""
        since = seen.mono - limits.gpu_repeat_window_seconds
        times = {
            uuid: sum(since <= last and first <= seen.mono for first, last in occasions)
            for uuid, occasions in self.faults.items()
        }
        if any(count for uuid, count in times.items() if uuid != seen.uuid):
            return "program"
        return "gpu" if times.get(seen.uuid, 0) > 1 else ""

    def came_back(self, lost: GpuSeen, until: float) -> bool:
        """Whether a GPU that was lost answered again, up to then."""
        return any(
            one.kind == "back" and one.uuid == lost.uuid and lost.mono <= one.mono <= until for one in self.recent
        )

    def _just_told(self, seen: GpuSeen) -> bool:
        """Whether the newest happenings hold the same, so that thousands of one kind leave room for the others."""
        for one in reversed(self.recent):
            if one.mono < seen.mono - REPEAT_SECONDS:
                return False
            if (one.uuid, one.kind, one.xid) == (seen.uuid, seen.kind, seen.xid):
                return one.mono <= seen.mono
        return False

    def _is_programs_fault(self, seen: GpuSeen) -> bool:
        return seen.kind == "xid" and self.table.of(seen.xid).cause == "illegal_access"

    def _note_fault(self, seen: GpuSeen) -> None:
        occasions = self.faults.get(seen.uuid)
        if occasions is None:
            if len(self.faults) >= MOST_GPUS:
                del self.faults[next(iter(self.faults))]
            occasions = self.faults[seen.uuid] = []
        if occasions and seen.mono - occasions[-1][1] <= OCCASION_SECONDS:
            occasions[-1][1] = max(occasions[-1][1], seen.mono)
        else:
            occasions.append([seen.mono, seen.mono])
            del occasions[:-MOST_OCCASIONS]
