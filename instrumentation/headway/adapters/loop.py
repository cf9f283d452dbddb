"""A training loop that a framework runs and tells of by callbacks: steps and phases without a `with` around them."""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headway.distributed import DEFAULT_KEY, agree_incarnation

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headway.recorder import Recorder

_log = logging.getLogger("headway")

_entries: Final = itertools.count(1)

_Hook = TypeVar("_Hook", bound="Callable[..., Any]")


def never_raises(hook: _Hook) -> _Hook:
    """A hook that fails is told of in the log, and training goes on."""

    @functools.wraps(hook)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - recording never raises into training
            _log.warning("headway could not record in %s, training goes on: %r", hook.__qualname__, error)
            return None

    return guarded  # type: ignore[return-value]


@dataclass
class _Base:
    """What a life has behind it that its framework no longer counts."""

    steps: int = 0
    finished: bool = False
    entered: bool = False
    """It was entered, and left before any training."""


_bases: weakref.WeakKeyDictionary[Recorder, _Base] = weakref.WeakKeyDictionary()


class Turn:
    """Which callback records: the newest training's, and of its callbacks the first."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._training: Any = None

    def take(self, owner: Any, training: Any) -> bool:
        """Whether `owner` may record `training`, an object that no other one has. One that was left without a word is over."""
        if self._training is training and self._owner not in (None, owner):
            _log.warning("headway's callback was given twice: the second one records nothing")
            return False
        if self._owner not in (None, owner):
            self._owner.forget()
        self._owner, self._training = owner, training
        return True

    def end(self) -> None:
        """Its training has ended."""
        self._owner = self._training = None


turn: Final = Turn()
"""Of this process, which has one recorder."""


class Loop:
    """What is open now: at most one step, at most one wait for data in it, at most one phase.

    A step begins with the wait for its first batch. What comes between two steps (evaluation, saves, other callbacks) is in neither; what
    comes between the micro-batches of one step is inside it.

    Steps are numbered as the framework does. A framework that begins at 0 once more, after a training that ended in order, goes on
    training: its steps are recorded as those after the last one, or they would pass for a rollback.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._base = _bases.setdefault(recorder, _Base())
        self._step_open = False
        self._worked = False
        self._wait: AbstractContextManager[None] | None = None
        self._phase: AbstractContextManager[None] | None = None
        self._phase_name = ""

    def enter(self, *, rank: int, world_size: int) -> None:
        """Training is about to begin, with a working process group; it may be left untrained, and entered again, without a fault."""
        if not self._base.entered:
            self.recorder.train_entered(incarnation=incarnation(rank), rank=rank, world_size=world_size)
        self._base.entered = False

    def leave_untrained(self) -> None:
        """What was entered was only to prepare the training: all of it is part of the start."""
        self.leave()
        self._base.entered = True

    def loaded(self, step: int, *, seconds: float | None = None, known: bool = False) -> None:
        """Training starts after `step`; `known`: nobody need be told if that is where it stood."""
        if step == 0 and self._base.finished:
            self._base.steps = self.recorder.last_step or 0
        self._base.finished = False
        if not known or self.recorder.last_step != self.counted(step):
            self.checkpoint("loaded", step=step, seconds=seconds)

    def finished(self, step: int) -> None:
        """Training reached its end in order."""
        self.recorder.train_finished(self.counted(step))
        self._base.finished = True

    def checkpoint(self, stage: str, *, step: int, **told: Any) -> None:
        """A checkpoint of the state after `step` reached a stage."""
        self.recorder.checkpoint(stage, step=self.counted(step), **told)

    def counted(self, step: int) -> int:
        """The framework's `step` as it is recorded."""
        return step + self._base.steps

    def wait(self, number: int) -> None:
        """Training asks for the next batch of step `number`."""
        self._open(number)
        if self._wait is None:
            self._wait = self.recorder.phase("data_wait")
            self._wait.__enter__()

    def fetched(self) -> None:
        """The batch is there, or there is none."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            wait.__exit__(None, None, None)

    def work(self, number: int) -> None:
        """A batch of step `number` is being worked on."""
        self.fetched()
        self._open(number)
        self._worked = True

    def completed(self, number: int, loss: float | None = None, tokens: int | None = None) -> None:
        """The optimizer has stepped, for the `number`th time in the run."""
        self.fetched()
        self._open(number)
        step = self.recorder.step(self.counted(number))
        step.loss, step.tokens = loss, tokens
        step.__exit__(None, None, None)
        self._step_open = self._worked = False

    @property
    def phase(self) -> str | None:
        """The phase that is open."""
        return None if self._phase is None else self._phase_name

    def begin(self, phase: str) -> None:
        """A phase begins. A step that has only waited for data is none yet, and is taken back."""
        self.end()
        self.fetched()
        if not self._worked:
            self.leave_step()
        self._phase, self._phase_name = self.recorder.phase(phase), phase
        self._phase.__enter__()

    def end(self, phase: str | None = None) -> None:
        """The phase ends, whichever it is, or only if it is this one."""
        if self._phase is not None and phase in (None, self._phase_name):
            ended, self._phase = self._phase, None
            ended.__exit__(None, None, None)

    def leave_step(self) -> None:
        """The open step will not be completed: it leaves no record."""
        self.fetched()
        if self._step_open:
            self._step_open = self._worked = False
            last = self.recorder.last_step
            self.recorder.step(-1 if last is None else last).__exit__(Exception, None, None)

    def leave(self) -> None:
        """The loop ends, in order or not."""
        self.end()
        self.leave_step()

    def _open(self, number: int) -> None:
        self.end()
        if not self._step_open:
            self.recorder.step(self.counted(number)).__enter__()
            self._step_open = True


def incarnation(rank: int) -> str:
    """The id of this execution of the loop by the whole group; a rank without a process group is a group of its own.

    To be called once an entry by every rank, since the number of the entry is part of the key.
    """
    entry = next(_entries)
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return secrets.token_hex(8)
    return agree_incarnation(distributed.distributed_c10d._get_default_store(), rank, key=f"{DEFAULT_KEY}/{entry}")


def number_of(loss: Any, *, due: bool) -> float | None:
    """A loss as a float. One that lies on an accelerator is read only where it is `due`: reading it waits for the device."""
    if loss is None or isinstance(loss, (int, float)):
        return loss
    on_host = getattr(getattr(loss, "device", None), "type", "cpu") == "cpu"
    return float(loss) if on_host or due else None
