"""Network cards, read from files as the kernel's drivers lay them out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import sysfs_tree
from sidecar_process import sidecar
from sysfs_tree import ACTIVE, DOWN, EFA, MELLANOX

from headway_exporter.health.instruments import AbsentError
from headway_exporter.health.nics import NicProbe
from headway_exporter.nics import MOST_COUNTED, Nics
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from pathlib import Path

UP = "headway_nic_up"
ERRORS = "headway_nic_errors_total"


def shown(probe: NicProbe, nics: Nics | None = None) -> dict[tuple[str, ...], float]:
    """Metric and labels to value, of a new read that a fold (None: a new one) is told of."""
    nics, value = nics or Nics(), probe.read()
    for seen in probe.observations(value):
        nics.fold(seen)
    up = {(name, *labels): float(one) for name, labels, one in probe.samples(value) if isinstance(one, (int, float))}
    return up | {(ERRORS, *pair): float(count) for pair, count in nics.shown().items()}


def test_a_card_is_told_with_its_errors(tmp_path: Path) -> None:
    """Each driver's own counters come out under the same kinds, and what it does not count is absent, not zero."""
    sysfs_tree.port(tmp_path, "mlx5_0")
    sysfs_tree.port(tmp_path, "rdmap0s31", counters=EFA)
    assert shown(NicProbe(tmp_path)) == {
        (UP, "mlx5_0"): 1,
        (UP, "rdmap0s31"): 1,
        (ERRORS, "mlx5_0", "link_downed"): 1,
        (ERRORS, "mlx5_0", "symbol"): 0,
        (ERRORS, "mlx5_0", "retry"): 7,
        (ERRORS, "mlx5_0", "timeout"): 5,
        (ERRORS, "rdmap0s31", "retry"): 10,
        (ERRORS, "rdmap0s31", "timeout"): 6,
    }


def test_ports_are_taken_together(tmp_path: Path) -> None:
    """A card is up when all its ports that are in use are, and its errors are those of all of them."""
    sysfs_tree.port(tmp_path, "mlx5_0", 1)
    sysfs_tree.port(tmp_path, "mlx5_0", 2)
    probe = NicProbe(tmp_path)
    assert shown(probe)[UP, "mlx5_0"] == 1
    sysfs_tree.port(tmp_path, "mlx5_0", 2, DOWN, MELLANOX | {"counters/link_downed": "2"})
    now = shown(probe)
    assert now[UP, "mlx5_0"] == 0
    assert now[ERRORS, "mlx5_0", "link_downed"] == 3


@pytest.mark.parametrize("state", [DOWN, "2: INIT", "3: ARMED", "0: NOP", "", "nonsense"])
def test_a_link_that_is_lost_is_down(tmp_path: Path, state: str) -> None:
    """Only an active port carries anything, and a card says so again when it is back."""
    probe = NicProbe(tmp_path)
    for now, up in ((ACTIVE, 1), (state, 0), (ACTIVE, 1)):
        sysfs_tree.port(tmp_path, "mlx5_0", state=now, counters=EFA)
        assert shown(probe)[UP, "mlx5_0"] == up


def test_what_never_had_a_link_is_no_fault(tmp_path: Path) -> None:
    """A port without a cable must not raise an alarm for ever; a link lost before the sidecar started must."""
    sysfs_tree.port(tmp_path, "mlx5_0", 1)
    sysfs_tree.port(tmp_path, "mlx5_0", 2, DOWN, MELLANOX | {"counters/link_downed": "0"})
    sysfs_tree.port(tmp_path, "mlx5_1", 1, DOWN, MELLANOX | {"counters/link_downed": "0"})
    sysfs_tree.port(tmp_path, "mlx5_2", 1, DOWN, MELLANOX | {"counters/link_downed": "1"})
    up = {key: value for key, value in shown(NicProbe(tmp_path)).items() if key[0] == UP}
    assert up == {(UP, "mlx5_0"): 1, (UP, "mlx5_2"): 0}


def test_a_card_that_falls_off_the_bus_is_down(tmp_path: Path) -> None:
    """Its files are gone, and its errors are what they were: a sum of all cards must not step back."""
    sysfs_tree.port(tmp_path, "mlx5_0")
    sysfs_tree.port(tmp_path, "mlx5_1")
    probe, nics = NicProbe(tmp_path), Nics()
    before = shown(probe, nics)
    sysfs_tree.remove(tmp_path, "mlx5_1")
    assert shown(probe, nics) == before | {(UP, "mlx5_1"): 0}
    sysfs_tree.remove(tmp_path, "mlx5_0")
    assert shown(probe, nics)[UP, "mlx5_0"] == 0
    assert nics.shown() == {key[1:]: value for key, value in before.items() if key[0] == ERRORS}


def test_a_card_that_was_gone_before_the_sidecar_started(tmp_path: Path) -> None:
    """A sidecar that starts while a link is down knows from the one before it that there was one: the alarm goes on."""
    sysfs_tree.port(tmp_path, "rdmap0s31", state=DOWN, counters=EFA)
    asked: list[str] = []

    def remembered(boot: str) -> list[tuple[str, str]]:
        asked.append(boot)
        return [("rdmap0s31", "1"), ("mlx5_7", "2")]

    probe = NicProbe(tmp_path, remembered, lambda: "this start")
    for _ in range(2):
        assert {key: value for key, value in shown(probe).items() if key[0] == UP} == {
            (UP, "mlx5_7"): 0,
            (UP, "rdmap0s31"): 0,
        }
    assert asked == ["this start"]


def test_cards_that_cannot_be_listed_are_not_gone(tmp_path: Path) -> None:
    """A folder that cannot be read is a collector that fails, not sixteen cards that lost their links."""
    sysfs_tree.port(tmp_path, "mlx5_0")
    probe = NicProbe(tmp_path)
    shown(probe)
    folder = tmp_path / "class" / "infiniband"
    folder.rename(tmp_path / "away")
    folder.symlink_to(folder.name)
    with pytest.raises(OSError, match="infiniband"):
        probe.read()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert shown(probe)[UP, "mlx5_0"] == 1


def test_lost_links_of_ethernet(tmp_path: Path) -> None:
    """RoCE: the port's own counter stays 0, the network interface of the same place on the device counts."""
    for number in (1, 2):
        sysfs_tree.port(
            tmp_path, "mlx5_0", number, counters=MELLANOX | {"counters/link_downed": "0", "link_layer": "Ethernet"}
        )
    for place, lost in (("0", "3"), ("1", "5"), ("7", "100"), ("x", "1e3")):
        sysfs_tree.network(tmp_path, "mlx5_0", f"eth{place}", place, lost)
    seen = {port.number: dict(port.errors) for port in NicProbe(tmp_path).read().ports}
    assert {number: errors["link_downed"] for number, errors in seen.items()} == {"1": 3, "2": 5}


def test_a_machine_without_cards_says_so(tmp_path: Path) -> None:
    """No /sys, no such class, and a class without devices are all no fault."""
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(AbsentError, match="no network cards"):
            NicProbe(root).read()
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(AbsentError):
        NicProbe(tmp_path).read()


def test_what_a_driver_does_not_tell_is_absent(tmp_path: Path) -> None:
    """Words where a number should be, and files that cannot be read, are not zero."""
    counters = {
        "counters/link_downed": "N/A (not supported)",
        "counters/symbol_error": "-1",
        "hw_counters/retrans_pkts": "",
    }
    sysfs_tree.port(tmp_path, "mlx5_0", counters=counters)
    (tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "hw_counters" / "packet_seq_err").mkdir()
    assert shown(NicProbe(tmp_path)) == {(UP, "mlx5_0"): 1}


def test_many_cards_stay_within_the_budget(tmp_path: Path) -> None:
    """A machine with 32 EFA devices shows which is down, and their errors as one sum; a thousand devices end nothing."""
    for number in range(32):
        sysfs_tree.port(tmp_path, f"rdmap{number}s0", counters=EFA)
    found = shown(NicProbe(tmp_path))
    assert len([key for key in found if key[0] == UP]) == 32
    assert {key: value for key, value in found.items() if key[0] == ERRORS} == {
        (ERRORS, "all", "retry"): 320,
        (ERRORS, "all", "timeout"): 192,
    }
    for number in range(32, 1000):
        sysfs_tree.port(tmp_path, f"rdmap{number}s0", counters=EFA)
    assert len(shown(NicProbe(tmp_path))) <= 70


def test_the_largest_number_of_cards_with_counters_of_their_own(tmp_path: Path) -> None:
    """At most five series a card, and for twelve cards at most sixty."""
    for number in range(MOST_COUNTED):
        sysfs_tree.port(tmp_path, f"mlx5_{number}")
    assert len(shown(NicProbe(tmp_path))) == 5 * MOST_COUNTED == 60


@pytest.mark.parametrize("what", ["digits", "large", "pipe", "loop"])
def test_a_file_that_is_no_number_costs_that_number(tmp_path: Path, what: str) -> None:
    """Garbage, gigabytes, a pipe that nobody writes and a link to itself: the card's other counters, and the other card, stay."""
    for device in ("mlx5_0", "mlx5_1"):
        sysfs_tree.port(tmp_path, device)
    broken = tmp_path / "class/infiniband/mlx5_1/ports/1/counters/symbol_error"
    broken.unlink()
    if what == "digits":
        broken.write_text("9" * 10_000)
    elif what == "large":
        with broken.open("wb") as file:
            file.truncate(1 << 40)
    elif what == "pipe":
        os.mkfifo(broken)
    else:
        broken.symlink_to(broken.name)
    found = shown(NicProbe(tmp_path))
    assert found[ERRORS, "mlx5_0", "symbol"] == 0
    assert found[ERRORS, "mlx5_1", "retry"] == 7
    assert found.get((ERRORS, "mlx5_1", "symbol")) is None


def test_a_cards_name_cannot_cost_the_scrape(tmp_path: Path) -> None:
    """A folder's name may be any bytes, an exposition is UTF-8."""
    sysfs_tree.port(tmp_path / "sys", os.fsdecode(b"mlx\xff"))
    with sidecar(tmp_path, "--sysfs-root", str(tmp_path / "sys")) as exporter:
        exporter.until(lambda _: exporter.value(UP, device="mlx\N{REPLACEMENT CHARACTER}") == 1, "the card")


def test_a_sidecar_shows_the_cards_of_its_sysfs(tmp_path: Path) -> None:
    """From the option to the scrape, with the labels of the schema."""
    sysfs_tree.port(tmp_path / "sys", "mlx5_0", state=DOWN)
    with sidecar(tmp_path, "--sysfs-root", str(tmp_path / "sys")) as exporter:
        exporter.until(lambda _: exporter.value(ERRORS, device="mlx5_0", kind="retry") is not None, "the card")
        assert exporter.value(UP, device="mlx5_0") == 0
        assert exporter.value(ERRORS, device="mlx5_0", kind="retry") == 7
        assert exporter.value("headway_collector_success", collector="nics") == 1
        families = exporter.families()
    for sample in families["headway_nic_errors"].samples:
        assert sample.labels["kind"] in (METRICS[ERRORS].labels["kind"] or ())
