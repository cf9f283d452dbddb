"""Puts what several files tell into one order of time, and leaves runs of steps together where nothing else came between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_exporter.observations import Run, StepsSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headway_exporter.observations import DeathSeen, EventSeen, Observation, StepSeen

    Single = EventSeen | StepSeen | DeathSeen

MOST: Final = 8_192
"""More steps than this are handed on in portions, so that a scrape gets its turn between them."""
_LEAST: Final = 16
"""Fewer steps than this are handed on one by one."""


def merged(singles: Sequence[Single], runs: Iterable[Run]) -> list[Observation]:
    """All of it in time order; at equal times steps of runs come first."""
    singles = sorted(singles, key=lambda seen: seen.key)
    left = list(runs)
    if not left:
        return list(singles)
    ordered: list[Observation] = []
    for seen in singles:
        before, left = _split(left, seen.key[0])
        ordered += _together(before)
        ordered.append(seen)
    return ordered + _together(left)


def _split(runs: list[Run], microseconds: int) -> tuple[list[Run], list[Run]]:
    if all(run.columns.ends[0] // 1_000 > microseconds for run in runs):
        return [], runs
    parts = [run.split(microseconds) for run in runs]
    return [early for early, _ in parts if early is not None], [late for _, late in parts if late is not None]


def _together(runs: list[Run]) -> list[Observation]:
    """Runs between which nothing else came: one observation, with one run a life."""
    if not runs:
        return []
    seen = StepsSeen(tuple(_joined(runs)))
    return list(_portions(seen)) if len(seen) >= _LEAST else list(seen.steps())


def _portions(seen: StepsSeen) -> Iterator[StepsSeen]:
    """Parts of a bounded size, as far as time tells them apart."""
    halves = seen.halves() if len(seen) > MOST else []
    if len(halves) < 2:
        yield seen
    else:
        for half in halves:
            yield from _portions(half)


def _joined(runs: list[Run]) -> list[Run]:
    """Runs of one life that follow each other, put together."""
    joined: list[Run] = []
    last_of: dict[tuple[int, int], int] = {}
    for run in runs:
        at = last_of.get((run.slot, run.life))
        if at is not None and _follows(joined[at], run):
            joined[at] = Run(run.slot, run.life, joined[at].columns.followed_by(run.columns))
        else:
            last_of[run.slot, run.life] = len(joined)
            joined.append(run)
    return joined


def _follows(run: Run, other: Run) -> bool:
    first, then = run.columns, other.columns
    return then.first == first.first + len(first) and then.ends[0] >= first.ends[-1]
