"""What failures have in common: the rank, node or GPU where they begin, the checkpoint they load, the step they die at."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.report.recovering import recoveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headway_exporter.report.model import Incident, Run

LEAST: Final = 2
SHOWN: Final = 8
"""Of each kind."""
KINDS: Final = ("node", "gpu", "rank", "checkpoint", "step")


@dataclass(frozen=True, slots=True)
class Offender:
    """Something that failures have in common."""

    kind: str
    name: str
    count: int
    """Incidents that began there; loads of the checkpoint; failures at the step."""
    lost: float
    """Rank-seconds that the incidents cost; 0 for a checkpoint or a step."""
    causes: tuple[str, ...]
    """The most frequent first."""


def offenders(run: Run) -> list[Offender]:
    """Those that come up at least twice, by kind, the worst first."""
    sure = [one for one in run.incidents if one.lead.confidence != "unknown" and not one.lead.ambiguous]
    nodes = {pod.node for pod in run.pods} | {one.lead.origin.node for one in sure}
    several = {"node": len(nodes - {None, ""}) > 1, "rank": (run.world_size or 2) > 1, "gpu": (run.world_size or 2) > 1}
    found: list[Offender] = []
    for kind, of in _ENTITIES.items():
        if several[kind]:  # the only one there is says nothing
            found += _entities(kind, sure, of)
    return [*found, *_checkpoints(run.incidents), *_steps(run.incidents)]


_ENTITIES: Final[dict[str, Callable[[Incident], object]]] = {
    "node": lambda one: one.lead.origin.node,
    "gpu": lambda one: one.lead.origin.gpu_uuid,
    "rank": lambda one: one.lead.origin.rank,
}


def _entities(kind: str, incidents: Iterable[Incident], of: Callable[[Incident], object]) -> list[Offender]:
    groups: dict[str, list[Incident]] = defaultdict(list)
    for one in incidents:
        entity = of(one)
        if entity is not None:
            groups[str(entity)].append(one)
    found = [
        Offender(kind, name, len(group), sum(one.lost for one in group), _causes(one.lead.cause for one in group))
        for name, group in groups.items()
        if len(group) >= LEAST
    ]
    return sorted(found, key=lambda one: (-one.count, -one.lost, one.name))[:SHOWN]


def _checkpoints(incidents: Iterable[Incident]) -> list[Offender]:
    """All pods load the same one: what the pod counted that counted most is the number of loads."""
    loads: Counter[int] = Counter()
    for one in incidents:
        for step in {step for record in one.records for step in record.loads}:
            loads[step] += max(record.loads.get(step, 0) for record in one.records)
    often = [(step, count) for step, count in loads.items() if count >= LEAST]
    often.sort(key=lambda item: (-item[1], item[0]))
    return [Offender("checkpoint", str(step), count, 0.0, ()) for step, count in often[:SHOWN]]


def _steps(incidents: Iterable[Incident]) -> list[Offender]:
    """Failures in the same step or the one beside it, which ranks notice sooner or later."""
    causes: dict[int, list[str]] = defaultdict(list)
    for one in recoveries(incidents):
        if one.tip_step is not None:
            causes[one.tip_step + 1].append(one.cause)
    found = []
    for step in sorted(causes, key=lambda step: (-len(causes[step]), step)):
        near = [cause for place in (step - 1, step, step + 1) for cause in causes.get(place, ())]
        if len(near) >= LEAST:
            found.append(Offender("step", str(step), len(near), 0.0, _causes(near)))
        for place in (step - 1, step, step + 1):
            causes[place] = []
    return sorted(found, key=lambda one: -one.count)[:SHOWN]


def _causes(causes: Iterable[str]) -> tuple[str, ...]:
    return tuple(cause for cause, _ in Counter(causes).most_common(3))
