"""PyTorch Lightning: `Trainer(callbacks=[HeadwayCallback()])`, with `lightning` or `pytorch_lightning`, whichever is imported.

Lightning tells its callbacks neither when it waits for data nor when a save begins and ends, but it tells its profiler. So the callback
stands before the trainer's profiler while `fit` runs, passes everything on to it, and puts it back.

Only `fit` is recorded: `validate`, `test` and `predict` alone leave no trace.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from headway.adapters.loop import Loop, never_raises, number_of, turn
from headway.adapters.saves import Saves
from headway.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("headway")


def _callback_class() -> Any:
    """Lightning's `Callback`, of the package that is imported already if only one is.

    Raises:
        ModuleNotFoundError: there is no Lightning; the message says what to install.
    """
    names = ["lightning.pytorch", "pytorch_lightning"]
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        names.reverse()
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name).Callback
    raise ModuleNotFoundError(
        "headway.adapters.lightning needs PyTorch Lightning, which is not installed: pip install lightning",
        name="lightning",
    )


def tells_of_saves(version: str) -> bool:
    """Whether this Lightning tells its profiler when it saves. A form of version that nobody knows yet is a new one's."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is None or tuple(map(int, found.groups())) >= (2, 5)


_Callback: Any = _callback_class()
_VERSION: str = importlib.import_module(_Callback.__module__.partition(".")[0]).__version__
_NEXT_BATCH = ".train_dataloader_next"
_SAVE = "save_checkpoint"


class HeadwayCallback(_Callback):  # type: ignore[misc]  # Lightning may be missing where types are checked
    """Records what `fit` does; works beside NVRx's own Lightning callbacks. Must be given to the trainers of all ranks."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._saves: Saves | None = None
        self._losses: list[Any] = []
        self._restored: tuple[int, float] | None = None
        self._set_up = 0.0
        self._training = False
        self._global_step = 0

    # Lightning's hooks, in the order of a run.

    @never_raises
    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """The process group is there, the model's state is not."""
        if stage != "fit" or not turn.take(self, trainer):
            return
        if not tells_of_saves(_VERSION):
            _log.warning("Lightning %s tells nobody of its saves, so headway records none: 2.5 and later do", _VERSION)
        told = {"LOCAL_RANK": trainer.local_rank, "RANK": trainer.global_rank, "WORLD_SIZE": trainer.world_size}
        settings = {"total_steps": trainer.max_steps} if trainer.max_steps > 0 else {}
        recorder = Recorder.from_env(
            settings=settings, environ={name: str(value) for name, value in told.items()} | os.environ
        )
        self._loop = Loop(recorder)
        self._saves = Saves(self._loop)
        self._losses, self._restored, self._set_up, self._training = [], None, time.monotonic(), False
        self._loop.enter(rank=trainer.global_rank, world_size=trainer.world_size)
        trainer.profiler = _Listening(trainer, self)

    @never_raises
    def on_load_checkpoint(self, _trainer: Any, _module: Any, checkpoint: Any) -> None:
        """The checkpoint was read, and will be restored. The tuner's comes later, or is one of before the first step."""
        step = int(checkpoint["global_step"])
        if self._loop is not None and self._restored is None and step > 0:
            self._restored = (step, time.monotonic() - self._set_up)

    @never_raises
    def on_sanity_check_start(self, *_: Any) -> None:
        """A try of the validation before training: part of the start."""
        if self._loop is not None:
            self._loop.begin("init")

    @never_raises
    def on_sanity_check_end(self, *_: Any) -> None:
        """The try has ended."""
        if self._loop is not None:
            self._loop.end("init")

    @never_raises
    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Everything is restored, whoever restored it."""
        if self._loop is None:
            return
        self._training = True
        self._global_step = step = trainer.global_step
        restored, seconds = self._restored or (None, 0.0)
        self._loop.loaded(step, seconds=seconds if restored == step else None, known=restored is None)

    @never_raises
    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """A batch, or a micro-batch of an accumulated one."""
        if self._loop is not None:
            self._loop.work(trainer.global_step + 1)

    @never_raises
    def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
        """The optimizer has stepped if Lightning's count of its steps has moved."""
        if self._loop is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)
        step = trainer.global_step
        if step == self._global_step:
            return
        self._global_step = step
        losses, self._losses = self._losses, []
        due = trainer.log_every_n_steps > 0 and step % trainer.log_every_n_steps == 0
        self._loop.completed(step, self._sum(losses, due=due))
        self._look_for_saves(trainer)

    @never_raises
    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """Validation during training."""
        if self._loop is not None and not trainer.sanity_checking:
            self._loop.begin("eval")

    @never_raises
    def on_validation_end(self, *_: Any) -> None:
        """Validation has ended."""
        if self._loop is not None:
            self._loop.end("eval")

    @never_raises
    def on_train_epoch_end(self, *_: Any) -> None:
        """An epoch may end in the middle of an accumulation only where its steps are skipped."""
        if self._loop is not None:
            self._loop.leave()
            self._losses = []

    @never_raises
    def on_fit_end(self, trainer: Any, *_: Any) -> None:
        """`fit` reached its end in order: steps, epochs, early stopping. An interrupted one does not get here."""
        if self._loop is None:
            return
        self._loop.leave()
        self._look_for_saves(trainer)
        self._loop.finished(trainer.global_step)
        self._give_back(trainer)

    @never_raises
    def on_exception(self, trainer: Any, _module: Any, exception: BaseException) -> None:
        """`fit` ends with an exception; one that somebody asked for is no fault."""
        if self._loop is None:
            return
        self._loop.leave()
        self._look_for_saves(trainer)
        if not _asked_for(exception):
            self._loop.recorder.fault_caught(exception)
        self._give_back(trainer)

    @never_raises
    def teardown(self, trainer: Any, _module: Any, stage: str) -> None:
        """`fit` is over. One of which no end was told only looked for a learning rate or a batch size."""
        if self._loop is None or stage != "fit":
            return
        self._loop.leave_untrained()
        self._give_back(trainer)

    def __getstate__(self) -> dict[str, Any]:
        """A process that Lightning spawns makes its own recorder."""
        return self.__dict__ | {"_loop": None, "_saves": None, "_losses": []}

    # What the profiler is told.

    @never_raises
    def action_began(self, trainer: Any, action: str) -> None:
        """Lightning begins what it tells its profiler of; what its tuner tries, with callbacks of its own, is no training."""
        if self._loop is None or self._saves is None or not self._training or self not in trainer.callbacks:
            return
        if action.endswith(_NEXT_BATCH):
            self._look_for_saves(trainer)
            self._loop.wait(trainer.global_step + 1)
        elif action == _SAVE:
            self._saves.begin(trainer.global_step)

    @never_raises
    def action_ended(self, action: str, error: BaseException | None = None) -> None:
        """It has ended."""
        if self._loop is None or self._saves is None:
            return
        if action.endswith(_NEXT_BATCH):
            self._loop.fetched()
        elif action == _SAVE:
            self._saves.end(error=error)

    def _look_for_saves(self, trainer: Any) -> None:
        """Lightning's checkpoint callbacks know where their last save lies, on every rank."""
        if self._saves is None or not self._saves.waiting:
            return
        for callback in trainer.checkpoint_callbacks:
            path, step = (getattr(callback, f"_last_{name}_saved", None) for name in ("checkpoint", "global_step"))
            if path and isinstance(step, int):
                self._saves.lies_in(step, path)
        self._saves.look()

    @staticmethod
    def _sum(losses: list[Any], *, due: bool) -> float | None:
        """Lightning divides the loss of a micro-batch by their number."""
        numbers = [number_of(loss, due=due) for loss in losses]
        known = [number for number in numbers if number is not None]
        return sum(known) if known and len(known) == len(numbers) else None

    def forget(self) -> None:
        """`fit` is over, or another trainer's has begun."""
        self._loop = self._saves = None

    def _give_back(self, trainer: Any) -> None:
        turn.end()
        self.forget()
        if isinstance(trainer.profiler, _Listening):
            trainer.profiler = trainer.profiler.inner


def _asked_for(exception: BaseException) -> bool:
    """Somebody ends the process, by hand, by SIGTERM or by a plain exit: no fault."""
    if isinstance(exception, SystemExit):
        return not exception.code
    return isinstance(exception, KeyboardInterrupt) or type(exception).__name__ == "SIGTERMException"


class _Listening:
    """The trainer's own profiler, with somebody who listens; in all but these four methods it is that profiler."""

    def __init__(self, trainer: Any, callback: HeadwayCallback) -> None:
        present = trainer.profiler
        inner = present.inner if isinstance(present, _Listening) else present
        self.__dict__.update(inner=inner, _trainer=trainer, _callback=callback)

    def start(self, action_name: str) -> None:
        self._callback.action_began(self._trainer, action_name)
        self.inner.start(action_name)

    def stop(self, action_name: str) -> None:
        self.inner.stop(action_name)
        self._callback.action_ended(action_name)

    @contextlib.contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        self._callback.action_began(self._trainer, action_name)
        try:
            with self.inner.profile(action_name):
                yield action_name
        except BaseException as error:
            self._callback.action_ended(action_name, error)
            raise
        self._callback.action_ended(action_name)

    def __getattr__(self, name: str) -> Any:
        if "inner" not in self.__dict__:  # a copy in the making
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)
