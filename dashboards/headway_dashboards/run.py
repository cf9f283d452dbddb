"""*Run*: is it moving, what is it doing now, what did the last hours cost."""

from __future__ import annotations

from typing import Final

from headway_dashboards import common, links, panels, words
from headway_dashboards.model import Dashboard
from headway_dashboards.queries import parts
from headway_dashboards.queries import run as queries

_NOW: Final = (
    panels.stat(
        "Doing now",
        "What the run is doing. Pods may differ: this is the worst of them. productive means new steps.",
        queries.DOING,
        "none",
        values=words.STATES,
        link=links.TO_WINDOW,
    ),
    panels.stat(
        "Incident",
        "none: all is well. open: a failure, and no newer checkpoint yet. recurring: restarts do not help, somebody is needed.",
        queries.INCIDENT,
        "none",
        values=words.INCIDENT,
        link=links.TO_WINDOW,
    ),
    panels.stat(
        "Training goodput",
        "Share of all rank-time since the run began that went into steps which still count. Green from the objective of 80 % on.",
        queries.TRAINING,
        "percentunit",
        decimals=1,
        steps=common.GOODPUT_STEPS,
        colour=words.BAD,
    ),
    panels.stat(
        "Infrastructure goodput",
        "Share of all rank-time since the run began that was not lost to start-up, detection, restarts and downtime. What it is above the "
        "training goodput went into checkpoints, repeated steps, data and evaluation.",
        queries.INFRASTRUCTURE,
        "percentunit",
        decimals=1,
        steps=common.GOODPUT_STEPS,
        colour=words.BAD,
    ),
    panels.stat(
        "Since the last step",
        "Time since any rank completed a step. Compare it with what the run is doing now: an evaluation or a start-up takes its time. "
        "Empty once the run has finished.",
        queries.SINCE_STEP,
        "s",
        decimals=0,
        steps=((120, words.WARNING), (900, words.BAD)),
        colour=words.GOOD,
    ),
    panels.stat(
        "Work at risk",
        "How long it would take to repeat what a failure would lose at this moment: steps after the durable checkpoint, at the usual pace.",
        queries.AT_RISK,
        "s",
        decimals=0,
        link=links.TO_CHECKPOINTS,
    ),
)

_CHECKPOINT_AGE = panels.series(
    "Checkpoint age and queue",
    "Age of the newest durable checkpoint, beside the interval at which they are asked for. Age that climbs over three intervals is an "
    "alert. Queued saves (right) should return to 0 between two saves.",
    queries.CHECKPOINT_AGE,
    "s",
    colours={"age": words.CALM, "interval": words.FAINT, "queued saves": words.WARNING},
    right={"queued saves": "none"},
    link=links.TO_CHECKPOINTS,
)

_COST: Final = (
    panels.bars(
        "Incidents by verdict",
        "Since the run began. recovered: a newer checkpoint became durable. One that was recurring needed several attempts on the way.",
        queries.VERDICTS,
        "none",
        colours={
            "recovered": words.GOOD,
            "recovered, but was recurring": words.WARNING,
            "abandoned": words.BAD,
            "cancelled": words.FAINT,
        },
        decimals=0,
        link=links.TO_WINDOW,
    ),
    common.cause_table(
        "Restarts by cause",
        "Since the run began, counted on the pod where each failure began. The layer is who restarted: in the process, the launcher, or "
        "the orchestrator.",
        queries.CAUSES,
    ),
    panels.bars(
        "Rank-time since the run began",
        "Time of all chosen pods' ranks added up: eight ranks spend eight minutes a minute.",
        queries.TIME_TOTAL,
        "s",
        colours=words.STATE_COLOURS,
    ),
    panels.series(
        "Recovery time",
        "Of the recoveries in the hour before each point: from the first evidence of a failure to the first step, and to the step at which "
        "it happened. Dots are single recoveries; they lead to their traces if the data source knows where those are.",
        queries.RECOVERY_TIMES,
        "s",
        width=8,
        height=9,
        colours={"first step, half of them": words.CALM, "mark regained, nine in ten": words.NOTICE},
        link=links.TO_WINDOW,
    ),
    panels.bars(
        "Recoveries that regained the mark within",
        "Share of the recoveries in the window shown that were back at the step of the failure within so long. Where the bars jump is how "
        "long a recovery takes.",
        queries.RECOVERED_WITHIN,
        "percentunit",
        most=1,
        decimals=0,
        height=9,
        colour=words.NOTICE,
    ),
    panels.bars(
        "Where recoveries spent their time",
        "Of the recoveries in the window shown, from the last step before the failure to that step again. catch_up repeats lost steps: "
        "checkpoints closer together shorten it.",
        queries.RECOVERY_PHASES,
        "s",
        height=9,
        colour=words.WARNING,
    ),
)

DASHBOARD: Final = Dashboard(
    uid="headway-run",
    title="Run",
    description="One run: is it moving, what is it doing now, and what did the last hours cost.",
    variables=(parts.DATASOURCE, parts.RUN, parts.PODS),
    notes=queries.NOTES,
    panels=(
        *_NOW,
        common.state_timeline(parts.STATE_BY_POD, links.TO_WINDOW),
        panels.series(
            "Goodput",
            "Training and infrastructure goodput since the run began, and what became of the last five minutes. The live one falls at once "
            "when steps are repeated, and leaves out a pod until it is back; the other two move slowly.",
            queries.GOODPUTS,
            "percentunit",
            colours={"training": words.GOOD, "infrastructure": words.CALM, "live, last 5 min": words.NOTICE},
            most=1,
            link=links.TO_WINDOW,
        ),
        panels.series(
            "Where the time went",
            "Shares of the rank-time that was booked. A stretch of time is booked when it ends, so a long outage appears at its end. "
            "Time without a pod appears when its next sidecar is scraped, which needs a state folder.",
            queries.TIME_BY_STATE,
            "percentunit",
            colours=words.STATE_COLOURS,
            stacked=True,
            most=1,
            link=links.TO_WINDOW,
        ),
        common.steps(parts.STEPS),
        panels.series(
            "Steps at risk",
            "Steps that a failure at that moment would have lost. A saw's teeth are as they should be; a tooth that does not end is a "
            "checkpoint that does not come.",
            queries.STEPS_AT_RISK,
            "none",
            colours={"steps after the durable checkpoint": words.NOTICE},
            decimals=0,
            link=links.TO_CHECKPOINTS,
        ),
        _CHECKPOINT_AGE,
        common.incident_timeline(queries.INCIDENT_TIMELINE, links.TO_WINDOW),
        *_COST,
    ),
)
