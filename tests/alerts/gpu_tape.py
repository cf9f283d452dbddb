"""Stories in which GPUs have a part: a real library in the driver's place, read by the real collector, beside their ranks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fake_nvml import FakeNvml, uuid
from nvml_process import reader
from story_series import Tape

from headway_exporter.observations import GpuSeen, GpusFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nvml_process import Reader

    from headway_exporter.observations import Observation


class GpuTape(Tape):
    """A `Tape` whose ranks have a GPU each, of the same number. What the driver says is read whenever something has changed."""

    def __init__(self, fake: FakeNvml, driver: Reader, ranks: int = 2, **more: Any) -> None:
        self._fake, self._driver = fake, driver
        super().__init__(ranks, **more)
        self._read()

    def start(self, at: float, *slots: int, **fields: Any) -> None:
        """Each with the UUID of its GPU."""
        for slot in slots:
            super().start(at, slot, gpu_uuid=uuid(slot), world_size=len(slots), **fields)

    def change(self, gpu: int, **answers: int | float | str) -> None:
        """From now on the GPU answers so."""
        self._fake.change(gpu, **answers)
        self._read()

    def mend(self, gpu: int) -> None:
        """It answers again, to whatever it is asked."""
        del self._fake.gpus[gpu]["all"]
        self._fake.play()
        self._read()

    def xid(self, gpu: int, number: int) -> None:
        """The driver reports an error by itself."""
        before = len(self._driver.told)
        self._fake.report(gpu, number)
        self._driver.until(lambda: len(self._driver.told) > before)
        self._tell(self._driver.told[before:])

    def restart(self, driver: Reader) -> None:
        """Another sidecar, which remembers, but knows of the GPUs only what it sees for itself."""
        self._driver = driver
        self._read()

    @property
    def environ(self) -> dict[str, str]:
        """For a process that is to see the GPUs."""
        return self._fake.environ

    def _read(self) -> None:
        self._tell(self._driver.do("read"))
        self.measure("nvml", [sample for sample in self._driver.shown if sample[0].startswith("headway_gpu_")])

    def _tell(self, told: list[dict[str, Any]]) -> None:
        self.pod.fold([self._at_this_time(one) for one in told])

    def _at_this_time(self, told: dict[str, Any]) -> Observation:
        """The reader's clock is the machine's, the story has its own."""
        fields = {**told, "mono": self.now}
        if fields.pop("what") == "GpuSeen":
            return GpuSeen(**{**fields, "wall": self.wall + self.now, "parts": tuple(fields["parts"])})
        return GpusFound(tuple(map(tuple, fields["gpus"])), tuple(map(tuple, fields["parts"])), self.now)


@contextlib.contextmanager
def gpu_tape(folder: Path, ranks: int = 2, **more: Any) -> Iterator[GpuTape]:
    """The beginning of a story, in which all GPUs are well."""
    fake = FakeNvml(folder / "nvml", ranks)
    with reader(fake.environ, look_seconds=0) as driver:
        yield GpuTape(fake, driver, ranks, **more)
