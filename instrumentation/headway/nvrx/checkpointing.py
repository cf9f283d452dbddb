"""An asynchronous checkpointer over NVRx's `AsyncCallsQueue` or `TorchAsyncCheckpoint` that notices when saves do not arrive.

What NVRx 0.4.1, 0.6.0 and 0.7.0 leave to the user: when a write raises or the writer process is killed, nothing is reported; a
non-blocking finalize then returns nothing for ever, a blocking one and `close()` never return, and new requests are still taken.
Here the writer's exit code is watched, nothing waits without a deadline, and a dead writer is replaced.

    checkpointer = AsyncCheckpointer(recorder, async_queue)
    checkpointer.schedule(step, AsyncRequest(write_shard, (shard, folder), []))   # CPU tensors: cloned first
    written = checkpointer.poll()                                                 # once a step; written locally, not yet durable
    failed = checkpointer.take_failed()
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import multiprocessing.util  # noqa: F401 - its exit handler waits for writers: imported first, it runs after ours
import os
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.nvrx import writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from headway.recorder import Recorder

_log = logging.getLogger("headway")

POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class _Save:
    """One accepted save. It is wanted while its generation is the checkpointer's; else it was given up."""

    step: int
    size_bytes: int | None
    generation: int
    accepted_wall: float
    accepted: float


def async_queue() -> Any:
    """An `AsyncCallsQueue` that works on this machine, with a persistent writer.

    Without a GPU, 0.6 and 0.7 need `cpu_shm_mode`, else the writer dies looking for its CUDA device.
    """
    import torch
    from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue

    extra: dict[str, Any] = {}
    if "cpu_shm_mode" in inspect.signature(AsyncCallsQueue.__init__).parameters and not torch.cuda.is_available():
        extra["cpu_shm_mode"] = True
    return AsyncCallsQueue(persistent=True, **extra)


class AsyncCheckpointer:
    """Schedules saves, and tells which were written and which never will be. One thread uses it.

    Args:
        recorder: gets `checkpoint` events (requested, staged, written, failed, aborted) and `queue` events.
        make_queue: makes an `AsyncCallsQueue` (`async_queue`) or a `TorchAsyncCheckpoint`; called again after a writer died.
    """

    def __init__(self, recorder: Recorder, make_queue: Callable[[], Any]) -> None:
        self._recorder = recorder
        self._make_queue = make_queue
        self._target: Any = None
        self._process: BaseProcess | None = None
        self._saves: deque[_Save] = deque()  # as in NVRx's queue, oldest first, those given up included
        self._generation = 0
        self._written: list[int] = []
        """Seen written, and not told yet by `poll()`."""
        self._failed: list[tuple[int, str]] = []
        self._written_at = 0.0
        self._reason_file = writer.reason_file()
        self._told: tuple[Any, ...] = ()
        self._at_exit = functools.partial(_end_at_exit, weakref.ref(self), os.getpid())

    @property
    def depth(self) -> int:
        """Saves that were accepted and neither written nor given up."""
        return sum(map(self._wanted, self._saves))

    @property
    def oldest_wall(self) -> float | None:
        """When the oldest of them was accepted, seconds since 1970."""
        return next((save.accepted_wall for save in self._saves if self._wanted(save)), None)

    @property
    def writer_alive(self) -> bool | None:
        """Whether the writer process lives; None before the first save."""
        return None if self._process is None else self._process.exitcode is None

    @property
    def writer_pid(self) -> int | None:
        """Process id of the newest writer, dead or alive."""
        return None if self._process is None else self._process.pid

    def schedule(self, step: int, request: Any, *, size_bytes: int | None = None) -> None:
        """Hands `request` (an `AsyncRequest`) to the writer; returns once it is staged. The first save starts the writer, about 2 s.

        Tensors on the CPU are moved to shared memory, not copied: clone them first, or a later optimizer step changes the file.

        Raises:
            Exception: what NVRx raises when it cannot take the request; the save is then recorded as failed.
        """
        watched = self._watched(request)
        self._accept(step, size_bytes, lambda target: writer.calls_queue(target).schedule_async_request(watched))

    def save(self, step: int, state_dict: Any, *args: Any, size_bytes: int | None = None, **kwargs: Any) -> None:
        """`TorchAsyncCheckpoint.async_save(state_dict, *args, **kwargs)`, which needs a GPU, as the save of `step`.

        Raises:
            Exception: what NVRx raises when it cannot take the save; it is then recorded as failed.
        """
        self._accept(step, size_bytes, lambda target: target.async_save(state_dict, *args, **kwargs))

    def poll(self) -> list[int]:
        """Steps whose local write finished since the last call; never waits. Also notices that the writer died.

        Written is not durable: other ranks' shards and the manifest are the caller's business.
        """
        self._look()
        written, self._written = self._written, []
        return written

    def take_failed(self) -> list[tuple[int, str]]:
        """Saves that will never be written, since the last call: (step, reason), oldest first."""
        failed, self._failed = self._failed, []
        return failed

    def drain(self, deadline_seconds: float) -> list[int]:
        """Like `poll()`, until nothing is queued or the deadline has passed; what is still queued then stays queued."""
        end = clock.monotonic() + deadline_seconds
        written = self.poll()
        while self.depth and clock.monotonic() < end:
            time.sleep(POLL_SECONDS)
            written += self.poll()
        return written

    def abandon(self, reason: str) -> None:
        """Gives up what is queued, after an in-process restart; a writer that lives stays for the next save.

        A save that the writer is still at runs to its end there, before the next one; its finalize functions are not called.
        """
        if self._target is not None and self.writer_alive is False:
            self._replace_writer()
        self._give_up(reason)
        self._failed.clear()
        self._written.clear()
        self._tell()

    def close(self, deadline_seconds: float) -> None:
        """Drains, then ends the writer; what is not written at the deadline is aborted. Takes at most 2 s longer than that."""
        end = clock.monotonic() + deadline_seconds
        self.drain(deadline_seconds)
        self._give_up("closed before it was written")
        self._end_writer(end - clock.monotonic())
        self._tell()

    def _accept(self, step: int, size_bytes: int | None, submit: Callable[[Any], Any]) -> None:
        self._look()  # a dead writer's queue would take the request and never write it
        self._recorder.checkpoint("requested", step=step, bytes=size_bytes)
        save = _Save(step, size_bytes, self._generation, clock.wall(), clock.monotonic())
        try:
            if self._target is None:
                self._target = self._fresh()
            submit(self._target)
        except Exception as error:
            self._recorder.checkpoint("failed", step=step, reason=f"not_accepted: {type(error).__name__}: {error}")
            raise
        finally:
            if self._target is not None:
                self._process = writer.process_of(writer.calls_queue(self._target))
        self._saves.append(save)
        self._recorder.checkpoint("staged", step=step, bytes=size_bytes, seconds=clock.monotonic() - save.accepted)
        self._tell()

    def _look(self) -> None:
        """Takes what the writer reported, and notices its death."""
        if self._target is None:
            return
        calls = writer.calls_queue(self._target)
        dead = (
            self._process is not None and self._process.exitcode is not None
        )  # asked first: what it reported is then complete
        # A queue that was closed elsewhere (NVRx's abort_nvrx_checkpoint) would finalize what was never written.
        closed = writer.process_of(calls) is not self._process
        if not closed:
            self._collect(calls)
        if dead or closed:
            self._replace_writer()
        self._tell()

    def _fresh(self) -> Any:
        target = self._make_queue()
        if not writer.calls_queue(target).persistent:
            raise ValueError(
                "AsyncCheckpointer needs a queue with persistent=True: the other kind hides that a write failed"
            )
        atexit.register(self._at_exit)
        return target

    def _watched(self, request: Any) -> Any:
        """The request with its write watched in the writer, and its finalize functions called only while the save is wanted."""
        if request.async_fn is not None:
            request = request._replace(async_fn=functools.partial(writer.write, self._reason_file, request.async_fn))
        return request._replace(
            finalize_fns=[functools.partial(self._finalize, self._generation, list(request.finalize_fns))]
        )

    def _finalize(self, generation: int, functions: list[Callable[[], Any]]) -> None:
        if generation == self._generation:
            for function in functions:
                function()

    def _wanted(self, save: _Save) -> bool:
        return save.generation == self._generation

    def _collect(self, calls: Any) -> None:
        """Takes what the writer reported. NVRx's indices are always 0; the count, first in first out, tells which saves they were."""
        problem = None
        try:
            calls.maybe_finalize_async_calls(
                blocking=False, no_dist=True
            )  # with no_dist=False it needs CUDA and all ranks
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything; it is a failed save
            _log.exception("a finalize function of a checkpoint failed")
            problem = f"finalize_error: {type(error).__name__}: {error}"
        done = [self._saves.popleft() for _ in range(len(self._saves) - calls.get_num_unfinalized_calls())]
        if problem is not None and done:
            self._lost("failed", done.pop(), problem)
        self._record_written([save for save in done if self._wanted(save)])
        if done:
            self._written_at = clock.monotonic()
        self._written += [save.step for save in done if self._wanted(save)]

    def _record_written(self, saves: list[_Save]) -> None:
        """How long a write took is known to a poll: from when the save was accepted, or the one before it was seen written."""
        now = clock.monotonic()
        for save in saves:
            seconds = now - max(save.accepted, self._written_at)
            self._recorder.checkpoint("written", step=save.step, bytes=save.size_bytes, seconds=seconds)

    def _lost(self, stage: str, save: _Save, reason: str) -> None:
        if self._wanted(save):
            self._recorder.checkpoint(stage, step=save.step, reason=reason)
            self._failed.append((save.step, reason))

    def _replace_writer(self) -> None:
        """The oldest save is the one that the writer died of; it had not begun those behind it. The next save makes a new queue."""
        process = self._process
        reason = "the queue was closed" if process is None else writer.why_it_ended(process, self._reason_file)
        _log.warning("the checkpoint writer ended (%s); the next save starts a new one", reason)
        for index, save in enumerate(self._saves):
            if index == 0:
                self._lost("failed", save, reason)
            else:
                self._lost("aborted", save, f"behind a failed save: {reason}")
        self._end_writer(0.0)

    def _give_up(self, reason: str) -> None:
        for save in self._saves:
            if self._wanted(save):
                self._recorder.checkpoint("aborted", step=save.step, reason=reason)
        self._generation += 1

    def _end_writer(self, graceful_seconds: float) -> None:
        if self._target is None:
            return
        target, self._target = self._target, None
        self._saves.clear()
        atexit.unregister(self._at_exit)
        writer.end(writer.calls_queue(target), self._process, graceful_seconds)

    def _tell(self) -> None:
        """A `queue` event when something about the queue changed."""
        code = None if self._process is None else self._process.exitcode
        now = (self.depth, self.oldest_wall, self.writer_alive, self.writer_pid, code)
        if now != self._told:
            self._told = now
            self._recorder.queue(
                depth=now[0], oldest_wall=now[1], writer_alive=now[2], writer_pid=now[3], writer_exit_code=code
            )


def _end_at_exit(reference: weakref.ref[AsyncCheckpointer], pid: int) -> None:
    """An interpreter that exits with a writer left waits for it for ever (0.4.1, whose writer is no daemon)."""
    checkpointer = reference()
    if checkpointer is not None and os.getpid() == pid:
        checkpointer._give_up("the process exited before it was written")
        checkpointer._end_writer(0.0)
