"""What the driver reports by itself, heard in a thread that does nothing else.

Of errors that came since the last wait NVML tells how many, but gives all of them the number of the newest; so somebody must be waiting
all the time. The thread only counts: thousands of the same error take no more room than two.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health.nvml_driver import TIMEOUT
from headway_exporter.observations import GpuSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger("headway.exporter")

WAIT_MILLISECONDS: Final = 500
STOP_SECONDS: Final = 2.0
MOST_WAITING: Final = 1024
"""Pairs of GPU and XID that wait to be told."""
_MEMORY_ERROR: Final = 0x02
"""nvmlEventTypeDoubleBitEccError."""
_XID: Final = 0x08
"""nvmlEventTypeXidCriticalError."""


@dataclass
class _Heard:
    """The first and the last of some equal XIDs: CLOCK_MONOTONIC seconds, seconds since 1970."""

    first: tuple[float, float]
    last: tuple[float, float]
    count: int = 1

    def tell(self, uuid: str, xid: int) -> Iterator[GpuSeen]:
        """The first by itself, for its time may be that of a failure; the others together."""
        text = f"XID {xid}"
        yield GpuSeen(uuid, "xid", *self.first, xid=xid, text=text)
        if self.count > 1:
            yield GpuSeen(uuid, "xid", *self.last, xid=xid, count=self.count - 1, text=text)


class Listener:
    """Hears XIDs and memory errors of some GPUs until `stop`, or until the driver refuses to go on."""

    def __init__(self, nvml: Any, gpus: Iterable[tuple[Any, str]]) -> None:
        """`gpus`: handles and UUIDs. Raises NVMLError when the driver gives no set of events."""
        self._nvml = nvml
        self._events = nvml.nvmlEventSetCreate()
        self._uuids = {address(handle): uuid for handle, uuid in gpus if self._register(handle, uuid)}
        self._heard: dict[tuple[str, int], _Heard] = {}
        self._memory_errors: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-nvml-events", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still hears."""
        return self._thread.is_alive()

    def take(self) -> list[GpuSeen]:
        """The XIDs since this was last asked, in time order."""
        with self._lock:
            heard, self._heard = self._heard, {}
        told = [seen for (uuid, xid), one in heard.items() for seen in one.tell(uuid, xid)]
        return sorted(told, key=lambda seen: seen.mono)

    def take_memory_error(self, uuid: str) -> float | None:
        """When the GPU's first uncorrected memory error since this was last asked was reported; CLOCK_MONOTONIC seconds."""
        with self._lock:
            return self._memory_errors.pop(uuid, None)

    def stop(self) -> bool:
        """Ends it; False when it hangs in the driver, which must then not be shut down."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def _register(self, handle: Any, uuid: str) -> bool:
        nvml = self._nvml
        try:
            wanted = (_XID | _MEMORY_ERROR) & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
        except nvml.NVMLError as error:
            _log.info("nvml: errors of GPU %s are not reported (%s); they are not counted", uuid, error)
            return False
        return bool(wanted)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wait()
        except self._nvml.NVMLError as error:
            _log.info("nvml: no more events (%s); beginning anew with the next read", error)
        finally:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)

    def _wait(self) -> None:
        if not self._uuids:
            self._stopping.wait()
            return
        try:
            event = self._nvml.nvmlEventSetWait(self._events, WAIT_MILLISECONDS)
        except self._nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
        else:
            self._note(event, clock.monotonic(), clock.wall())

    def _note(self, event: Any, mono: float, wall: float) -> None:
        uuid = self._uuids.get(address(event.device))
        if uuid is None:
            return
        with self._lock:
            if event.eventType == _MEMORY_ERROR:
                self._memory_errors.setdefault(uuid, mono)
            elif event.eventType == _XID:
                pair = uuid, int(event.eventData)
                known = self._heard.get(pair)
                if known is not None:
                    known.last, known.count = (mono, wall), known.count + 1
                elif len(self._heard) < MOST_WAITING:
                    self._heard[pair] = _Heard((mono, wall), (mono, wall))


def address(handle: Any) -> int:
    """Handles are pointers that stay what they are until NVML is shut down."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
