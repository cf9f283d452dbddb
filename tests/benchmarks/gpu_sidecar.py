"""A sidecar with the series of eight GPUs that are not there: what the scrape will cost once they are collected.

Takes the folder to follow and the run's name; writes where it serves. Forty series a GPU, of which twelve change with each scrape, as
temperatures, clocks and powers do; the rest are limits, error counts and states, which change once in hours.
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headway_exporter.cli import settle_memory
from headway_exporter.server import Server, metrics
from headway_exporter.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

GPUS: Final = 8
CHANGING: Final = 12
STEADY: Final = 28
LABELS: Final = ["run", "pod_index", "gpu", "UUID", "pci_bus_id", "modelName"]


class WithGpus(Collector):
    """A collector's families, and those of the GPUs."""

    def __init__(self, pod: Collector) -> None:
        self._pod = pod

    def collect(self) -> Iterator[Family]:
        """One family for each kind of series."""
        yield from self._pod.collect()
        for number in range(CHANGING):
            gauge = GaugeMetricFamily(f"headway_gpu_changing_{number}", "A figure that changes", labels=LABELS)
            for gpu in range(GPUS):
                gauge.add_metric(labels_of(gpu), random.random())
            yield gauge
        for number in range(STEADY):
            counter = CounterMetricFamily(f"headway_gpu_steady_{number}", "A figure that does not", labels=LABELS)
            for gpu in range(GPUS):
                counter.add_metric(labels_of(gpu), number)
            yield counter


def labels_of(gpu: int) -> list[str]:
    """Values of `LABELS`."""
    return ["bench", "0", str(gpu), f"GPU-{gpu:032x}", f"00000000:{gpu:02X}:00.0", "NVIDIA H200"]


def main(folder: str, run: str) -> None:
    """Serves until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sidecar = Sidecar(Path(folder), run, "0", silence_seconds=30.0)
    server = Server(("127.0.0.1", 0), {"/metrics": metrics(WithGpus(sidecar.collector))})
    settle_memory()
    sidecar.start()
    print(f"{server.url}/metrics", flush=True)
    signal.sigwait([signal.SIGTERM])
    sidecar.stop()
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
