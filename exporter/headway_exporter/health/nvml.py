"""The GPUs of this machine: what they measure, which of them answer, and what happened to them.

The driver is asked by a process of its own (`nvml_child`), which may hang or crash with it, in rounds (`nvml_rounds`). What is known of
GPUs is kept here, so that it outlives that process: a GPU that was seen once and does not answer any more is down, not gone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headway import clock
from headway_exporter.health import gpu_readings
from headway_exporter.health.gpu_readings import GpuReading
from headway_exporter.health.instruments import AbsentError, Instrument
from headway_exporter.health.nvml_known import Known
from headway_exporter.health.nvml_reports import Reports
from headway_exporter.health.nvml_rounds import ABSENT_SECONDS, Rounds
from headway_exporter.observations import GpusFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headway_exporter.collectors import Sample
    from headway_exporter.health.nvml_known import Gpu
    from headway_exporter.health.nvml_rounds import Round
    from headway_exporter.observations import Observation

EVERY_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 60.0
"""How often is looked for other GPUs, MIG instances and things that can be asked; what fails is tried again as seldom at most."""

NOTICES: Final = "headway.exporter.notices"
"""Logger of what is said once although nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Readings:
    """All GPUs at one time, and what happened since the time before."""

    samples: tuple[Sample, ...]
    """Made once: scrapes may come more often than readings."""
    happened: tuple[Observation, ...]


class NvmlProbe:
    """Reads all GPUs."""

    name = "nvml"

    def __init__(
        self,
        every_seconds: float = EVERY_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        known: Callable[[], Iterable[tuple[str, ...]]] = tuple,
    ) -> None:
        """`known`: the GPUs that a sidecar before this one saw here, values of their labels; asked once."""
        self.every_seconds = every_seconds
        self.deadline_seconds = deadline_seconds
        self._recall: Callable[[], Iterable[tuple[str, ...]]] | None = known
        self._known = Known()
        self._reports = Reports()
        self._rounds = Rounds(self._reports.messages, every_seconds, deadline_seconds, look_seconds)
        self._told: GpusFound | None = None

    def read(self) -> Readings:
        """All GPUs, as they are now.

        Raises:
            AbsentError: there is no driver here, or it knows no GPU.
            OSError: the driver does not answer.
        """
        if self._recall is not None:
            self._known.recall(self._recall())
            self._recall = None
        if self._none_left():
            self._rounds.begin_anew()
        try:
            found = self._rounds.ask()
        except AbsentError as reason:
            if not self._known:
                raise
            raise OSError(str(reason)) from reason  # it was there: that is a fault
        except OSError:
            self._reports.tell(self._hung())
            raise
        finally:
            self._reports.missed(self._rounds.missed)
            self._rounds.missed = 0
        return self._readings(found)

    def samples(self, value: Readings) -> Iterable[Sample]:
        """Metrics of all GPUs."""
        return value.samples

    def lost(self, value: Readings | None = None) -> Iterable[Sample]:  # noqa: ARG002 - those that are known now
        """None of those that were known can be said to answer."""
        return [gpu_readings.down(gpu.name) for gpu in self._known]

    def observations(self, value: Readings) -> Iterable[Observation]:
        """What happened to them."""
        return value.happened

    def heard(self) -> list[Observation]:
        """Which GPUs there are, and what the driver reported by itself since this was last asked; never blocks, whatever a read does."""
        process = self._rounds.process
        if process is not None:
            process.look()
        return self._reports.take()

    def close(self) -> None:
        """Nothing is read after this."""
        self._rounds.close()

    def _none_left(self) -> bool:
        """Whether only a new beginning could show a GPU again; while some answer, they are not put at risk for the others."""
        down = [gpu.last is not None and not gpu.last.up for gpu in self._known]
        return self._rounds.look_is_due and bool(down) and all(down)

    def _readings(self, found: Round) -> Readings:
        if found.looked:
            self._known.listed(found.found)
            if not self._known:
                self._rounds.begin_anew()
                raise AbsentError("the NVIDIA driver knows no GPU that may be used here", ABSENT_SECONDS)
        self._reports.tell(self._news(found.mono))
        wall = clock.wall() - (clock.monotonic() - found.mono)
        happened: list[Observation] = []
        samples: list[Sample] = []
        for gpu in self._known:
            reading = self._reading(gpu, found)
            happened += self._happened(gpu, reading, found.mono, wall)
            samples += gpu_readings.samples(reading)
        return Readings(tuple(samples), tuple(happened))

    def _reading(self, gpu: Gpu, found: Round) -> GpuReading:
        if gpu.index is None:
            return GpuReading(gpu.name, None, "the driver does not list it")
        fault = self._rounds.faults.get(gpu.index)
        if fault is not None:
            return GpuReading(gpu.name, None, fault.text, hung_mono=fault.since if fault.hung else None)
        answer = found.answers.get(gpu.index)
        if answer is None or isinstance(answer, str):
            return GpuReading(gpu.name, None, answer or "the driver tells nothing about it")
        return GpuReading(gpu.name, answer, ecc_mono=self._reports.memory_error(gpu.name.uuid))

    def _hung(self) -> Iterator[Observation]:
        """What is to be told of those at which the driver hangs: a reading that fails tells of nothing else."""
        mono, wall = clock.monotonic(), clock.wall()
        for gpu in self._known:
            fault = None if gpu.index is None else self._rounds.faults.get(gpu.index)
            since = fault.since if fault is not None and fault.hung else self._rounds.hangs_since
            if since is not None:
                yield from self._happened(gpu, GpuReading(gpu.name, None, "", hung_mono=since), mono, wall)

    def _happened(self, gpu: Gpu, reading: GpuReading, mono: float, wall: float) -> Iterator[Observation]:
        before, gpu.last = gpu.last, reading
        for seen in gpu_readings.happenings(before, reading, mono, wall):
            yield replace(seen, parts=gpu.parts)

    def _news(self, mono: float) -> Iterator[GpusFound]:
        """Which GPUs there are, when that has changed."""
        named = [gpu for gpu in self._known if gpu.name.uuid]
        labels = tuple(gpu.name.labels for gpu in named)
        found = GpusFound(labels, tuple((part, gpu.name.uuid) for gpu in named for part in gpu.parts), mono)
        if self._told is None or replace(found, mono=self._told.mono) != self._told:
            self._told = found
            yield found
        self._reports.parts = {gpu.name.uuid: gpu.parts for gpu in named}


class NvmlInstrument(Instrument[Readings]):
    """Tells what the driver reports as soon as it is heard, also while a read hangs: then it matters most."""

    def __init__(self, probe: NvmlProbe | None = None) -> None:
        self._nvml = probe or NvmlProbe()
        self._noticed = False
        super().__init__(self._nvml)

    def observations(self) -> list[Observation]:
        """What the fold has not heard yet."""
        told = super().observations()
        return [*self._nvml.heard(), *told]

    def samples(self) -> Iterator[Sample]:
        """Where nothing was read yet and nothing can be, the GPUs that the sidecar before this one saw are down."""
        yield from super().samples()
        if self._newest is None and self._trouble is not None:
            yield from self._nvml.lost()

    def stop(self) -> None:
        """Reads no more, and ends the process that asks."""
        super().stop()
        self._nvml.close()

    def _say_absent(self, reason: AbsentError) -> None:
        """Once: who expects GPUs is to know why there are none, and nobody wants to hear it again."""
        if not self._noticed:
            logging.getLogger(NOTICES).info("no GPUs are watched: %s", reason)
        self._noticed = True
