"""Alerts on checkpoints: what would be lost if the run failed now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration
from headway_alerts.model import Alert, Group
from headway_alerts.texts import (
    DURATION,
    MOST_NAMED,
    NUMBER,
    PERCENT,
    RUN,
    THIS_RUN,
    in_a_line,
    names_of,
    of_all_runs,
    value_of,
)

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "alerts"

_ACTIVE: Final = "and on (run)\nrun:headway_active_ranks:sum > 0"
_INTERVAL: Final = value_of("run:headway_checkpoint_interval:seconds{run=%q}", "{{ .Value | humanizeDuration }}")
_AT_RISK: Final = value_of("run:headway_steps_at_risk:max{run=%q}")

_WRITER_GONE: Final = f"""\
headway_async_queue_depth{{{THIS_RUN}}} > 0
and on (run, pod_index)
headway_async_writer_up{{{THIS_RUN}}} == 0"""


def group(config: Config) -> Group:
    """In the order of the design."""
    return Group(
        "headway-checkpoints",
        FILE,
        (_stale(config), _failing(config), _backlog(config), _writer_down(config), _overlap(config)),
    )


def _stale(config: Config) -> Alert:
    return Alert(
        name="HeadwayCheckpointStale",
        severity="warning",
        # Work of more than an interval must be at risk: after a long pause the newest checkpoint is old and nothing is wrong.
        expr=f"""\
run:headway_checkpoint_age:seconds
> on (run)
clamp_min(
  {config.stale_intervals:g} * run:headway_checkpoint_interval:seconds,
  {config.stale_floor_seconds:g}
)
and on (run)
run:headway_work_at_risk:seconds > on (run) run:headway_checkpoint_interval:seconds
{_ACTIVE}""",
        summary=f"The newest durable checkpoint of run {RUN} is {DURATION} old",
        description=(
            f"Run {RUN} should save every {_INTERVAL} and would now lose {_AT_RISK} steps. Saves are missing, slow, or written and never "
            "committed. Look at the queue, the writer and the storage."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )


def _failing(config: Config) -> Alert:
    window = duration(config.failing_window_seconds)
    return Alert(
        name="HeadwayCheckpointFailing",
        severity="critical",
        # A single restart may take several queued saves with it: that alone is no failing storage.
        expr=f"""\
run:headway_checkpoint_saves_since_commit:max >= {config.failing_saves:g}
and on (run)
(
  round(increase(run:headway_checkpoint_saves_total:max{{outcome="failed"}}[{window}])) >= 1
  or on (run)
  round(sum by (run) (increase(run:headway_restarts_total:max[{window}]))) >= 2
)
{_ACTIVE}""",
        summary=f"{NUMBER} saves in a row of run {RUN} failed or were aborted",
        description=(
            f"No checkpoint of run {RUN} has become durable since; {_AT_RISK} steps are at risk and every further step adds to them. "
            "Look for full or failing storage and for a dead writer; free space before the next interval if you can."
        ),
        keep_seconds=config.keep_firing_seconds,
    )


def _backlog(config: Config) -> Alert:
    depth = "run:headway_async_queue_depth:max[5m]"
    return Alert(
        name="HeadwayAsyncBacklog",
        severity="warning",
        # Growing: even the emptiest moment of these five minutes is fuller than that of the five before.
        expr=f"""\
run:headway_async_queue_depth:max
and on (run)
(
  time() - min by (run) (headway_async_queue_oldest_timestamp_seconds)
  > on (run)
  run:headway_checkpoint_interval:seconds
  or
  (
    min_over_time({depth}) >= {config.backlog_depth:g}
    and
    min_over_time({depth}) > min_over_time({depth} offset 5m)
  )
)""",
        summary=f"Saves of run {RUN} that wait to be written: {NUMBER}",
        description=(
            f"Run {RUN} asks for a checkpoint every {_INTERVAL} and the writer cannot keep up. The queue holds memory, and what is in it "
            "is lost with the process. Save less often, or find out why writing is slow."
        ),
        wait_seconds=120,
        keep_seconds=config.keep_firing_seconds,
    )


def _writer_down(config: Config) -> Alert:
    gone = f"topk({MOST_NAMED}, max by (pod_index) ({in_a_line(_WRITER_GONE)}))"
    pods = names_of(gone, "pod_index", "pod {{ $one.Labels.pod_index }}")
    return Alert(
        name="HeadwayAsyncWriterDown",
        severity="critical",
        expr=f"max by (run) (\n{of_all_runs(_WRITER_GONE)}\n)",
        summary=f"The checkpoint writer of run {RUN} is gone; saves queued: {NUMBER}",
        description=(
            f"It is gone at least in {pods}. Nothing of run {RUN} is written any more, and training goes on as if it were: {_AT_RISK} "
            "steps are at risk. The queue does not recover by itself. See why the writer died (memory, storage), then restart the rank so "
            "that a new one starts."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )


def _overlap(config: Config) -> Alert:
    return Alert(
        name="HeadwayCheckpointOverlapIncomplete",
        severity="warning",
        expr=f"""\
run:headway_checkpoint_last_write_seconds:max
/ on (run)
(run:headway_checkpoint_interval:seconds > 0)
> {config.overlap_ratio:g}
{_ACTIVE}""",
        summary=f"Writing a checkpoint of run {RUN} takes {PERCENT} of the interval",
        description=(
            f"The last write of run {RUN} took "
            + value_of("run:headway_checkpoint_last_write_seconds:max{run=%q}", "{{ .Value | humanizeDuration }}")
            + f" of {_INTERVAL}. From 100 % on, saves wait for each other and then hold up training. Save less often, write fewer bytes, "
            "or give it faster storage."
        ),
        wait_seconds=300,
        keep_seconds=config.keep_firing_seconds,
    )
