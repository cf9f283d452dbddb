"""Reading Python frames: where code is, and whether it waits in (or failed in) a collective.

From paths alone, so that torch need not be imported. The frames that count are those *inside* the innermost piece of
the user's own code: a model under FSDP or DDP has frames of torch.distributed outside of it all the time, which says
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType, TracebackType

_OURS: Final = str(Path(__file__).parent) + os.sep
_STANDARD_LIBRARY: Final = str(Path(os.__file__).parent) + os.sep
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TORCH: Final = f"{os.sep}torch{os.sep}"
_DISTRIBUTED: Final = f"{os.sep}torch{os.sep}distributed{os.sep}"
_LAUNCHER: Final = f"{_DISTRIBUTED}elastic{os.sep}"
"""Its error recorder wraps the user's main function: in no collective."""

_FRAMES: Final = 24


def stack(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    """`(code, line)` of a running frame and its callers, innermost first."""
    while frame is not None:
        yield frame.f_code, frame.f_lineno or 0
        frame = frame.f_back


def raised(trace: TracebackType | None) -> list[tuple[CodeType, int]]:
    """`(code, line)` of a traceback, innermost first."""
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return places[::-1]


def place(where: tuple[CodeType, int]) -> str:
    """`function (file:line)`."""
    code, line = where
    return f"{code.co_name} ({code.co_filename}:{line})"


def outside_headway(places: Iterable[tuple[CodeType, int]]) -> Iterator[tuple[CodeType, int]]:
    """All but our own frames: a wrapper that waits on the user's behalf is not where the user is."""
    return (where for where in places if not where[0].co_filename.startswith(_OURS))


def in_collective(places: Iterable[tuple[CodeType, int]]) -> bool:
    """Whether the library call that the innermost user code is in goes through torch.distributed."""
    for _, (code, _) in zip(range(_FRAMES), places, strict=False):
        name = code.co_filename
        if _LAUNCHER in name:
            return False
        if _DISTRIBUTED in name:
            return True
        if not (_TORCH in name or _is_standard_library(name)):
            return False
    return False


def _is_standard_library(name: str) -> bool:
    frozen = name.startswith("<")
    return frozen or (name.startswith(_STANDARD_LIBRARY) and not any(part in name for part in _INSTALLED))
