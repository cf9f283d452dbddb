"""What happened to the machine's GPUs: counted for good, and the latest kept as evidence for failures."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeVar

from headway_exporter.health import xids

if TYPE_CHECKING:
    from headway_exporter.gpu_evidence import Hint
    from headway_exporter.observations import GpuSeen, GpusFound
    from headway_exporter.thresholds import Thresholds

T = TypeVar("T")

MOST_KEPT: Final = 512
"""Happenings kept, of all GPUs together: one that repeats itself by the thousand must not fill the memory."""
MOST_COUNTED: Final = 128
"""Pairs of GPU and XID that are counted; one more takes the place of the one that was not reported for longest, whose series ends."""
MOST_NAMED: Final = 256
"""GPUs, and parts of GPUs, whose names are kept: those of the machines that the pod was on last."""
MOST_GPUS: Final = 128
"""GPUs whose programs' faults are remembered."""
MOST_OCCASIONS: Final = 8
REPEAT_SECONDS: Final = 10.0
"""The same happening again within this time adds nothing to know."""
OCCASION_SECONDS: Final = 60.0
"""One fault is reported several times; after this long without a report, the next one is another fault."""


class Gpus:
    """The fold of `GpuSeen` and `GpusFound`."""

    def __init__(self, table: xids.XidTable | None = None) -> None:
        """`table`: what the XIDs mean; None: the built-in table."""
        self.table = xids.load() if table is None else table
        self.xids: Counter[tuple[str, int]] = Counter()
        """XIDs since the sidecar's memory began, by UUID and number."""
        self.last_xid_wall: dict[tuple[str, int], float] = {}
        """When each of them was last reported, seconds since 1970."""
        self.recent: deque[GpuSeen] = deque(maxlen=MOST_KEPT)
        self.labels: dict[str, tuple[str, ...]] = {}
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName` by UUID."""
        self.parents: dict[str, str] = {}
        """UUID of the GPU that a MIG instance is a part of, by its own."""
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
        if pair not in self.xids and len(self.xids) >= MOST_COUNTED:  # most are of machines that the pod has left
            oldest = min(self.last_xid_wall, key=self.last_xid_wall.__getitem__)
            del self.xids[oldest], self.last_xid_wall[oldest]
        self.xids[pair] += seen.count
        self.last_xid_wall[pair] = max(seen.wall, self.last_xid_wall.get(pair, seen.wall))

    def found(self, seen: GpusFound) -> None:
        """Which GPUs there are; those that were there before, perhaps on another machine, keep their names."""
        for labels in seen.gpus:
            _remember(self.labels, labels[1], labels)
        for part, parent in seen.parts:
            _remember(self.parents, part, parent)

    def whole(self, name: str) -> str:
        """UUID of the GPU that a rank's setting names: of which it is a part (MIG), or which it abbreviates; else the name itself."""
        if name.startswith("MIG-GPU-"):  # drivers before 470 name the GPU in it: MIG-GPU-…/instance/instance
            return name.removeprefix("MIG-").partition("/")[0]
        whole = {**{uuid: uuid for uuid in self.labels}, **self.parents}
        begin_so = [one for one in whole if one.startswith(name)] if len(name) > len("GPU-") else []
        return whole.get(name) or (whole[begin_so[0]] if len(begin_so) == 1 else name)

    def labels_of(self, uuid: str) -> tuple[str, ...]:
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName`, as far as they are known."""
        return self.labels.get(uuid) or ("", uuid, "", "")

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


def _remember(known: dict[str, T], name: str, what: T) -> None:
    """The newest last, the oldest forgotten."""
    known.pop(name, None)
    known[name] = what
    if len(known) > MOST_NAMED:
        del known[next(iter(known))]
