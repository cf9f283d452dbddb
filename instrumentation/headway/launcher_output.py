"""What a launcher's output tells: pure patterns from a line to the fields of an event.

The words are those that torchrun (torch 2.9 to 2.13) and ft_launcher (NVRx 0.4.1, 0.6.0, 0.7.0) really print. The prefix before
them differs in every version and can be prefixed once more (`srun -l`, a log shipper), so patterns look for the message:

    E1130 14:43:39.357000 5118 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 …
    [2026-11-30 14:43:49,004] [ERROR] [ft_launcher5183@host] failed (exitcode: 3) local_rank: 1 (pid: 5191) of binary: …
    [2026-11-30 14:43:59,220] [WARNING] [RankMonServer5224@host:1] Did not get subsequent heartbeat. Waited 2.00 seconds.
    2026-11-30 14:45:47,151 [WARNING] [host] [workload:?(1) infra:?(?)] rank_monitor_server.py:497 [Cycle 0] Did not get …

NVRx 0.6 and later also time their own restart, and every launcher says when it joins the restart that another node began:

    … profiling.py:90   - Cycle: 1 Event: failure_detected Node: localhost_31124_0 Rank: 0 Time: 2026-11-30 14:45:47.320 UTC
    … launcher.py:561 [default] Joining cluster restart (group_rank=0)
    … [default] Detected 1 new nodes from group_rank=0; will restart worker group        (0.4.1, and torchrun)

What no launcher prints: the exit codes of the workers that it stopped itself (only the first failure has a line), and plain
torchrun keeps its restart budget to itself unless `LOGLEVEL=INFO`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES: Final = 8192
"""Launchers write short lines; what is longer comes from a worker and is not looked at."""

_WORKER_EXITED = re.compile(
    r"\bfailed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\) of "
)
_GROUP_FAILED = re.compile(
    r"\bWorker group (?:FAILED|UNHEALTHY)\. (?P<left>\d+)/(?P<limit>\d+) attempts left; will restart worker group"
)
_HEARTBEAT = re.compile(
    r"\bDid not get (?P<which>initial|subsequent) heartbeat\. Waited (?P<waited>\d+(?:\.\d+)?) seconds\."
)
_SECTION = re.compile(
    r"\b(?:Section '.*' has been open|(?P<outside>Was out of section)) for (?P<waited>\d+(?:\.\d+)?) seconds\. Timeout is "
)
_JOINED = re.compile(
    r"\] (?:Joining cluster restart \(group_rank=(?P<rank>\d{1,9})\)"
    r"|Detected (?P<nodes>\d{1,9}) new nodes from group_rank=(?P<old_rank>\d{1,9}); will restart worker group)"
)
_PHASE = re.compile(
    r"\bCycle: (?P<cycle>\d{1,9}) Event: (?P<name>[a-z_]{1,64}) Node: (?P<node>\S{1,255}) Rank: (?:(?P<rank>\d{1,9})|None) "
    r"Time: (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) UTC"
)
_WORKERS_PER_NODE = re.compile(r"(?:\bUsing nproc_per_node=|^\s*nproc_per_node\s*: )(?P<count>\d+)\b")
_MONITOR_GLOBAL_RANK = re.compile(r"\[RankMonServer\d+@[^\]]*:(?P<rank>\d+)\]")
_MONITOR_LOCAL_RANK = re.compile(r"\[workload:[^(\]]*\((?P<rank>\d+)\)")

_WORDS = (
    *("failed (exitcode", "attempts left", "heartbeat", "seconds. Timeout is", "nproc_per_node"),
    *("Event: ", "Joining cluster restart", "; will restart worker group"),
)


@dataclass(frozen=True)
class Seen:
    """An event that a line told: its kind and fields as in `headway.events`."""

    kind: str
    fields: dict[str, Any]


class LauncherOutput:
    """Turns lines into events; remembers only what later lines need.

    NVRx 0.4.1 names the *global* rank in a rank monitor's line, which gives the slot once the launcher said how many workers a
    node has (torchelastic hands out consecutive ranks per node). 0.6 and 0.7 name the local rank itself.
    """

    def __init__(self) -> None:
        self._workers_per_node: int | None = None
        self._last_exit: Seen | None = None

    def read(self, line: str) -> Seen | None:
        """The event in one line, if there is one."""
        if not any(word in line for word in _WORDS):  # nearly every line ends here
            return None
        if match := _WORKERS_PER_NODE.search(line):
            self._workers_per_node = int(match["count"]) or None
            return None
        found = self._worker_exited(line) or _group_failed(line) or self._heartbeat_missed(line)
        return found or _phase(line) or _restart_joined(line)

    def _worker_exited(self, line: str) -> Seen | None:
        match = _WORKER_EXITED.search(line)
        if match is None:
            return None
        seen = Seen(
            "worker_exited",
            {"local_rank": int(match["rank"]), "pid": int(match["pid"]), "exit_code": int(match["code"])},
        )
        if seen == self._last_exit:  # 0.4.1 repeats the line of the last failure when its restarts are used up
            return None
        self._last_exit = seen
        return seen

    def _heartbeat_missed(self, line: str) -> Seen | None:
        if match := _HEARTBEAT.search(line):
            which = match["which"]
        elif match := _SECTION.search(line):
            which = "out_of_section" if match["outside"] else "section"
        else:
            return None
        fields = {"which": which, "waited_seconds": float(match["waited"]), "local_rank": self._watched_slot(line)}
        return Seen("heartbeat_missed", {name: value for name, value in fields.items() if value is not None})

    def _watched_slot(self, line: str) -> int | None:
        if match := _MONITOR_LOCAL_RANK.search(line):
            return int(match["rank"])
        match = _MONITOR_GLOBAL_RANK.search(line)
        if match is None or self._workers_per_node is None:
            return None
        return int(match["rank"]) % self._workers_per_node


def _group_failed(line: str) -> Seen | None:
    match = _GROUP_FAILED.search(line)
    if match is None:
        return None
    return Seen("worker_group_failed", {"restarts_left": int(match["left"]), "restarts_limit": int(match["limit"])})


def _phase(line: str) -> Seen | None:
    match = _PHASE.search(line)
    if match is None:
        return None
    try:
        told = datetime.strptime(match["time"], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=timezone.utc)
    except ValueError:  # a thirteenth month: not NVRx's line
        return None
    fields: dict[str, Any] = {"name": match["name"], "cycle": int(match["cycle"]), "node": match["node"]}
    fields |= {"told_wall": told.timestamp()} | ({} if match["rank"] is None else {"group_rank": int(match["rank"])})
    return Seen("launcher_phase", fields)


def _restart_joined(line: str) -> Seen | None:
    match = _JOINED.search(line)
    if match is None:
        return None
    if match["nodes"] is None:
        return Seen("restart_joined", {"group_rank": int(match["rank"])})
    return Seen("restart_joined", {"group_rank": int(match["old_rank"]), "nodes_waiting": int(match["nodes"])})


class LineSplitter:
    r"""Cuts a byte stream into lines with a bounded buffer. `\r` ends a line too: progress bars never send a newline."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes; one beyond the limit is left out."""
        *complete, rest = data.replace(b"\r", b"\n").split(b"\n")
        for part in complete:
            line = self._rest + part
            if not self._skipping and 0 < len(line) <= self._limit:
                yield line.decode("utf-8", "replace")
            self._rest, self._skipping = b"", False
        if self._skipping or len(self._rest) + len(rest) > self._limit:
            self._rest, self._skipping = b"", True
        else:
            self._rest += rest

    def flush(self) -> Iterator[str]:
        """The last line when the stream ended without a newline."""
        yield from self.feed(b"\n")
