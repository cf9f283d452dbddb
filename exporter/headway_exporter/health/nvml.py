"""The GPUs of this machine: what they measure, which of them answer, and what happened to them.

All questions are asked in the instrument's thread, which may hang with the driver; what the driver reports by itself is heard in another.
A GPU that was seen once stays known: when it does not answer any more it is down, not gone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health import gpu_readings
from headway_exporter.health.gpu_readings import GpuName, GpuReading
from headway_exporter.health.instruments import AbsentError, Instrument
from headway_exporter.health.nvml_driver import MOST_GPUS, Driver, GpuLostError, Plan
from headway_exporter.health.nvml_events import Listener, address
from headway_exporter.observations import GpusFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import GpuSeen, Observation

EVERY_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 60.0
"""How often is looked for other GPUs, MIG instances and things that can be asked."""


@dataclass(frozen=True, slots=True)
class Readings:
    """All GPUs at one time, and what happened since the time before."""

    gpus: tuple[GpuReading, ...]
    samples: tuple[Sample, ...]
    """Made once: scrapes may come more often than readings."""
    happened: tuple[Observation, ...]


@dataclass
class _Gpu:
    """A GPU that was seen once."""

    name: GpuName
    handle: Any = None
    """None: the driver gives none."""
    plan: Plan | None = None
    """None: not known yet."""
    parts: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""
    last: GpuReading | None = None


class NvmlProbe:
    """Reads all GPUs."""

    name = "nvml"

    def __init__(
        self,
        every_seconds: float = EVERY_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.every_seconds = every_seconds
        self.deadline_seconds = deadline_seconds
        self._look_seconds = look_seconds
        self._driver: Driver | None = None
        self._listener: Listener | None = None
        self._unheard: deque[Observation] = deque()
        """Names of GPUs, which must be known before anything is told of them, and what listeners before this one had heard."""
        self._listens_to: frozenset[tuple[str, int]] = frozenset()
        """UUIDs, and the handles that had them."""
        self._gpus: dict[str, _Gpu] = {}
        self._parts: Mapping[str, tuple[str, ...]] = {}
        """Of each GPU the MIG instances; replaced, never changed, for others read it."""
        self._looked = 0.0
        self._told: GpusFound | None = None

    def read(self) -> Readings:
        """All GPUs, as they are now.

        Raises:
            AbsentError: there is no driver here, or it knows no GPU.
            pynvml.NVMLError: the driver does not answer.
        """
        if self._none_left():
            self.close()
        driver = self._opened()
        try:
            return self._read(driver)
        except driver.nvml.NVMLError:
            self.close()
            raise

    def samples(self, value: Readings) -> Iterable[Sample]:
        """Metrics of all GPUs."""
        return value.samples

    def lost(self, value: Readings) -> Iterable[Sample]:
        """None of those that were known can be said to answer."""
        return [gpu_readings.down(one.name) for one in value.gpus]

    def observations(self, value: Readings) -> Iterable[Observation]:
        """What happened to them."""
        return value.happened

    def heard(self) -> list[Observation]:
        """Which GPUs there are, and what the driver reported by itself since this was last asked; never blocks, whatever a read does."""
        listener = self._listener
        reported = [] if listener is None else listener.take()
        before: list[Observation] = []
        while self._unheard:
            before.append(self._unheard.popleft())
        return [*before, *map(self._with_parts, reported)]

    def close(self) -> None:
        """Lets go of the driver; a read after this begins anew."""
        driver, self._driver = self._driver, None
        ended = self._listener is None or self._listener.stop()
        for gpu in self._gpus.values():
            gpu.handle = gpu.plan = None
        if driver is not None and ended:
            driver.close()

    # The driver.

    def _opened(self) -> Driver:
        """The driver, with no GPU forgotten that was known before."""
        if self._driver is None:
            try:
                self._driver = Driver()
            except AbsentError as error:
                if self._gpus:  # it was there: that is a fault
                    raise OSError(str(error)) from error
                raise
            self._looked = -self._look_seconds
        return self._driver

    def _none_left(self) -> bool:
        """Whether only a new beginning could show a GPU again; while some answer, they are not put at risk for the others."""
        overdue = clock.monotonic() - self._looked > self._look_seconds
        return overdue and bool(self._gpus) and not any(gpu.last is None or gpu.last.up for gpu in self._gpus.values())

    def _read(self, driver: Driver) -> Readings:
        mono, wall = clock.monotonic(), clock.wall()
        if mono - self._looked > self._look_seconds:
            self._look(driver)
            self._looked = mono
        self._unheard.extend(self._news(mono))
        self._listen(driver)
        happened: list[Observation] = []
        readings = []
        for gpu in self._gpus.values():
            reading = self._ask(driver, gpu)
            happened += map(self._with_parts, gpu_readings.happenings(gpu.last, reading, mono, wall))
            gpu.last = reading
            readings.append(reading)
        samples = tuple(sample for one in readings for sample in gpu_readings.samples(one))
        return Readings(tuple(readings), samples, tuple(happened))

    def _look(self, driver: Driver) -> None:
        """Which GPUs there are, which parts they have, and what they can be asked."""
        for index, handle, uuid in driver.handles():
            self._meet(driver, index, handle, uuid)
        gone = [key for key, gpu in self._gpus.items() if gpu.handle is None]
        for key in gone[: max(0, len(self._gpus) - MOST_GPUS)]:
            del self._gpus[key]
        if not self._gpus:
            self.close()
            raise AbsentError("the NVIDIA driver knows no GPU that may be used here")
        for gpu in self._gpus.values():
            gpu.plan = None
            with contextlib.suppress(GpuLostError):  # its parts are then those that it had
                gpu.parts = gpu.parts if gpu.handle is None else tuple(driver.parts(gpu.handle))
        self._parts = {gpu.name.uuid: gpu.parts for gpu in self._gpus.values()}

    def _meet(self, driver: Driver, index: int, handle: Any, uuid: str) -> None:
        """Makes a GPU's acquaintance, or takes a known one's handle."""
        unnamed = f"number {index}"
        if not uuid:
            if all(gpu.name.gpu != str(index) for gpu in self._gpus.values()):
                self._gpus[unnamed] = _Gpu(GpuName(str(index), ""))
            return
        self._gpus.pop(unnamed, None)
        for gpu in self._gpus.values():
            if gpu.handle is not None and address(gpu.handle) == address(handle) and gpu.name.uuid != uuid:
                gpu.handle = gpu.plan = None  # another one is in its place, and answers in its name
        known = self._gpus.get(uuid)
        if known is None:
            try:
                self._gpus[uuid] = _Gpu(driver.name(index, handle, uuid), handle)
            except GpuLostError:
                self._gpus[uuid] = _Gpu(GpuName(str(index), uuid), handle)
        else:
            known.handle = handle

    def _listen(self, driver: Driver) -> None:
        """Hears what is reported of the GPUs that answer; anew where that came to an end, or where one of them is not listened to."""
        listener = self._listener
        well = [gpu for gpu in self._gpus.values() if gpu.handle is not None and (gpu.last is None or gpu.last.up)]
        wanted = frozenset((gpu.name.uuid, address(gpu.handle)) for gpu in well)
        if listener is not None:
            if listener.alive and (wanted <= self._listens_to or not listener.stop()):
                return
            self._unheard.extend(map(self._with_parts, listener.take()))
        try:
            self._listener = driver.ask(Listener, driver.nvml, [(gpu.handle, gpu.name.uuid) for gpu in well])
            self._listens_to = wanted
        except GpuLostError:  # the next read will say which, and leave it out
            self._listener = None

    def _with_parts(self, seen: GpuSeen) -> GpuSeen:
        return replace(seen, parts=self._parts.get(seen.uuid, ()))

    def _news(self, mono: float) -> Iterator[GpusFound]:
        """Which GPUs there are, when that has changed."""
        labels = tuple(gpu.name.labels for gpu in self._gpus.values() if gpu.name.uuid)
        parts = tuple((part, gpu.name.uuid) for gpu in self._gpus.values() for part in gpu.parts)
        found = GpusFound(labels, parts, mono)
        if self._told is None or replace(found, mono=self._told.mono) != self._told:
            self._told = found
            yield found

    def _ask(self, driver: Driver, gpu: _Gpu) -> GpuReading:
        if gpu.handle is None:
            return GpuReading(gpu.name, None, "the driver does not list it")
        try:
            if gpu.plan is None:
                gpu.plan = driver.plan(gpu.handle)
            raw = driver.raw(gpu.handle, gpu.plan)
        except GpuLostError as trouble:
            return GpuReading(gpu.name, None, str(trouble))
        reported = None if self._listener is None else self._listener.take_memory_error(gpu.name.uuid)
        return GpuReading(gpu.name, raw, ecc_mono=reported)


class NvmlInstrument(Instrument[Readings]):
    """Tells what the driver reports as soon as it is heard, also while a read hangs: then it matters most."""

    def __init__(self, probe: NvmlProbe | None = None) -> None:
        self._nvml = probe or NvmlProbe()
        super().__init__(self._nvml)

    def observations(self) -> list[Observation]:
        """What the fold has not heard yet."""
        return [*super().observations(), *self._nvml.heard()]
