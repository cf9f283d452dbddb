"""*Postmortem*: one incident's window, before, during and after."""

from __future__ import annotations

from typing import Final

from headway_dashboards import common, links, panels, words
from headway_dashboards.model import Dashboard
from headway_dashboards.queries import parts
from headway_dashboards.queries import postmortem as queries
from headway_dashboards.queries import run as run_queries

_SUMS: Final = (
    panels.stat("Restarts", "Restarts in the window shown, by any layer.", queries.FAILURES, "none", decimals=0),
    panels.stat(
        "Incidents closed",
        "Verdicts made in the window shown. recovered late: after it was called recurring. One still open is in the timeline below.",
        queries.CLOSED,
        "none",
        decimals=0,
        names=True,
        empty="none",
        width=8,
    ),
    panels.stat(
        "Steps lost",
        "Completed steps of the window shown that a recovery returned behind.",
        queries.LOST_STEPS,
        "none",
        decimals=0,
    ),
    panels.stat(
        "Rank-time lost",
        "Rank-time of the window shown that went into detection, restarts, downtime, start-up, loads and repeated steps.",
        queries.NOT_PRODUCTIVE,
        "s",
    ),
    panels.stat(
        "Mark regained within",
        "Nine in ten recoveries of the window shown took no longer, from the first evidence to the step at which it happened.",
        queries.RECOVERY,
        "s",
    ),
)

_WINDOW: Final = (
    common.state_timeline(parts.STATE_BY_POD, links.TO_HEALTH),
    common.incident_timeline(run_queries.INCIDENT_TIMELINE, links.TO_RUN_AT),
    panels.states(
        "Alerts",
        "When each alert fired, by severity. info is only a note; critical ones called somebody.",
        queries.ALERTS_FIRING,
        words.SEVERITIES,
        width=12,
        height=8,
        link=links.TO_RUN_AT,
    ),
    common.steps(parts.STEPS),
    panels.series(
        "Attempts",
        "An incident that needs one attempt is a recovery. Lines that climb while the highest step stands still are a loop.",
        queries.ATTEMPTS,
        "none",
        decimals=0,
        stairs=True,
        colours={
            "attempts of the open incident": words.WARNING,
            "restarts without progress": words.BAD,
            "loads of the same checkpoint": words.CALM,
        },
        link=links.TO_RUN_AT,
    ),
    panels.series(
        "Loss",
        "Of the last step. After a recovery it must go over the same values again; a jump means that something else was restored.",
        queries.LOSS,
        "none",
        link=links.TO_RUN_AT,
    ),
    panels.series(
        "Ranks alive",
        "Trainer processes of each pod that live: the first to drop is near the origin.",
        queries.RANKS,
        "none",
        decimals=0,
        stairs=True,
        link=links.TO_HEALTH,
    ),
)

_WHY: Final = (
    common.cause_table(
        "Causes", "Of the restarts in the window shown, counted where each failure began.", queries.CAUSES
    ),
    panels.bars(
        "Where failures began",
        "Failures in the window shown, by the rank on which they began; all others only followed.",
        queries.ORIGINS,
        "none",
        decimals=0,
        colour=words.WARNING,
        link=links.TO_HEALTH,
    ),
    panels.bars(
        "Where recoveries spent their time",
        "From the last step before a failure to that step again, for the window shown.",
        queries.PHASES,
        "s",
        colour=words.WARNING,
    ),
    panels.bars(
        "Did the restored state reproduce?",
        "Comparisons of repeated steps with their first pass in the window shown. diverged: what was restored is not what was saved.",
        queries.VALID,
        "none",
        decimals=0,
        colours={"valid": words.GOOD, "diverged": words.BAD, "unverifiable": words.FAINT},
    ),
    panels.series(
        "Silence of the sources",
        "Time since trainer and launcher last wrote something. If it grows while its pod trains, these pictures miss something.",
        queries.SOURCES,
        "s",
        width=8,
    ),
    panels.bars(
        "Not in these numbers",
        "Events, steps or files of the window shown that the sidecar could not use, by reason. Empty is good: the pictures are complete.",
        queries.DROPPED,
        "none",
        decimals=0,
        colour=words.BAD,
        empty="none, all was read",
    ),
)

DASHBOARD: Final = Dashboard(
    uid="headway-postmortem",
    title="Postmortem",
    description="One incident: what was before, what happened, and what became of it. `headway postmortem` writes the report.",
    variables=(parts.DATASOURCE, parts.RUN, parts.PODS),
    notes=run_queries.NOTES,
    window="now-1h",
    panels=(*_SUMS, *_WINDOW, *_WHY),
)
