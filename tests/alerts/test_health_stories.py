"""Stories of GPUs, hosts and networks, from what driver and kernel say to the page: who is woken, and what is blamed for the restart.

GPUs answer through a real library in the driver's place and are read by the real collector, as is the tree of files that the kernel would
show; the journals are folded by the real fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_tape import GpuTape, gpu_tape
from nvml_process import reader
from promtool import Test, ever_fired, judge, needs_promtool
from story_series import Scrape, Tape, scrapes, series
from sysfs_tree import ACTIVE, DOWN, port
from test_alert_stories import RECOVERED, judged, seconds

from headway_exporter.health.nics import NicProbe
from headway_exporter.health.storage import Space, VolumeProbe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_promtool

OFF_THE_BUS = {"all": "!15"}
"""Whatever the GPU is asked: NVML_ERROR_GPU_IS_LOST."""
TOO_HOT = 0x40
AT_ITS_POWER_LIMIT = 0x04
RECOVERS = "wait 40, launcher 300, wait 30, train 301-420/60"
LOST = {"HeadwayGpuLost": "critical"}
FAULT = {"HeadwayGpuHardwareFault": "critical"}


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[GpuTape]:
    """Two ranks that have trained for five minutes, on two GPUs in good health."""
    with gpu_tape(tmp_path) as made:
        yield made.tell("train 11-300/60")


def blamed(tape: Tape) -> tuple[str, int | None, str]:
    """Cause, origin and confidence of the newest restart."""
    found = tape.pod.failures.recoveries[-1].diagnosis
    return found.cause, found.origin, found.confidence


def firing(alert: str, at: str, count: int) -> dict[str, object]:
    """So many alerts of the name fire at this time."""
    expr = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}] if count else []}


def test_a_gpu_that_falls_off_the_bus_pages_and_is_the_cause(tape: GpuTape, tmp_path: Path) -> None:
    """The driver's XID 79, a GPU that answers no more, and the death of its rank: two pages, and the incident says why."""
    tape.xid(1, 79)
    tape.change(1, **OFF_THE_BUS)
    tape.tell("kill 1, wait 90")
    tape.mend(1)
    tape.tell("launcher 300, wait 30, train 301-420/60")
    assert blamed(tape) == ("gpu_fell_off_bus", 1, "confirmed")
    judged(tmp_path, tape.scrapes(), {**LOST, **FAULT, **RECOVERED})


def test_a_gpu_that_is_lost_without_a_word_pages(tape: GpuTape, tmp_path: Path) -> None:
    """No XID: that it does not answer is enough, for the page and for the cause; there is no hardware error to tell of."""
    tape.change(1, **OFF_THE_BUS)
    tape.tell("kill 1, wait 90")
    assert tape.pod.failures.open is not None
    judged(tmp_path, tape.scrapes(), LOST)
    tape.tell("launcher 300, wait 30, train 301-310/60")
    assert blamed(tape)[:2] == ("gpu_fell_off_bus", 1)


def test_the_echo_of_a_kill_pages_nobody(tape: GpuTape, tmp_path: Path) -> None:
    """Every process on a GPU leaves an XID 45 when one of them is killed: the cards are well."""
    tape.tell("kill 1")
    for gpu in (0, 1):
        tape.xid(gpu, 45)
    tape.tell(RECOVERS)
    assert blamed(tape)[0] == "process_killed"
    judged(tmp_path, tape.scrapes(), RECOVERED)


def test_memory_errors_of_another_ranks_gpu_page_and_are_not_blamed(tape: GpuTape, tmp_path: Path) -> None:
    """Somebody must replace that card; but it is not why rank 1 died."""
    tape.change(0, **{"field.4.0": 2, "field.6.0": 2})
    tape.tell(f"kill 1, {RECOVERS}")
    assert blamed(tape)[:2] == ("process_killed", 1)
    judged(tmp_path, tape.scrapes(), {"HeadwayGpuMemoryFault": "critical", **RECOVERED})


def test_corrected_memory_errors_page_nobody(tape: GpuTape, tmp_path: Path) -> None:
    """Any number of them: that is what the code is there for."""
    tape.change(0, **{"field.3.0": 4_000, "field.5.0": 4_300})
    judged(tmp_path, tape.tell("train 301-600/60").scrapes(), {})


def test_a_second_xid_of_the_same_number_is_seen(tmp_path: Path) -> None:
    """A gauge that holds the last XID would look the same: here the page ends, and comes again."""
    with gpu_tape(tmp_path, each=20) as tape:
        tape.tell("train 11-30/10")
        first = tape.now
        tape.xid(1, 48)
        tape.tell("train 31-330/10")
        second = tape.now
        tape.xid(1, 48)
        tape.tell("train 331-350/10")
        scraped = tape.scrapes(60)
    times = ((first + 120, 1), (second - 120, 0), (second + 120, 1))
    values = [firing("HeadwayGpuHardwareFault", seconds(at), count) for at, count in times]
    assert second - first > 900 + 3_600 + 300
    judge(tmp_path, Test("again", series(scraped), values=values, interval="60s"))


def test_a_sidecar_that_starts_beside_a_lost_gpu_does_not_page_again(tape: GpuTape, tmp_path: Path) -> None:
    """The GPU had no name to give to the new one: the alert is the same one, and rings no second time."""
    tape.change(1, **OFF_THE_BUS)
    tape.tell("train 301-420/60")
    restart = tape.now
    with reader(tape.environ) as driver:
        tape.restart(driver)
        tape.tell("train 421-600/60")
        judged(tmp_path, restarted(tape, restart), LOST)
        since = 'max(ALERTS_FOR_STATE{alertname="HeadwayGpuLost"})'
        same = f"{since} == bool min_over_time({since}[9m:15s])"
        one_page = {"expr": same, "eval_time": seconds(tape.now, -30), "exp_samples": [{"labels": "{}", "value": 1}]}
    judge(tmp_path, Test("once", series(restarted(tape, restart)), values=[one_page]))


def test_a_sidecar_that_starts_beside_healthy_gpus_pages_nobody(tape: GpuTape, tmp_path: Path) -> None:
    """That it has not read the GPUs yet is no loss of them, and XIDs that it remembers are no news."""
    tape.xid(0, 63)
    tape.tell("train 301-360/60")
    restart = tape.now
    with reader(tape.environ) as driver:
        tape.restart(driver)
        tape.tell("train 361-600/60")
        judged(tmp_path, restarted(tape, restart), {})


def restarted(tape: Tape, at: float) -> list[Scrape | None]:
    """Three scrapes are missing from then on, and the next one finds a sidecar that has read nothing yet."""
    scraped: list[Scrape | None] = list(tape.scrapes())
    first = int(at // 15) + 1
    scraped[first : first + 4] = [None, None, None, scrapes([], 0, 15)[0]]
    return scraped


@pytest.mark.parametrize(
    ("bits", "steps", "alerts"),
    [
        (TOO_HOT, 580, {}),
        (TOO_HOT, 700, {"HeadwayGpuThrottled": "warning"}),
        (AT_ITS_POWER_LIMIT, 700, {}),
    ],
    ids=["hot for less than ten minutes", "hot for longer", "at its power limit"],
)
def test_a_clock_held_down(tape: GpuTape, tmp_path: Path, bits: int, steps: int, alerts: dict[str, str]) -> None:
    """Heat that stays is a ticket; heat that passes is not, and neither is a GPU that draws all it may."""
    tape.change(0, throttle=bits)
    tape.tell(f"train 301-{300 + steps}/60")
    tape.change(0, throttle=0)
    tape.tell(f"train {301 + steps}-{420 + steps}/60")
    judged(tmp_path, tape.scrapes(), alerts)


@pytest.mark.parametrize(
    ("answers", "alerts"),
    [
        ({"link.3": 0}, {"HeadwayNvlinkDegraded": "warning"}),
        ({"field.38.0": 3}, {"HeadwayNvlinkDegraded": "warning"}),
        ({"field.52.0": 400}, {}),
    ],
    ids=["a link is down", "errors", "packets sent again"],
)
def test_nvlinks(tape: GpuTape, tmp_path: Path, answers: dict[str, int], alerts: dict[str, str]) -> None:
    """A link less than the others of its model have, or errors on one, is a ticket; a packet that had to be sent again has arrived."""
    tape.change(1, **answers)
    judged(tmp_path, tape.tell("train 301-600/60").scrapes(), alerts)


def test_an_nvlink_error_that_only_the_driver_reports(tape: GpuTape, tmp_path: Path) -> None:
    """XID 74, with all links up and no counter that rose: without a word nobody would look at that link."""
    tape.xid(1, 74)
    judged(tmp_path, tape.tell("train 301-600/60").scrapes(), {"HeadwayNvlinkDegraded": "warning"})


def test_a_network_card_that_loses_its_link(tmp_path: Path) -> None:
    """For longer than a flap; the port that never had a cable is none of anybody's business."""
    tape, probe = Tape(), NicProbe(tmp_path / "sys")

    def link(state: str, acts: str) -> None:
        port(tmp_path / "sys", "mlx5_0", state=state)
        tape.measure("nics", probe.samples(probe.read()))
        tape.tell(acts)

    port(tmp_path / "sys", "mlx5_1", state=DOWN, counters={})
    link(ACTIVE, "train 11-300/60")
    link(DOWN, "train 301-330/60")
    link(ACTIVE, "train 331-420/60")
    judged(tmp_path, tape.scrapes(), {})
    link(DOWN, "train 421-600/60")
    judged(tmp_path, tape.scrapes(), {"HeadwayNicDown": "warning"})


@pytest.mark.parametrize(
    ("space", "alerts"),
    [
        (Space(9, 100, 90, 100), {"HeadwayStorageLow": "warning"}),
        (Space(90, 100, 9, 100), {"HeadwayStorageLow": "warning"}),
        (Space(11, 100, 0, 0), {}),
    ],
    ids=["no space", "no room for files", "enough, and no limit of files"],
)
def test_a_volume_that_fills(tmp_path: Path, space: Space, alerts: dict[str, str]) -> None:
    """Before the next checkpoint fails; bytes or files, whichever is scarcer."""
    tape, probe = Tape(), VolumeProbe("checkpoints", lambda: tmp_path)
    tape.measure("storage_checkpoints", probe.samples(Space(50, 100, 90, 100)))
    tape.tell("train 11-120/60")
    tape.measure("storage_checkpoints", probe.samples(space))
    judged(tmp_path, tape.tell("train 121-540/60").scrapes(), alerts)


@pytest.mark.parametrize(
    ("cache", "alerts"), [(0, {"HeadwayHostMemoryPressure": "warning"}), (20, {})], ids=["its own", "cached files"]
)
def test_a_container_that_fills(tmp_path: Path, cache: int, alerts: dict[str, str]) -> None:
    """As its trainers read it. What the kernel only keeps of files that were written it gives back when it must."""
    tape = Tape().tell("train 11-120/60")
    fields = {"cgroup_used_bytes": 97, "cgroup_cache_bytes": cache, "cgroup_limit_bytes": 100}
    tape.event(0, "sample", tape.now, **fields)
    judged(tmp_path, tape.tell("train 121-540/60").scrapes(), alerts)


def test_a_healthy_run_with_gpus_has_no_alert(tape: GpuTape, tmp_path: Path) -> None:
    """And the series are there from which one would be made: an alert on nothing is silent too."""
    scraped = tape.tell("train 301-400/60").scrapes()
    end = seconds(tape.now, -15)
    there = {"expr": "count(headway_gpu_up == 1)", "eval_time": end, "exp_samples": [{"labels": "{}", "value": 2}]}
    judge(tmp_path, Test("well", series(scraped), values=[there, ever_fired(end, {})]))
