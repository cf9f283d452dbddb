"""Network cards that collectives run over (InfiniBand, RoCE, EFA), from the kernel's /sys/class/infiniband.

A card is watched from the moment one of its ports is known to have had a link: a second port without a cable, or a card for
something else, is no fault. Port by port the files are read as they are; what a card does not count is absent, not zero.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway import clock
from headway_exporter.boot import boot_id
from headway_exporter.health.instruments import AbsentError
from headway_exporter.nics import LOST_LINK, MOST_PORTS
from headway_exporter.observations import NicsSeen, PortSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headway_exporter.collectors import Sample

SYSFS: Final = Path("/sys")
MOST_NETWORKS: Final = 16
"""Network interfaces of a device that are looked at."""
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

Linux, Documentation/ABI/stable/sysfs-class-infiniband, and the drivers mlx5 and efa. EFA counts no lost links; what it counts of remote
ends tells of those, not of this one.
"""


@dataclass(frozen=True, slots=True)
class Port:
    """One port as it is now."""

    seen: PortSeen
    lost_one: bool = False
    """It had a link once, since its driver was loaded."""

    @property
    def key(self) -> tuple[str, str]:
        """Names it on this machine."""
        return self.seen.device, self.seen.number


class NicProbe:
    """See `Probe`; `sysfs` is where the kernel's /sys is mounted.

    `remembered` asks once, at the first look, which ports had a link before the sidecar started; `boot` names this start of the machine.
    """

    name = "nics"
    every_seconds = 10.0
    deadline_seconds = 10.0

    def __init__(
        self,
        sysfs: Path = SYSFS,
        remembered: Callable[[str], Iterable[tuple[str, str]]] = lambda _: (),
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._devices = sysfs / "class" / "infiniband"
        self._remembered = remembered
        self._boot = boot()
        self._known: dict[tuple[str, str], PortSeen] | None = None
        """Ports that had a link, as they were last; one that is gone is down."""

    def read(self) -> NicsSeen:
        """See `Probe`."""
        known, found = self._known, list(ports(self._devices))
        if known is None:
            known = {key: PortSeen(*key, False) for key in self._remembered(self._boot)}
        self._known = watched(known, found)
        if not found and not self._known:
            raise AbsentError(f"{self._devices} has no network cards")
        return NicsSeen(self._boot, tuple(self._known.values()), clock.monotonic(), clock.wall())

    def samples(self, value: NicsSeen) -> Iterator[Sample]:
        """Which cards are up; their errors are counted by the fold."""
        for device, up in cards_up(value.ports).items():
            yield "headway_nic_up", (device,), float(up)

    def lost(self, value: NicsSeen) -> tuple[Sample, ...]:  # noqa: ARG002 - nothing of it holds any more
        """See `Probe`."""
        return ()

    def observations(self, value: NicsSeen) -> tuple[NicsSeen, ...]:
        """See `Probe`."""
        return (value,) if value.ports else ()


def ports(devices: Path) -> Iterator[Port]:
    """All ports that there are."""
    for device in _folders(devices, must=True)[:MOST_PORTS]:
        for port in _folders(device / "ports"):
            errors = _errors(port)
            lost = errors.get(LOST_LINK, 0)
            _add_lost_carrier(errors, device, port)
            seen = PortSeen(_name(device), _name(port), _linked(port), tuple(sorted(errors.items())))
            yield Port(seen, lost_one=lost > 0)


def watched(known: Mapping[tuple[str, str], PortSeen], found: Iterable[Port]) -> dict[tuple[str, str], PortSeen]:
    """The ports that had a link: those of before, down unless they are found up, and those that have one or are known to have lost one."""
    now = {port.key: port for port in found}
    gone = {key: replace(seen, linked=False) for key, seen in known.items() if key not in now}
    here = {key: port.seen for key, port in now.items() if key in known or port.seen.linked or port.lost_one}
    return dict(sorted((gone | here).items())[:MOST_PORTS])


def cards_up(found: Iterable[PortSeen]) -> dict[str, bool]:
    """Devices, each up when all its ports are."""
    up: dict[str, bool] = {}
    for port in found:
        up[port.device] = up.get(port.device, True) and port.linked
    return up


def _linked(port: Path) -> bool:
    """`4: ACTIVE`. INIT and ARMED have a cable, and carry nothing."""
    return _text(port / "state").startswith("4:")


def _errors(port: Path) -> dict[str, int]:
    """What the port counts, by kind."""
    found: dict[str, int] = {}
    for kind, names in _COUNTERS.items():
        numbers = [number for name in names if (number := _number(port / name)) is not None]
        if numbers:
            found[kind] = sum(numbers)
    return found


def _add_lost_carrier(errors: dict[str, int], device: Path, port: Path) -> None:
    """Over Ethernet (RoCE) it is the network interface that counts lost links; one port's is known by its place on the device."""
    if _text(port / "link_layer") != "Ethernet":
        return
    for network in _folders(device / "device" / "net")[:MOST_NETWORKS]:
        place, lost = _number(network / "dev_port"), _number(network / "carrier_down_count")
        if lost is not None and str((place or 0) + 1) == port.name:
            errors[LOST_LINK] = errors.get(LOST_LINK, 0) + lost


def _number(file: Path) -> int | None:
    """What a counter says; None: no number, or none of 64 bits."""
    text = _text(file)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS else None


def _folders(folder: Path, *, must: bool = False) -> list[Path]:
    """What is in it, nothing where it is not there; `must`: whatever else is wrong with it is an error.

    Raises:
        OSError: the folder is there and cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        if must:  # cards that cannot be listed are not gone
            raise
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
