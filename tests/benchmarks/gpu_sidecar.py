"""A sidecar with the series of eight GPUs that are not there: what the scrape costs with as many series as a pod may have.

Takes the folder to follow and the run's name, and a state folder or nothing; writes where it serves. Forty series a GPU, of which twelve
change with each scrape, as temperatures, clocks and powers do; the rest are limits, error counts and states, which change once in hours.
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway_exporter.cli import settle_memory
from headway_exporter.schema import METRICS, Metric
from headway_exporter.server import Server, metrics
from headway_exporter.sidecar import Sidecar

if TYPE_CHECKING:
    from headway_exporter.collectors import Sample
    from headway_exporter.rendering import Source

GPUS: Final = 8
CHANGING: Final = 12
STEADY: Final = 28
LABELS: Final = ("gpu", "UUID", "pci_bus_id", "modelName")
PLACES: Final = tuple((str(gpu), f"GPU-{gpu:032x}", f"00000000:{gpu:02X}:00.0", "NVIDIA H200") for gpu in range(GPUS))
"""Values of `LABELS`."""
GPU_METRICS: Final = (
    *(
        Metric(f"headway_gpu_changing_{number}", "gauge", "A figure that changes.", dict.fromkeys(LABELS))
        for number in range(CHANGING)
    ),
    *(
        Metric(f"headway_gpu_steady_{number}_total", "counter", "A figure that does not.", dict.fromkeys(LABELS))
        for number in range(STEADY)
    ),
)


class WithGpus:
    """What a source shows, and the series of the GPUs."""

    def __init__(self, pod: Source) -> None:
        self._pod = pod
        self.common = pod.common

    def shown(self) -> list[Sample]:
        """All samples of now."""
        gpus = (
            (metric.name, labels, random.random() if number < CHANGING else number)
            for number, metric in enumerate(GPU_METRICS)
            for labels in PLACES
        )
        return [*self._pod.shown(), *gpus]


def main(folder: str, run: str, state_dir: str | None = None) -> None:
    """Serves until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    state = None if state_dir is None else Path(state_dir)
    sidecar = Sidecar(Path(folder), run, "0", silence_seconds=30.0, state_dir=state)
    catalogue = {**METRICS, **{metric.name: metric for metric in GPU_METRICS}}
    server = Server(("127.0.0.1", 0), {"/metrics": metrics(WithGpus(sidecar.collector), catalogue)})
    settle_memory()
    sidecar.start()
    print(f"{server.url}/metrics", flush=True)
    signal.sigwait([signal.SIGTERM])
    sidecar.stop()
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
