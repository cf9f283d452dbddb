"""The asynchronous checkpointer over a real `AsyncCallsQueue` with a real writer process, on CPU.

The writes are functions that a spawned process can import; `/dev/full` is a disk that is always full.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.journal import JournalReader
from headway.nvrx import writer
from headway.recorder import Recorder

pytest.importorskip("nvidia_resiliency_ext")
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest

from headway.nvrx.checkpointing import AsyncCheckpointer, async_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.alone

SECONDS = 60.0


class Journal:
    """What the recorder wrote since the last look."""

    def __init__(self, path: Path) -> None:
        self._reader = JournalReader(path)

    def new(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self._reader.poll() if event.kind == kind]

    def stages(self) -> list[tuple[str, int]]:
        return [(fields["stage"], fields["step"]) for fields in self.new("checkpoint")]

    def close(self) -> None:
        self._reader.close()


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    folder = tmp_path_factory.mktemp("journal")
    recorder = Recorder.from_env(environ={"HEADWAY_DIR": str(folder), "HEADWAY_RUN": "r"})
    assert recorder.enabled
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield recorder
    dist.destroy_process_group()
    recorder.close()


@pytest.fixture(scope="module")
def checkpointer(recorder: Recorder) -> Iterator[AsyncCheckpointer]:
    """One for all tests: a writer takes seconds to start, so a test leaves the one it has to the next."""
    checkpointer = AsyncCheckpointer(recorder, async_queue)
    yield checkpointer
    checkpointer.close(0.0)


@pytest.fixture
def journal(recorder: Recorder) -> Iterator[Journal]:
    journal = Journal(recorder.identity.folder / "slot-0.jsonl")
    journal.new("")
    yield journal
    journal.close()


def to_file(path: Path, finalize: list[Callable[[], Any]] | None = None) -> Any:
    return AsyncRequest(torch.save, (torch.ones(3), path), finalize or [])


def sleep(seconds: float, finalize: list[Callable[[], Any]] | None = None) -> Any:
    return AsyncRequest(time.sleep, (seconds,), finalize or [])


FULL_DISK = AsyncRequest(Path("/dev/full").write_bytes, (b"shard",), [])


def gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def wait_for(probe: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not probe():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_before_the_first_save(checkpointer: AsyncCheckpointer) -> None:
    """Nothing is started, and nothing reported, before the first save."""
    assert (checkpointer.poll(), checkpointer.take_failed(), checkpointer.depth) == ([], [], 0)
    assert (checkpointer.writer_alive, checkpointer.writer_pid, checkpointer.oldest_wall) == (None, None, None)


def test_saves_are_written_in_order(checkpointer: AsyncCheckpointer, tmp_path: Path) -> None:
    """Each save is reported once, in order, with the queue's depth on the way, and its finalize functions run."""
    finalized: list[int] = []
    for step in (1, 2):
        request = to_file(tmp_path / str(step), [functools.partial(finalized.append, step)])
        checkpointer.schedule(step, request, size_bytes=12)
    assert checkpointer.depth == 2
    assert checkpointer.oldest_wall == pytest.approx(time.time(), abs=SECONDS)
    assert checkpointer.drain(SECONDS) == [1, 2]
    assert finalized == [1, 2]
    assert torch.equal(torch.load(tmp_path / "2"), torch.ones(3))
    assert (checkpointer.depth, checkpointer.oldest_wall, checkpointer.writer_alive) == (0, None, True)
    assert checkpointer.take_failed() == []


def test_events_of_a_save(checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path) -> None:
    """The journal tells when a save was asked for, how long training was blocked, and when it was written."""
    checkpointer.schedule(3, to_file(tmp_path / "3"), size_bytes=12)
    checkpointer.drain(SECONDS)
    events = journal.new("checkpoint")
    assert [event["stage"] for event in events] == ["requested", "staged", "written"]
    assert all(event["bytes"] == 12 for event in events)
    assert all(event["seconds"] >= 0 for event in events[1:])


def written_unnoticed(checkpointer: AsyncCheckpointer, journal: Journal, first: int, folder: Path) -> list[int]:
    """Saves one after the other, without a poll, until the first of them is seen to be written; returns all."""
    steps, stages = list[int](), list[tuple[str, int]]()
    while ("written", first) not in stages:
        assert len(steps) < 600, "waited in vain"
        steps.append(first + len(steps))
        checkpointer.schedule(steps[-1], to_file(folder / str(steps[-1])))
        time.sleep(0.1)
        stages += journal.stages()
    return steps


def test_a_save_that_the_next_one_finds_written_is_told(
    checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path
) -> None:
    """Scheduling looks at the writer too: what it sees there must not be lost, or that checkpoint would never become durable."""
    steps = written_unnoticed(checkpointer, journal, 1000, tmp_path)
    assert checkpointer.drain(SECONDS) == steps


def test_what_was_given_up_is_not_told_later(checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path) -> None:
    """An older incarnation's save must not pass for one of the same step by the next."""
    written_unnoticed(checkpointer, journal, 2000, tmp_path)
    checkpointer.abandon("its incarnation ended")
    assert checkpointer.poll() == []
    assert checkpointer.drain(SECONDS) == []


def test_write_that_raises(checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path) -> None:
    """A full disk fails the save that met it, with its text; the save behind is aborted; the next one gets a new writer."""
    first = checkpointer.writer_pid
    checkpointer.schedule(4, FULL_DISK)
    checkpointer.schedule(5, to_file(tmp_path / "5"))
    assert checkpointer.drain(SECONDS) == []
    failed = checkpointer.take_failed()
    assert [step for step, _ in failed] == [4, 5]
    assert failed[0][1].startswith("write_error: OSError: [Errno 28]")
    assert checkpointer.writer_alive is False
    assert [pair for pair in journal.stages() if pair[0] in {"failed", "aborted"}] == [("failed", 4), ("aborted", 5)]
    checkpointer.schedule(6, to_file(tmp_path / "6"))
    assert checkpointer.drain(SECONDS) == [6]
    assert checkpointer.writer_pid != first


def test_writer_that_is_killed(checkpointer: AsyncCheckpointer, journal: Journal) -> None:
    """A writer that the kernel kills is noticed by a poll that does not wait, and its exit code is on record."""
    checkpointer.schedule(7, sleep(600))
    pid = checkpointer.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: checkpointer.writer_alive is False)
    assert checkpointer.poll() == []
    assert checkpointer.take_failed() == [(7, "writer_killed: SIGKILL")]
    assert journal.new("queue")[-1] == {
        "depth": 0,
        "writer_alive": False,
        "writer_pid": pid,
        "writer_exit_code": -signal.SIGKILL,
    }


def test_abandoned_save(checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path) -> None:
    """After an in-process restart a stale result finalizes nothing and is no success, and the writer stays warm."""
    finalized: list[int] = []
    checkpointer.schedule(8, sleep(0.5, [functools.partial(finalized.append, 8)]))
    pid = checkpointer.writer_pid
    checkpointer.abandon("restart")
    assert checkpointer.depth == 0
    checkpointer.schedule(8, to_file(tmp_path / "8", [functools.partial(finalized.append, 80)]))
    assert checkpointer.drain(SECONDS) == [8]
    assert finalized == [80]
    assert checkpointer.writer_pid == pid
    assert journal.stages() == [
        (stage, 8) for stage in ("requested", "staged", "aborted", "requested", "staged", "written")
    ]
    assert checkpointer.take_failed() == []


def test_finalize_function_that_raises(checkpointer: AsyncCheckpointer, journal: Journal, tmp_path: Path) -> None:
    """A save whose finalize function fails is a failed save, not the end of training."""

    def explode() -> None:
        raise ValueError("not today")

    checkpointer.schedule(9, to_file(tmp_path / "9", [explode]))
    assert checkpointer.drain(SECONDS) == []
    assert checkpointer.take_failed() == [(9, "finalize_error: ValueError: not today")]
    assert ("failed", 9) in journal.stages()


def test_request_that_is_not_taken(checkpointer: AsyncCheckpointer, journal: Journal) -> None:
    """NVRx's own refusal reaches the caller, and the journal shows that the save failed."""
    broken = AsyncCheckpointer(checkpointer._recorder, lambda: AsyncCallsQueue(persistent=False))
    with pytest.raises(ValueError, match="persistent=True"):
        broken.schedule(10, sleep(0))
    assert journal.stages() == [("requested", 10), ("failed", 10)]
    assert broken.poll() == []


def test_queue_closed_elsewhere(checkpointer: AsyncCheckpointer) -> None:
    """When something else ends the writer (NVRx's abort of checkpoints), the save fails instead of being finalized."""
    checkpointer.schedule(11, sleep(600))
    calls = writer.calls_queue(checkpointer._target)
    calls.persistent_caller.process.kill()
    calls.persistent_caller.process.join()
    calls.persistent_caller.process = None
    assert checkpointer.poll() == []
    assert [step for step, _ in checkpointer.take_failed()] == [11]


def test_drain_and_close_have_a_deadline(checkpointer: AsyncCheckpointer, journal: Journal) -> None:
    """A write that never ends delays neither drain nor close beyond their deadline; the writer is gone, the save aborted."""
    checkpointer.schedule(12, sleep(600))
    pid = checkpointer.writer_pid
    assert pid is not None
    assert checkpointer.drain(0.0) == []
    assert checkpointer.depth == 1
    checkpointer.close(0.1)
    assert gone(pid)
    assert journal.stages()[-1] == ("aborted", 12)


def test_close_lets_an_idle_writer_leave(recorder: Recorder, tmp_path: Path) -> None:
    """With nothing queued the writer ends by itself, so that it can release what it holds; closing twice is fine."""
    checkpointer = AsyncCheckpointer(recorder, async_queue)
    checkpointer.schedule(13, to_file(tmp_path / "13"))
    checkpointer.close(SECONDS)
    assert (tmp_path / "13").exists()
    assert checkpointer._process is not None
    assert checkpointer._process.exitcode == 0
    checkpointer.close(0.0)


TRAINER = """
import sys, time
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
from headway.nvrx.checkpointing import AsyncCheckpointer, async_queue
from headway.recorder import Recorder

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    checkpointer = AsyncCheckpointer(Recorder.from_env(), async_queue)
    checkpointer.schedule(1, AsyncRequest(time.sleep, (0,), []))
    checkpointer.drain(60)
    checkpointer.schedule(2, AsyncRequest(time.sleep, (600,), []))
    print(checkpointer.writer_pid, flush=True)
    sys.stdin.readline()
    raise SystemExit(9)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A trainer whose writer is in the middle of a write that never ends."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    environ = {**os.environ, "HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        text=True,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process
        process.kill()


def writer_of(trainer: subprocess.Popen[str]) -> int:
    assert trainer.stdout is not None
    return int(trainer.stdout.readline())


def test_interpreter_exit_does_not_wait_for_the_writer(trainer: subprocess.Popen[str]) -> None:
    """An uncaught exception ends the trainer, and its writer with it, although 0.4.1's writer is no daemon."""
    pid = writer_of(trainer)
    assert trainer.stdin is not None
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    assert trainer.wait(SECONDS) == 9
    wait_for(lambda: gone(pid))


def test_writer_ends_with_a_killed_trainer(trainer: subprocess.Popen[str]) -> None:
    """Writers do not pile up, each with torch in memory, when the launcher restarts a killed trainer again and again."""
    pid = writer_of(trainer)
    trainer.kill()
    trainer.wait(SECONDS)
    wait_for(lambda: gone(pid))
