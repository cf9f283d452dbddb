"""Hugging Face's Trainer: `Trainer(…, callbacks=[HeadwayCallback()])`.

The Trainer tells its callbacks when something has ended, and its `control` says what comes next. From both follow the waits for data,
evaluations and saves. It tells nobody of an exception: one that ends the process the recorder hears of from the interpreter.

Only `train` is recorded: `evaluate` and `predict` alone leave no trace.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from headway.adapters.loop import Loop, never_raises, turn
from headway.adapters.saves import Saves
from headway.recorder import Recorder


def _callback_class() -> Any:
    """Transformers' `TrainerCallback`.

    Raises:
        ModuleNotFoundError: there is no Transformers; the message says what to install.
    """
    try:
        return importlib.import_module("transformers.trainer_callback").TrainerCallback
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "headway.adapters.huggingface needs Hugging Face's Transformers, which is not installed: "
            "pip install 'transformers[torch]'",
            name="transformers",
        ) from missing


_Callback: Any = _callback_class()


class HeadwayCallback(_Callback):  # type: ignore[misc]  # Transformers may be missing where types are checked
    """Records what `train` does. Must be given to the trainers of all ranks."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._saves: Saves | None = None
        self._unrecorded: int | None = None
        self._logged = 0
        self._tokens = 0

    # The Trainer's events, in the order of a run.

    @never_raises
    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Model, optimizer and, if so, a checkpoint are loaded."""
        if not turn.take(self, state):
            return
        told = {"LOCAL_RANK": args.local_process_index, "RANK": args.process_index, "WORLD_SIZE": args.world_size}
        recorder = Recorder.from_env(
            settings={"total_steps": state.max_steps},
            checkpoint_dir=args.output_dir,
            environ={name: str(value) for name, value in told.items()} | os.environ,
        )
        self._loop = Loop(recorder)
        self._saves = Saves(self._loop)
        self._unrecorded, self._logged, self._tokens = None, state.global_step, state.num_input_tokens_seen
        self._loop.enter(rank=args.process_index, world_size=args.world_size)
        self._loop.loaded(state.global_step)

    @never_raises
    def on_epoch_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """The first batch of the epoch is asked for."""
        if self._loop is not None:
            self._loop.wait(state.global_step + 1)

    @never_raises
    def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """All batches of the step are there."""
        if self._loop is not None:
            self._record(state)
            self._loop.work(state.global_step + 1)

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped. Where the loss is about to be logged, the step waits for it."""
        if self._loop is None:
            return
        self._unrecorded = state.global_step
        if not control.should_log:
            self._record(state, ranks=args.world_size)
        self._go_on(state, control)

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The mean loss since the last time is known; it is a step's only where it is that of as many steps as always."""
        if self._loop is None:
            return
        mean = (logs or {}).get("loss")
        if mean is not None:
            whole = state.global_step - self._logged == state.logging_steps
            self._logged = state.global_step
            self._record(state, loss=float(mean) if whole else None, ranks=args.world_size)
        self._go_on(state, control)

    @never_raises
    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """A batch of an evaluation."""
        self._begin_evaluation()

    @never_raises
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """The evaluation has ended; by its result the Trainer may be about to save."""
        if self._loop is None or self._saves is None:
            return
        self._loop.end("eval")
        if _is_best(args, state, metrics or {}):
            self._record(state)
            self._saves.begin(state.global_step)
        else:
            self._go_on(state, control)

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """This rank's part of the checkpoint is written."""
        if self._loop is None or self._saves is None:
            return
        if not self._saves.open:  # somebody else's decision
            self._saves.begin(state.global_step)
        self._saves.end()
        self._saves.lies_in(state.global_step, Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._saves.look()
        self._go_on(state, control)

    @never_raises
    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """No batch is left in the epoch."""
        if self._loop is not None:
            self._record(state)
            self._loop.leave()
            if control.should_log or control.should_evaluate or control.should_save:
                self._go_on(state, control)

    @never_raises
    def on_train_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """`train` reached its end in order: steps, epochs, early stopping."""
        if self._loop is None or self._saves is None:
            return
        self._record(state)
        self._loop.leave()
        self._saves.look()
        self._loop.finished(state.global_step)
        turn.end()
        self.forget()

    def forget(self) -> None:
        """The training is over, or another one has begun."""
        self._loop = self._saves = None

    def _begin_evaluation(self) -> None:
        """Once an evaluation, whoever tells of it first: it logs, too, before it is told to have ended."""
        if self._loop is not None and self._loop.phase != "eval":
            self._loop.begin("eval")

    def _go_on(self, state: Any, control: Any) -> None:
        """Begins what the Trainer does next: log, evaluate, save, and only then the next batch."""
        if self._loop is None or self._saves is None or control.should_log:
            return
        self._record(state)
        if control.should_evaluate:
            self._begin_evaluation()
        elif control.should_save:
            self._saves.begin(state.global_step)
        elif not (control.should_training_stop or control.should_epoch_stop):
            self._saves.look()
            self._loop.wait(state.global_step + 1)

    def _record(self, state: Any, *, loss: float | None = None, ranks: int = 1) -> None:
        """Records the step that has ended, if that has not been done. Tokens are counted over all ranks, where they are counted."""
        step, self._unrecorded = self._unrecorded, None
        if step is None or self._loop is None:
            return
        tokens, self._tokens = int(state.num_input_tokens_seen - self._tokens), state.num_input_tokens_seen
        self._loop.completed(step, loss, tokens // max(1, ranks) if tokens > 0 else None)


def _is_best(args: Any, state: Any, metrics: dict[str, float]) -> bool:
    """Whether the Trainer will save because of these metrics: with `save_strategy="best"`, and only if they are better than ever."""
    if getattr(args.save_strategy, "value", args.save_strategy) != "best":
        return False
    value = metrics.get(f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}")
    if value is None or state.best_metric is None:
        return value is not None
    return bool(value > state.best_metric if args.greater_is_better else value < state.best_metric)
