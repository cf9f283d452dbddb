"""Which incidents are asked for: times, causes, places, configuration. Pure."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.labels import CAUSES, REASONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headway_exporter.listing.briefs import Group

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SETTING: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(?:(<=|>=|!=|==|=|<|>)\s*(.*?)\s*)?", re.DOTALL)
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class QueryError(ValueError):
    """The question makes no sense; the message is one line for people."""


@dataclass(frozen=True)
class Setting:
    """A condition on the configuration in force."""

    name: str
    compare: str = ""
    """One of `_COMPARE`; empty: that it is told is enough."""
    value: str = ""

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Numbers are compared as numbers where both sides are; texts can only be equal or not."""
        if self.name not in settings:
            return False
        if not self.compare:
            return True
        found = settings[self.name]
        if isinstance(found, bool):
            found = str(found).lower()
        wanted = _number(self.value)
        if isinstance(found, (int, float)) and wanted is not None:
            return _COMPARE[self.compare](found, wanted)
        if self.compare not in ("=", "==", "!="):
            return False
        return _COMPARE[self.compare](str(found), self.value)


@dataclass(frozen=True)
class Query:
    """Conditions that must all hold; empty ones do. Names may hold `*` and `?`; of several in one tuple one must fit."""

    since: float | None = None
    until: float | None = None
    causes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    recurring: str | None = None
    """any, none, or a reason."""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()

    def matches(self, group: Group) -> bool:
        """Whether the incident is asked for."""
        lead = group.lead
        return (
            (self.since is None or group.opened_wall >= self.since)
            and (self.until is None or group.opened_wall < self.until)
            and (not self.causes or _fits(lead.cause, self.causes))
            and (not self.layers or lead.layer in self.layers)
            and (not self.outcomes or group.outcome in self.outcomes)
            and (self.recurring is None or self._recurs(group.recurring))
            and (not self.ranks or lead.origin.rank in self.ranks)
            and (not self.nodes or any(_fits(node, self.nodes) for node in group.nodes))
            and (not self.gpus or _fits(lead.origin.gpu_uuid or "", self.gpus))
            and all(setting.holds(lead.settings) for setting in self.settings)
        )

    def _recurs(self, reasons: tuple[str, ...]) -> bool:
        if self.recurring in ("any", "none"):
            return bool(reasons) == (self.recurring == "any")
        return self.recurring in reasons


def moment(text: str, now: float) -> float:
    """Seconds since 1970 of `2026-11-30`, `2026-11-30T17:10`, a full ISO 8601 time (UTC unless it says otherwise), or `24h`, `7d` ago.

    Raises:
        QueryError: it is none of these.
    """
    if ago := _AGO.fullmatch(text.strip()):
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise QueryError(
            f"{_shown(text)} is no time: write 2026-11-30, 2026-11-30T17:10 (UTC), or 24h, 7d for that long ago"
        ) from None


def setting(text: str) -> Setting:
    """`NAME`, or `NAME=VALUE` with one of = != < <= > >=.

    Raises:
        QueryError: it is neither.
    """
    found = _SETTING.fullmatch(text)
    if found is None:
        raise QueryError(f"{_shown(text)} is no condition: write NAME, NAME=VALUE, NAME!=VALUE, NAME<NUMBER, …")
    name, compare, value = found[1], found[2] or "", found[3] or ""
    if compare in ("<", "<=", ">", ">=") and _number(value) is None:
        raise QueryError(f"{_shown(text)}: {compare} needs a number, not {_shown(value)}")
    return Setting(name, compare, value)


def cause(pattern: str) -> str:
    """A cause of the closed list, or a pattern that some of them fit.

    Raises:
        QueryError: none does.
    """
    if any(fnmatchcase(one, pattern) for one in CAUSES):
        return pattern
    raise QueryError(f"no cause is called {_shown(pattern)}{_meant(pattern, CAUSES)}")


def reason(word: str) -> str:
    """any, none, or a reason of the closed list.

    Raises:
        QueryError: it is none of them.
    """
    known = ("any", "none", *REASONS)
    if word in known:
        return word
    raise QueryError(f"{_shown(word)} is no reason to recur: one of {', '.join(known)}")


def _meant(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; they are {', '.join(known)}"


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _shown(text: str) -> str:
    return repr(text[:80])
