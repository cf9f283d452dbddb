"""What happened to the machine's GPUs: counted for good, and the latest kept as evidence for failures."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway_exporter.observations import GpuSeen

MOST_KEPT: Final = 512
"""Happenings kept, of all GPUs together: one that repeats itself by the thousand must not fill the memory."""
MOST_COUNTED: Final = 1024
"""Pairs of GPU and XID that are counted."""


class Gpus:
    """The fold of `GpuSeen`."""

    def __init__(self) -> None:
        self.xids: Counter[tuple[str, int]] = Counter()
        """XIDs since the sidecar's memory began, by UUID and number."""
        self.last_xid_wall: dict[tuple[str, int], float] = {}
        """When each of them was last reported, seconds since 1970."""
        self.recent: deque[GpuSeen] = deque(maxlen=MOST_KEPT)

    def fold(self, seen: GpuSeen) -> None:
        """One happening."""
        self.recent.append(seen)
        if seen.kind != "xid":
            return
        pair = seen.uuid, seen.xid
        if pair in self.xids or len(self.xids) < MOST_COUNTED:
            self.xids[pair] += 1
            self.last_xid_wall[pair] = seen.wall
