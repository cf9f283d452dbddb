"""What a sidecar begins with: what the one before it left in the state folder, or nothing.

Whatever is wrong with the folder or its ledger, the sidecar starts. A ledger that cannot be used is set aside and counted. A folder that
cannot be read, or does not answer, is left alone: then nothing is persisted, and the sidecar says so.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.events import parse
from headway_exporter.boot import boot_id
from headway_exporter.follow import Follower, anything_left
from headway_exporter.memory import recall
from headway_exporter.observations import NANOSECONDS, EventSeen
from headway_exporter.pod import Pod
from headway_exporter.shift import moved
from headway_exporter.state_files import LEDGER, Ledger, StateFileError, read_ledger, set_aside
from headway_exporter.status import status
from headway_exporter.thresholds import DEFAULT, Thresholds

if TYPE_CHECKING:
    from pathlib import Path

    from headway_exporter.health.xids import XidTable

_log = logging.getLogger("headway.exporter")

READ_SECONDS: Final = 30.0
"""Longest wait for the state folder at the start."""
TELL_SECONDS: Final = 3.0
"""So long it may take before a word is said about it."""


@dataclass(frozen=True)
class Where:
    """Whose journals are followed."""

    directory: Path
    run: str
    pod_index: str
    silence_seconds: float
    thresholds: Thresholds = DEFAULT
    xids: XidTable | None = None
    """What the driver's errors mean; None: the built-in table."""

    def new_pod(self, *, shared_verdicts: bool) -> Pod:
        """One that knows nothing; configuration that is no memory is given to it here."""
        return Pod(self.run, self.pod_index, self.thresholds, shared_verdicts=shared_verdicts, xids=self.xids)


@dataclass(frozen=True)
class Beginning:
    """A pod's memory and the follower that goes on from it."""

    pod: Pod
    follower: Follower
    shift_ns: int = 0
    """What the fold's time is ahead of CLOCK_MONOTONIC."""
    session_before: str | None = None
    written_wall: float | None = None
    """When the memory was written; None: there was none."""
    lost: str | None = None
    """Why the state folder cannot be used."""


def without_memory(where: Where, lost: str | None = None, *, shared_verdicts: bool = False) -> Beginning:
    """Nothing is known."""
    follower = Follower(where.directory, where.run, silence_seconds=where.silence_seconds)
    return Beginning(where.new_pod(shared_verdicts=shared_verdicts), follower, lost=lost)


def begin(where: Where, folder: Path) -> Beginning:
    """What the ledger in the pod's `folder` of the state directory says; never raises OSError."""
    found = _within(READ_SECONDS, folder, where)
    if isinstance(found, Ledger):
        try:
            return _recalled(found, where)
        except Exception as error:  # noqa: BLE001 - a good checksum says nothing about what is in it
            _log.info("the ledger's content cannot be read", exc_info=True)
            problem = StateFileError(
                "corrupt", f"{folder / LEDGER} holds no memory of a sidecar ({type(error).__name__}: {error})"
            )
            found = _aside(folder / LEDGER, problem)
    if isinstance(found, str):
        _log.warning("state folder: %s; going on without it: nothing outlives this process", found)
        return without_memory(where, lost=found)
    beginning = without_memory(where, shared_verdicts=True)
    if found is not None:
        beginning.pod.dropped[f"state_{found.fault}"] += 1
    return beginning


def position(follower: Follower, shift_ns: int) -> dict[str, Any]:
    """Where the follower is and on which clock, as JSON."""
    return {"boot": boot_id(), "shift_ns": shift_ns, **follower.position()}


def _recalled(ledger: Ledger, where: Where) -> Beginning:
    saved, pod = ledger.body["position"], where.new_pod(shared_verdicts=True)
    recall(pod, ledger.body["fold"])
    status(pod, {})  # a memory that cannot be shown is none
    shift_ns, mono = int(saved["shift_ns"]), clock.monotonic()
    same_clock = saved["boot"] == boot_id() and mono + shift_ns / NANOSECONDS >= pod.now
    if not same_clock or not anything_left(where.directory / where.run, saved):
        held = (EventSeen(slot, parse(line.encode(), most=None)) for slot, line in saved["held"])
        pod.fold(moved(seen, shift_ns) for seen in held)
        pod.came_back()
        saved = {**saved, "held": [], "lives": {}}
    if not same_clock:
        shift_ns = _continuing(pod, mono, clock.wall())
    follower = Follower(where.directory, where.run, silence_seconds=where.silence_seconds, saved=saved)
    return Beginning(pod, follower, shift_ns, ledger.session, ledger.written_wall)


def _continuing(pod: Pod, mono: float, wall: float) -> int:
    """The shift with which the pod's time goes on by wall clock; it never goes back."""
    gap = wall - pod.wall_of(pod.now)
    if gap < 0:
        pod.clock_anomalies["negative_duration"] += 1
    return round((pod.now + max(gap, 0.0) - mono) * 1e6) * 1_000


def _within(seconds: float, folder: Path, where: Where) -> Ledger | StateFileError | str | None:
    """`_load` in a thread, since the folder may hang."""
    answers: list[Ledger | StateFileError | str | None] = []
    thread = threading.Thread(target=lambda: answers.append(_load(folder, where)), name="headway-load", daemon=True)
    thread.start()
    thread.join(min(TELL_SECONDS, seconds))
    if thread.is_alive():
        _log.warning(
            "state folder: %s does not answer; no counters are served until it does, or for %g s", folder, seconds
        )
        thread.join(seconds - TELL_SECONDS)
    return answers[0] if answers else f"{folder} did not answer within {seconds:.0f} s"


def _load(folder: Path, where: Where) -> Ledger | StateFileError | str | None:
    """The ledger; None: there is none; an error: it was set aside; a text: the folder cannot be used, and why."""
    path = folder / LEDGER
    try:
        return read_ledger(path, where.run, where.pod_index)
    except FileNotFoundError:
        return None
    except StateFileError as problem:
        return _aside(path, problem)
    except OSError as error:
        return f"cannot read {path}: {error.strerror or error}"


def _aside(path: Path, problem: StateFileError) -> StateFileError | str:
    try:
        other = set_aside(path, problem.fault)
    except OSError as error:
        return f"{problem}, and it cannot be moved out of the way: {error.strerror or error}"
    _log.warning("state folder: %s; it was moved to %s, the counters begin anew", problem, other.name)
    return problem
