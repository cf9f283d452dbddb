"""Times, durations and amounts in words: rounded to what a person reads, never to 0 when there is something."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final

UNKNOWN: Final = "\u2013"
_UNITS: Final = ((86_400.0, "d", 3_600.0, "h"), (3_600.0, "h", 60.0, "min"), (60.0, "min", 1.0, "s"))


def utc(wall: float | None) -> str:
    """ISO 8601 in UTC, to the second: `2026-11-30T17:10:07Z`."""
    return UNKNOWN if wall is None else _moment(wall).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_words(wall: float | None) -> str:
    """For people: `2026-11-30 17:10:07 UTC`."""
    return UNKNOWN if wall is None else _moment(wall).strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, tz=timezone.utc)


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter: `2 d 4 h`, `7 min 30 s`, `8.3 s`, `12 ms`."""
    if seconds is None:
        return UNKNOWN
    if 0 < seconds < 0.0995:
        return f"{max(round(seconds * 1e3), 1)} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    size, name, smaller, small_name = next(unit for unit in _UNITS if seconds >= unit[0] - unit[2] / 2)
    many, rest = divmod(round(seconds / smaller), round(size / smaller))
    return f"{many} {name} {rest} {small_name}" if rest else f"{many} {name}"


def share(value: float | None) -> str:
    """A ratio in percent: `45 %`, `3.2 %`, `< 0.1 %`; only all of it is `100 %`."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99 < percent < 100:
        return f"{math.floor(percent * 10) / 10:g} %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def whole(value: float | None) -> str:
    """A count with thin groups of three: `12 345`."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\u202f")


def rank_time(seconds: float | None, *, gpus: bool) -> str:
    """Rank-seconds in the unit that fits: `8.4 GPU-hours`, `36 rank-seconds`."""
    if seconds is None:
        return UNKNOWN
    of = "GPU" if gpus else "rank"
    if 0 < seconds < 0.05:
        return f"< 0.1 {of}-seconds"
    if seconds < 600:
        return f"{seconds:.1f} {of}-seconds" if 0 < seconds < 9.95 else f"{seconds:.0f} {of}-seconds"
    hours = seconds / 3_600
    if hours >= 99.95:
        return f"{whole(hours)} {of}-hours"
    return f"{hours:.1f} {of}-hours" if hours >= 9.995 else f"{hours:.2f} {of}-hours"


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 incident`, `2 incidents`."""
    return f"{whole(number)} {one if number == 1 else many or one + 's'}"
