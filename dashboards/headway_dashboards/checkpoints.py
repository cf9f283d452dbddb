"""*Checkpoints*: are they finished in time, what do they cost, and do they load."""

from __future__ import annotations

from typing import Final

from headway_dashboards import common, links, panels, words
from headway_dashboards.model import Dashboard
from headway_dashboards.queries import checkpoints as queries
from headway_dashboards.queries import parts
from headway_dashboards.queries import run as run_queries

_PAIR: Final = {"half of them": words.CALM, "nine in ten": words.NOTICE}

_NOW: Final = (
    panels.stat(
        "Durable step",
        "Step of the newest checkpoint whose every shard was written and verified. Nothing newer survives a failure.",
        queries.DURABLE_STEP,
        "none",
        decimals=0,
    ),
    panels.stat(
        "Age",
        "Time since a checkpoint last became durable; before the first one, the time that repeating all steps would take.",
        queries.AGE,
        "s",
    ),
    panels.stat(
        "Exposure",
        "Time since the step in the durable checkpoint was computed. It is longer than the age by the time that the save took.",
        queries.EXPOSURE,
        "s",
    ),
    panels.stat(
        "Failed since the last commit",
        "Saves in a row that failed or were cut short. Two are an alert.",
        queries.SINCE_COMMIT,
        "none",
        steps=((1, words.WARNING), (2, words.BAD)),
        colour=words.GOOD,
    ),
    panels.stat(
        "Requests made durable",
        "Since the run began. Saves that a restart cut short are missing from 100 %, as are those under way.",
        queries.COMMITTED,
        "percentunit",
        decimals=0,
    ),
    panels.stat(
        "Writers",
        "Whether the processes that write checkpoints live on all ranks.",
        queries.WRITER,
        "none",
        values=words.UP,
    ),
)

DASHBOARD: Final = Dashboard(
    uid="headway-checkpoints",
    title="Checkpoints",
    description="Checkpoints of one run: finished in time, how much they hold up, whether they load.",
    variables=(parts.DATASOURCE, parts.RUN, parts.PODS),
    notes=run_queries.NOTES,
    panels=(
        *_NOW,
        panels.series(
            "Write time and interval",
            "The write must end well before the next one is asked for. Where the lines meet, saves queue up.",
            queries.WRITE_AND_INTERVAL,
            "s",
            colours={"interval": words.FAINT, "last write": words.CALM},
            link=links.TO_RUN_AT,
        ),
        panels.series(
            "Share of the interval that the write took",
            f"The last write over the interval. Above the line at {queries.OVERLAP_LIMIT:.0%} it is an alert: save less often, or "
            "write faster.",
            queries.OVERLAP,
            "percentunit",
            colours={"write / interval": words.CALM},
            steps=((queries.OVERLAP_LIMIT, words.BAD),),
            usual_most=1,
            link=links.TO_RUN_AT,
        ),
        panels.series(
            "Time that a save held up training",
            "Of the saves in the hour before each point, slowest local rank. An asynchronous save should cost well under a step.",
            queries.BLOCKING,
            "s",
            colours=_PAIR,
            link=links.TO_RUN_AT,
        ),
        panels.series(
            "Queue",
            "Saves accepted and not finished, and the age of the oldest (right; nothing while the queue is empty). A queue that does not "
            "return to 0 is a backlog.",
            queries.QUEUE,
            "none",
            colours={"queued saves": words.WARNING, "age of the oldest": words.CALM},
            right={"age of the oldest": "s"},
            decimals=0,
            link=links.TO_RUN_AT,
        ),
        panels.series(
            "Memory of the writers",
            "Resident memory of the processes that write checkpoints, per pod. It comes on top of the trainer's own.",
            queries.WRITER_MEMORY,
            "bytes",
        ),
        panels.series(
            "Size of a checkpoint",
            "This pod's shards of the last save. A sudden change is a change of the model or of the sharding.",
            queries.SIZES,
            "bytes",
        ),
        panels.series(
            "Saves since the run began, by how they ended",
            "committed should follow requested closely. failed has a reason in the trainer's log; aborted was cut short by a restart.",
            queries.OUTCOMES,
            "none",
            colours={"requested": words.FAINT, "committed": words.GOOD, "failed": words.BAD, "aborted": words.WARNING},
            decimals=0,
            stairs=True,
            link=links.TO_RUN_AT,
        ),
        common.steps(parts.STEPS),
        panels.series(
            "Time that a load took",
            "Of the loads in the hour before each point, slowest local rank.",
            queries.LOADS,
            "s",
            width=8,
            colours=_PAIR,
            link=links.TO_RUN_AT,
        ),
        panels.series(
            "Loads of the same checkpoint in a row",
            "After failures; starting from scratch counts as a checkpoint. Three make the incident recurring.",
            queries.SAME_LOADS,
            "none",
            width=8,
            decimals=0,
            colours={"loads in a row": words.WARNING},
            stairs=True,
            steps=((3, words.BAD),),
            link=links.TO_RUN_AT,
        ),
        panels.bars(
            "Did the restored state reproduce?",
            "Recoveries whose repeated steps were compared with their first pass, since the run began. valid: the losses are the same to "
            "the bit. diverged: what was restored is not what was saved. unverifiable: this run does not repeat itself exactly.",
            queries.REPLAY_CHECKS,
            "none",
            decimals=0,
            colours={"valid": words.GOOD, "diverged": words.BAD, "unverifiable": words.FAINT},
        ),
    ),
)
