"""The whole way of a lost link: files of the kernel, a real sidecar, real journals, the metrics and the record in the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sysfs_tree
from journal_folder import RUN, finish, trainer, wait_ready
from sidecar_process import IMPATIENT, Sidecar, sidecar
from sysfs_tree import DOWN, EFA, MELLANOX

from headway_exporter.state_files import RECORDS, pod_folder, read_records

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager
    from pathlib import Path

pytestmark = pytest.mark.slow

UP = "headway_nic_up"
ERRORS = "headway_nic_errors_total"
CARD = "mlx5_0"


def started(folder: Path) -> AbstractContextManager[Sidecar]:
    """A sidecar that looks at the cards ten times a second."""
    options = ("--sysfs-root", str(folder / "sys"), "--state-dir", str(folder / "state"))
    return sidecar(folder / "pod", *options, program=IMPATIENT)


def ranks(folder: Path, *acts: str, cycle: int = 0) -> list[subprocess.Popen[str]]:
    return [trainer(folder / "pod", slot, *acts, cycle=cycle) for slot in (0, 1)]


def lost_links(exporter: Sidecar) -> float | None:
    return exporter.value(ERRORS, device=CARD, kind="link_downed")


def broken(folder: Path, exporter: Sidecar, **changed: Any) -> list[dict[str, Any]]:
    """Ranks train, something changes on the card, and their collectives break: the incidents that this is."""
    training = ranks(folder, "enter=a", "steps=1-5", "meet", "echo", "ready", "wait")
    for rank in training:
        wait_ready(rank)
    sysfs_tree.port(folder / "sys", CARD, **changed)
    symbols = int(changed["counters"]["counters/symbol_error"])
    exporter.until(lambda _: exporter.value(ERRORS, device=CARD, kind="symbol") == symbols, "the change")
    for rank in training:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    for rank in training:
        wait_ready(rank)
    found = exporter.until(lambda status: status["incidents"], "an incident")
    for rank in training:
        rank.kill()
        rank.communicate()
    incidents: list[dict[str, Any]] = found["incidents"]
    return incidents


def test_a_port_that_goes_down_before_a_time_out(tmp_path: Path) -> None:
    """Nobody but the card tells why the collectives broke: the record names card and port, and the metric counts the cause."""
    sysfs_tree.port(tmp_path / "sys", CARD)
    (tmp_path / "pod" / RUN).mkdir(parents=True)
    with started(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value(UP, device=CARD) == 1, "the card")
        down = MELLANOX | {"counters/link_downed": "2", "counters/symbol_error": "1"}
        assert [one["cause"] for one in broken(tmp_path, exporter, state=DOWN, counters=down)] == ["nic"]
        assert (exporter.value(UP, device=CARD), lost_links(exporter)) == (0, 2)
        finish(*ranks(tmp_path, "enter=b", "load=5", "steps=6-8", "finish=8", cycle=1))
        exporter.until(lambda status: status["finished"], "the end")
        exporter.until(
            lambda _: exporter.value("headway_restart_causes_total", layer="launcher", cause="nic"), "the count"
        )
        exporter.stop()
    (record,) = read_records(pod_folder(tmp_path / "state", RUN, "0") / RECORDS)
    assert (record["outcome"], record["cause"], record["confidence"]) == ("recovered", "nic", "likely")
    assert [sign["text"] for sign in record["evidence"] if sign["kind"] == "nic"] == [
        f"network card {CARD} port 1 lost its link"
    ]


def test_a_healthy_card_is_not_blamed(tmp_path: Path) -> None:
    """The same time-out beside a card on which only symbol errors grow, as they do on every cable."""
    sysfs_tree.port(tmp_path / "sys", CARD)
    (tmp_path / "pod" / RUN).mkdir(parents=True)
    with started(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value(UP, device=CARD) == 1, "the card")
        (found,) = broken(tmp_path, exporter, counters=MELLANOX | {"counters/symbol_error": "40"})
        assert (found["cause"], "nic" in found["alternatives"]) == ("collective_timeout", False)
        exporter.kill()


@pytest.mark.parametrize(("counters", "before"), [(MELLANOX, 7), (EFA, 10)])
def test_a_sidecar_that_ends_while_a_port_is_down(tmp_path: Path, counters: dict[str, str], before: int) -> None:
    """The next one says so at once, takes what was counted meanwhile once, and no counter that was shown steps back."""
    sysfs_tree.port(tmp_path / "sys", CARD, counters=counters)
    sysfs_tree.port(tmp_path / "sys", "mlx5_1", counters=MELLANOX | {"counters/symbol_error": "9"})
    name = next(name for name in counters if name.startswith("hw_counters/"))
    with started(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value(ERRORS, device=CARD, kind="retry") == before, "the card")
        sysfs_tree.port(tmp_path / "sys", CARD, state=DOWN, counters=counters)
        exporter.until(lambda _: exporter.value(UP, device=CARD) == 0, "the lost link")
        shown = exporter.counters()
        exporter.kill()
    sysfs_tree.port(tmp_path / "sys", CARD, state=DOWN, counters=counters | {name: str(int(counters[name]) + 5)})
    anew = MELLANOX | {"counters/symbol_error": "2"}  # its driver was loaded again
    sysfs_tree.port(tmp_path / "sys", "mlx5_1", counters=anew)
    with started(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value(ERRORS, device=CARD, kind="retry") == before + 5, "what came meanwhile")
        assert exporter.value(UP, device=CARD) == 0
        assert exporter.value(ERRORS, device="mlx5_1", kind="symbol") == 11
        now = exporter.counters()
        assert all(now[key] >= value for key, value in shown.items() if key[0] == ERRORS)
        sysfs_tree.remove(tmp_path / "sys", CARD)
        exporter.until(lambda _: exporter.value("headway_collector_success", collector="nics") == 1, "another look")
        exporter.kill()
    with started(tmp_path) as exporter:
        exporter.until(lambda _: exporter.value(UP, device=CARD) == 0, "the card that is gone")
        last = exporter.counters()
        assert all(last[key] >= value for key, value in now.items() if key[0] == ERRORS)
