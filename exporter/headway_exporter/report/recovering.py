"""How long recoveries took and how often they worked, from the records alone, so exactly, of those that records keep."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from headway_exporter.labels import LAYERS, RECOVERY_PHASES
from headway_exporter.report.figures import Rate, Spread, spread
from headway_exporter.report.words import CAUSE_CLASS, CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headway_exporter.report.model import Incident, Recovery

NO_LAYER = "unknown"
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Times:
    """How long recoveries of one kind took."""

    name: str
    """A layer, a cause, or `all`."""
    first_step: Spread
    """Until training went on."""
    high_water: Spread
    """Until it was where it had been."""
    failed_attempts: int
    """Tries that did not get as far as a step."""
    layer: str = ""
    """Of a row of one layer and one cause: the layer."""


@dataclass(frozen=True, slots=True)
class ClassRate:
    """How incidents of one class of causes ended."""

    name: str
    recovered: Rate
    """Of those that are over and that nobody cancelled."""
    cancelled: int
    still_open: int
    recurring: int
    lost: float
    """Rank-seconds."""

    @property
    def count(self) -> int:
        """All incidents of the class."""
        return self.recovered.count + self.cancelled + self.still_open


def recoveries(incidents: Iterable[Incident]) -> list[Recovery]:
    """Each once, as the pod saw it that knows most of the incident."""
    return [recovery for one in incidents for recovery in one.lead.recoveries]


def by_layer(found: Iterable[Recovery]) -> list[Times]:
    """A row for each layer that recovered something, inner ones first."""
    return [_times(name, rows) for name, rows in _of_layers(found)]


def by_cause(found: Iterable[Recovery]) -> list[Times]:
    """A row for each cause, the most frequent first."""
    rows = _grouped(found, lambda one: one.cause)
    return [_times(name, rows[name]) for name in sorted(rows, key=lambda name: (-len(rows[name]), name))]


def by_layer_and_cause(found: Iterable[Recovery]) -> list[Times]:
    """A row for each cause of each layer: what one layer recovers in seconds takes another one minutes."""
    return [replace(row, layer=layer) for layer, rows in _of_layers(found) for row in by_cause(rows)]


def _of_layers(found: Iterable[Recovery]) -> list[tuple[str, list[Recovery]]]:
    rows = _grouped(found, lambda one: one.layer if one.layer in LAYERS else NO_LAYER)
    return [(name, rows[name]) for name in (*LAYERS, NO_LAYER) if name in rows]


def overall(found: Sequence[Recovery]) -> Times:
    """All of them."""
    return _times("all", found)


def phases(found: Iterable[Recovery]) -> dict[str, float]:
    """Seconds by phase, all tries together, in the order in which they come."""
    total = dict.fromkeys(RECOVERY_PHASES, 0.0)
    for recovery in found:
        for one in recovery.tries:
            for name, seconds in one.phases.items():
                total[name] += seconds
    return {name: seconds for name, seconds in total.items() if seconds > 0}


def rates(incidents: Iterable[Incident]) -> list[ClassRate]:
    """A row for each class that had incidents."""
    groups = _grouped(incidents, lambda one: CAUSE_CLASS[one.lead.cause])
    return [_rate(name, groups[name]) for name in CLASSES if name in groups]


def overall_rate(incidents: Iterable[Incident]) -> ClassRate:
    """All of them."""
    return _rate("all", list(incidents))


def _rate(name: str, group: Sequence[Incident]) -> ClassRate:
    outcomes = Counter(one.outcome for one in group)
    over = outcomes["recovered"] + outcomes["abandoned"]
    return ClassRate(
        name=name,
        recovered=Rate(outcomes["recovered"], over),
        cancelled=outcomes["cancelled"],
        still_open=outcomes["open"],
        recurring=sum(1 for one in group if one.recurring),
        lost=sum(one.lost for one in group),
    )


def _times(name: str, group: Sequence[Recovery]) -> Times:
    return Times(
        name,
        spread([seconds for one in group if (seconds := one.seconds_to_first_step) is not None]),
        spread([seconds for one in group if (seconds := one.seconds_to_high_water) is not None]),
        sum(max(one.attempts - (one.first_step_wall is not None), 0) for one in group),
    )


def _grouped(items: Iterable[_Item], key: Callable[[_Item], str]) -> dict[str, list[_Item]]:
    groups: dict[str, list[_Item]] = defaultdict(list)
    for one in items:
        groups[key(one)].append(one)
    return dict(groups)
