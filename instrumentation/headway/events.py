"""The journal's vocabulary: every kind of event and every field, and the one place that parses a line.

A journal line is a JSON object. Every line has the fields of `COMMON_FIELDS`; the rest depend on its kind, as listed in
`KINDS`. A writer may leave a field out or write `null`: it then says nothing. A reader ignores fields it does not know,
so that a newer trainer can talk to an older sidecar, and refuses a line of another major version.

Units are part of the names: `_seconds`, `_bytes`; `wall` is seconds since 1970, `mono` is CLOCK_MONOTONIC in seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
MAX_LINE_BYTES: Final = 65_536
"""A longer line is not an event; the writer keeps far below it (it cuts messages and tracebacks)."""

MAX_TEXT_CHARACTERS: Final = 8_192
MAX_ITEMS: Final = 1_024
MAX_DEPTH: Final = 2
"""What a reader keeps of a value: longer texts and lists are cut, deeper nesting is dropped."""

TEXT: Final = (str,)
INTEGER: Final = (int,)
NUMBER: Final = (int, float)
FLAG: Final = (bool,)
LIST: Final = (list,)
TABLE: Final = (dict,)


@dataclass(frozen=True)
class Field:
    """One field of an event: the JSON types it may have and what it means."""

    types: tuple[type, ...]
    meaning: str


@dataclass(frozen=True)
class Kind:
    """One kind of event: who writes it, when, and its fields."""

    meaning: str
    fields: Mapping[str, Field] = field(default_factory=dict)


COMMON_FIELDS: Final[Mapping[str, Field]] = {
    "v": Field(INTEGER, "version of the format"),
    "kind": Field(TEXT, "a key of KINDS"),
    "n": Field(INTEGER, "counts the events of one life from 0; a gap is an event that was dropped"),
    "wall": Field(NUMBER, "seconds since 1970"),
    "mono": Field(NUMBER, "CLOCK_MONOTONIC in seconds: the same clock in every process of the machine"),
    "life": Field(INTEGER, "random 62-bit number of the process that wrote it"),
    "incarnation": Field(TEXT, "the group's execution of the training function; absent before the first"),
}

PHASES: Final = ("init", "rendezvous", "checkpoint_load", "checkpoint_save", "data_wait", "eval")
"""The phases with a state of their own; a user's own names are accepted and count as `other`."""

CHECKPOINT_STAGES: Final = ("requested", "staged", "written", "committed", "failed", "aborted", "loaded", "rejected")

INTERRUPTIONS: Final = (
    "EXCEPTION",
    "BASE_EXCEPTION",
    "SOFT_TIMEOUT",
    "HARD_TIMEOUT",
    "TERMINATED",
    "UNRESPONSIVE",
    "MONITOR_PROCESS_EXCEPTION",
)
"""NVRx's kinds of interruption (nvidia_resiliency_ext.inprocess.attribution.Interruption)."""

_NEEDED: Final = frozenset({"kind", "n", "wall", "mono", "life"})
"""Common fields that every line has."""

_COUNTS: Final = {
    "attempt": Field(INTEGER, "starts of the pod by the orchestrator, from 0"),
    "cycle": Field(INTEGER, "restarts by the launcher, from 0"),
    "iteration": Field(INTEGER, "restarts in the process, from 0"),
}

KINDS: Final[Mapping[str, Kind]] = {
    "process_started": Kind(
        "the recorder opened; the life lock is held unless life_lock says otherwise",
        {
            "pid": Field(INTEGER, "process id in the trainer's own namespace"),
            "rank": Field(INTEGER, "global rank at start"),
            "world_size": Field(INTEGER, "ranks in the group at start"),
            "attempt": _COUNTS["attempt"],
            "cycle": _COUNTS["cycle"],
            "iteration": _COUNTS["iteration"],
            "node": Field(TEXT, "host name, or the node's name when the environment gives it"),
            "gpu_uuid": Field(TEXT, "UUID of the GPU this rank uses"),
            "versions": Field(TABLE, "name to version: headway, python, torch, nvrx"),
            "settings": Field(
                TABLE,
                "what is in force, name to number or short text: total_steps, checkpoint_interval_steps, "
                "in_process_restart_budget, heartbeat_initial_seconds, heartbeat_rank_seconds, soft_timeout_seconds, hard_timeout_seconds, "
                "barrier_timeout_seconds, completion_timeout_seconds, collective_timeout_seconds, "
                "config_fingerprint, text_fingerprint (where any of them changes, losses cannot be compared)",
            ),
            "pods_expected": Field(INTEGER, "pods that the run should have"),
            "life_lock": Field(FLAG, "whether the kernel will tell of this life's death"),
            "ring": Field(FLAG, "whether steps are recorded"),
            "restart_budget": Field(INTEGER, "restarts that the launcher may make"),
            "backend": Field(TEXT, "collectives' backend: nccl or gloo"),
            "checkpoint_dir": Field(TEXT, "folder of the checkpoints, as the trainer sees it"),
        },
    ),
    "train_entered": Kind(
        "the training function begins with a working process group",
        {
            "rank": Field(INTEGER, "global rank in this incarnation"),
            "world_size": Field(INTEGER, "ranks in this incarnation"),
            "mode": Field(TEXT, "active, or inactive for a rank held in reserve"),
            "settings": Field(TABLE, "what became known since process_started; names as there"),
            **_COUNTS,
        },
    ),
    "phase": Kind(
        "a named interval begins or ends",
        {
            "name": Field(TEXT, "one of PHASES, or the user's own"),
            "edge": Field(TEXT, "begin or end"),
            "seconds": Field(NUMBER, "on end: how long it took"),
        },
    ),
    "checkpoint": Kind(
        "a checkpoint moves on",
        {
            "stage": Field(TEXT, "one of CHECKPOINT_STAGES; committed: published and verified on all ranks"),
            "step": Field(INTEGER, "completed steps in it; loaded with 0 is a start from scratch"),
            "bytes": Field(INTEGER, "size of this rank's shard; loaded: of what it read"),
            "seconds": Field(NUMBER, "staged: training was blocked; written, loaded: how long it took"),
            "verified": Field(FLAG, "sizes and checksums were compared"),
            "reason": Field(TEXT, "failed, aborted, rejected: a word and what is known"),
        },
    ),
    "queue": Kind(
        "the asynchronous checkpoint queue changed",
        {
            "depth": Field(INTEGER, "saves that were accepted and not finalized"),
            "oldest_wall": Field(NUMBER, "when the oldest of them was accepted, seconds since 1970"),
            "writer_alive": Field(FLAG, "whether the writer process lives; absent before it is first needed"),
            "writer_pid": Field(INTEGER, "process id of the writer"),
            "writer_exit_code": Field(INTEGER, "once it is dead; negative is a signal"),
        },
    ),
    "fault_caught": Kind(
        "an exception reached the edge of the training function",
        {
            "type": Field(TEXT, "qualified name of the exception's class"),
            "message": Field(TEXT, "its text, cut"),
            "traceback": Field(TEXT, "the innermost frames, cut"),
            "category": Field(TEXT, "a cause of the closed list when the exception itself tells, else absent"),
            "collective": Field(FLAG, "a collective broke or timed out: likely an echo of another rank's fault"),
            "step": Field(INTEGER, "last step that this process completed"),
        },
    ),
    "interruption": Kind(
        "NVRx's records of an in-process restart",
        {
            "records": Field(LIST, "objects {rank, kind}; rank is the one given at start, kind one of INTERRUPTIONS"),
            "iteration": _COUNTS["iteration"],
        },
    ),
    "aborted": Kind("the process group was torn down in process", {"iteration": _COUNTS["iteration"]}),
    "nccl_trace": Kind(
        "a trace of NCCL's flight recorder was kept, after the process group was torn down in process",
        {
            "path": Field(TEXT, "file, as the trainer's container sees it"),
            "bytes": Field(INTEGER, "its size"),
            "writer": Field(TEXT, "who wrote it: torch, nvrx or headway"),
            "iteration": _COUNTS["iteration"],
        },
    ),
    "finalized": Kind("in-process clean-up of one iteration ended", {"iteration": _COUNTS["iteration"]}),
    "ranks_reassigned": Kind(
        "NVRx gave out ranks for an iteration",
        {
            "iteration": _COUNTS["iteration"],
            "initial_rank": Field(INTEGER, "rank at the start of the process"),
            "rank": Field(INTEGER, "rank from now on; absent for a rank that was terminated"),
            "world_size": Field(INTEGER, "ranks from now on"),
            "mode": Field(TEXT, "active, inactive, terminated"),
            "terminated": Field(LIST, "initial ranks that are gone for good"),
        },
    ),
    "signal": Kind(
        "a signal reached the pod (`headway run`), or a process that watches its handler (`Recorder.watch_signals`)",
        {"signal": Field(INTEGER, "its number"), "name": Field(TEXT, "its name")},
    ),
    "operator_rollback": Kind(
        "a deliberate return to an earlier step", {"step": Field(INTEGER, "completed steps that remain")}
    ),
    "sample": Kind(
        "every 5 s, what only the process's own container can see",
        {
            "rss_bytes": Field(INTEGER, "resident memory of the trainer"),
            "writer_rss_bytes": Field(INTEGER, "resident memory of the checkpoint writer"),
            "open_files": Field(INTEGER, "open file descriptors"),
            "cgroup_limit_bytes": Field(INTEGER, "memory limit of the container; absent when unlimited"),
            "cgroup_used_bytes": Field(INTEGER, "memory in use in the container"),
            "cgroup_cache_bytes": Field(
                INTEGER, "of these, cached pages of files that the kernel can take back at once"
            ),
            "oom_kills": Field(INTEGER, "the container's oom_kill counter"),
            "at": Field(TEXT, "function (file:line) of the main thread's innermost Python frame"),
            "collective": Field(FLAG, "the main thread is inside a collective"),
            "step": Field(INTEGER, "last step that this process completed"),
            "phase_gaps": Field(TABLE, "phase to the longest silence between heartbeats so far, seconds"),
            "dropped": Field(INTEGER, "events and steps that could not be recorded so far"),
        },
    ),
    "train_finished": Kind("this rank completed the run", {"step": Field(INTEGER, "last completed step")}),
    "process_exited": Kind(
        "the interpreter is about to exit in order",
        {"dropped": Field(INTEGER, "events and steps not recorded"), "phase_gaps": Field(TABLE, "as in sample")},
    ),
    "launcher_started": Kind(
        "`headway run` started the launcher",
        {
            "pid": Field(INTEGER, "process id of the launcher"),
            "command": Field(LIST, "its argument list"),
            "attempt": _COUNTS["attempt"],
        },
    ),
    "worker_exited": Kind(
        "the launcher reported the end of a worker",
        {
            "local_rank": Field(INTEGER, "its slot"),
            "pid": Field(INTEGER, "its process id"),
            "exit_code": Field(INTEGER, "negative is a signal"),
        },
    ),
    "heartbeat_missed": Kind(
        "a rank monitor waited in vain and is about to kill its worker",
        {
            "which": Field(TEXT, "initial, subsequent, section or out_of_section"),
            "waited_seconds": Field(NUMBER, "how long it had waited"),
            "local_rank": Field(INTEGER, "the slot it watches, when the line tells"),
        },
    ),
    "worker_group_failed": Kind(
        "the launcher will restart its workers, or gives up",
        {
            "restarts_left": Field(INTEGER, "of the budget, before this restart"),
            "restarts_limit": Field(INTEGER, "the budget"),
        },
    ),
    "restart_joined": Kind(
        "the launcher will restart its workers because another node fails, or new nodes wait to join",
        {
            "group_rank": Field(INTEGER, "of this node among the nodes"),
            "nodes_waiting": Field(INTEGER, "how many wait to join; NVRx 0.4 and torchrun tell, later ones do not"),
        },
    ),
    "launcher_phase": Kind(
        "NVRx 0.6 and later: a step of the launcher's own way through a restart",
        {
            "name": Field(
                TEXT,
                "failure_detected, worker_terminated, rendezvous_started, rendezvous_completed, worker_start_started, …",
            ),
            "cycle": Field(INTEGER, "restarts of the whole job by launchers; from failure_detected on the next one"),
            "node": Field(TEXT, "the launcher's name among the nodes: HOST_PID_NUMBER"),
            "group_rank": Field(INTEGER, "of this node among the nodes, once it has one"),
            "told_wall": Field(NUMBER, "when, by the launcher itself: seconds since 1970"),
        },
    ),
    "launcher_cycle": Kind(
        "NVRx 0.6 and later, with `--ft-cycle-info-dir`: who takes part in a cycle, from its cycle-info file",
        {
            "cycle": Field(INTEGER, "restarts of the whole job by launchers"),
            "attempt": Field(INTEGER, "restarts of the job by Slurm"),
            "began_wall": Field(NUMBER, "when its nodes had found each other: seconds since 1970"),
            "active_nodes": Field(TEXT, "as a Slurm node list: `node[1-3,7]`"),
            "standby_nodes": Field(TEXT, "likewise, those that wait"),
            "active_ranks": Field(TEXT, "group ranks of the active nodes, in the order of their names"),
        },
    ),
    "launcher_exited": Kind("the launcher ended", {"exit_code": Field(INTEGER, "negative is a signal")}),
}


@dataclass(frozen=True)
class Event:
    """One parsed journal line; `fields` holds what its kind defines and the line really had, types checked."""

    kind: str
    n: int
    wall: float
    mono: float
    life: int
    incarnation: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


class BadLineError(ValueError):
    """A journal line that is no event.

    Attributes:
        reason: `torn`, `too_long`, `version`, `malformed` or `unknown_kind`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def encode(event: Event) -> bytes:
    """One line, newline included."""
    line: dict[str, Any] = {"v": VERSION, "kind": event.kind, "n": event.n, "wall": round(event.wall, 6)}
    line |= {"mono": round(event.mono, 6), "life": event.life}
    if event.incarnation is not None:
        line["incarnation"] = event.incarnation
    line |= {name: value for name, value in event.fields.items() if value is not None}
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=True, skipkeys=True, default=plain)
    return text.encode() + b"\n"


def plain(value: Any) -> Any:
    """Another library's number (numpy's, a tensor) as Python's.

    Raises:
        TypeError: it is no number.
    """
    with contextlib.suppress(Exception):
        found = value.item()
        if isinstance(found, (int, float)):
            return found
    with contextlib.suppress(Exception):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no number")


def parse(line: bytes, *, most: int | None = MAX_LINE_BYTES) -> Event:
    """The event in one line, with or without its newline; `most`: bytes, None where a reader encoded what it had parsed.

    Raises:
        BadLineError: the line is no event that this version understands.
    """
    if most is not None and len(line) > most:
        raise BadLineError("too_long")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError("torn") from error
    if not isinstance(data, dict):
        raise BadLineError("malformed")
    if data.get("v") != VERSION:
        raise BadLineError("version")
    common = _checked(data, COMMON_FIELDS)
    if not common.keys() >= _NEEDED:
        raise BadLineError("malformed")
    kind = KINDS.get(common["kind"])
    if kind is None:
        raise BadLineError("unknown_kind")
    try:
        wall, mono = float(common["wall"]), float(common["mono"])
    except OverflowError as error:  # a whole number of hundreds of digits
        raise BadLineError("malformed") from error
    return Event(
        kind=common["kind"],
        n=common["n"],
        wall=wall,
        mono=mono,
        life=common["life"],
        incarnation=common.get("incarnation"),
        fields=MappingProxyType(_checked(data, kind.fields)),
    )


def _checked(data: dict[str, Any], known: Mapping[str, Field]) -> dict[str, Any]:
    """The known fields that are there and of their type (a bool is no number, nor are NaN and infinity)."""
    found = {}
    for name, value in data.items():
        spec = known.get(name)
        if spec is not None and spec.types == INTEGER and isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0: a count that somebody divided
        if spec is None or not isinstance(value, spec.types):
            continue
        if isinstance(value, float):
            if math.isfinite(value):
                found[name] = value
        elif not isinstance(value, bool) or bool in spec.types:
            found[name] = value if isinstance(value, int) else _bounded(value)
    return found


def _bounded(value: Any, depth: int = 0) -> Any:
    """The value cut to what a reader can hold many of: parsed JSON takes up to thirty times the memory of its text."""
    if isinstance(value, str):
        return _encodable(value[:MAX_TEXT_CHARACTERS])
    if isinstance(value, (list, dict)) and depth == MAX_DEPTH:
        return None
    if isinstance(value, list):
        return [_bounded(item, depth + 1) for item in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {_encodable(key): _bounded(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
    return value


def _encodable(text: str) -> str:
    """The text with half surrogate pairs replaced: JSON can hold them, no encoding of a label can."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
