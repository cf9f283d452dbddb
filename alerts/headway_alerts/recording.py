"""Recording rules: what alerts and dashboards ask for again and again, at the level of pods and of runs.

Reading series is what rules cost, so few are read of each pod. What every pod of a run sees alike is `max by (run)` over its witnesses
(`Config.witnesses`), and what most pods are not in, the exporter serves only of those that are. What adds up is summed over `pod_index`
after `max by (run, pod_index)`, so that a pod that is scraped twice, or replaced, counts once. Prometheus' own `pod` and `instance` are in
no rule. A counter is never summed before its rate is taken: a missing pod would look like a reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_alerts import recording_goodput
from headway_alerts.config import PHASES_WITH_BUDGET
from headway_alerts.model import Group, Recording
from headway_exporter.labels import STATES, WAITING

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "recording"
DISPLAY_SECONDS: Final = 60
"""How often what only people look at is evaluated."""

_RUN: Final = ("run",)
_FINISHED: Final = 'state="finished"'


def groups(config: Config) -> tuple[Group, ...]:
    """All of them, those that others need first."""
    seen = _Seen(config.witnesses)
    return (
        Group("headway-pod.rules", FILE, _pod(config)),
        Group("headway-run.rules", FILE, (*_progress(seen), *_checkpoints(seen), *_incidents(seen, config))),
        *recording_goodput.groups(config, FILE),
        Group(
            "headway-display.rules",
            FILE,
            (*_shown(seen), *recording_goodput.totals(config)),
            interval_seconds=DISPLAY_SECONDS,
        ),
    )


@dataclass(frozen=True)
class _Seen:
    """Of what every pod of a run sees alike: a few of them tell it as well as all."""

    witnesses: str

    def raw(self, name: str, matchers: str = "") -> str:
        """The witnesses' series of this name."""
        inside = ",".join(part for part in (self.witnesses, matchers) if part)
        return f"{name}{{{inside}}}" if inside else name

    def max(self, name: str, labels: tuple[str, ...] = _RUN) -> Recording:
        """The largest that one of them has."""
        return Recording(f"run:{name}:max", labels, f"max by ({', '.join(labels)}) ({self.raw(name)})")


def _max(name: str, labels: tuple[str, ...] = _RUN, level: str = "run") -> Recording:
    """The largest over the series of all pods with these labels."""
    return Recording(f"{level}:{name}:max", labels, f"max by ({', '.join(labels)}) ({name})")


def _pod(config: Config) -> tuple[Recording, ...]:
    """Of thousands of pods. Most do what they should, and those that do not are all that is asked for: the others are left out."""
    pod = ("run", "pod_index")
    return (
        _max("headway_ranks", pod, level="pod"),
        Recording(
            "pod:headway_incident_recurring:max",
            pod,
            'max by (run, pod_index) (headway_incident_recurring{reason!="same_entity"} == 1)',
        ),
        Recording(
            "pod:headway_phase_open:seconds",
            (*pod, "state"),
            f"""\
time()
- max by (run, pod_index, state) (
  headway_waiting_since_timestamp_seconds{{state=~"{"|".join(PHASES_WITH_BUDGET)}"}}
)""",
        ),
        # Of trainers that were never heard it is infinite.
        Recording(
            "pod:headway_trainer_silence:seconds",
            pod,
            f"""\
time() - (
  max by (run, pod_index) (headway_source_last_update_timestamp_seconds{{source="trainer"}})
  or on (run, pod_index)
  0 * pod:headway_ranks:max - Inf
) > {config.trainer_silent_seconds:g}""",
        ),
    )


def _progress(seen: _Seen) -> tuple[Recording, ...]:
    return (
        Recording(
            "run:headway_age:seconds",
            _RUN,
            f"time() - min by (run) ({seen.raw('headway_run_start_timestamp_seconds')})",
        ),
        Recording("run:headway_pods:count", _RUN, "count by (run) (pod:headway_ranks:max)"),
        Recording("run:headway_witnesses:count", _RUN, f"count by (run) ({seen.raw('headway_ranks')})"),
        seen.max("headway_pods_expected"),
        Recording("run:headway_ranks:sum", _RUN, "sum by (run) (pod:headway_ranks:max)"),
        Recording("run:headway_finished:max", _RUN, f"max by (run) ({seen.raw('headway_state', _FINISHED)})"),
        Recording(
            "run:headway_active_ranks:sum",
            _RUN,
            "run:headway_ranks:sum\nunless on (run)\nrun:headway_finished:max == 1",
        ),
        seen.max("headway_state_since_timestamp_seconds"),
        seen.max("headway_step"),
        seen.max("headway_high_water_step"),
        seen.max("headway_last_step_timestamp_seconds"),
        # Before there is a median of five steps, the mean of those that there were.
        Recording(
            "run:headway_step_duration_baseline_seconds:max",
            _RUN,
            f"""\
max by (run) ({seen.raw("headway_step_duration_baseline_seconds")})
or
max by (run) (
  {seen.raw("headway_step_duration_seconds_sum")}
  / ({seen.raw("headway_step_duration_seconds_count")} > 0)
)""",
        ),
    )


def _checkpoints(seen: _Seen) -> tuple[Recording, ...]:
    return (
        seen.max("headway_checkpoint_durable_step"),
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
            f"""\
time() - max by (run) ({seen.raw("headway_checkpoint_durable_timestamp_seconds")})
or
run:headway_work_at_risk:seconds""",
        ),
        Recording(
            "run:headway_checkpoint_interval:seconds",
            _RUN,
            f"""\
max by (run) ({seen.raw("headway_checkpoint_interval_seconds")})
or
max by (run) ({seen.raw("headway_checkpoint_interval_steps")})
* run:headway_step_duration_baseline_seconds:max""",
        ),
        _max("headway_checkpoint_last_write_seconds"),
        _max("headway_checkpoint_saves_total", ("run", "outcome")),
        _max("headway_checkpoint_saves_since_commit"),
        _max("headway_async_queue_depth"),
    )


def _incidents(seen: _Seen, config: Config) -> tuple[Recording, ...]:
    started = "headway_incident_attempt_started_timestamp_seconds"
    budgets = "\n  or\n".join(
        f'  {started}{{layer="{layer}"}} * 0 + {seconds:g}' for layer, seconds in config.recovery_budget_seconds.items()
    )
    return (
        seen.max("headway_incident_open"),
        seen.max("headway_incident_attempts"),
        Recording(
            "run:headway_incident_recurring:max",
            _RUN,
            "max by (run) (pod:headway_incident_recurring:max)\nor\n0 * run:headway_incident_open:max",
        ),
        seen.max("headway_incidents_total", ("run", "outcome", "recurring")),
        seen.max("headway_incident_closed_timestamp_seconds", ("run", "outcome")),
        seen.max("headway_restarts_total", ("run", "layer")),
        Recording(f"run:{started}:min", _RUN, f"min by (run) ({started})"),
        # Pods may expect different layers: the outermost one that any of them waits for is the one that can still help.
        Recording("run:headway_recovery_budget_seconds:max", _RUN, f"max by (run) (\n{budgets}\n)"),
        seen.max("headway_restart_budget_limit", ("run", "layer")),
        Recording(
            "run:headway_restart_budget_remaining:min",
            ("run", "layer"),
            f"min by (run, layer) ({seen.raw('headway_restart_budget_remaining')})",
        ),
    )


def _shown(seen: _Seen) -> tuple[Recording, ...]:
    """What people look at and no alert does."""
    going = "|".join((*(state for state in STATES if state not in WAITING), "finished"))
    return (
        # Every state that some pod is in. Who waits says so with a series of its own; that steps are made, all see alike.
        Recording(
            "run:headway_state:max",
            ("run", "state"),
            f"""\
max by (run, state) (headway_waiting_since_timestamp_seconds > bool 0)
or
max by (run, state) ({seen.raw("headway_state", f'state=~"{going}"')} == 1)""",
        ),
        Recording(
            "run:headway_checkpoint_exposure:seconds",
            _RUN,
            f"time() - max by (run) ({seen.raw('headway_checkpoint_content_timestamp_seconds')})",
        ),
    )
