"""Injects the faults of a schedule into this rank, each exactly as often as it says, across restarts of every kind.

Before a fault strikes, a marker is created in the state folder (``fault-<index>-<kind>-<count>``, create-exclusive,
synced), so that a restarted process, or a restarted pod, knows that it is done. The markers also tell afterwards what
was injected, and when (`fired_faults`). All of it is deterministic: the same schedule strikes at the same steps on the
same ranks.

The loop calls `before_step`, `data_stall_seconds`, `slow_step_seconds` and `poison_loss` with the step it is about to
execute, and around saves `storage_fault`, `after_schedule` and `after_commit` with the step that is saved. Without a
schedule each costs a dictionary look-up.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_trainer.catalogue import candidates
from headway_trainer.fault_schedule import (
    KINDS,
    Fault,
    Kind,
    Outcome,
    ScheduleError,
    check_schedule,
    load_schedule,
    parse_schedule,
    read_schedule,
)
from headway_trainer.storage import WriteFault, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import NoReturn

__all__ = [
    "KINDS",
    "Fault",
    "FaultInjector",
    "FiredFault",
    "InjectedFault",
    "Kind",
    "Outcome",
    "ScheduleError",
    "check_schedule",
    "fired_faults",
    "load_schedule",
    "parse_schedule",
    "read_schedule",
]

_log = logging.getLogger(__name__)
_DAMAGED_BYTES: Final = 64
_HANG_SLICE_SECONDS: Final = 0.05
_OUT_OF_MEMORY: Final = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.06 GiB is "
    "free. Including non-PyTorch memory, this process has 78.19 GiB memory in use. Of the allocated memory 74 GiB is "
    "allocated by PyTorch, and 3.11 GiB is reserved by PyTorch but unallocated. (injected)"
)


class InjectedFault(RuntimeError):  # noqa: N818 - it is no error of the program: a fault was asked for
    """The fault `exception`. It takes one text, so that NVRx can deep-copy it."""


@dataclass(frozen=True)
class FiredFault:
    """A fault that was injected: which, when, where."""

    fault: Fault
    wall: float
    step: int
    rank: int


@dataclass(frozen=True)
class _Armed:
    """A fault of this rank and its place in the schedule, which names its markers."""

    index: int
    fault: Fault

    def marker(self, count: int) -> str:
        return f"fault-{self.index}-{self.fault.kind}-{count}"


class FaultInjector:
    """The faults of one rank.

    Args:
        schedule: Of the whole run; the same, in the same order, after every restart.
        state_dir: Holds the markers; must outlive pods and must not be shared with another run.
        rank: This rank in the present world.
        world_size: Ranks in it; decides where faults without a rank strike.
        checkpoint_dir: Where `corrupt_checkpoint` looks for the newest one when no commit was seen since this process
            started.

    Raises:
        ScheduleError: The state folder cannot be used, or `pod_loss` is asked for without a supervisor.
    """

    def __init__(
        self,
        schedule: Sequence[Fault],
        state_dir: Path,
        rank: int,
        world_size: int,
        *,
        checkpoint_dir: Path | None = None,
    ) -> None:
        """Finds this rank's faults; makes the state folder if there is any fault at all."""
        self._state_dir = state_dir
        self._rank = rank
        self._checkpoint_dir = checkpoint_dir
        self._newest: Path | None = None
        self._corrupt_at_commit: list[_Armed] = []
        self._at_step: dict[int, list[_Armed]] = defaultdict(list)
        self._at_saves: dict[str, list[_Armed]] = defaultdict(list)
        if schedule:
            _prepare(schedule, state_dir)
        for index, fault in enumerate(schedule):
            if fault.target(world_size) == rank:
                by_saves = KINDS[fault.kind].at_saves
                where = self._at_saves[fault.kind] if by_saves else self._at_step[fault.step]
                where.append(_Armed(index, fault))
        self._actions = {
            "exception": self._raise,
            "cuda_oom": self._run_out_of_memory,
            "soft_hang": self._hang_softly,
            "hard_hang": self._hang,
            "sigkill": self._kill,
            "host_oom": self._kill,
            "exit": self._exit,
            "pod_loss": self._lose_pod,
        }

    def before_step(self, step: int) -> None:
        """Strikes with what stops the rank: raises, hangs, or does not return at all."""
        for armed in self._at_step.get(step, ()):
            action = self._actions.get(armed.fault.kind)
            if action is not None and self._claim(armed, step):
                action(armed.fault)
            elif armed.fault.kind == "corrupt_checkpoint":
                self._corrupt_or_wait(armed, step)

    def slow_step_seconds(self, step: int) -> float:
        """How much longer this step should take, in seconds."""
        return sum(armed.fault.seconds or 0.0 for armed in self._due("slow_step", step))

    def data_stall_seconds(self, step: int) -> float:
        """How much later the input of this step should come, in seconds."""
        return sum(armed.fault.seconds or 0.0 for armed in self._due("data_stall", step))

    def poison_loss(self, step: int) -> bool:
        """Whether the loss of this step should be NaN."""
        return len(list(self._due("nan_loss", step))) > 0

    def storage_fault(self, step: int) -> WriteFault | None:
        """What should go wrong while the shard of `step` is written; goes to `write_shard`."""
        slow = sum(armed.fault.seconds or 0.0 for armed in self._due_at_save("slow_storage", step))
        full = len(list(self._due_at_save("write_error", step))) > 0
        return WriteFault(slow, full) if slow or full else None

    def after_schedule(self, step: int, writer_pid: int | None) -> None:
        """Kills the writer if that is due; call it as soon as the writer has been given the save of `step`."""
        if writer_pid is None:
            return
        for _ in self._due_at_save("writer_killed", step):
            os.kill(writer_pid, signal.SIGKILL)

    def after_commit(self, step: int, folder: Path) -> None:
        """Remembers the newest checkpoint, and damages it if that was due before there was one."""
        self._newest = folder
        waiting, self._corrupt_at_commit = self._corrupt_at_commit, []
        for armed in waiting:
            if self._claim(armed, step):
                self._corrupt(folder)

    def _due(self, kind: str, step: int) -> Iterator[_Armed]:
        """The faults of that kind that strike now; each is marked as it is yielded."""
        for armed in self._at_step.get(step, ()):
            if armed.fault.kind == kind and self._claim(armed, step):
                yield armed

    def _due_at_save(self, kind: str, step: int) -> Iterator[_Armed]:
        for armed in self._at_saves.get(kind, ()):
            if armed.fault.step <= step and self._claim(armed, step):
                yield armed

    def _claim(self, armed: _Armed, step: int) -> bool:
        """Creates the next free marker; False when the fault has struck as often as it should."""
        for count in range(armed.fault.repeat):
            path = self._state_dir / armed.marker(count)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                continue
            note = {
                "fault": str(armed.fault),
                "wall": time.time(),
                "step": step,
                "rank": self._rank,
                "pid": os.getpid(),
            }
            try:
                os.write(fd, json.dumps(note).encode())
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_folder(self._state_dir)
            _log.warning("injecting the fault %s: step %d, rank %d", armed.fault, step, self._rank)
            return True
        return False

    def _raise(self, fault: Fault) -> NoReturn:
        raise InjectedFault(f"injected: {fault}")

    def _run_out_of_memory(self, _fault: Fault) -> NoReturn:
        import torch  # slow to import; who only reads schedules and markers does without

        raise torch.OutOfMemoryError(_OUT_OF_MEMORY)

    def _hang_softly(self, fault: Fault) -> None:
        """Returns to the interpreter all the time, so that an exception can be raised in this thread from outside."""
        deadline = time.monotonic() + (fault.seconds or 0.0)
        while time.monotonic() < deadline:
            time.sleep(_HANG_SLICE_SECONDS)

    def _hang(self, fault: Fault) -> None:
        time.sleep(fault.seconds or 0.0)

    def _kill(self, _fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self, fault: Fault) -> NoReturn:
        os._exit(fault.code or 0)

    def _lose_pod(self, _fault: Fault) -> None:
        from headway_trainer.orchestrator import POD_ROOT_VARIABLE, descendants, kill_below

        root = int(os.environ[POD_ROOT_VARIABLE])
        if os.getpid() not in descendants(root):
            raise ScheduleError(f"pod_loss: {POD_ROOT_VARIABLE}={root} is not above this process; nothing was killed")
        kill_below(root, spare=os.getpid())

    def _corrupt_or_wait(self, armed: _Armed, step: int) -> None:
        folder = self._newest or self._newest_on_disk()
        if folder is None:
            self._corrupt_at_commit.append(armed)
        elif self._claim(armed, step):
            self._corrupt(folder)

    def _newest_on_disk(self) -> Path | None:
        if self._checkpoint_dir is None:
            return None
        return next((checkpoint.folder for checkpoint in candidates(self._checkpoint_dir)), None)

    def _corrupt(self, folder: Path) -> None:
        shards = sorted(folder.glob("shard-*.pt"))
        _damage(shards[self._rank % len(shards)])
        os.kill(os.getpid(), signal.SIGKILL)


def fired_faults(state_dir: Path) -> list[FiredFault]:
    """What has been injected so far, in the order of time; a marker that a crash left empty is skipped."""
    fired = (_read_marker(path) for path in state_dir.glob("fault-*"))
    return sorted((entry for entry in fired if entry is not None), key=lambda entry: entry.wall)


def _read_marker(path: Path) -> FiredFault | None:
    try:
        note = json.loads(path.read_bytes())
        (fault,) = parse_schedule(note["fault"])
        return FiredFault(fault, float(note["wall"]), int(note["step"]), int(note["rank"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _prepare(schedule: Sequence[Fault], state_dir: Path) -> None:
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScheduleError(f"the folder for fault markers {state_dir} cannot be made: {error.strerror}") from error
    if not os.access(state_dir, os.W_OK | os.X_OK):
        raise ScheduleError(
            f"the folder for fault markers {state_dir} is not writable; faults would strike again for ever"
        )
    if any(fault.kind == "pod_loss" for fault in schedule):
        from headway_trainer.orchestrator import POD_ROOT_VARIABLE

        if not os.environ.get(POD_ROOT_VARIABLE, "").isdecimal():
            raise ScheduleError(
                "pod_loss needs a supervisor that starts the pod again: run the job below "
                "python -m headway_trainer.orchestrator"
            )


def _damage(path: Path) -> None:
    """Flips bits in the middle of a file; its size stays."""
    with path.open("r+b") as file:
        file.seek(max((path.stat().st_size - _DAMAGED_BYTES) // 2, 0))
        bytes_there = file.read(_DAMAGED_BYTES)
        file.seek(-len(bytes_there), os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in bytes_there))
