"""From what a driver answers about a GPU to metrics, and from two answers to what happened between them. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.health import nvml_fields
from headway_exporter.labels import GPU_THROTTLE_REASONS
from headway_exporter.observations import GpuSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headway_exporter.collectors import Sample
    from headway_exporter.health.nvml_fields import Field

_HARMLESS: Final = frozenset({"replay"})
"""A packet that was sent again arrived: it costs time, and explains no failure."""

_THROTTLE_BITS: Final[Mapping[str, int]] = {
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}


@dataclass(frozen=True, slots=True)
class GpuName:
    """What tells a GPU from the others, as labels have it."""

    gpu: str
    """Its number, as nvidia-smi counts."""
    uuid: str
    pci_bus_id: str = ""
    model: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `gpu`, `UUID`, `pci_bus_id`, `modelName`."""
        return self.gpu, self.uuid, self.pci_bus_id, self.model


@dataclass(frozen=True, slots=True)
class Raw:
    """What the driver answered about one GPU, in its own units; what it did not answer is missing."""

    fields: Mapping[Field, float] = field(default_factory=dict)
    utilization_percent: float | None = None
    memory_used: float | None = None
    """Bytes."""
    memory_total: float | None = None
    temperature: float | None = None
    """Degrees Celsius."""
    power_milliwatts: float | None = None
    power_limit_milliwatts: float | None = None
    sm_megahertz: float | None = None
    memory_megahertz: float | None = None
    throttle: int | None = None
    """Bits, one a reason."""
    links: Sequence[int | None] = ()
    """State of each NVLink: 1 up, 0 down, None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one time: `raw` is None when it does not answer, and `trouble` says what came instead."""

    name: GpuName
    raw: Raw | None
    trouble: str = ""
    ecc_mono: float | None = None
    """When the driver reported an uncorrected memory error since the reading before, CLOCK_MONOTONIC seconds."""
    hung_mono: float | None = None
    """Since when the driver hangs at it, CLOCK_MONOTONIC seconds; None: it does not hang."""

    @property
    def up(self) -> bool:
        """It answers."""
        return self.raw is not None


def raw(told: Mapping[str, Any]) -> Raw:
    """An answer as the process that asks the driver tells it: `fields` are rows of number, scope and value.

    Raises:
        TypeError: it is none; ValueError likewise.
    """
    figures = {name: value for name, value in told.items() if name not in ("fields", "links")}
    if not all(value is None or isinstance(value, int | float) for value in figures.values()):
        raise ValueError("a figure that is no number")
    fields = {(int(number), int(scope)): float(value) for number, scope, value in told.get("fields", ())}
    return Raw(fields, links=tuple(told.get("links", ())), **figures)


def samples(reading: GpuReading) -> Iterator[Sample]:
    """Its metrics; of a GPU that does not answer only that."""
    labels = reading.name.labels
    yield "headway_gpu_up", labels, float(reading.up)
    if reading.raw is not None:
        for name, own, value in _measured(reading.raw):
            if value is not None:
                yield f"headway_gpu_{name}", (*labels, *own), value


def down(name: GpuName) -> Sample:
    """All that is known of a GPU when the driver does not answer at all."""
    return "headway_gpu_up", name.labels, 0.0


_Measured = tuple[str, tuple[str, ...], "float | None"]


def _measured(raw: Raw) -> Iterator[_Measured]:
    get = _Fields(raw.fields)
    yield "utilization_ratio", (), _times(raw.utilization_percent, 0.01)
    yield "memory_used_bytes", (), raw.memory_used
    yield "memory_total_bytes", (), raw.memory_total
    yield "temperature_celsius", ("gpu",), raw.temperature
    yield (
        "temperature_celsius",
        ("memory",),
        get(nvml_fields.MEMORY_TEMPERATURE) or None,
    )  # 0 is what a GPU without the sensor says
    yield "power_watts", (), _times(raw.power_milliwatts, 1e-3)
    yield "power_limit_watts", (), _times(raw.power_limit_milliwatts, 1e-3)
    yield "energy_joules_total", (), _times(get(nvml_fields.ENERGY), 1e-3)
    yield "clock_hertz", ("sm",), _times(raw.sm_megahertz, 1e6)
    yield "clock_hertz", ("memory",), _times(raw.memory_megahertz, 1e6)
    for reason in GPU_THROTTLE_REASONS if raw.throttle is not None else ():
        yield "throttle_active", (reason,), float(bool((raw.throttle or 0) & _THROTTLE_BITS[reason]))
    for (kind, counter), number in nvml_fields.ECC.items():
        yield "ecc_errors_total", (kind, counter), get(number)
    for state, number in nvml_fields.REMAPPED.items():
        yield "remapped_rows", (state,), get(number)
    yield "row_remap_pending", (), get(nvml_fields.REMAP_PENDING)
    yield "row_remap_failed", (), get(nvml_fields.REMAP_FAILED)
    yield "retired_pages", (), get(*nvml_fields.RETIRED)
    yield "pcie_replays_total", (), get(nvml_fields.PCIE_REPLAYS)
    for kind, count in nvlink_errors(raw).items():
        yield "nvlink_errors_total", (kind,), count
    known = [state for state in raw.links if state is not None]
    yield "nvlinks_active", (), float(sum(known)) if known else None
    yield "recovery_action", (), get(nvml_fields.RECOVERY_ACTION)


def nvlink_errors(raw: Raw) -> dict[str, float]:
    """Errors of all links together, by kind; kinds that this GPU does not count are missing."""
    get = _Fields(raw.fields)
    found = {kind: get(*numbers) for kind, numbers in nvml_fields.LINK_TOTALS.items()}
    for kind, numbers in nvml_fields.LINK_FIELDS.items():
        if found.get(kind) is None:
            found[kind] = get.links(numbers)
    return {kind: count for kind, count in found.items() if count is not None}


class _Fields:
    """Looks up fields."""

    def __init__(self, fields: Mapping[Field, float]) -> None:
        self._fields = fields

    def __call__(self, *numbers: int) -> float | None:
        """The sum of those that are there; None when none is."""
        return _sum(self._fields.get((number, 0)) for number in numbers)

    def links(self, numbers: tuple[int, ...]) -> float | None:
        """Likewise over all links."""
        return _sum(count for (number, _), count in self._fields.items() if number in numbers)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def happenings(before: GpuReading | None, now: GpuReading, mono: float, wall: float) -> Iterator[GpuSeen]:
    """What happened between two readings of a GPU; without an earlier one only that it does not answer.

    `mono` and `wall` are seconds of the later reading (CLOCK_MONOTONIC, since 1970): when something happened before is not known, but
    for memory errors that the driver reported.
    """
    uuid = now.name.uuid
    if not uuid:  # it never gave its name, so that nothing can be joined to it
        return
    if now.raw is None:
        if now.hung_mono is not None:
            if before is None or before.raw is not None:
                yield GpuSeen(uuid, "hung", now.hung_mono, wall - (mono - now.hung_mono))
        elif before is None or before.raw is not None or before.hung_mono is not None:
            yield GpuSeen(uuid, "lost", mono, wall, text=now.trouble)
        return
    if before is None:
        return
    if before.raw is None:
        yield GpuSeen(uuid, "back", mono, wall, text="answers again")
        return
    errors = _rise(_uncorrected(before.raw), _uncorrected(now.raw))
    if errors:
        at = mono if now.ecc_mono is None else now.ecc_mono
        text = f"{errors} uncorrected memory error" + "s" * (errors != 1)
        yield GpuSeen(uuid, "ecc", at, wall - (mono - at), count=errors, text=text)
    if _rise(_Fields(before.raw.fields)(nvml_fields.REMAP_FAILED), _Fields(now.raw.fields)(nvml_fields.REMAP_FAILED)):
        yield GpuSeen(uuid, "remap", mono, wall, text="a bad memory row could not be replaced")
    if _of_links(before.raw) == _of_links(now.raw):  # as nearly always
        return
    earlier = nvlink_errors(before.raw)
    rises = {kind: _rise(earlier.get(kind), count) for kind, count in nvlink_errors(now.raw).items()}
    risen = {kind: count for kind, count in rises.items() if count and kind not in _HARMLESS}
    if risen:
        text = "NVLink errors: " + ", ".join(f"{count} {kind}" for kind, count in risen.items())
        yield GpuSeen(uuid, "nvlink", mono, wall, count=sum(risen.values()), text=text)


def _of_links(raw: Raw) -> dict[Field, float]:
    return {key: count for key, count in raw.fields.items() if key[0] in nvml_fields.OF_LINKS}


def _uncorrected(raw: Raw) -> float | None:
    """Since the driver was loaded where it counts that, else in the GPU's life."""
    get = _Fields(raw.fields)
    since_load = get(nvml_fields.ECC["uncorrected", "volatile"])
    return get(nvml_fields.ECC["uncorrected", "aggregate"]) if since_load is None else since_load


def _rise(before: float | None, now: float | None) -> int:
    """By how much a counter rose; 0 when it began anew, or was not known before."""
    return 0 if before is None or now is None else max(0, round(now - before))
