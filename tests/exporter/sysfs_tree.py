"""A /sys/class/infiniband made up of files, as the drivers mlx5 and efa lay it out."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

ACTIVE: Final = "4: ACTIVE"
DOWN: Final = "1: DOWN"
MELLANOX: Final = {
    "counters/link_downed": "1",
    "counters/symbol_error": "0",
    "hw_counters/packet_seq_err": "3",
    "hw_counters/rnr_nak_retry_err": "4",
    "hw_counters/local_ack_timeout_err": "5",
}
EFA: Final = {
    "hw_counters/retrans_pkts": "10",
    "hw_counters/retrans_timeout_events": "1",
    "hw_counters/unresponsive_remote_events": "2",
    "hw_counters/impaired_remote_conn_events": "3",
}


def port(root: Path, device: str, number: int = 1, state: str = ACTIVE, counters: dict[str, str] = MELLANOX) -> None:
    """Makes a port, or changes it."""
    folder = root / "class" / "infiniband" / device / "ports" / str(number)
    for name, content in {"state": state, **counters}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


def network(root: Path, device: str, name: str, place: str, lost: str) -> None:
    """Makes a network interface of a device, at that place on it, that lost its carrier so often."""
    folder = root / "class" / "infiniband" / device / "device" / "net" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev_port").write_text(f"{place}\n")
    (folder / "carrier_down_count").write_text(f"{lost}\n")


def remove(root: Path, device: str) -> None:
    """The device is gone from the bus."""
    shutil.rmtree(root / "class" / "infiniband" / device)
