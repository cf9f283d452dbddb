"""Saves that a framework has begun: told of when they are requested, have blocked, and are found complete."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway import clock
from headway.adapters.saved import complete

if TYPE_CHECKING:
    import os

    from headway.adapters.loop import Loop

MOST_WAITING: Final = 16
"""Saves that are looked for; the oldest of more is given up."""
_REST: Final = 100
"""How much longer than a look the time until the next one is."""


@dataclass
class _Save:
    step: int
    wall: float
    mono: float
    path: str | os.PathLike[str] | None = None


class Saves:
    """The saves of one loop. Where `path` of a save never becomes known, nothing is claimed of it but that it blocked training."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: _Save | None = None
        self._waiting: list[_Save] = []
        self._not_before = 0.0

    @property
    def open(self) -> bool:
        """Whether training waits for a save."""
        return self._open is not None

    @property
    def waiting(self) -> bool:
        """Whether some save was not found complete yet."""
        return bool(self._waiting)

    def begin(self, step: int) -> None:
        """The framework saves the state after `step`; training waits for it."""
        self._open = _Save(step, time.time(), clock.monotonic())
        self._loop.begin("checkpoint_save")
        self._loop.checkpoint("requested", step=step)

    def end(self, *, error: BaseException | None = None) -> None:
        """The framework's call has returned, or failed."""
        save, self._open = self._open, None
        if save is None:
            return
        self._loop.end("checkpoint_save")
        if error is not None:
            self._loop.checkpoint("failed", step=save.step, reason=f"{type(error).__name__}: {error}")
            return
        self._loop.checkpoint("staged", step=save.step, seconds=clock.monotonic() - save.mono)
        self._waiting = [*self._waiting, save][-MOST_WAITING:]
        self._not_before = 0.0

    def lies_in(self, step: int, path: str | os.PathLike[str]) -> None:
        """Where the save of `step` lies, as far as it is still looked for."""
        for save in self._waiting:
            if save.step == step:
                save.path = path

    def look(self) -> None:
        """Tells of the saves that are complete by now. Looking may be slow; it takes a hundredth of the time at most."""
        began = clock.monotonic()
        if not self._waiting or began < self._not_before:
            return
        for save in list(self._waiting):
            size = None if save.path is None else complete(save.path, since=save.wall)
            if size is not None:
                self._waiting.remove(save)
                seconds = clock.monotonic() - save.mono
                self._loop.checkpoint("written", step=save.step, bytes=size, seconds=seconds)
                self._loop.checkpoint("committed", step=save.step, bytes=size, verified=False)
        ended = clock.monotonic()
        self._not_before = ended + _REST * (ended - began)
