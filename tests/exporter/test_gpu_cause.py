"""From the driver's report to the cause of a restart: the whole way, through a real library, a real sidecar and real trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeNvml, uuid
from journal_folder import RUN, launcher, trainer, wait_ready
from sidecar_process import Sidecar, sidecar

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


pytestmark = pytest.mark.slow


def hangs(exporter: Sidecar, gpu: int) -> bool:
    """It is down, and it is the only one."""
    up = {
        dict(labels)["UUID"]: value for (name, labels), value in exporter.samples().items() if name == "headway_gpu_up"
    }
    return up == {uuid(0): float(gpu != 0), uuid(1): float(gpu != 1)}


@pytest.mark.parametrize(
    ("gpu", "what", "cause"),
    [
        (1, "xid", "gpu_fell_off_bus"),
        (0, "xid", "process_exited"),
        (1, "", "process_exited"),
        (1, "hang", "gpu_driver"),
        (0, "hang", "process_exited"),
    ],
    ids=["its own", "another rank's", "none", "its own hangs", "another rank's hangs"],
)
def test_a_rank_dies_of_its_own_gpu_only(tmp_path: Path, gpu: int, what: str, cause: str) -> None:
    """An XID on the origin's GPU, or a driver that hangs at it, is why its process ended; on another rank's GPU it is not."""
    fake = FakeNvml(tmp_path / "nvml")
    journals = tmp_path / "pod"
    (journals / RUN).mkdir(parents=True)
    say = launcher(journals)
    say("launcher_started", pid=1)

    def ranks(cycle: int, last: str) -> list[subprocess.Popen[str]]:
        """Rank 0 stays, rank 1 ends when it is told to."""
        ends = (("ready", "wait"), ("meet", last))
        return [
            trainer(
                journals,
                slot,
                *("enter=" + "ab"[cycle], "steps=1-5:0.01", *ends[slot]),
                cycle=cycle,
                CUDA_VISIBLE_DEVICES=f"{uuid(0)},{uuid(1)}",
            )
            for slot in (0, 1)
        ]

    with sidecar(journals, **fake.environ) as exporter:
        exporter.until(lambda _: len(exporter.labels("headway_gpu_up")) == 2, "the GPUs")
        first = ranks(0, "exit=1")
        for process in first:
            wait_ready(process)
        if what == "hang":
            fake.change(gpu, power="@hang")
            exporter.until(lambda _: hangs(exporter, gpu), "the hang")
        if what == "xid":
            fake.report(gpu, 79)
            exporter.until(lambda _: exporter.labels("headway_gpu_xid_errors_total"), "the report")
        # Both are known to be alive: of one that is found dead only the last trace tells when that was.
        exporter.until(lambda status: [rank["step"] for rank in status["ranks"]] == [5, 5], "both ranks")
        first[1].communicate("\n", timeout=30)
        first[0].kill()
        first[0].communicate()
        say("worker_exited", local_rank=1, exit_code=1)
        say("worker_group_failed", restarts_left=2, restarts_limit=3)
        second = ranks(1, "wait")
        for process in second:
            wait_ready(process)
        exporter.until(lambda status: status["restarts"]["launcher"], "the restart")
        exporter.until(
            lambda _: exporter.value("headway_restart_causes_total", layer="launcher", cause=cause),
            f"the cause {cause}",
        )
        for process in second:
            process.kill()
            process.communicate()
