"""What a run's own data advise: heartbeat time-outs, checkpoint interval, restart budgets, in-process time-outs.

    report.model.Run -> observed.Observed (what matters here) -> a function for each topic -> Advice

Everything is pure. Each piece of advice names the numbers that it comes from and how sure it is; where the data are too few it says so
and recommends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_exporter.advice.budgets import restart_budgets
from headway_exporter.advice.heartbeats import heartbeat_timeouts
from headway_exporter.advice.inprocess import in_process_timeouts
from headway_exporter.advice.intervals import checkpoint_interval
from headway_exporter.advice.model import Advice, Number
from headway_exporter.advice.observed import Observed, observe

if TYPE_CHECKING:
    from headway_exporter.report.model import Run

__all__ = ["Advice", "Number", "Observed", "advise", "observe"]


def advise(run: Run) -> list[Advice]:
    """All advice for a run, what should be changed first."""
    seen = observe(run)
    found = [*heartbeat_timeouts(seen), checkpoint_interval(seen), *restart_budgets(seen), *in_process_timeouts(seen)]
    return sorted(found, key=lambda one: one.rank)
