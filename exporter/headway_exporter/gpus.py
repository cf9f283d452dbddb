"""What happened to the machine's GPUs: counted for good, and the latest kept as evidence for failures."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from headway_exporter.observations import GpuSeen, GpusFound

T = TypeVar("T")

MOST_KEPT: Final = 512
"""Happenings kept, of all GPUs together: one that repeats itself by the thousand must not fill the memory."""
MOST_COUNTED: Final = 1024
"""Pairs of GPU and XID that are counted."""
MOST_NAMED: Final = 256
"""GPUs, and parts of GPUs, whose names are kept: those of the machines that the pod was on last."""


class Gpus:
    """The fold of `GpuSeen` and `GpusFound`."""

    def __init__(self) -> None:
        self.xids: Counter[tuple[str, int]] = Counter()
        """XIDs since the sidecar's memory began, by UUID and number."""
        self.last_xid_wall: dict[tuple[str, int], float] = {}
        """When each of them was last reported, seconds since 1970."""
        self.recent: deque[GpuSeen] = deque(maxlen=MOST_KEPT)
        self.labels: dict[str, tuple[str, ...]] = {}
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName` by UUID."""
        self.parents: dict[str, str] = {}
        """UUID of the GPU that a MIG instance is a part of, by its own."""

    def fold(self, seen: GpuSeen) -> None:
        """One happening."""
        self.recent.append(seen)
        if seen.kind != "xid":
            return
        pair = seen.uuid, seen.xid
        if pair in self.xids or len(self.xids) < MOST_COUNTED:
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


def _remember(known: dict[str, T], name: str, what: T) -> None:
    """The newest last, the oldest forgotten."""
    known.pop(name, None)
    known[name] = what
    if len(known) > MOST_NAMED:
        del known[next(iter(known))]
