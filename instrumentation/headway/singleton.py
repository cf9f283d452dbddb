"""One object for a whole process, and what becomes of it in a forked child."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")


class ProcessWide(Generic[_Value]):
    """Holds the process's one object of a kind; `in_forked_child` is called with it in every forked child."""

    def __init__(self, in_forked_child: Callable[[_Value], None]) -> None:
        self._in_forked_child = in_forked_child
        self._guard = threading.RLock()
        self._value: _Value | None = None
        self._hooked = False

    def get(self, make: Callable[[], _Value]) -> _Value:
        """The object there is, else a new one."""
        with self._guard:
            if not self._hooked:
                os.register_at_fork(after_in_child=self._after_fork)
                self._hooked = True
            if self._value is None:
                self._value = make()
            return self._value

    def claim(self, value: _Value) -> bool:
        """Makes `value` the one there is; False when there is another."""
        with self._guard:
            if self._value is None:
                self._value = value
            return self._value is value

    def forget(self, value: _Value) -> None:
        """Makes room for a new one, if `value` is the one there is."""
        if self._value is value:
            self._value = None

    def _after_fork(self) -> None:
        self._guard = threading.RLock()  # another thread of the parent may have held it
        if self._value is not None:
            self._in_forked_child(self._value)
