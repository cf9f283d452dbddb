"""Recording rules: what alerts and dashboards ask for again and again, at the level of pods and of runs.

What every pod of a run sees alike is `max by (run)`; what adds up is summed over `pod_index` after `max by (run, pod_index)`, so that a pod
that is scraped twice, or replaced, counts once. Prometheus' own `pod` and `instance` are in no rule. A counter is never summed before its
rate is taken: a missing pod would look like a reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts import recording_goodput
from headway_alerts.config import PHASES_WITH_BUDGET
from headway_alerts.model import Group, Recording
from headway_exporter.ledger import UNAVAILABLE

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "recording"
DISPLAY_SECONDS: Final = 60
"""How often what only people look at is evaluated."""

_RUN: Final = ("run",)


def groups(config: Config) -> tuple[Group, ...]:
    """All of them, those that others need first."""
    return (
        Group("headway-pod.rules", FILE, _pod()),
        Group("headway-run.rules", FILE, (*_progress(), *_checkpoints(), *_incidents(config))),
        *recording_goodput.groups(config, FILE),
        Group(
            "headway-display.rules", FILE, (*_shown(), *recording_goodput.totals()), interval_seconds=DISPLAY_SECONDS
        ),
    )


def _max(name: str, labels: tuple[str, ...] = _RUN, matchers: str = "", level: str = "run") -> Recording:
    """The largest over all series with these labels."""
    return Recording(f"{level}:{name}:max", labels, f"max by ({', '.join(labels)}) ({name}{matchers})")


def _pod() -> tuple[Recording, ...]:
    """Of thousands of pods. Most do what they should, and those that do not are all that is asked for: zeros are left out."""
    pod = ("run", "pod_index")
    waiting = "|".join(dict.fromkeys((*PHASES_WITH_BUDGET, *UNAVAILABLE, "standby")))
    return (
        _max("headway_ranks", pod, level="pod"),
        Recording(
            "pod:headway_incident_recurring:max",
            pod,
            'max by (run, pod_index) (headway_incident_recurring{reason!="same_entity"} == 1)',
        ),
        # The states in which no step is made; what happens in the others is seen by the steps.
        Recording(
            "pod:headway_state:max",
            (*pod, "state"),
            f'max by (run, pod_index, state) (\n  headway_state{{state=~"{waiting}"}} == 1\n)',
        ),
        Recording(
            "pod:headway_phase_open:seconds",
            (*pod, "state"),
            f"""\
(
  time()
  - max by (run, pod_index) (headway_state_since_timestamp_seconds)
)
* on (run, pod_index) group_right ()
pod:headway_state:max{{state=~"{"|".join(PHASES_WITH_BUDGET)}"}}""",
        ),
    )


def _progress() -> tuple[Recording, ...]:
    return (
        Recording("run:headway_age:seconds", _RUN, "time() - min by (run) (headway_run_start_timestamp_seconds)"),
        Recording("run:headway_pods:count", _RUN, "count by (run) (pod:headway_ranks:max)"),
        _max("headway_pods_expected"),
        Recording("run:headway_ranks:sum", _RUN, "sum by (run) (pod:headway_ranks:max)"),
        Recording("run:headway_finished:max", _RUN, 'max by (run) (headway_state{state="finished"})'),
        Recording(
            "run:headway_active_ranks:sum",
            _RUN,
            "run:headway_ranks:sum\nunless on (run)\nrun:headway_finished:max == 1",
        ),
        _max("headway_state_since_timestamp_seconds"),
        _max("headway_step"),
        _max("headway_high_water_step"),
        _max("headway_last_step_timestamp_seconds"),
        # Before there is a median of five steps, the mean of those that there were.
        Recording(
            "run:headway_step_duration_baseline_seconds:max",
            _RUN,
            """\
max by (run) (headway_step_duration_baseline_seconds)
or
max by (run) (
  headway_step_duration_seconds_sum
  / (headway_step_duration_seconds_count > 0)
)""",
        ),
    )


def _checkpoints() -> tuple[Recording, ...]:
    return (
        _max("headway_checkpoint_durable_step"),
        Recording(
            "run:headway_steps_at_risk:max",
            _RUN,
            """\
clamp_min(
  run:headway_step:max - run:headway_checkpoint_durable_step:max
  or
  run:headway_step:max,
  0
)""",
        ),
        Recording(
            "run:headway_work_at_risk:seconds",
            _RUN,
            "run:headway_steps_at_risk:max * run:headway_step_duration_baseline_seconds:max",
        ),
        # A run without a commit that anybody saw is as old as the work that it would lose: a slow start-up makes nothing stale.
        Recording(
            "run:headway_checkpoint_age:seconds",
            _RUN,
            """\
time() - max by (run) (headway_checkpoint_durable_timestamp_seconds)
or
run:headway_work_at_risk:seconds""",
        ),
        Recording(
            "run:headway_checkpoint_interval:seconds",
            _RUN,
            """\
max by (run) (headway_checkpoint_interval_seconds)
or
max by (run) (headway_checkpoint_interval_steps)
* run:headway_step_duration_baseline_seconds:max""",
        ),
        _max("headway_checkpoint_last_write_seconds"),
        _max("headway_checkpoint_saves_total", ("run", "outcome")),
        _max("headway_checkpoint_saves_since_commit"),
        _max("headway_async_queue_depth"),
    )


def _incidents(config: Config) -> tuple[Recording, ...]:
    started = "headway_incident_attempt_started_timestamp_seconds"
    budgets = "\n  or\n".join(
        f'  {started}{{layer="{layer}"}} * 0 + {seconds:g}' for layer, seconds in config.recovery_budget_seconds.items()
    )
    return (
        _max("headway_incident_open"),
        _max("headway_incident_attempts"),
        Recording(
            "run:headway_incident_recurring:max",
            _RUN,
            "max by (run) (pod:headway_incident_recurring:max)\nor\n0 * run:headway_incident_open:max",
        ),
        _max("headway_incidents_total", ("run", "outcome", "recurring")),
        _max("headway_restarts_total", ("run", "layer")),
        Recording(f"run:{started}:min", _RUN, f"min by (run) ({started})"),
        # Pods may expect different layers: the outermost one that any of them waits for is the one that can still help.
        Recording("run:headway_recovery_budget_seconds:max", _RUN, f"max by (run) (\n{budgets}\n)"),
        _max("headway_restart_budget_limit", ("run", "layer")),
        Recording(
            "run:headway_restart_budget_remaining:min",
            ("run", "layer"),
            "min by (run, layer) (headway_restart_budget_remaining)",
        ),
    )


def _shown() -> tuple[Recording, ...]:
    """What people look at and no alert does."""
    return (
        Recording(
            "run:headway_checkpoint_exposure:seconds",
            _RUN,
            "time() - max by (run) (headway_checkpoint_content_timestamp_seconds)",
        ),
    )
