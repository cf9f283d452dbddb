"""One word for what a pod does, from what its ranks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_PRIORITY: Final = (
    "restart",
    "detect",
    "init",
    "checkpoint_load",
    "checkpoint_save",
    "eval",
    "data_wait",
    "other",
    "replay",
    "productive",
    "standby",
)
"""The pod does what its most disturbed rank does."""


def combined(states: AbstractSet[str | None], *, finished: bool, gone: bool) -> str | None:
    """The pod's state. `finished`: it completed the run; `gone`: no rank lives, and no launcher is about to start one."""
    if finished:
        return "finished"
    if gone:
        return "down"
    return next((state for state in _PRIORITY if state in states), None)
