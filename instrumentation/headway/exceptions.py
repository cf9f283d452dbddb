"""What an exception says about the cause of a failure, by its class, its text and its traceback; torch is never imported.

Texts are those that torch 2.9 to 2.13 with gloo and NCCL really raise.
"""

from __future__ import annotations

import copy
import errno
import re
from typing import TYPE_CHECKING, Final

from headway import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHAIN: Final = 8
_MAX_TEXT: Final = 4_096

_STORAGE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS}
"""Errors that are the storage's and not the program's (a missing file may be either)."""

_OUT_OF_MEMORY: Final = re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_ILLEGAL_ACCESS: Final = re.compile(
    r"illegal memory access|device-side assert|CUDA error: (misaligned address|invalid address space|unspecified launch failure)"
)
_NOT_A_NUMBER: Final = re.compile(r"NonFinite|NaN(?![a-z])|Nan(?![a-z])")
_CONFIGURATION: Final = re.compile(r"Config(uration)?(Value)?Error|ArgumentError")
_CHECKPOINT_WRITE: Final = re.compile(r"Checkpoint(Write|Save)\w*|(Write|Save)Checkpoint\w*")
_CORRUPT_CHECKPOINT: Final = re.compile(r"(Corrupt|Damaged|Invalid).*Checkpoint|Checkpoint.*(Corrupt|Damaged|Invalid)")

_COLLECTIVE_TEXT: Final = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe"
    r"|Timed out waiting \d+ms for (recv|send)|Application timeout caused pair closure"
    r"|Watchdog caught collective operation timeout|wait timeout after \d+ms"
    r"|NCCL (error|communicator was aborted)|ncclRemoteError|ncclInternalError|ncclSystemError"
    r"|failed to pass monitoredBarrier|Socket Timeout|Gloo connectFullMesh failed|\[\S*gloo/transport\S*\]"
)
_COLLECTIVE_CLASSES: Final = {
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
    "RankShouldRestart",
}


class PlainError(RuntimeError):
    """Stands for an exception that cannot be copied or pickled; its text begins with that one's class."""


def classify(error: BaseException) -> tuple[str | None, bool]:
    """`(category, collective)` of an exception.

    The category is a cause of the closed list when the exception itself, or one that it was raised from, tells; else
    None. `collective` is True for a collective that was broken or timed out: most likely an echo of another rank's
    fault. An exception with a category of its own is no echo.
    """
    for link in _chain(error):
        category = _category(link)
        if category is not None:
            return category, False
    return None, any(_broken_collective(link) for link in _chain(error))


def plain(error: Exception) -> PlainError:
    """An exception that survives `copy.deepcopy` and `pickle`, and keeps the text of this one."""
    text = f"{qualified_name(error)}: {message(error)}"
    return PlainError(text)


def can_be_copied(error: Exception) -> bool:
    """Whether `copy.deepcopy` works on it, as NVRx needs: it does not for a class with two required arguments, say."""
    try:
        copy.deepcopy(error)
    except Exception:  # noqa: BLE001 - its __reduce__, its __init__ and its attributes may raise anything
        return False
    return True


def qualified_name(error: BaseException) -> str:
    """Module and name of the exception's class; built-in ones without the module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message(error: BaseException) -> str:
    """The exception's text, cut to 4,096 characters; also when its `__str__` is broken."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "(its text cannot be read)"
    return cut(text)


def cut(text: str) -> str:
    """At most 4,096 characters of the text: a journal line is bounded."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def traceback_tail(error: BaseException, limit: int = 12) -> str:
    """The innermost frames, innermost last, without source lines: reading sources could hang on a broken file system."""
    places = list(frames.outside_headway(frames.raised(error.__traceback__)))[:limit]
    return "\n".join(frames.place(where)[-300:] for where in reversed(places))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those it was raised from, the outermost first."""
    link: BaseException | None = error
    for _ in range(_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _category(error: BaseException) -> str | None:
    name, text = type(error).__name__, message(error)
    if isinstance(error, FloatingPointError) or _NOT_A_NUMBER.search(name):
        return "numeric_nan"
    if name == "OutOfMemoryError" or _OUT_OF_MEMORY.search(text):
        return "cuda_oom"
    if _ILLEGAL_ACCESS.search(text):
        return "illegal_access"
    if isinstance(error, MemoryError):
        return "host_oom"
    if _CORRUPT_CHECKPOINT.search(name):
        return "checkpoint_corrupt"
    if _CHECKPOINT_WRITE.fullmatch(name):
        return "checkpoint_write"
    if _CONFIGURATION.fullmatch(name):
        return "config_error"
    if isinstance(error, OSError) and error.errno in _STORAGE:
        return "storage_io"
    return None


def _broken_collective(error: BaseException) -> bool:
    if _COLLECTIVE_CLASSES & {kind.__name__ for kind in type(error).__mro__}:
        return True
    if not isinstance(error, RuntimeError):
        # A wrong argument to a collective is this rank's own fault; an OSError is a connection of Python's, not of a
        # backend.
        return False
    return bool(_COLLECTIVE_TEXT.search(message(error))) or frames.in_collective(frames.raised(error.__traceback__))
