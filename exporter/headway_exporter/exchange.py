"""Where a failure of several pods began, settled by files in the folder that they share.

Each pod writes what it knows of a failure into a file of its own. Some time later the live pod with the lowest index of those that did
reads them all and writes the verdict, once; all pods, that one included, take what the file says. A pod that dies over it is followed
by the next one. All times are compared on the file server's clock: a pod touches its own file and reads the time that the server gave it.

The folder may hang, be read-only or hold anything: this is called from a thread that may wait, and whatever it finds is counted or told,
never fatal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headway import clock
from headway.files import open_regular
from headway_exporter import exchange_files, state_files
from headway_exporter.observations import VerdictSeen
from headway_exporter.origins import SilentPod, resolve
from headway_exporter.server_time import clock_doubt_seconds
from headway_exporter.state_files import StateFileError
from headway_exporter.thresholds import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from headway_exporter.origins import Claim
    from headway_exporter.thresholds import Thresholds

_log = logging.getLogger("headway.exporter")

MOST_AT_ONCE: Final = 8
"""Failures that are worked on in one turn, the oldest ones."""
MOST_PODS: Final = 4_096
"""Claims of one failure, and pods of the run, that are looked at."""
CLOCK_FLOOR_SECONDS: Final = 0.010
"""A kernel gives files the time of its last tick."""
WHOLE_SECOND: Final = 1_000_000_000
_ID: Final = re.compile(r"[0-9a-f]{16}")
_UNKNOWN_OFFSET_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class _Pulse:
    """The server's clock at one moment, and what ours was wrong by."""

    server_wall: float
    offset_seconds: float
    uncertainty_seconds: float


class Exchange:
    """This pod's part in it; call `turn` about once a second, from one thread."""

    def __init__(self, state_dir: Path, run: str, pod_index: str, limits: Thresholds = DEFAULT) -> None:
        self.dropped: Counter[str] = Counter()
        """Files that could not be used: `state_corrupt`, `state_foreign`, `state_newer`."""
        self._state_dir = state_dir
        self._run = run
        self._pod_index = pod_index
        self._limits = limits
        self._ledger = self._ledger_of(pod_index)
        self._written: dict[str, tuple[Claim, bytes]] = {}
        """By incident: the claim, and what its file holds."""
        self._since: dict[str, float] = {}
        self._refused: set[tuple[Path, str]] = set()
        self._trouble: str | None = None
        self._doubt_seconds = 0.0
        self._touched = -limits.pod_silent_seconds

    def turn(self, mono: float, claims: Sequence[Claim], absence: Claim | None = None) -> list[VerdictSeen]:
        """Tells others what this pod knows of the failures that it awaits a verdict on; what was settled. Never raises OSError.

        Args:
            mono: CLOCK_MONOTONIC seconds.
            claims: one for each of them, oldest first.
            absence: what this pod has to say of a failure that it did not notice itself; said if another pod knows of one.
        """
        if absence is not None and self._known_to_others(absence.incident):
            claims = [*claims, absence]
        self._forget({claim.incident for claim in claims})
        self._sign_of_life(mono)
        seen, trouble = [], None
        for claim in [one for one in claims if _ID.fullmatch(one.incident)][:MOST_AT_ONCE]:
            try:
                seen += self._settle(claim, mono)
            except OSError as error:  # noqa: PERF203 - a folder that cannot be used must not keep the others waiting
                trouble = str(error)
                self._written.pop(claim.incident, None)  # whatever became of the file, it is written anew
        self._tell(trouble)
        return seen

    # One failure.

    def _known_to_others(self, incident: str) -> bool:
        folder = state_files.incident_folder(self._state_dir, self._run, incident)
        with contextlib.suppress(OSError):  # what cannot be asked now is asked again
            return _ID.fullmatch(incident) is not None and folder.is_dir()
        return False

    def _settle(self, claim: Claim, mono: float) -> list[VerdictSeen]:
        folder = state_files.incident_folder(self._state_dir, self._run, claim.incident)
        waited = mono - self._since.setdefault(claim.incident, mono)
        seen = self._read_verdict(folder, claim.incident, mono)
        if seen:
            return seen
        pulse = self._say(folder, claim)
        if waited < self._limits.verdict_after_seconds:
            return []
        self._resolve(folder, claim, pulse, waited)
        return self._read_verdict(folder, claim.incident, mono)

    def _say(self, folder: Path, claim: Claim) -> _Pulse:
        """Writes the claim where it says something new or its file was spoilt, and touches it: this pod still waits for a verdict."""
        path = folder / state_files.claim_name(self._pod_index)
        before = self._written.get(claim.incident)
        if before is None:
            folder.mkdir(parents=True, exist_ok=True)
            state_files.replace(path, self._content(claim, None))  # only now there is a file to ask the time
            self._doubt_seconds = clock_doubt_seconds(folder)
        pulse = _pulse(path)
        if before is None or before[0] != claim or not _holds(path, before[1]):
            content = self._content(claim, pulse)
            state_files.replace(path, content)
            self._written[claim.incident] = claim, content
        return pulse

    def _read_verdict(self, folder: Path, incident: str, mono: float) -> list[VerdictSeen]:
        path = folder / state_files.VERDICT
        try:
            content = state_files.read_bounded(path, exchange_files.MOST_BYTES)
            return [VerdictSeen(incident, exchange_files.parse_verdict(content, incident, str(path)), mono)]
        except FileNotFoundError:
            return []
        except StateFileError as error:
            self._refuse(path, error)
            if error.fault != "newer":  # that one is good for those who know it
                state_files.set_aside(path, error.fault)
            return []

    def _content(self, claim: Claim, pulse: _Pulse | None) -> bytes:
        offset, uncertainty = (
            (0.0, _UNKNOWN_OFFSET_SECONDS)
            if pulse is None
            else (pulse.offset_seconds, pulse.uncertainty_seconds + self._doubt_seconds)
        )
        dated = replace(claim, offset_seconds=offset, uncertainty_seconds=uncertainty)
        return exchange_files.claim_content(dated, clock.wall())

    # The verdict.

    def _resolve(self, folder: Path, own: Claim, pulse: _Pulse, waited: float) -> None:
        """Writes the verdict, if that is this pod's business and every pod has told what it knows, or is known to live or to be lost."""
        claimants = self._claimants(folder)
        lower = [pod for pod in claimants if state_files.pod_order(pod) < state_files.pod_order(self._pod_index)]
        silent_seconds = self._limits.pod_silent_seconds
        if any(pulse.server_wall - _modified(folder / state_files.claim_name(pod)) < silent_seconds for pod in lower):
            return  # one of them waits too, and is to do it
        ages = self._ages(claimants, folder, pulse)
        quiet = [pod for pod, age in ages.items() if pod not in claimants and age > self._limits.pod_live_seconds]
        unsure = any(ages[pod] < silent_seconds for pod in quiet)
        if unsure and waited < self._limits.verdict_after_seconds + 2 * silent_seconds:
            return
        claims = [claim for pod in claimants if (claim := self._read_claim(folder, pod, own.incident)) is not None]
        live = {pod for pod, age in ages.items() if age < silent_seconds} | {self._pod_index}
        silent = [self._lost(pod, pulse.server_wall - ages[pod]) for pod in quiet if ages[pod] >= silent_seconds]
        if claims:
            verdict = resolve(claims, live, [pod for pod in silent if pod is not None])
            content = exchange_files.verdict_content(verdict, own.incident, self._pod_index, clock.wall())
            state_files.create(folder / state_files.VERDICT, content)

    def _claimants(self, folder: Path) -> list[str]:
        """The pods that made a claim, in their order."""
        found = [pod for name in _names(folder) if (pod := state_files.claimant(name)) is not None]
        return sorted(found, key=state_files.pod_order)

    def _ages(self, claimants: Iterable[str], folder: Path, pulse: _Pulse) -> dict[str, float]:
        """Seconds since the last sign of life of each pod of the run."""
        run_folder = self._state_dir / self._run
        names = [name for name in _names(run_folder) if name != state_files.INCIDENTS and not name.startswith(".")]
        pods = dict.fromkeys([*claimants, *map(state_files.pod_named, names)])
        signs = {pod: self._last_sign(pod, folder) for pod in pods}
        return {pod: pulse.server_wall - at for pod, at in signs.items() if at > 0}

    def _read_claim(self, folder: Path, pod_index: str, incident: str) -> Claim | None:
        path = folder / state_files.claim_name(pod_index)
        try:
            content = state_files.read_bounded(path, exchange_files.MOST_BYTES)
            return exchange_files.parse_claim(content, incident, pod_index, str(path))
        except StateFileError as error:
            self._refuse(path, error)
        except OSError as error:
            self._refuse(path, StateFileError("corrupt", f"{path}: {error.strerror or error}"))
        return None

    def _lost(self, pod_index: str, last_sign: float) -> SilentPod | None:
        """What its last ledger tells of a pod that is silent; None: it had completed the run, and its end was none of a node."""
        try:
            body = state_files.read_ledger(self._ledger_of(pod_index), self._run, pod_index).body
        except (OSError, StateFileError):
            body = {}
        summary = body.get("summary")
        summary = summary if isinstance(summary, dict) else {}
        if summary.get("finished") is True:
            return None
        node, ranks = summary.get("node"), summary.get("ranks")
        found = [one.get("rank") for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
        return SilentPod(
            pod_index,
            last_sign,
            node[:128] if isinstance(node, str) else "",
            tuple(rank for rank in found[: exchange_files.MOST_STANDINGS] if type(rank) is int),
        )

    # Signs of life.

    def _ledger_of(self, pod_index: str) -> Path:
        return state_files.pod_folder(self._state_dir, self._run, pod_index) / state_files.LEDGER

    def _sign_of_life(self, mono: float) -> None:
        """Touches the own ledger, so that others see that this pod lives even when writing it takes long."""
        if mono - self._touched < self._limits.pod_silent_seconds / 6:
            return
        self._touched = mono
        with contextlib.suppress(OSError):  # no ledger yet, or a folder that is not to be written
            os.utime(self._ledger, follow_symlinks=False)

    def _last_sign(self, pod_index: str, folder: Path) -> float:
        """When a pod last wrote something, on the server's clock; 0 when it never did."""
        claim = folder / state_files.claim_name(pod_index)
        return max(_modified(self._ledger_of(pod_index)), _modified(claim))

    # What went wrong.

    def _refuse(self, path: Path, error: StateFileError) -> None:
        """Counts and tells each file once."""
        if (path, error.fault) not in self._refused and len(self._refused) < MOST_PODS:
            self._refused.add((path, error.fault))
            self.dropped[f"state_{error.fault}"] += 1
            _log.warning("%s; it is left out of the verdict on where the failure began", error)

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _log.warning(
                "where a failure began cannot be settled with the other pods: %s; trying again, and deciding alone after %g s",
                trouble,
                self._limits.verdict_timeout_seconds,
            )
        elif trouble is None and self._trouble is not None:
            _log.warning("the folder where pods settle where a failure began can be used again")
        self._trouble = trouble

    def _forget(self, open_ids: set[str]) -> None:
        self._written = {name: written for name, written in self._written.items() if name in open_ids}
        self._since = {name: since for name, since in self._since.items() if name in open_ids}


class Patience:
    """How long this process has waited for each verdict; needs no file, so a folder that hangs cannot stop it."""

    def __init__(self, limits: Thresholds = DEFAULT) -> None:
        self._limits = limits
        self._since: dict[str, float] = {}

    def overdue(self, mono: float, incidents: Iterable[str]) -> list[VerdictSeen]:
        """Of the failures that await a verdict those that have waited too long: this pod decides alone."""
        self._since = {name: self._since.get(name, mono) for name in incidents}
        limit = self._limits.verdict_timeout_seconds
        return [VerdictSeen(name, None, mono) for name, since in self._since.items() if mono - since > limit]


def _pulse(path: Path) -> _Pulse:
    """Touches the file and reads the time that it got.

    Raises:
        OSError: it is not there, or not to be touched.
    """
    before = clock.wall()
    os.utime(path, follow_symlinks=False)  # without times: by the server's clock
    nanoseconds = path.lstat().st_mtime_ns
    after = clock.wall()
    exact = CLOCK_FLOOR_SECONDS if nanoseconds % WHOLE_SECOND else 1.0  # a server that keeps whole seconds only
    server = nanoseconds / WHOLE_SECOND
    return _Pulse(server, (before + after) / 2 - server, abs(after - before) / 2 + exact)


def _holds(path: Path, content: bytes) -> bool:
    """Whether the file holds this and nothing else: the folder is shared, and whoever resolves can only take what is there.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return state_files.read_bounded(path, len(content)) == content
    except StateFileError:
        return False


def _modified(path: Path) -> float:
    """When the file was written, by the server's clock; 0 when it cannot be told. Opened, because that asks the server anew."""
    try:
        fd = open_regular(path)
    except OSError:
        return 0.0
    try:
        return os.fstat(fd).st_mtime_ns / WHOLE_SECOND
    finally:
        os.close(fd)


def _names(folder: Path) -> list[str]:
    """Names in the folder, a bounded number; none when it is not there. Ours are ASCII whatever the pods are called."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MOST_PODS), strict=False)]
            return [name for name in names if name.isascii()]
    except FileNotFoundError:
        return []
