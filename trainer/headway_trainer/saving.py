"""Taking checkpoints: who writes what, and when all ranks may call one durable.

A save passes the same stages on every rank:

    writing → written on every rank → published by rank 0 → committed
         ↘ failed on any rank → given up by all

No rank decides alone. Each adds its `ballot` for the oldest save to the all-reduce that every step makes for the loss anyway, and acts on
the `count`: all ballots are the same sums, so all ranks take the same turn at the same step, without a collective of their own and
without waiting for the slowest disk. Every save has a folder of its own, named after the incarnation: what an older incarnation still
writes can never end up in a newer one's checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway_trainer import checkpoint
from headway_trainer.writing import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from headway import Recorder
    from headway.nvrx.checkpointing import AsyncCheckpointer
    from headway_trainer.config import CheckpointConfig
    from headway_trainer.faults import FaultInjector
    from headway_trainer.group import Group

logger = logging.getLogger(__name__)

BALLOT_SIZE: Final = 3
MAX_PENDING_SAVES: Final = 2
"""Each pending save holds a copy of this rank's shard in memory; when the disk cannot keep up, saves are skipped."""


@dataclass
class _Save:
    step: int
    folder: Path
    started: float
    shard_bytes: int = 0
    written: bool = False
    failed: bool = False
    published: bool = False


class Saver:
    """Takes this incarnation's checkpoints.

    Args:
        config: where, how often, how many to keep.
        group: the ranks that must all have written.
        recorder: is told every stage.
        injector: may spoil a write.
        checkpointer: writes in another process; None writes here and blocks.
        facts: goes into the manifest (what a later run must match).
        write_bytes_per_second: slows writes down to that; 0: not at all.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        group: Group,
        recorder: Recorder,
        injector: FaultInjector,
        checkpointer: AsyncCheckpointer | None,
        facts: dict[str, Any],
        write_bytes_per_second: float = 0.0,
    ) -> None:
        self._config = config
        self._group = group
        self._recorder = recorder
        self._injector = injector
        self._checkpointer = checkpointer
        self._facts = facts
        self._write_bytes_per_second = write_bytes_per_second
        self._root = Path(config.directory)
        self._pending: deque[_Save] = deque()

    def due(self, step: int, last_step: int) -> bool:
        """Whether a checkpoint belongs after `step`; the last step always gets one."""
        return self._config.mode != "off" and (step % self._config.every == 0 or step == last_step)

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, pulse: Callable[[], None]) -> None:
        """Start one; blocks for the copy (async) or for the write (sync)."""
        if self._config.backlog == "wait":
            self._wait_for_room(pulse)
        if len(self._pending) >= MAX_PENDING_SAVES:
            self._recorder.checkpoint("requested", step=step)
            self._recorder.checkpoint("aborted", step=step, reason="backlog: earlier saves are still being written")
            return
        folder = checkpoint.save_folder(self._root, step, self._group.incarnation[:8])
        save = _Save(step, folder, started=time.monotonic())
        self._pending.append(save)
        with self._recorder.phase("checkpoint_save"):
            shard = checkpoint.local_shard(model, optimizer, step=step)
            save.shard_bytes = tensor_bytes(shard)
            arguments = (
                shard,
                str(folder),
                self._group.rank,
                self._group.world_size,
                self._injector.storage_fault(step),
                self._write_bytes_per_second,
            )
            if self._checkpointer is None:
                self._write_here(save, arguments)
            else:
                self._hand_over(save, arguments, self._checkpointer)
            pulse()

    def ballot(self) -> list[float]:
        """This rank's word on the oldest save: written, failed, published."""
        self._look_at_writer()
        if not self._pending:
            return [0.0] * BALLOT_SIZE
        oldest = self._pending[0]
        return [float(oldest.written), float(oldest.failed), float(oldest.published)]

    def count(self, totals: Sequence[float]) -> None:
        """Act on the sum of all ballots."""
        if not self._pending:
            return
        written, failed, published = totals
        oldest = self._pending[0]
        if failed:
            self._give_up(self._pending.popleft())
        elif published:
            self._commit(self._pending.popleft())
        elif written == self._group.world_size and self._group.rank == 0:
            self._publish(oldest)

    def finish(self, pulse: Callable[[], None]) -> None:
        """At the end of the run: wait until every pending save is decided, at most `finish_timeout_seconds`."""
        if self._pending:
            with self._recorder.phase("checkpoint_save"):  # the run stands still for it, and is not stalled
                self._decide(pulse, left=0)
        for save in self._pending:
            self._recorder.checkpoint("aborted", step=save.step, reason="the run ended before it was written")
            logger.warning("checkpoint of step %d was still being written when the run ended: it is lost", save.step)
        self._pending.clear()

    def _wait_for_room(self, pulse: Callable[[], None]) -> None:
        """Every rank has the same saves pending, so all of them wait here, or none."""
        if len(self._pending) >= MAX_PENDING_SAVES:
            with self._recorder.phase("checkpoint_save"):
                self._decide(pulse, left=MAX_PENDING_SAVES - 1)

    def _decide(self, pulse: Callable[[], None], left: int) -> None:
        """Until no more than `left` saves are pending, at most `finish_timeout_seconds`."""
        interval = 0.02
        for _ in range(int(self._config.finish_timeout_seconds / interval)):
            if len(self._pending) <= left:
                return
            pulse()
            self.count(self._group.total(self.ballot()))
            time.sleep(interval)

    def _write_here(self, save: _Save, arguments: tuple[Any, ...]) -> None:
        self._recorder.checkpoint("requested", step=save.step)
        try:
            checkpoint.write_shard(*arguments)
        except (OSError, checkpoint.CheckpointError) as error:
            save.failed = True
            self._recorder.checkpoint("failed", step=save.step, reason=str(error))
        else:
            save.written = True
            seconds = time.monotonic() - save.started
            self._recorder.checkpoint("written", step=save.step, seconds=seconds, bytes=save.shard_bytes)

    def _hand_over(self, save: _Save, arguments: tuple[Any, ...], checkpointer: AsyncCheckpointer) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest  # this mode alone needs it

        request = AsyncRequest(checkpoint.write_shard, arguments, [])
        checkpointer.schedule(save.step, request, size_bytes=save.shard_bytes)
        self._injector.after_schedule(save.step, checkpointer.writer_pid)

    def _look_at_writer(self) -> None:
        if self._checkpointer is None or not self._pending:
            return
        done = set(self._checkpointer.poll())
        lost = dict(self._checkpointer.take_failed())
        for save in self._pending:
            save.written |= save.step in done
            save.failed |= save.step in lost

    def _publish(self, save: _Save) -> None:
        world_size, save_id = self._group.world_size, self._group.incarnation[:8]
        try:
            with self._recorder.phase("checkpoint_save"):
                checkpoint.publish(save.folder, save.step, world_size, save_id, self._facts)
        except (OSError, checkpoint.CheckpointError) as error:
            save.failed = True
            self._recorder.checkpoint("failed", step=save.step, reason=str(error))
        else:
            save.published = True

    def _commit(self, save: _Save) -> None:
        seconds = time.monotonic() - save.started
        self._recorder.checkpoint("committed", step=save.step, bytes=save.shard_bytes, seconds=seconds, verified=True)
        if self._group.rank == 0:
            keep, protect = self._config.keep, [pending.folder for pending in self._pending]
            # Removing files on a shared file system can take long, and nothing waits for it.
            threading.Thread(target=checkpoint.prune, args=(self._root, keep, protect), daemon=True).start()
        self._injector.after_commit(save.step, save.folder)

    def _give_up(self, save: _Save) -> None:
        if not save.failed:
            self._recorder.checkpoint("aborted", step=save.step, reason="another rank could not write its shard")
        if self._group.rank == 0:
            logger.warning("checkpoint of step %d failed on some rank and is given up; training goes on", save.step)
