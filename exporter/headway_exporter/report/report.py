"""The report's content, before it has a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.advice import advise
from headway_exporter.report import recovering
from headway_exporter.report.accounts import accounts
from headway_exporter.report.actions import Findings, actions
from headway_exporter.report.offenders import offenders
from headway_exporter.report.saves import saves
from headway_exporter.report.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.advice import Advice
    from headway_exporter.report.accounts import Accounts
    from headway_exporter.report.actions import Action
    from headway_exporter.report.model import Incident, Run
    from headway_exporter.report.offenders import Offender
    from headway_exporter.report.recovering import ClassRate, Times
    from headway_exporter.report.saves import Saves
    from headway_exporter.report.verdict import Verdict

MOST_SHOWN: Final = 200
"""Incidents that are shown one by one unless all are asked for."""


@dataclass(frozen=True)
class Report:
    """All that is told of a run."""

    run: Run
    verdict: Verdict
    accounts: Accounts
    saves: Saves
    shown: tuple[Incident, ...]
    """Those that are told one by one: the worst first."""
    total: Times
    by_layer: Sequence[Times]
    by_cause: Sequence[Times]
    by_layer_and_cause: Sequence[Times]
    phases: dict[str, float]
    """Seconds of all recoveries, by phase."""
    rate: ClassRate
    rates: Sequence[ClassRate]
    offenders: tuple[Offender, ...]
    actions: tuple[Action, ...]
    left_out: int
    """Recoveries of which only the number is known: they are in no time."""
    advice: Sequence[Advice]
    """What `headway advise` says."""

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each incident by its id, in the order of time, from 1."""
        return {one.id: number for number, one in enumerate(self.run.incidents, 1)}

    @property
    def in_order(self) -> tuple[Incident, ...]:
        """Those that are shown, by time."""
        return tuple(sorted(self.shown, key=lambda one: (one.opened_wall, one.id)))


def report(run: Run, most: int | None = MOST_SHOWN) -> Report:
    """The report of a run; `most`: how many incidents are told one by one, None for all."""
    books = accounts(run)
    judged = verdict(run, books)
    repeated = tuple(offenders(run))
    recovered = recovering.recoveries(run.incidents)
    return Report(
        run=run,
        verdict=judged,
        accounts=books,
        saves=saves(run),
        shown=tuple(sorted(run.incidents, key=badness)[:most]),
        total=recovering.overall(recovered),
        by_layer=recovering.by_layer(recovered),
        by_cause=recovering.by_cause(recovered),
        by_layer_and_cause=recovering.by_layer_and_cause(recovered),
        phases=recovering.phases(recovered),
        rate=recovering.overall_rate(run.incidents),
        rates=recovering.rates(run.incidents),
        offenders=repeated,
        left_out=sum(one.lead.recoveries_left_out for one in run.incidents),
        actions=actions(Findings(run, books, judged, repeated)),
        advice=advise(run),
    )


def badness(one: Incident) -> tuple[bool, bool, float, float]:
    """Sorts the worst first: not recovered, recurring, then by what it cost."""
    return one.outcome in ("recovered", "cancelled"), not one.recurring, -one.lost, one.opened_wall
