"""Recorded series from before the fleet's scrapes: long windows must find as many samples as they would after days.

They are written as blocks, as an older past lies on disk, by `promtool tsdb create-blocks-from openmetrics`.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from typing import TYPE_CHECKING, Final

from fleet import EVERY, RANKS, SCRAPES
from scale_server import PROMTOOL

from headway_alerts.model import Recording
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fleet import Fleet

    from headway_alerts.model import Group

_WINDOW: Final = re.compile(r"(\w+:\w+:\w+)(?:\{[^{}]*\})?\[(\d+)([smhd])\]")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def windows(groups: Iterable[Group]) -> dict[str, int]:
    """Recorded name to the seconds of the longest window that a rule takes of it."""
    found: dict[str, int] = {}
    for rule in (rule for group in groups for rule in group.rules):
        for name, number, unit in _WINDOW.findall(rule.expr):
            found[name] = max(found.get(name, 0), int(number) * _UNITS[unit])
    return found


def write(folder: Path, fleet: Fleet, groups: tuple[Group, ...]) -> int:
    """Fills a database that nothing has opened yet; returns how many samples it got."""
    until = fleet.end - EVERY * (SCRAPES + 1)
    count, text = 0, folder / "past.txt"
    with text.open("w") as file:
        for name, seconds in windows(groups).items():
            if until - (fleet.end - seconds) <= 0:
                continue
            kind = "counter" if name.split(":")[1].endswith("_total") else "gauge"
            file.write(f"# TYPE {name} gauge\n")
            every = _interval(name, groups)
            times = [
                f"{until - every * back:.3f}" for back in reversed(range(int((until - fleet.end + seconds) / every)))
            ]
            for labels in _labels(name, fleet, groups):
                value = 0 if kind == "counter" else _usual(name, fleet)
                file.writelines(f"{name}{{{labels}}} {value} {time}\n" for time in times)
                count += len(times)
        file.write("# EOF\n")
    if count:
        command = [
            str(PROMTOOL),
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            "--quiet",
            str(text),
            str(folder / "data"),
        ]
        subprocess.run(command, check=True, capture_output=True)
    text.unlink()
    return count


def _interval(name: str, groups: Iterable[Group]) -> float:
    """Seconds between two samples of it."""
    own = {
        rule.record: group.interval_seconds for group in groups for rule in group.rules if isinstance(rule, Recording)
    }
    return own[name] or EVERY


def _usual(name: str, fleet: Fleet) -> float:
    """What a healthy run has."""
    for part, value in (("rank_seconds", RANKS * fleet.pods), ("pods", fleet.pods), ("ranks", RANKS * fleet.pods)):
        if part in name:
            return value
    return 0


def _labels(name: str, fleet: Fleet, groups: Iterable[Group]) -> Iterator[str]:
    kept = next(
        rule.labels for group in groups for rule in group.rules if isinstance(rule, Recording) and rule.record == name
    )
    metric = METRICS.get(name.split(":")[1])
    own = {
        label: (metric.labels[label] if metric else None) or ("any",)
        for label in kept
        if label not in ("run", "pod_index")
    }
    places = [{"run": run} for run in fleet.kinds]
    if "pod_index" in kept:
        places = [{**place, "pod_index": str(pod)} for place in places for pod in range(fleet.pods)]
    for place, *values in itertools.product(places, *own.values()):
        yield ",".join(
            f'{label}="{value}"' for label, value in {**place, **dict(zip(own, values, strict=True))}.items()
        )
