"""The whole way: a real trainer on a GPU that its journal names, an instrument that tells of it, and the record in the state folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpu_story import gpu_texts, uuid
from journal_folder import RUN, finish, trainer, wait_ready

from headway import clock
from headway_exporter.health.instruments import Instrument
from headway_exporter.observations import GpuSeen
from headway_exporter.sidecar import Sidecar
from headway_exporter.state_files import RECORDS, pod_folder, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

CAUSE = "gpu_fell_off_bus", 1


class Driver:
    """A driver that reports what it is given."""

    name = "nvml"
    every_seconds = 0.02
    deadline_seconds = 5.0

    def __init__(self) -> None:
        self.reports: list[GpuSeen] = []

    def read(self) -> list[GpuSeen]:
        """What is new."""
        told, self.reports = self.reports, []
        return told

    def samples(self, value: list[GpuSeen]) -> Iterable[Sample]:  # noqa: ARG002 - of the interface
        """None."""
        return ()

    lost = samples

    def observations(self, value: list[GpuSeen]) -> Iterable[Observation]:
        """As they are."""
        return value


def until(wanted: Callable[[], Any]) -> Any:
    """What it is once it is true."""
    deadline = time.monotonic() + 60
    while not (found := wanted()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_gpu_that_takes_its_rank_with_it(tmp_path: Path) -> None:
    """Its driver's report, seconds before the process dies, becomes the cause in status and record; the peer's GPU is left alone."""
    driver = Driver()
    sidecar = Sidecar(
        tmp_path / "pod", RUN, "0", silence_seconds=30.0, state_dir=tmp_path / "state", instruments=[Instrument(driver)]
    )
    gpus = {"CUDA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    ranks = [trainer(tmp_path / "pod", slot, "enter=a", "steps=1-5", "ready", "wait", **gpus) for slot in (0, 1)]
    sidecar.start()
    try:
        for rank in ranks:
            wait_ready(rank)
        until(lambda: sidecar.status()["step"] == 5)
        driver.reports = [
            GpuSeen(uuid(0), "xid", clock.monotonic(), clock.wall(), 63),
            GpuSeen(uuid(1), "xid", clock.monotonic(), clock.wall(), 79),
        ]
        until(lambda: not driver.reports)
        ranks[1].kill()
        until(lambda: [(one["cause"], one["origin_rank"]) for one in sidecar.status()["incidents"]] == [CAUSE])
        ranks[0].kill()
        finish(*ranks)
        ranks = [
            trainer(tmp_path / "pod", slot, "enter=b", "load=5", "steps=6-8", "finish=8", cycle=1, **gpus)
            for slot in (0, 1)
        ]
        finish(*ranks)
        until(lambda: sidecar.status()["finished"])
    finally:
        for rank in ranks:
            rank.kill()
        sidecar.stop()
    [record] = read_records(pod_folder(tmp_path / "state", RUN, "0") / RECORDS)
    assert (record["outcome"], record["cause"], record["confidence"]) == ("recovered", "gpu_fell_off_bus", "confirmed")
    assert record["origin"]["gpu_uuid"] == uuid(1)
    assert [text.partition(" on ")[0] for text in gpu_texts(record)] == ["XID 63", "XID 79"]
