"""Alerts on incidents, and on training that stands still: what must wake somebody, and what is only a note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration, reset_window
from headway_alerts.model import Alert, Group
from headway_alerts.texts import DURATION, NUMBER, RUN, names_of, value_of

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "alerts"
_ATTEMPT: Final = "run:headway_incident_attempt_started_timestamp_seconds:min"


def group(config: Config) -> Group:
    """In the order of the design."""
    return Group(
        "headway-incidents",
        FILE,
        (
            _recovered(config),
            _recurring_failure(config),
            _recurring_entity(config),
            _recovery_stuck(config),
            _training_stalled(config),
            _phase_overdue(config),
            _budget_low(config),
            _replay_divergence(config),
        ),
    )


def _recovered(config: Config) -> Alert:
    window, before = duration(config.note_seconds), duration(reset_window(config.note_seconds))
    counter = 'run:headway_incidents_total:max{outcome="recovered"}'
    return Alert(
        name="HeadwayRecovered",
        severity="info",
        # A counter that was reset counts its old incidents anew. The run's own is enough: all pods count the same ones.
        expr=f"""\
round(
  sum by (run) (
    increase({counter}[{window}])
    unless
    resets({counter}[{before}]) > 0
  )
) > 0""",
        summary=f"Run {RUN} recovered ({NUMBER} in the last {window})",
        description=(
            f"Run {RUN} is past where it failed, and a newer checkpoint is durable. The last recovery took it back "
            + value_of("max by (run) (headway_last_rollback_steps{run=%q})")
            + " steps. Nothing to do; look at where it began if it comes often."
        ),
    )


def _recurring_failure(config: Config) -> Alert:
    memory = duration(config.memory_seconds)
    reason = f'last_over_time(headway_incident_recurring{{run=%q,reason!="same_entity"}}[{memory}])'
    reasons = names_of(f"max by (reason) ({reason}) == 1", "reason")
    attempts = value_of(f"max by (run) (last_over_time(headway_incident_attempts{{run=%q}}[{memory}]))")
    return Alert(
        name="HeadwayRecurringFailure",
        severity="critical",
        # Of a pod that is gone its last word counts for a while, unless the incident was over when it went; of others what they say now.
        expr=f"""\
max by (run) (
  pod:headway_incident_recurring:max
  or
  (
    last_over_time(pod:headway_incident_recurring:max[{memory}])
    unless on (run, pod_index)
    pod:headway_ranks:max
    and on (run)
    last_over_time(run:headway_incident_open:max[{memory}]) == 1
  )
)""",
        summary=f"Run {RUN} keeps failing and does not get on ({reasons})",
        description=(
            f"The open incident of run {RUN} has had {attempts} attempts and is recurring: {reasons}. Restarting it once more will "
            "not help. Find out what the attempts have in common; stop the run if you cannot mend it now, since every attempt costs "
            "all of its GPUs."
        ),
        keep_seconds=config.keep_firing_seconds,
    )


def _recurring_entity(config: Config) -> Alert:
    memory = duration(config.memory_seconds)
    places = names_of(
        f"max by (entity_kind, entity) (last_over_time(headway_entity_incidents{{run=%q}}[{memory}]))",
        "entity_kind",
        '{{ $one.Labels.entity_kind }} {{ $one.Labels.entity }} ({{ $one.Value | printf "%.0f" }})',
    )
    return Alert(
        name="HeadwayRecurringEntity",
        severity="warning",
        expr=f"""\
max by (run) (
  last_over_time(headway_entity_incidents[{memory}])
) > 0""",
        summary=f"{NUMBER} incidents of run {RUN} began in the same place within a day",
        description=(
            f"Incidents of the last 24 hours by where they began: {places}. Run {RUN} recovers, but the next failure is likely to come "
            "from there. Drain that node or GPU at the next good moment."
        ),
        keep_seconds=config.keep_firing_seconds,
    )


def _recovery_stuck(config: Config) -> Alert:
    layer = names_of("max by (layer) (headway_incident_attempt_started_timestamp_seconds{run=%q})", "layer")
    return Alert(
        name="HeadwayRecoveryStuck",
        severity="critical",
        expr=f"""\
time() - {_ATTEMPT}
> on (run)
run:headway_recovery_budget_seconds:max""",
        summary=f"Run {RUN} has been trying to restart for {DURATION} without a step",
        description=(
            f"The attempt under way in run {RUN} waits for: {layer}. It is over its budget of "
            + value_of("run:headway_recovery_budget_seconds:max{run=%q}", "{{ .Value | humanizeDuration }}")
            + ". All GPUs of the run idle meanwhile. See in which phase it hangs; restart from outside if nothing moves."
        ),
        # Short: while it fires it mutes HeadwayTrainingStalled, and a new hang must not be muted for long.
        keep_seconds=min(config.keep_firing_seconds, 120),
    )


def _closed_since_the_last_step(outcome: str) -> str:
    return f"""run:headway_incident_closed_timestamp_seconds:max{{outcome="{outcome}"}}
  > on (run) group_left ()
  run:headway_last_step_timestamp_seconds:max"""


def _training_stalled(config: Config) -> Alert:
    limit = f"""clamp_min(
    {config.stalled_steps:g} * run:headway_step_duration_baseline_seconds:max,
    {config.stalled_floor_seconds:g}
  )"""
    return Alert(
        name="HeadwayTrainingStalled",
        severity="critical",
        # The state's age counts too: when an evaluation ends, the last step is long ago and nothing is wrong.
        # The last part: nobody came back and the incident was given up, but nobody told the run to end either.
        expr=f"""\
(
  time() - run:headway_last_step_timestamp_seconds:max
  > on (run)
  {limit}
  and on (run)
  time() - run:headway_state_since_timestamp_seconds:max
  > on (run)
  {limit}
  and on (run)
  run:headway_active_ranks:sum > 0
  unless on (run)
  {_ATTEMPT}
  unless on (run)
  pod:headway_phase_open:seconds
)
or on (run)
(
  time() - run:headway_last_step_timestamp_seconds:max
  and on (run)
  run:headway_active_ranks:sum == 0
  and on (run)
  {_closed_since_the_last_step("abandoned")}
  unless on (run)
  {_closed_since_the_last_step("cancelled")}
  unless on (run)
  {_ATTEMPT}
)""",
        summary=f"Run {RUN} has made no step for {DURATION}",
        description=(
            f"Run {RUN} stands at step "
            + value_of("run:headway_step:max{run=%q}")
            + ", where a step usually takes "
            + value_of("run:headway_step_duration_baseline_seconds:max{run=%q}", "{{ .Value | humanizeDuration }}")
            + ". No restart is under way, so nobody is mending it. Take stacks of the ranks to see what they wait for, then restart."
        ),
        wait_seconds=30,
        keep_seconds=config.keep_firing_seconds,
    )


def _phase_overdue(config: Config) -> Alert:
    parts = []
    for state, seconds in config.phase_budget_seconds.items():
        # The start-up of an attempt is the business of HeadwayRecoveryStuck.
        unless = f"\nunless on (run)\n{_ATTEMPT}" if state == "init" else ""
        parts.append(f'max by (run) (pod:headway_phase_open:seconds{{state="{state}"}} > {seconds:g}){unless}')
    phases = "|".join(config.phase_budget_seconds)
    open_now = names_of(f'max by (state) (pod:headway_phase_open:seconds{{run=%q,state=~"{phases}"}})', "state")
    return Alert(
        name="HeadwayPhaseOverdue",
        severity="warning",
        expr="\nor\n".join(parts),
        summary=f"Run {RUN} has been in one phase for {DURATION} ({open_now})",
        description=(
            f"Run {RUN} makes no steps while {open_now} is open, longer than such a phase should take. See whether it moves at all, and "
            "what it reads or writes; raise the phase's budget in the rules if this is normal for this run."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )


def _budget_low(config: Config) -> Alert:
    remaining, limit = "run:headway_restart_budget_remaining:min", "run:headway_restart_budget_limit:max"
    restarts = "run:headway_restarts_total:max"
    budgets = names_of(f"{remaining}{{run=%q}}", "layer", '{{ $one.Labels.layer }} {{ $one.Value | printf "%.0f" }}')
    return Alert(
        name="HeadwayRestartBudgetLow",
        severity="warning",
        # Untouched budgets are left out, however small they are.
        expr=f"""\
min by (run) (
  (
    {remaining}
    <= on (run, layer)
    clamp_min({config.budget_low_ratio:g} * {limit}, {config.budget_low_restarts:g})
    or
    {remaining}
    <= on (run, layer)
    {config.budget_burn_hours:g} * (
      round(increase({restarts}[1h]) unless resets({restarts}[{duration(reset_window(3_600))}]) > 0) >= {config.budget_burn_restarts:g}
    )
  )
  and on (run, layer)
  {remaining} < on (run, layer) {limit}
  and on (run)
  run:headway_active_ranks:sum
)""",
        summary=f"Run {RUN} is running out of restarts: {NUMBER} left on one layer",
        description=(
            f"Restarts left in run {RUN}: {budgets}. When they are spent the next failure ends the job. Find out why it restarts, "
            "or raise the budget at the next planned restart."
        ),
        keep_seconds=config.keep_firing_seconds,
    )


def _replay_divergence(config: Config) -> Alert:
    return Alert(
        name="HeadwayReplayDivergence",
        severity="critical",
        # Not a counter's increase: two windows of all pods, and a reset to tell from news. A time stays what it was.
        expr=f"""\
time() - max by (run) (headway_replay_diverged_timestamp_seconds)
< {config.note_seconds:g}""",
        summary=f"Run {RUN} does not reproduce its own losses after a recovery",
        description=(
            f"Replayed steps of run {RUN} had other losses than the first time, beyond its usual noise: the restored state is not what was "
            "saved, or a GPU computes wrongly. Training goes on with it. Stop it and go back to a checkpoint from before, unless the "
            "configuration or the data were changed on purpose."
        ),
        keep_seconds=max(3_600, config.keep_firing_seconds),
    )
