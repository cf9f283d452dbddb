"""What a launcher is told on its command line, in the spellings that `torchrun` and `ft_launcher` take."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEARTBEAT: Final = re.compile(r"--ft-(param-)?rank[-_]heartbeat[-_]timeout")
_RANKS: Final = re.compile(r"--nproc[-_]per[-_]node")


def heartbeat_seconds(command: Sequence[str]) -> float | None:
    """The heartbeat time-out, seconds; None: there is none, or it is no number."""
    try:
        return float(_told(command, _HEARTBEAT))
    except ValueError:
        return None


def local_ranks(command: Sequence[str]) -> int | None:
    """How many ranks it starts on this machine; None: it is not told, or finds out by itself (`auto`, `gpu`)."""
    told = _told(command, _RANKS)
    return int(told) if told.isdecimal() and int(told) > 0 else None


def _told(command: Sequence[str], option: re.Pattern[str]) -> str:
    """The option's value, be it a word of its own or behind `=`; empty: it is not among them."""
    for word, following in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if option.fullmatch(name):
            return value if equals else following
    return ""
