"""Where panels stand: in reading order, from left to right, a new line when the width is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WIDTH: Final = 24


def placed(panels: Iterable[Any]) -> list[Any]:
    """The same grafanalib panels, each with its place and a number; those folded into a row stand where they do when it is open."""
    found = list(panels)
    x = y = line = 0
    for number, panel in enumerate(_unfolded(found), 1):
        size = panel.gridPos
        if x + size.w > WIDTH:
            x, y, line = 0, y + line, 0
        size.x, size.y = x, y
        panel.id = number
        x, line = x + size.w, max(line, size.h)
    return found


def _unfolded(panels: Iterable[Any]) -> Iterator[Any]:
    for panel in panels:
        yield panel
        yield from getattr(panel, "panels", ())
