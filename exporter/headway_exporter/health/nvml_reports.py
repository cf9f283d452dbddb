"""What GPUs' driver reports by itself, from the messages of the process that hears it to observations; see `nvml_child`.

Nothing is told of a GPU before its name is. Any thread may ask, and none waits for long.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.observations import EventsMissed, GpuSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headway_exporter.health.nvml_pipe import Message
    from headway_exporter.observations import Observation

MOST_HELD: Final = 1024
"""Reports of GPUs that have no name yet."""
_LARGEST: Final = 1 << 31
"""No XID has such a number."""
OTHER: Final = -1
"""Number of an XID that has none that is known; see `nvml_events`."""


class Reports:
    """Waits for who tells the fold."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        """As they came."""
        self.parts: Mapping[str, tuple[str, ...]] = {}
        """UUIDs of the MIG instances of each GPU whose name was told; replaced, never changed."""
        self._first: deque[Observation] = deque()
        self._xids: list[GpuSeen] = []
        self._memory_errors: dict[str, float] = {}
        self._missed = 0
        self._lock = threading.Lock()

    def tell(self, news: Iterable[Observation]) -> None:
        """To be told before what the driver reports."""
        self._first.extend(news)

    def missed(self, times: int) -> None:
        """Something that the driver reported may be lost."""
        with self._lock:
            self._missed += times

    def memory_error(self, uuid: str) -> float | None:
        """When the GPU's first uncorrected memory error since this was last asked was reported; CLOCK_MONOTONIC seconds."""
        with self._lock:
            self._sort()
            return self._memory_errors.pop(uuid, None)

    def take(self) -> list[Observation]:
        """All that is to be told, in the order in which it is to be told."""
        with self._lock:
            parts = self.parts
            told: list[Observation] = []
            while self._first:
                told.append(self._first.popleft())
            self._sort()
            now = sorted((seen for seen in self._xids if seen.uuid in parts), key=lambda seen: seen.mono)
            self._xids = [seen for seen in self._xids if seen.uuid not in parts][:MOST_HELD]
            if self._missed:
                told.append(EventsMissed(self._missed, clock.monotonic()))
                self._missed = 0
        return [*told, *(replace(seen, parts=parts[seen.uuid]) for seen in now)]

    def _sort(self) -> None:
        while self.messages:
            self._read(self.messages.popleft())

    def _read(self, message: Message) -> None:
        try:
            self._note(message)
        except (
            AttributeError,
            TypeError,
            ValueError,
        ):  # not what our process says, whose memory is not its own any more
            self._missed += 1

    def _note(self, message: Message) -> None:
        for row in message.get("xids", ()):
            self._xids.extend(_happened(*row))
        for uuid, mono in message.get("memory_errors", {}).items():
            self._memory_errors.setdefault(uuid, float(mono))
        self._missed += int(message.get("lapses", 0))


def _happened(uuid: str, xid: Any, count: int, *times: float) -> list[GpuSeen]:
    """The first by itself, for its time may be that of a failure; the others together."""
    number = int(xid) if 0 <= xid < _LARGEST else OTHER
    first, first_wall, last, last_wall = map(float, times)
    one = GpuSeen(str(uuid), "xid", first, first_wall, xid=number, text=f"XID {xid}")
    more = replace(one, mono=last, wall=last_wall, count=count - 1)
    return [one, more] if count > 1 else [one]
