"""What a piece of advice is made of, and how its numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["change", "keep", "unknown"]
Confidence = Literal["high", "medium", "low", "none"]

VERDICTS: Final[tuple[Verdict, ...]] = ("change", "keep", "unknown")


@dataclass(frozen=True)
class Number:
    """A number that advice comes from."""

    name: str
    value: float | str | None
    """None: not known."""
    unit: str = ""
    """seconds, steps, rank-seconds, restarts, …; empty for a text or a plain number."""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name} not known"
        if isinstance(self.value, str):
            return f"{self.name} {self.value}"
        if self.unit == "seconds":
            return f"{self.name} {seconds(self.value)}"
        return f"{self.name} {plain(self.value)}"


@dataclass(frozen=True)
class Advice:
    """One recommendation, or the reason why there is none."""

    topic: str
    """A stable name for machines: heartbeat_rank, checkpoint_interval, restart_budget_launcher, …"""
    verdict: Verdict
    """change: what is in force does not fit; keep: it does; unknown: too few data, or nothing tells what is in force."""
    title: str
    """One line."""
    text: str
    """Why, in a few sentences."""
    numbers: tuple[Number, ...]
    confidence: Confidence
    """none: not enough data for a recommendation."""
    because: str
    """What the confidence rests on."""
    settings: tuple[tuple[str, str], ...] = ()
    """`(what to write, where it applies)`."""
    assumptions: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[Number, ...]:
        """The numbers that are known."""
        return tuple(one for one in self.numbers if one.value is not None)

    @property
    def rank(self) -> int:
        """Sorts what should be changed before the rest."""
        return VERDICTS.index(self.verdict)


def seconds(value: float) -> str:
    """A duration for people: three digits, the unit that fits."""
    if not math.isfinite(value):
        return "for ever"
    for size, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if value >= 2 * size:
            return f"{plain(value / size)} {unit}"
    return f"{plain(value * 1_000)} ms" if 0 < value < 0.1 else f"{plain(value)} s"


def plain(value: float) -> str:
    """A number with about three digits, never in powers of ten."""
    size = abs(value)
    digits = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.1 else 3
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def many(number: float, noun: str) -> str:
    """`1 failure`, `3 failures`."""
    return f"{plain(number)} {noun}{'' if number == 1 else 's'}"


def round_up(value: float) -> float:
    """A time-out that people would choose: up to a multiple of 5 s, above 2 minutes of 30 s, above 10 minutes of a minute."""
    grain = 5.0 if value <= 120 else 30.0 if value <= 600 else 60.0
    return math.ceil(round(value / grain, 9)) * grain
