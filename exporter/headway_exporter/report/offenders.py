"""What failures have in common: the rank, node or GPU where they begin, the checkpoint they load, the step they die at."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.report.recovering import recoveries
from headway_exporter.report.words import CAUSE_CLASS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headway_exporter.report.model import Incident, Run

LEAST: Final = 2
OFTEN: Final = 3
"""Loads of a checkpoint or failures at a step that are no accident any more."""
UNLIKELY: Final = 0.05
SHOWN: Final = 8
"""Of each kind."""
CHANCE: Final = "more than chance"
"""So many of all incidents on one of so many would come about in one run of twenty, were it the same for all."""
HARDWARE: Final = "hardware faults"
"""Two or more, and over twice its share: too few to rule out chance, and too dear to wait for more."""
AGAIN: Final = "again and again"
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
    marked: str
    """Why it is more than listed, in words (CHANCE, HARDWARE, AGAIN); empty: it is not."""
    incidents: frozenset[str] = frozenset()
    """Ids."""

    @property
    def notable(self) -> bool:
        """It asks for something to be done."""
        return bool(self.marked)


def offenders(run: Run) -> list[Offender]:
    """Those that come up at least twice, by kind, the worst first."""
    sure = [one for one in run.incidents if one.lead.confidence != "unknown" and not one.lead.ambiguous]
    nodes = {pod.node for pod in run.pods} | {one.lead.origin.node for one in sure}
    ranks = run.world_size or LEAST
    members = {"node": len(nodes - {None, ""}), "gpu": ranks, "rank": ranks}
    found: list[Offender] = []
    for kind, of in _ENTITIES.items():
        if members[kind] > 1:  # the only one there is says nothing
            found += _entities(kind, members[kind], sure, of)
    return [*found, *_checkpoints(run.incidents), *_steps(run.incidents)]


_ENTITIES: Final[dict[str, Callable[[Incident], object]]] = {
    "node": lambda one: one.lead.origin.node,
    "gpu": lambda one: one.lead.origin.gpu_uuid,
    "rank": lambda one: one.lead.origin.rank,
}


def _entities(
    kind: str, members: int, incidents: Sequence[Incident], of: Callable[[Incident], object]
) -> list[Offender]:
    groups: dict[str, list[Incident]] = defaultdict(list)
    for one in incidents:
        entity = of(one)
        if entity is not None:
            groups[str(entity)].append(one)
    known = [one for group in groups.values() for one in group]
    even_share = sum(1 for one in known if _is_hardware(one)) / members
    found = [
        _entity(kind, name, group, len(known), members, even_share)
        for name, group in groups.items()
        if len(group) >= LEAST
    ]
    return sorted(found, key=lambda one: (not one.notable, -one.count, -one.lost, one.name))[:SHOWN]


def _entity(kind: str, name: str, group: Sequence[Incident], known: int, members: int, even_share: float) -> Offender:
    """`known`: incidents whose entity is known; `even_share`: hardware faults each would have if all had the same."""
    hardware = sum(1 for one in group if _is_hardware(one))
    by_chance = members * at_least(len(group), known, 1 / members)
    broken = hardware >= LEAST and hardware > 2 * even_share
    return Offender(
        kind,
        name,
        len(group),
        sum(one.lost for one in group),
        _causes(one.lead.cause for one in group),
        CHANCE if by_chance < UNLIKELY else HARDWARE if broken else "",
        frozenset(one.id for one in group),
    )


def _is_hardware(one: Incident) -> bool:
    return CAUSE_CLASS[one.lead.cause] in ("gpu", "node_loss", "network")


def at_least(count: int, trials: int, share: float) -> float:
    """Probability of `count` or more of `trials` when each has this chance: the upper tail of the binomial distribution.

    1.0 when the count is not above the mean: a tail that begins there is no news.
    """
    if count <= trials * share:
        return 1.0
    log_choices = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    term = math.exp(log_choices + count * math.log(share) + (trials - count) * math.log1p(-share))
    total = term
    while count < trials and term > total * 1e-12:  # above the mean each term is smaller than the one before
        term *= (trials - count) / (count + 1) * share / (1 - share)
        count += 1
        total += term
    return min(total, 1.0)


def _checkpoints(incidents: Iterable[Incident]) -> list[Offender]:
    """All pods load the same one: what the pod counted that counted most is the number of loads."""
    loads: Counter[int] = Counter()
    for one in incidents:
        for step in {step for record in one.records for step in record.loads}:
            loads[step] += max(record.loads.get(step, 0) for record in one.records)
    often = [(step, count) for step, count in loads.items() if count >= LEAST]
    often.sort(key=lambda item: (-item[1], item[0]))
    return [Offender("checkpoint", str(step), count, 0.0, (), _often(count)) for step, count in often[:SHOWN]]


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
            found.append(Offender("step", str(step), len(near), 0.0, _causes(near), _often(len(near))))
        for place in (step - 1, step, step + 1):
            causes[place] = []
    return sorted(found, key=lambda one: -one.count)[:SHOWN]


def _often(count: int) -> str:
    return AGAIN if count >= OFTEN else ""


def _causes(causes: Iterable[str]) -> tuple[str, ...]:
    return tuple(cause for cause, _ in Counter(causes).most_common(3))
