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

OTHERS: Final = ("unknown", "application", "driver", "hardware", "fabric", "informational", "echo")
"""Classes of XIDs that are not counted by number: the first is number -1 in `Gpus.xids`, and so on, also in what is saved."""

MOST_KEPT: Final = 512
"""Happenings kept, of all GPUs together: one that repeats itself by the thousand must not fill the memory."""
MOST_XIDS: Final = 12
"""Numbers of XIDs that are counted of a GPU, each by itself; further ones are counted together, by class."""
MOST_UNKNOWN: Final = 4
"""How many of them may be such as are not in the table: what nobody knows must not push out what somebody does."""
MOST_COUNTED: Final = 64
"""GPUs whose XIDs are counted; one more takes the place of the one that had none for longest, whose series end."""
GONE: Final = ("lost", "hung")
"""Kinds of happenings that hold on until the GPU is `back`."""
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
        """XIDs since the sidecar's memory began, by UUID and number; negative numbers stand for further ones of a class (`OTHERS`)."""
        self.last_xid_wall: dict[tuple[str, int], float] = {}
        """When each of them was last reported, seconds since 1970."""
        self.recent: deque[GpuSeen] = deque(maxlen=MOST_KEPT)
        self.labels: dict[str, tuple[str, ...]] = {}
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName` by UUID."""
        self.present: tuple[tuple[str, ...], ...] = ()
        """Values of the labels of the GPUs that this machine has, answering or not."""
        self.parents: dict[str, str] = {}
        """UUID of the GPU that a MIG instance is a part of, by its own."""
        self.faults: dict[str, list[list[float]]] = {}
        """By UUID, when a program's fault was reported: first and last report of each occasion, CLOCK_MONOTONIC seconds."""

    def fold(self, seen: GpuSeen) -> None:
        """One happening."""
        number = self._counted_as(seen.uuid, seen.xid) if seen.kind == "xid" else 0
        nameless = number < 0 and self.table.of(seen.xid).cls == "unknown"
        if not nameless and not self._just_told(seen):
            self.recent.append(seen)
        if seen.kind != "xid":
            return
        if self._is_programs_fault(seen):
            self._note_fault(seen)
        pair = seen.uuid, number
        if pair not in self.xids:
            self._make_room(seen.uuid)
        self.xids[pair] += seen.count
        self.last_xid_wall[pair] = max(seen.wall, self.last_xid_wall.get(pair, seen.wall))

    def found(self, seen: GpusFound) -> None:
        """Which GPUs there are; those that were there before, perhaps on another machine, keep their names."""
        self.present = seen.gpus
        for labels in seen.gpus:
            _remember(self.labels, labels[1], labels)
        for part, parent in seen.parts:
            _remember(self.parents, part, parent)

    def whole(self, name: str) -> str:
        """UUID of the GPU that a rank's setting names: its own, its part's (MIG), or the only one here that begins so; else the name."""
        if name.startswith("MIG-GPU-"):  # drivers before 470 name the GPU in it: MIG-GPU-…/instance/instance
            return name.removeprefix("MIG-").partition("/")[0]
        here = {labels[1] for labels in self.present} or self.labels.keys()
        whole = {**{uuid: uuid for uuid in here}, **{part: uuid for part, uuid in self.parents.items() if uuid in here}}
        begin_so = [one for one in whole if one.startswith(name)] if len(name) > len("GPU-") else []
        return whole.get(name) or (whole[begin_so[0]] if len(begin_so) == 1 else name)

    def labels_of(self, uuid: str) -> tuple[str, ...]:
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName`, as far as they are known."""
        return self.labels.get(uuid) or ("", uuid, "", "")

    def words_of(self, number: int) -> tuple[str, str]:
        """Values of the labels `xid` and `class` under which a number of `xids` is shown."""
        return (str(number), self.table.of(number).cls) if number >= 0 else ("other", OTHERS[-1 - number])

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

    def _counted_as(self, uuid: str, xid: int) -> int:
        """The number itself, or the one that stands for its class."""
        if xid >= 0 and (uuid, xid) in self.xids:
            return xid
        cls = self.table.of(xid).cls
        own = [number for one, number in self.xids if one == uuid and number >= 0]
        unknown = [number for number in own if self.table.of(number).cls == "unknown"]
        room = len(unknown) < MOST_UNKNOWN if cls == "unknown" else len(own) - len(unknown) < MOST_XIDS - MOST_UNKNOWN
        return xid if xid >= 0 and room else -1 - OTHERS.index(cls)

    def _make_room(self, uuid: str) -> None:
        """For one more GPU; most are of machines that the pod has left."""
        last: dict[str, float] = {}
        for (one, _), wall in self.last_xid_wall.items():
            last[one] = max(wall, last.get(one, wall))
        if uuid in last or len(last) < MOST_COUNTED:
            return
        oldest = min(last, key=last.__getitem__)
        for pair in [pair for pair in self.xids if pair[0] == oldest]:
            del self.xids[pair], self.last_xid_wall[pair]

    def _just_told(self, seen: GpuSeen) -> bool:
        """Whether the newest happenings hold the same, so that thousands of one kind leave room for the others."""
        if seen.kind in GONE:  # a sidecar that begins finds what the one before it had told of
            own = [one.kind for one in self.recent if one.uuid == seen.uuid and one.kind in (*GONE, "back")]
            if own[-1:] == [seen.kind]:
                return True
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
