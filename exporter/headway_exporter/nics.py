"""What the network cards of this machine went through: their errors counted for good, and what happened to their links kept as evidence.

The fold compares each look at the ports with the one before, which it remembers: so what happened while no sidecar ran is noticed by the
next one, once. A driver that is loaded anew counts from 0 again, and a card that is gone counts nothing; the sums kept here go on.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.observations import NicsSeen, PortSeen

MOST_PORTS: Final = 64
MOST_COUNTED: Final = 12
"""With more devices only the sum of their errors is shown: a machine with 32 EFA devices would else have a hundred series of them."""
MOST_KEPT: Final = 256
"""Happenings kept for failures that are noticed after them."""
ALL: Final = "all"
"""Stands for all devices together."""
LOST_LINK: Final = "link_downed"
"""Kind of error of which one more is a link that was lost."""

NicHappeningKind = Literal["down", "up", "flapped"]


@dataclass(frozen=True, slots=True)
class NicHappening:
    """Something happened to a port's link, noticed at `mono` (CLOCK_MONOTONIC seconds).

    `kind`: `down`, it has none any more; `up`, it has one again; `flapped`, it was lost and is back.
    """

    device: str
    number: str
    kind: NicHappeningKind
    mono: float
    wall: float
    """Seconds since 1970."""
    count: int = 1
    """How often, when it flapped."""


class Nics:
    """The fold of `NicsSeen`."""

    def __init__(self) -> None:
        self.boot = ""
        """Of the machine that was looked at last."""
        self.ports: dict[tuple[str, str], PortSeen] = {}
        """Each port as it was when it was last seen."""
        self.errors: Counter[tuple[str, str]] = Counter()
        """By device, or `ALL`, and kind: what the first look found, and all that came since."""
        self.recent: deque[NicHappening] = deque(maxlen=MOST_KEPT)

    def fold(self, seen: NicsSeen) -> list[NicHappening]:
        """One look at all ports; what happened since the one before."""
        elsewhere = self.boot not in ("", seen.boot)
        if elsewhere:
            self._leave_behind(seen.ports)
        self.boot = seen.boot
        found = [happening for port in seen.ports if (happening := self._look(port, seen, elsewhere=elsewhere))]
        self.recent.extend(found)
        return found

    def shown(self) -> dict[tuple[str, str], int]:
        """Errors by device and kind; of many devices the sum."""
        devices = {device for device, _ in self.errors if device != ALL}
        return {pair: count for pair, count in self.errors.items() if (pair[0] == ALL) == (len(devices) > MOST_COUNTED)}

    def linked(self, boot: str) -> list[tuple[str, str]]:
        """Ports that have, or once had, a link on that machine since its start."""
        return list(self.ports) if boot == self.boot else []

    def came_back(self, down: NicHappening, until: float) -> bool:
        """Whether a link that was lost was there again, up to then."""
        return any(
            one.kind == "up"
            and (one.device, one.number) == (down.device, down.number)
            and down.mono <= one.mono <= until
            for one in self.recent
        )

    def _leave_behind(self, ports: Iterable[PortSeen]) -> None:
        """It is another machine, or another start of this one: its cards count from elsewhere. A card of the same name goes on."""
        kept = {port.device for port in ports} | {ALL}
        self.errors = Counter({pair: count for pair, count in self.errors.items() if pair[0] in kept})
        self.ports = {}
        self.recent.clear()

    def _look(self, port: PortSeen, seen: NicsSeen, *, elsewhere: bool) -> NicHappening | None:
        key = port.device, port.number
        before = self.ports.get(key)
        if before is None and len(self.ports) >= MOST_PORTS:
            return None
        if before is not None:
            port = replace(port, errors=tuple(sorted({**dict(before.errors), **dict(port.errors)}.items())))
        more = {} if before is None and elsewhere else _more(before, port)
        for kind, _ in port.errors:
            for device in (port.device, ALL):
                self.errors[device, kind] += more.get(kind, 0)
        if port != before:
            self.ports[key] = port
        return None if before is None else _happening(before, port, more.get(LOST_LINK, 0), seen)


def _more(before: PortSeen | None, port: PortSeen) -> dict[str, int]:
    """What the port counted since the look before; a number that fell began at 0 again."""
    known = {} if before is None else dict(before.errors)
    return {kind: count - known[kind] if count >= known.get(kind, count + 1) else count for kind, count in port.errors}


def _happening(before: PortSeen, port: PortSeen, lost: int, seen: NicsSeen) -> NicHappening | None:
    kind: NicHappeningKind
    if before.linked != port.linked:
        kind = "up" if port.linked else "down"
    elif port.linked and lost:
        kind = "flapped"
    else:
        return None
    return NicHappening(port.device, port.number, kind, seen.mono, seen.wall, max(1, lost))
