"""Run: is it moving, what is it doing now, what did the last hours cost."""

from __future__ import annotations

from typing import Final

from headway_dashboards.model import Note, Query
from headway_dashboards.queries.parts import (
    OF_PODS,
    OF_RUN,
    incident_number,
    quantile,
    recovery_phases,
    share_within,
    spoken,
    state_number,
    total,
)
from headway_exporter.schema import RECOVERY_BUCKETS

SHORTEST: Final = 5.0
"""Seconds; of the recovery times that are told apart."""

DOING: Final = (Query(state_number(OF_RUN, "run"), form="now"),)
INCIDENT: Final = (Query(incident_number(OF_RUN), form="now"),)
TRAINING: Final = (Query(f"run:headway_training_goodput:ratio{{{OF_RUN}}}", form="now"),)
INFRASTRUCTURE: Final = (Query(f"run:headway_infrastructure_goodput:ratio{{{OF_RUN}}}", form="now"),)
SINCE_STEP: Final = (
    Query(
        f"""\
clamp_min(time() - run:headway_last_step_timestamp_seconds:max{{{OF_RUN}}}, 0)
unless on (run)
run:headway_finished:max{{{OF_RUN}}} == 1""",
        form="now",
    ),
)
AT_RISK: Final = (Query(f"run:headway_work_at_risk:seconds{{{OF_RUN}}}", form="now"),)

GOODPUTS: Final = (
    Query(f"run:headway_training_goodput:ratio{{{OF_RUN}}}", "training"),
    Query(f"run:headway_infrastructure_goodput:ratio{{{OF_RUN}}}", "infrastructure"),
    Query(f"run:headway_live_goodput:ratio_rate5m{{{OF_RUN}}}", "live, last 5 min"),
)
# Of what was booked in the window: an interval is booked when it ends.
TIME_BY_STATE: Final = (
    Query(
        f"""\
sum by (state) (
  max by (run, pod_index, state) (rate(headway_rank_seconds_total{{{OF_PODS}}}[$__rate_interval]))
)
/ on () group_left ()
(
  sum (
    max by (run, pod_index, state) (rate(headway_rank_seconds_total{{{OF_PODS}}}[$__rate_interval]))
  )
  > 0
)""",
        "{{state}}",
    ),
)
TIME_TOTAL: Final = (
    Query(f"sort_desc(\n{total('headway_rank_seconds_total', OF_PODS, 'state')}\n> 0)", "{{state}}", "now"),
)
STEPS_AT_RISK: Final = (Query(f"run:headway_steps_at_risk:max{{{OF_RUN}}}", "steps after the durable checkpoint"),)
CHECKPOINT_AGE: Final = (
    Query(f"run:headway_checkpoint_age:seconds{{{OF_RUN}}}", "age"),
    Query(f"run:headway_checkpoint_interval:seconds{{{OF_RUN}}}", "interval"),
    Query(f"run:headway_async_queue_depth:max{{{OF_RUN}}}", "queued saves"),
)
INCIDENT_TIMELINE: Final = (
    Query(f"2 * run:headway_incident_open:max{{{OF_RUN}}}", "incident"),
    Query(f'max by (reason) (headway_incident_recurring{{{OF_RUN},reason!="same_entity"}})', "{{reason}}"),
    Query(f'3 * max by (reason) (headway_incident_recurring{{{OF_RUN},reason="same_entity"}})', "{{reason}}"),
)
VERDICTS: Final = (
    Query(f'run:headway_incidents_total:max{{{OF_RUN},outcome="recovered",recurring="false"}}', "recovered", "now"),
    Query(
        f'run:headway_incidents_total:max{{{OF_RUN},outcome="recovered",recurring="true"}}',
        "recovered, but was recurring",
        "now",
    ),
    Query(f'sum by (outcome) (run:headway_incidents_total:max{{{OF_RUN},outcome!="recovered"}})', "{{outcome}}", "now"),
)
CAUSES: Final = (Query(f"{total('headway_restart_causes_total', OF_RUN, 'layer', 'cause')}\n> 0", form="table"),)
RECOVERED_WITHIN: Final = tuple(
    Query(
        share_within(bound, "headway_recovery_seconds", f'{OF_RUN},to="high_water"', "$__range"), spoken(bound), "now"
    )
    for bound in RECOVERY_BUCKETS
    if bound >= SHORTEST
)
RECOVERY_TIMES: Final = (
    Query(quantile(0.5, "headway_recovery_seconds", f'{OF_RUN},to="first_step"', "1h"), "first step, half of them"),
    Query(
        quantile(0.9, "headway_recovery_seconds", f'{OF_RUN},to="high_water"', "1h"),
        "mark regained, nine in ten",
        exemplars=True,
    ),
)
RECOVERY_PHASES: Final = (Query(recovery_phases(OF_RUN), "{{phase}}", "now"),)

NOTES: Final = (
    Note("Incidents", Query(f"run:headway_incident_open:max{{{OF_RUN}}} == 1"), "#FA6400", "incident open"),
    Note(
        "Recoveries",
        Query(f'increase(run:headway_incidents_total:max{{{OF_RUN},outcome="recovered"}}[2m]) > 0'),
        "#56A64B",
        "recovered",
    ),
)
