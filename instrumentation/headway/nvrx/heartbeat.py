"""Heartbeats to the launcher's rank monitor, with the longest silence of each phase on record.

The monitor kills a rank that is silent for longer than the launcher's time-out, so the longest silences that are normal are what
a time-out has to exceed; `headway_phase_gap_max_seconds` comes from here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from headway import clock

if TYPE_CHECKING:
    from types import TracebackType

    from headway.recorder import Recorder

_log = logging.getLogger("headway")

_UNNAMED: Final = ("init", "step", "other")
"""What the recorder calls the time in which no phase is open."""


class Heartbeat:
    """Wraps `fault_tolerance.RankMonitorClient`; nothing here raises or ends training.

    Enter it inside the function that NVRx restarts in process, so that each iteration connects anew and closes its connection.
    `beat()` belongs into the loop, once a step, and into phases that take long: a silence counts for the phase that was open when
    it began, or else when it ended; one that began before the first step and touches no phase counts for `init`.

        with Heartbeat(recorder) as heartbeat:
            for step in ...:
                ...
                heartbeat.beat()
    """

    def __init__(self, recorder: Recorder, client: Any = None) -> None:
        self._recorder = recorder
        self._client = client
        self._connected = False
        self._last: float | None = None
        self._last_phase = ""

    @property
    def connected(self) -> bool:
        """Whether a rank monitor listens."""
        return self._connected

    def start(self) -> bool:
        """Connects and sends the first heartbeat at once; False, and a warning, when there is no rank monitor.

        At once, because two connections with no heartbeat between them leave the monitor in its ABORTED state until the launcher
        exits, and this rank without hang detection.
        """
        self._mark()
        try:
            if self._client is None:
                self._client = _new_client()
            self._client.init_workload_monitoring()
            self._client.send_heartbeat()
        except Exception as error:  # noqa: BLE001 - RankMonitorClientError, OSError, a missing NVRx: none may stop training
            self._lost("could not be reached", error)
            return False
        self._connected = True
        self._tell_timeouts()
        return True

    def beat(self) -> None:
        """Tells the monitor that this rank makes progress, and the recorder how long it was silent."""
        self._measure()
        if not self._connected:
            return
        try:
            self._client.send_heartbeat()
        except Exception as error:  # noqa: BLE001 - see start()
            self._lost("does not answer any more", error)

    def close(self) -> None:
        """Disconnects, so that the monitor does not take the end of training for a hang."""
        self._connected = False
        self._last = None
        if self._client is None:
            return
        try:
            self._client.shutdown_workload_monitoring()
        except Exception as error:  # noqa: BLE001 - the connection may be gone already
            _log.debug("closing the connection to the rank monitor: %s", error)

    def __enter__(self) -> Heartbeat:
        try:
            self.start()
        except BaseException:  # NVRx's restart may be injected between any two bytecodes
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell_timeouts(self) -> None:
        """The monitor's answer tells the time-outs in force; None is off, which is the default of 0.6 and later."""
        timeouts = getattr(self._client, "hb_timeouts", None)
        for name, attribute in (("heartbeat_initial_seconds", "initial"), ("heartbeat_rank_seconds", "subsequent")):
            seconds = getattr(timeouts, attribute, None)
            if seconds is not None:
                self._recorder.setting(name, float(seconds))

    def _mark(self) -> None:
        self._last = clock.monotonic()
        self._last_phase = self._recorder.current_phase

    def _measure(self) -> None:
        began, phase = self._last, self._last_phase
        self._mark()
        if began is not None and self._last is not None:
            self._recorder.phase_gap(_owner(phase, self._last_phase), self._last - began)

    def _lost(self, what: str, error: Exception) -> None:
        """One warning, then silence: the connection does not come back before the next restart."""
        self._connected = False
        _log.warning(
            "the launcher's rank monitor %s, so this rank has no hang detection until the next restart; training goes on "
            "(%s: %s). Start the workers with ft_launcher to have one.",
            what,
            type(error).__name__,
            error,
        )


def _owner(began: str, ended: str) -> str:
    """The phase that a silence counts for: a named one if it touches any, so that `eval` is not hidden by the step around it."""
    return next((phase for phase in (began, ended) if phase not in _UNNAMED), began)


def _new_client() -> Any:
    from nvidia_resiliency_ext import fault_tolerance  # only where a launcher may listen

    return fault_tolerance.RankMonitorClient()
