"""Which observations are evidence of a failure, and of what sort; what they mean together is decided in `causes`."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.labels import CAUSES
from headway_exporter.scene import IN_PHASE, Evidence, EvidenceKind, Marker

if TYPE_CHECKING:
    from headway.events import Event
    from headway_exporter.observations import DeathSeen
    from headway_exporter.slots import Slot

_PASSING: Final = frozenset({"RankShouldRestart", "SystemExit", "KeyboardInterrupt", "GeneratorExit"})
"""Exceptions that carry out somebody's decision: they tell that something ended, not why."""
_TEXT_LIMIT: Final = 160
_PATH_LIMIT: Final = 1_024
_TRACEBACK_LIMIT: Final = 2_000
_VARIABLE: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")
"""Numbers and addresses: what differs between two failures of one kind."""
_FOREIGN: Final = re.compile(r"[/\\](site-packages|dist-packages|lib/python3\.\d+)[/\\]|\(<frozen ")
"""Frames of installed packages and of the standard library."""
_MOST_RECORDS: Final = 256


def from_slot(slot: Slot, event: Event) -> Evidence | None:
    """What an event of a trainer process tells of a failure, if anything."""
    if event.kind == "fault_caught":
        return _caught(slot, event)
    if event.kind == "interruption":
        records = tuple(_records(event.fields.get("records", ())))
        return _evidence("interruption", event, f"NVRx: {_spell(records)}", slot.number, records=records)
    return None


def from_launcher(slot: Slot | None, event: Event) -> Evidence | None:
    """What an event of the launcher tells of a failure, if anything; `slot` is the one that it names."""
    fields = event.fields
    if event.kind == "worker_exited":
        return _worker_exited(slot, event)
    if event.kind == "heartbeat_missed":
        waited = fields.get("waited_seconds")
        text = f"no {fields.get('which', '')} heartbeat" + ("" if waited is None else f" for {waited:g} s")
        return _evidence("heartbeat", event, text, None if slot is None else slot.number)
    if event.kind == "worker_group_failed":
        left, limit = fields.get("restarts_left", "?"), fields.get("restarts_limit", "?")
        return _evidence("group_failed", event, f"worker group failed, {left} of {limit} restarts were left")
    if event.kind == "restart_joined":
        waiting = fields.get("nodes_waiting")
        why = "that another node began" if waiting is None else f"for {waiting} nodes that wait to join"
        return _evidence("joined", event, f"launcher joined a restart {why}")
    if event.kind == "launcher_exited" and fields.get("exit_code", 0) != 0:
        code = fields["exit_code"]
        return _evidence("launcher_exit", event, f"launcher ended: {exit_text(code)}", exit_code=code)
    return None


def late_exit(slot: Slot, event: Event) -> Evidence | None:
    """What the launcher tells of a process when another one has taken its place already."""
    code, pid = event.fields.get("exit_code", 0), event.fields.get("pid")
    if event.kind != "worker_exited" or code == 0 or slot.replaced(pid) is None:
        return None
    return _evidence("exit", event, f"rank {slot.rank}: {exit_text(code)}", slot.number, exit_code=code)


def from_death(slot: Slot, seen: DeathSeen, wall: float) -> Evidence | None:
    """What the end of a process tells of a failure; one that said it was about to end tells nothing."""
    if slot.left_in_order or slot.finished:
        return None
    how = {"lock": "its lock was released", "found": "found dead", "replaced": "replaced", "silence": "silent"}[seen.by]
    return Evidence(
        "death",
        seen.mono,
        wall,
        f"process of rank {slot.rank} died ({how})",
        slot.number,
        terminated=slot.terminated,
        silent_seconds=0.0 if seen.by == "silence" else _silence(slot, seen.mono),  # then nobody knows when it died
        dated=seen.by == "lock",
    )


def launcher_stop(event: Event) -> Evidence | None:
    """The launcher was told to end."""
    number = event.fields.get("signal")
    if event.kind != "signal" or number not in (signal.SIGTERM, signal.SIGINT):
        return None
    return _evidence("stop", event, f"launcher got {event.fields.get('name', number)}")


def out_of_memory(at: float, wall: float, kills: int) -> Evidence:
    """The kernel's own count rose in the trainer's container."""
    return Evidence(
        "oom", at, wall, f"the kernel killed a process of the container for lack of memory ({kills} so far)"
    )


def trace(slot: Slot, event: Event) -> Evidence:
    """A rank's last collectives are in a file."""
    path, size = event.fields.get("path", "")[:_PATH_LIMIT], event.fields.get("bytes")
    told = "" if size is None else f" of {size} bytes"
    words = f"rank {slot.rank}: NCCL trace{told} in "
    return Evidence(
        "trace", event.mono, event.wall, words + path[-_TEXT_LIMIT:], slot.number, path=path, size_bytes=size
    )


def unexplained(kind: EvidenceKind, at: float, wall: float, slot: int, text: str) -> Evidence:
    """A new beginning that nobody announced is itself the first sign of an end."""
    return Evidence(kind, at, wall, text, slot)


def marker(slot: Slot, state: str | None = None) -> Marker:
    """Where the rank stands now; `state` is the ledger's word for what it does."""
    return Marker(
        slot=slot.number,
        rank=slot.rank,
        initial_rank=slot.initial_rank,
        step=slot.step,
        step_end=slot.step_end,
        sampled=slot.sampled,
        in_collective=slot.in_collective,
        hard_timeout=slot.hard_timeout,
        phase=state if state in IN_PHASE else None,
        gpu=slot.gpu_uuid[:_TEXT_LIMIT],
        began=slot.entered or slot.started,
    )


def exit_text(code: int) -> str:
    """An exit code for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _evidence(kind: EvidenceKind, event: Event, text: str, slot: int | None = None, **more: Any) -> Evidence:
    shown = text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 1]}…"
    return Evidence(kind, event.mono, event.wall, shown, slot, **more)


def _caught(slot: Slot, event: Event) -> Evidence:
    fields = event.fields
    name = fields.get("type", "exception").rpartition(".")[2]
    message = fields.get("message", "").partition("\n")[0]
    text = f"rank {slot.rank}: {name}" + (f": {message}" if message else "")
    kind: EvidenceKind = "echo" if fields.get("collective") else "interrupted" if name in _PASSING else "exception"
    category = fields.get("category")
    return _evidence(
        kind,
        event,
        text,
        slot.number,
        category=category if category in CAUSES else None,
        signature=_signature(name, message, fields.get("traceback", "")),
        traceback=fields.get("traceback", "")[-_TRACEBACK_LIMIT:],
    )


def _signature(name: str, message: str, traceback: str) -> str:
    """What two exceptions of one kind have in common: type, message without what varies, innermost frame of one's own."""
    frames = [line.strip() for line in traceback.splitlines() if line.strip()]
    own = next((frame for frame in reversed(frames) if not _FOREIGN.search(frame)), "")
    return f"{name}: {_VARIABLE.sub('#', message)[:_TEXT_LIMIT]} {own[-_TEXT_LIMIT:]}".strip()


def _worker_exited(slot: Slot | None, event: Event) -> Evidence | None:
    code = event.fields.get("exit_code", 0)
    if code == 0 or slot is None or slot.finished:
        return None
    pid = event.fields.get("pid")
    if pid is not None and pid != slot.pid and pid in slot.former_pids:
        return None  # old news: that life was followed by another
    return _evidence(
        "exit",
        event,
        f"rank {slot.rank}: {exit_text(code)}",
        slot.number,
        exit_code=code,
        terminated=slot.terminated,
        silent_seconds=_silence(slot, event.mono),
    )


def _silence(slot: Slot, at: float) -> float:
    return at - max(slot.step_end, slot.entered or slot.started)


def _records(records: Any) -> list[tuple[int, str]]:
    """NVRx's records, as far as they make sense."""
    pairs = [(item.get("rank"), item.get("kind")) for item in records[:_MOST_RECORDS] if isinstance(item, dict)]
    return [(rank, kind) for rank, kind in pairs if isinstance(rank, int) and isinstance(kind, str)]


def _spell(records: tuple[tuple[int, str], ...]) -> str:
    return ", ".join(f"rank {rank} {kind}" for rank, kind in records[:8]) or "no records"
