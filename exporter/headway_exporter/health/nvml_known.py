"""Which GPUs this machine has, as far as was ever seen. No I/O, no clock.

A GPU that was seen once stays known: when it does not answer any more it is down, not gone. It goes when another one, never seen before,
is in its place: at its address on the bus or under its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.health.gpu_readings import GpuName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headway_exporter.health.gpu_readings import GpuReading

MOST_KNOWN: Final = 64
"""A driver that names more is out of its mind."""


@dataclass
class Gpu:
    """A GPU that was seen once."""

    name: GpuName
    index: int | None = None
    """The number under which the driver lists it now; None: it does not."""
    parts: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""
    last: GpuReading | None = None


class Known:
    """All of them."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}

    def __iter__(self) -> Iterator[Gpu]:
        return iter(list(self._gpus.values()))

    def __len__(self) -> int:
        return len(self._gpus)

    def recall(self, labels: Iterable[tuple[str, ...]]) -> None:
        """Those that a sidecar before this one saw: values of `gpu`, `UUID`, `pci_bus_id`, `modelName`."""
        for one in labels:
            name = GpuName(*one)
            if name.uuid:
                self._gpus.setdefault(name.uuid, Gpu(name))

    def listed(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        """The driver lists these and no others, by number; see `nvml_child`. Of one that hangs nothing is told, and it is as before."""
        for gpu in self._gpus.values():
            if gpu.index is not None and not _is_still(gpu, found.get(gpu.index)):
                gpu.index = None
        newcomers = [self._met(index, told) for index, told in found.items() if told.get("uuid")]
        for newcomer in filter(None, newcomers):
            self._forget([key for key, gpu in self._gpus.items() if _is_replaced(gpu, newcomer)])
        for index, told in found.items():
            if told.get("uuid", "") == "" and all(gpu.name.gpu != str(index) for gpu in self._gpus.values()):
                self._gpus[f"number {index}"] = Gpu(GpuName(str(index), ""))
        unlisted = [key for key, gpu in self._gpus.items() if gpu.index is None]
        self._forget(unlisted[: max(0, len(self._gpus) - MOST_KNOWN)])

    def _met(self, index: int, told: Mapping[str, Any]) -> Gpu | None:
        """Takes note of a GPU; returns it when it was never seen before."""
        name = GpuName(str(index), told["uuid"], told["bus"], told["model"])
        self._gpus.pop(f"number {index}", None)
        gpu = self._gpus.get(name.uuid)
        newcomer = None
        if gpu is None:
            newcomer = gpu = self._gpus[name.uuid] = Gpu(name)
        elif not gpu.name.pci_bus_id and not gpu.name.model:  # it was lost when it was met
            gpu.name = name
        gpu.index = index
        if told["parts"] is not None:
            gpu.parts = tuple(told["parts"])
        return newcomer

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._gpus[key]


def _is_still(gpu: Gpu, told: Mapping[str, Any] | None) -> bool:
    return told is not None and told.get("uuid", gpu.name.uuid) == gpu.name.uuid


def _is_replaced(gpu: Gpu, newcomer: Gpu) -> bool:
    if gpu is newcomer or gpu.index is not None:
        return False
    same_place = bool(gpu.name.pci_bus_id) and gpu.name.pci_bus_id == newcomer.name.pci_bus_id
    return same_place or gpu.name.gpu == newcomer.name.gpu
