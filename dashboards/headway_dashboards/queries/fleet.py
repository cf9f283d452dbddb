"""Fleet: every run, the worst first."""

from __future__ import annotations

from typing import Final

from headway_dashboards.model import Query, Variable
from headway_dashboards.queries.parts import alert_table, alerts, incident_number, run_state_number

RUNS: Final = Variable("runs", "Runs", "label_values(run:headway_ranks:sum, run)", several=True)
OF_RUNS: Final = 'run=~"$runs"'

NOT_INFO: Final = ',severity!="info"'

Z: Final = 1.645
"""Of the normal distribution: a tenth lies outside of ±Z."""

COUNT: Final = (Query(f"count(run:headway_ranks:sum{{{OF_RUNS}}})", form="now"),)
RANKS: Final = (Query(f"sum(run:headway_ranks:sum{{{OF_RUNS}}})", form="now"),)
GOODPUT: Final = (
    Query(
        f"""\
sum(
  run:headway_training_goodput:ratio{{{OF_RUNS}}}
  * run:headway_counted_rank_seconds:sum{{{OF_RUNS}}}
)
/ (sum(run:headway_counted_rank_seconds:sum{{{OF_RUNS}}}) > 0)""",
        form="now",
    ),
)
OPEN: Final = (Query(f"sum(run:headway_incident_open:max{{{OF_RUNS}}})", form="now"),)
RECURRING: Final = (Query(f"sum(\n{incident_number(OF_RUNS)}\n== bool 2)", form="now"),)
ALERTS_FIRING: Final = (Query(f"count({alerts(OF_RUNS + NOT_INFO)}) or vector(0)", form="now"),)

COLUMNS: Final = {
    "State": run_state_number(OF_RUNS),
    "Incident": incident_number(OF_RUNS),
    "Training": f"run:headway_training_goodput:ratio{{{OF_RUNS}}}",
    "Infrastructure": f"run:headway_infrastructure_goodput:ratio{{{OF_RUNS}}}",
    "Step": f"run:headway_step:max{{{OF_RUNS}}}",
    "At risk": f"run:headway_work_at_risk:seconds{{{OF_RUNS}}}",
    "Incidents": f"sum by (run) (run:headway_incidents_total:max{{{OF_RUNS}}})",
    "Recurred": f'sum by (run) (run:headway_incidents_total:max{{{OF_RUNS},recurring="true"}})',
}
"""Of the table: a column's title to its query."""
TABLE: Final = tuple(Query(expr, form="table") for expr in COLUMNS.values())


def _closed(recurring: str) -> str:
    counted = f'run:headway_incidents_total:max{{{OF_RUNS},recurring="{recurring}"}}'
    return f"sum(\n  increase({counted}[1h])\n)"


OVER_TIME: Final = (Query(_closed("false"), "not recurring"), Query(_closed("true"), "recurring"))


def _by_cause(name: str) -> str:
    return f"sum by (cause) (\n  max by (run, pod_index, layer, cause) ({name}{{{OF_RUNS}}})\n)\n> 0"


CAUSES: Final = {
    "Incidents": _by_cause("headway_incident_causes_total"),
    "Restarts": _by_cause("headway_restart_causes_total"),
}
CAUSE_TABLE: Final = tuple(Query(expr, form="table") for expr in CAUSES.values())
RECOVERED_BY_LAYER: Final = (
    Query(
        f"""\
sum by (layer) (max by (run, layer) (headway_recoveries_total{{{OF_RUNS}}}))
/ on (layer)
(sum by (layer) (run:headway_restarts_total:max{{{OF_RUNS}}}) > 0)""",
        "{{layer}}",
        "now",
    ),
)


def _failures() -> str:
    """Those that `run:headway_mtbf:seconds` divides by."""
    return f"""\
(
  sum by (run) (run:headway_incidents_total:max{{{OF_RUNS}}})
  + on (run)
  run:headway_incident_open:max{{{OF_RUNS}}}
)"""


def _bound(sign: str, more: int) -> str:
    """An end of the interval in which the true value lies with 90 %: Wilson and Hilferty's approximation of the chi-square distribution.

    Failures at a constant rate; `more` is 1 for the lower end of the mean time and 0 for the upper.
    """
    n = f"({_failures()} + {more})"
    return f"""\
run:headway_mtbf:seconds{{{OF_RUNS}}}
* on (run)
{_failures()}
/ on (run)
(
  {n}
  * on (run)
  (1 - 1 / (9 * {n}) {sign} {Z} / (3 * sqrt({n}))) ^ 3
)"""


MTBF: Final = {
    "MTBF": f"run:headway_mtbf:seconds{{{OF_RUNS}}}",
    "At least": _bound("+", 1),
    "At most": _bound("-", 0),
}
MTBF_TABLE: Final = tuple(Query(expr, form="table") for expr in MTBF.values())
ENTITIES: Final = (
    Query(f"sort_desc(max by (run, entity_kind, entity) (headway_entity_incidents{{{OF_RUNS}}}))", form="table"),
)
ALERT_TABLE: Final = alert_table(OF_RUNS)
