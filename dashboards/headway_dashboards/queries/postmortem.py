"""Postmortem: one incident, from a while before to a while after. All sums are over the window shown."""

from __future__ import annotations

from typing import Final

from headway_dashboards.model import Query
from headway_dashboards.queries.parts import OF_PODS, OF_RUN, alerts, in_window, quantile, recovery_phases
from headway_dashboards.words import SEVERITIES


def _new(name: str, *labels: str) -> str:
    """By pod and these labels."""
    return in_window(f"{name}{{{OF_RUN}}}", "run", "pod_index", *labels)


def _closed(matchers: str) -> str:
    counted = in_window(f"run:headway_incidents_total:max{{{OF_RUN},{matchers}}}", "run", "outcome", "recurring")
    return f"sum(\n{counted}\n)"


FAILURES: Final = (
    Query(f"sum(\n{in_window(f'run:headway_restarts_total:max{{{OF_RUN}}}', 'run', 'layer')}\n)", form="now"),
)
CLOSED: Final = (
    Query(_closed('outcome="recovered",recurring="false"'), "recovered", "now"),
    Query(_closed('outcome="recovered",recurring="true"'), "recovered late", "now"),
    Query(_closed('outcome!="recovered"'), "not recovered", "now"),
)
LOST_STEPS: Final = (Query(f"max by (run) (\n{_new('headway_steps_lost_total')}\n)", form="now"),)
_LOST: Final = "detect|restart|down|init|checkpoint_load|replay"
NOT_PRODUCTIVE: Final = (
    Query(
        f"""\
sum(
{in_window(f'headway_rank_seconds_total{{{OF_PODS},state=~"{_LOST}"}}', "run", "pod_index", "state")}
)""",
        form="now",
    ),
)
RECOVERY: Final = (
    Query(quantile(0.9, "headway_recovery_seconds", f'{OF_RUN},to="high_water"', "$__range"), form="now"),
)
VALID: Final = (Query(f"max by (result) (\n{_new('headway_replay_checks_total', 'result')}\n)", "{{result}}", "now"),)

# A number for each severity: in the order of words.SEVERITIES.
ALERTS_FIRING: Final = tuple(
    Query(f"{number} * {alerts(OF_RUN + f',severity={chr(34)}{value.text}{chr(34)}')}", "{{alertname}}")
    for number, value in SEVERITIES.items()
)
ATTEMPTS: Final = (
    Query(f"run:headway_incident_attempts:max{{{OF_RUN}}}", "attempts of the open incident"),
    Query(f"max by (run) (headway_restarts_without_progress{{{OF_RUN}}})", "restarts without progress"),
    Query(f"max by (run) (headway_same_checkpoint_loads{{{OF_RUN}}})", "loads of the same checkpoint"),
)
LOSS: Final = (Query(f"max by (pod_index) (headway_loss{{{OF_PODS}}})", "pod {{pod_index}}"),)
CAUSES: Final = (
    Query(
        f"""\
sum by (layer, cause) (
{_new("headway_restart_causes_total", "layer", "cause")}
)
> 0""",
        form="table",
    ),
)
ORIGINS: Final = (
    Query(
        f"""\
sum by (pod_index, rank) (
{_new("headway_rank_failures_total", "rank")}
)
> 0""",
        "rank {{rank}}, pod {{pod_index}}",
        "now",
    ),
)
PHASES: Final = (Query(recovery_phases(OF_RUN), "{{phase}}", "now"),)
RANKS: Final = (Query(f"pod:headway_ranks:max{{{OF_PODS}}}", "pod {{pod_index}}"),)
SOURCES: Final = (
    Query(
        "time() - max by (pod_index, source) ("
        f'headway_source_last_update_timestamp_seconds{{{OF_PODS},source=~"trainer|launcher"}})',
        "pod {{pod_index}} {{source}}",
    ),
)
DROPPED: Final = (
    Query(
        f"sum by (reason) (\n{_new('headway_events_dropped_total', 'reason')}\n)\n> 0",
        "{{reason}}",
        "now",
    ),
)
