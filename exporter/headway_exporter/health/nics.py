"""Network cards that collectives run over (InfiniBand, RoCE, EFA), from the kernel's /sys/class/infiniband.

A card is watched from the moment one of its ports is known to have had a link: a second port without a cable, or a card for
something else, is no fault. Port by port the files are read as they are; what a card does not count is absent, not zero.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway_exporter.health.instruments import AbsentError
from headway_exporter.labels import NIC_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

SYSFS: Final = Path("/sys")
MOST_DEVICES: Final = 64
MOST_COUNTED: Final = 12
"""With more devices their counters are shown as one sum: a machine with 32 EFA devices would else have a hundred series of them."""
ALL: Final = "all"
MOST_BYTES: Final = 256
"""Of a file: the kernel's say one number or a few words."""
MOST_DIGITS: Final = 20
"""Of a counter of 64 bits."""

_COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "link_downed": ("counters/link_downed",),
    "symbol": ("counters/symbol_error",),
    "retry": ("hw_counters/packet_seq_err", "hw_counters/rnr_nak_retry_err", "hw_counters/retrans_pkts"),
    "timeout": (
        "hw_counters/local_ack_timeout_err",
        "hw_counters/retrans_timeout_events",
        "hw_counters/unresponsive_remote_events",
        "hw_counters/impaired_remote_conn_events",
    ),
}
"""Kind of error to a port's files, which are added up: the first of them are Mellanox', the others EFA's.

Linux, Documentation/ABI/stable/sysfs-class-infiniband, and the drivers mlx5 and efa.
"""


@dataclass(frozen=True, slots=True)
class Port:
    """One port as it is now."""

    device: str
    number: str
    linked: bool
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost_one(self) -> bool:
        """It had a link once, since its driver was loaded."""
        return self.errors.get("link_downed", 0) > 0


@dataclass(frozen=True, slots=True)
class Card:
    """A device, its ports taken together."""

    up: bool
    errors: Mapping[str, int]


class NicProbe:
    """See `Probe`; `sysfs` is where the kernel's /sys is mounted."""

    name = "nics"
    every_seconds = 10.0
    deadline_seconds = 10.0

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._devices = sysfs / "class" / "infiniband"
        self._known: dict[tuple[str, str], Port] = {}
        """Ports that had a link, as they were last; one that is gone is down."""

    def read(self) -> dict[str, Card]:
        """See `Probe`."""
        found = list(ports(self._devices))
        self._known = watched(self._known, found)
        if not found and not self._known:
            raise AbsentError(f"{self._devices} has no network cards")
        return cards(self._known.values())

    def samples(self, value: Mapping[str, Card]) -> Iterator[Sample]:
        """See `Probe`."""
        for device, card in value.items():
            yield "headway_nic_up", (device,), float(card.up)
        counted = {device: card.errors for device, card in value.items()}
        if len(counted) > MOST_COUNTED:
            counted = {ALL: _added(counted.values())}
        for device, errors in counted.items():
            for kind in NIC_ERRORS:
                yield "headway_nic_errors_total", (device, kind), errors.get(kind)

    def lost(self, value: Mapping[str, Card]) -> tuple[Sample, ...]:  # noqa: ARG002 - nothing of it holds any more
        """See `Probe`."""
        return ()

    def observations(self, value: Mapping[str, Card]) -> tuple[Observation, ...]:  # noqa: ARG002 - no evidence is made of it yet
        """See `Probe`."""
        return ()


def ports(devices: Path) -> Iterator[Port]:
    """All ports that there are."""
    for device in _folders(devices)[:MOST_DEVICES]:
        for port in _folders(device / "ports"):
            yield Port(_name(device), _name(port), _linked(port), _errors(port))


def watched(known: Mapping[tuple[str, str], Port], found: Iterable[Port]) -> dict[tuple[str, str], Port]:
    """The ports that had a link: those of before, down unless they are found up, and those that have one or are known to have lost one."""
    now = {(port.device, port.number): port for port in found}
    gone = {key: Port(port.device, port.number, False, port.errors) for key, port in known.items() if key not in now}
    seen = {key: port for key, port in now.items() if key in known or port.linked or port.lost_one}
    return dict(sorted((gone | seen).items())[:MOST_DEVICES])


def cards(found: Iterable[Port]) -> dict[str, Card]:
    """Ports by their device."""
    by_device: dict[str, list[Port]] = {}
    for port in found:
        by_device.setdefault(port.device, []).append(port)
    return {
        device: Card(all(port.linked for port in own), _added(port.errors for port in own))
        for device, own in by_device.items()
    }


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _linked(port: Path) -> bool:
    """`4: ACTIVE`. INIT and ARMED have a cable, and carry nothing."""
    return _text(port / "state").startswith("4:")


def _errors(port: Path) -> dict[str, int]:
    """What the port counts, by kind."""
    found: dict[str, int] = {}
    for kind, names in _COUNTERS.items():
        numbers = [text for name in names if (text := _text(port / name)).isdecimal() and len(text) <= MOST_DIGITS]
        if numbers:
            found[kind] = sum(map(int, numbers))
    return found


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    """Empty for what is not there or is no plain file, and for what the driver refuses to tell."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            content = os.read(opened, MOST_BYTES) if stat.S_ISREG(os.fstat(opened).st_mode) else b""
        finally:
            os.close(opened)
    except OSError:
        return ""
    return content.decode("ascii", "replace").strip()


def _name(folder: Path) -> str:
    """The folder's name as a label can have it: in UTF-8."""
    return os.fsencode(folder.name).decode(errors="replace")
