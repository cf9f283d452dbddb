"""The GPUs of the machine, from the metrics that the driver's instrument shows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from headway_exporter.page.model import Gpu
from headway_exporter.report import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.page.taking import Taken

MOST_GPUS: Final = 64
_PREFIX: Final = "headway_gpu_"
_LABELS: Final = 4
"""`gpu`, `UUID`, `pci_bus_id`, `modelName`, before a metric's own."""


def gpus(taken: Taken) -> tuple[Gpu, ...]:
    """By number."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], float]] = defaultdict(dict)
    for name, labels, value in taken.measured:
        if name.startswith(_PREFIX) and isinstance(value, (int, float)):
            own = (name.removeprefix(_PREFIX), *labels[_LABELS:])
            found[labels[:_LABELS]][own] = float(value)
    ranks = _ranks(taken)
    listed = sorted(found.items(), key=lambda item: _order(item[0]))
    return tuple(_gpu(labels, values, ranks, taken) for labels, values in listed[:MOST_GPUS])


def _gpu(
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
    ranks: Mapping[str, tuple[int, ...]],
    taken: Taken,
) -> Gpu:
    number, uuid, _, model = labels
    held = [name[1] for name, value in values.items() if name[0] == "throttle_active" and value]
    return Gpu(
        gpu=fields.text(number, 20),
        uuid=fields.text(uuid, 80),
        model=fields.text(model, 80),
        up=bool(values.get(("up",))),
        ranks=ranks.get(uuid, ()),
        utilization_ratio=values.get(("utilization_ratio",)),
        memory_used_bytes=values.get(("memory_used_bytes",)),
        memory_total_bytes=values.get(("memory_total_bytes",)),
        temperature_celsius=values.get(("temperature_celsius", "gpu")),
        power_watts=values.get(("power_watts",)),
        power_limit_watts=values.get(("power_limit_watts",)),
        throttled=tuple(sorted(held)),
        uncorrected_errors=values.get(("ecc_errors_total", "uncorrected", "volatile")),
        xids=taken.more.xids.get(uuid, {}),
    )


def _ranks(taken: Taken) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = defaultdict(list)
    for slot in taken.more.slots.values():
        if slot.gpu_uuid and slot.rank is not None:
            found[slot.gpu_uuid].append(slot.rank)
    return {uuid: tuple(sorted(ranks)) for uuid, ranks in found.items()}


def _order(labels: tuple[str, ...]) -> tuple[bool, int, str]:
    number = labels[0].isascii() and labels[0].isdigit() and len(labels[0]) < 10
    return not number, int(labels[0]) if number else 0, labels[1]


def measured(samples: tuple[Sample, ...], name: str) -> dict[str, float]:
    """Values of a metric by its first label."""
    return {
        labels[0]: float(value)
        for found, labels, value in samples
        if found == name and labels and isinstance(value, (int, float))
    }
