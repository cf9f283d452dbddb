"""What must be true of each scrape (design, section 10), given what the trainers themselves wrote down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

MILLISECOND = 1e-3
LAG_SECONDS = 3.0
"""How far a scrape may be behind: two polls of the sidecar, and a busy machine."""
MOST_BEHIND_SECONDS = 60.0
"""Between two writes of the sidecar's memory lie 15 s at most, on a machine that keeps up."""
START_SECONDS = 1.0
"""From a trainer's own first line to its recorder's."""


class BrokenError(AssertionError):
    """An invariant does not hold."""


class RankBooks:
    """What one rank wrote down, over all its lives; `read` takes in what is new, because the log of an hour is long."""

    def __init__(self, path: Path) -> None:
        self.first_start: float | None = None
        self.end: float | None = None
        self.tries = 0
        """Steps begun, those done again once more."""
        self.completions = 0
        self.begun: set[int] = set()
        self.done: set[int] = set()
        self._path = path
        self._offset = 0

    def read(self) -> None:
        """Up to the last whole line; a rank that has no log yet has done nothing."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        for line in text.decode().splitlines():
            self._take(*line.split(" "))

    def _take(self, word: str, value: str) -> None:
        if word == "start" and self.first_start is None:
            self.first_start = float(value)
        elif word == "end":
            self.end = float(value)
        elif word == "begin":
            self.tries += 1
            self.begun.add(int(value))
        elif word == "done":
            self.completions += 1
            self.done.add(int(value))


def of(samples: Samples, name: str, **labels: str) -> float:
    """One value, 0 when there is none."""
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


def total(samples: Samples, name: str) -> float:
    """Sum over all labels."""
    return sum(value for (found, _), value in samples.items() if found == name)


def check_time(samples: Samples) -> None:
    """The states and what is pending are all of the time."""
    parts = total(samples, "headway_rank_seconds_total") + of(samples, "headway_pending_rank_seconds")
    elapsed = of(samples, "headway_rank_elapsed_seconds_total")
    if abs(parts - elapsed) > MILLISECOND:
        raise BrokenError(f"states and pending are {parts:.6f} s, elapsed are {elapsed:.6f} s")


def behind(samples: Samples, wall: float) -> float:
    """Seconds by which a scrape is older than `wall`, because it shows what is on disk."""
    written = of(samples, "headway_source_last_update_timestamp_seconds", source="state")
    seconds = max(0.0, wall - written) if written else 0.0
    if seconds > MOST_BEHIND_SECONDS:
        raise BrokenError(f"what is shown was written {seconds:.1f} s ago")
    return seconds


def check_clock(samples: Samples, books: list[RankBooks], now: float, late: float, *, complete: bool = False) -> None:
    """Elapsed time is what a clock says that the sidecar never saw.

    `complete`: the scrape is of after the run's end, so it is exact to the start-up of a process. That the trainers have ended is not
    enough: what is shown may be from before.
    """
    known = [(one.first_start, one.end) for one in books if one.first_start is not None and one.first_start <= now]
    most = sum((now if end is None else end) - begin for begin, end in known)
    least = most - len(known) * (START_SECONDS + (0 if complete else LAG_SECONDS + late))
    elapsed = of(samples, "headway_rank_elapsed_seconds_total")
    if not least <= elapsed <= most + MILLISECOND:
        raise BrokenError(
            f"elapsed are {elapsed:.3f} rank-seconds, by the trainers' own clock {least:.3f} to {most:.3f}"
        )


def check_steps(samples: Samples, books: list[RankBooks], *, complete: bool) -> None:
    """Each step of the busiest rank counts once, whoever was killed; `complete`: nothing is on its way any more."""
    counted = of(samples, "headway_steps_total", kind="productive")
    most = max(len(one.begun) for one in books)
    least = max(len(one.done) for one in books) if complete else 0
    if not least <= counted <= most:
        raise BrokenError(f"{counted:g} productive steps, the trainers made {least} to {most} different ones")
    again = of(samples, "headway_steps_total", kind="replay")
    most = max(one.tries - len(one.done) for one in books)
    if again > most:
        raise BrokenError(f"{again:g} replayed steps, the trainers made at most {most}")


def check_counters(before: Samples, samples: Samples) -> None:
    """None steps back, none goes away."""
    for key, value in before.items():
        if key[0].endswith(("_total", "_bucket", "_count", "_sum")) and samples.get(key, 0.0) < value:
            raise BrokenError(f"{key[0]}{dict(key[1])} went from {value} to {samples.get(key)}")


def check_records(records: Iterable[Mapping[str, Any] | Exception], samples: Samples) -> None:
    """The incidents on disk are those of the metrics, and each has one story, whenever the sidecar that wrote it was killed.

    A record is on disk before the ledger that says so: one that was killed in between is followed by one that writes the same revision
    once more.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if isinstance(record, Exception):
            raise BrokenError(f"a record cannot be read: {record}")
        groups.setdefault(record["id"], []).append(record)
    for name, revised in groups.items():
        _check_incident(name, revised)
    counted: Counter[str] = Counter()
    for (metric, labels), value in samples.items():
        if metric == "headway_incidents_total":
            counted[dict(labels)["outcome"]] += int(value)
    kept = Counter(max(revised, key=_revision)["outcome"] for revised in groups.values())
    if kept != counted:
        raise BrokenError(f"{dict(kept)} incidents are kept, {dict(+counted)} are counted")


def _check_incident(name: str, revised: list[Mapping[str, Any]]) -> None:
    numbers = [_revision(record) for record in revised]
    if sorted(set(numbers)) != list(range(max(numbers) + 1)) or numbers != sorted(numbers):
        raise BrokenError(f"incident {name} has the revisions {numbers}")
    outcomes: dict[int, set[str]] = {}
    for record in revised:
        outcomes.setdefault(_revision(record), set()).add(record["outcome"])
    if any(len(found) > 1 for found in outcomes.values()):
        raise BrokenError(f"incident {name} closed with different outcomes in one revision: {outcomes}")
    opened = sorted({round(record["opened_wall"], 3) for record in revised})
    if opened[-1] - opened[0] > LAG_SECONDS:  # a death that is found later is dated by the process's last trace
        raise BrokenError(f"the id {name} is that of several incidents, opened at {opened}")


def _revision(record: Mapping[str, Any]) -> int:
    return int(record["revision"])


def check_restarts(samples: Samples, *, least: int, most: int) -> None:
    """A restart for each kill, no matter how many ranks and layers saw it."""
    restarts = total(samples, "headway_restarts_total")
    if not least <= restarts <= most:
        raise BrokenError(f"{restarts:g} restarts for {least} to {most} kills")
    incidents = total(samples, "headway_incidents_total") + of(samples, "headway_incident_open")
    if incidents > most:
        raise BrokenError(f"{incidents:g} incidents for {most} kills")
