"""What the driver reports by itself, heard in a thread that does nothing else.

Of errors that came since the last wait NVML tells how many, but gives all of them the number of the newest; so somebody must be waiting
all the time. The thread only counts: thousands of the same error take no more room than two. Where waiting fails it begins anew at once,
and then less and less often; whatever came meanwhile is lost, and that this was so is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health.nvml_driver import LOST, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WAIT_MILLISECONDS: Final = 1_000
SOON_MILLISECONDS: Final = 100
"""How long is waited, and something told later at most, while there is something to tell."""
BEGIN_SECONDS: Final = 1.5
"""How long is waited for a beginning, so that what is reported right after the first answers is heard."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
MANY_WAITING: Final = 256
MOST_WAITING: Final = 1024
"""Pairs of GPU and XID that wait to be told: so many are told at once, and while they cannot be, further ones are only counted."""
AT_ONCE: Final = 16
"""Pairs in a message, which then fits into what a pipe takes at once."""
OTHER: Final = -1
"""Stands for the numbers of XIDs that were only counted."""
_MEMORY_ERROR: Final = 0x02
"""nvmlEventTypeDoubleBitEccError."""
_XID: Final = 0x08
"""nvmlEventTypeXidCriticalError."""


class Listener:
    """Hears XIDs and memory errors of the GPUs that it is told to listen to."""

    def __init__(self, nvml: Any, tell: Callable[[dict[str, Any]], bool]) -> None:
        """`tell`: takes a message, or says that it cannot now; it must not block."""
        self._nvml = nvml
        self._tell = tell
        self._wanted: dict[int, tuple[Any, str]] = {}
        """Handle and UUID, by the handle's address."""
        self._armed: dict[int, str] = {}
        """UUIDs of those that are listened to, or that report nothing, by the handle's address."""
        self._reported = False
        """Whether any of them reports anything."""
        self._events: Any = None
        self._heard: dict[tuple[str, int], list[float]] = {}
        """By UUID and XID: how many; then when the first and the last came, each by CLOCK_MONOTONIC and since 1970, in seconds."""
        self._memory_errors: dict[str, float] = {}
        self._lapses = 0
        self._told = 0.0
        self._changed = threading.Event()
        self._listening = threading.Event()
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    def listen(self, gpus: Mapping[str, Any]) -> None:
        """From now on to these, handles by UUID, and perhaps to those of before; waits a moment for that, never for the driver."""
        self._wanted = {address(handle): (handle, uuid) for uuid, handle in gpus.items()}
        armed = self._armed
        if all(armed.get(at) == uuid for at, (_, uuid) in self._wanted.items()):
            return
        self._listening.clear()
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headway-nvml-events", daemon=True)
            self._thread.start()
        if self.silent_seconds() < BEGIN_SECONDS:
            self._listening.wait(BEGIN_SECONDS)

    def silent_seconds(self) -> float:
        """For how long the driver has not returned from a call, which should take half a second at most."""
        since = self._since
        return 0.0 if since is None else clock.monotonic() - since

    def _run(self) -> None:
        pause = 0.0
        while True:
            try:
                if self._events is None or self._changed.is_set():
                    self._arm()
                self._wait()
                pause = 0.0
            except self._nvml.NVMLError:
                self._since = None
                self._lapses += not pause
                self._let_go()
                pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * pause))
                time.sleep(pause)
            self._flush()

    # Listening.

    def _arm(self) -> None:
        """Begins anew, with those GPUs that are wanted now."""
        self._changed.clear()
        self._since = clock.monotonic()
        self._let_go()
        self._events = self._nvml.nvmlEventSetCreate()
        found = {at: (uuid, self._register(handle)) for at, (handle, uuid) in self._wanted.items()}
        self._reported = any(reports for _, reports in found.values())
        self._since, self._armed = None, {at: uuid for at, (uuid, reports) in found.items() if reports is not None}
        self._listening.set()

    def _let_go(self) -> None:
        events, self._events, self._armed = self._events, None, {}
        if events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(events)

    def _register(self, handle: Any) -> bool | None:
        """Whether the GPU reports anything; None: it is lost."""
        nvml = self._nvml
        try:
            wanted = (_XID | _MEMORY_ERROR) & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
        except nvml.NVMLError as error:
            return None if error.value in LOST else False
        return bool(wanted)

    def _wait(self) -> None:
        if not self._reported:
            self._changed.wait()
            return
        self._since = clock.monotonic()
        try:
            milliseconds = SOON_MILLISECONDS if self._has_something else WAIT_MILLISECONDS
            event = self._nvml.nvmlEventSetWait(self._events, milliseconds)
        except self._nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
        else:
            self._note(event, clock.monotonic(), clock.wall())
        self._since = None

    def _note(self, event: Any, mono: float, wall: float) -> None:
        at = address(event.device)
        uuid = self._wanted[at][1] if at in self._wanted else self._armed.get(at)  # it may have another name by now
        if uuid is None:
            return
        if event.eventType == _MEMORY_ERROR:
            self._memory_errors.setdefault(uuid, mono)
        elif event.eventType == _XID:
            pair = uuid, int(event.eventData)
            if pair not in self._heard and len(self._heard) >= MOST_WAITING:
                pair = uuid, OTHER
            known = self._heard.setdefault(pair, [0, mono, wall, mono, wall])
            known[0] += 1
            known[3:] = mono, wall

    # Telling.

    @property
    def _has_something(self) -> bool:
        return bool(self._heard or self._memory_errors or self._lapses)

    def _flush(self) -> None:
        """Tells what was heard: the first of a storm at once, the others a little later together."""
        now = clock.monotonic()
        soon = now - self._told < SOON_MILLISECONDS / 1000 and len(self._heard) < MANY_WAITING
        if soon or not self._has_something:
            return
        self._told = now
        if self._lapses and self._tell({"lapses": self._lapses}):
            self._lapses = 0
        if self._memory_errors and self._tell({"memory_errors": self._memory_errors}):
            self._memory_errors = {}
        while self._heard:
            some = list(self._heard)[:AT_ONCE]
            if not self._tell({"xids": [[*pair, *self._heard[pair]] for pair in some]}):
                return
            for pair in some:
                del self._heard[pair]


def address(handle: Any) -> int:
    """Handles are pointers that stay what they are until NVML is shut down."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
