"""Recording rules: what alerts and dashboards ask for again and again, at the level of pods and of runs.

What every pod of a run sees alike is `max by (run)`; what adds up is summed over `pod_index` after `max by (run, pod_index)`, so that a pod
that is scraped twice, or replaced, counts once. Prometheus' own `pod` and `instance` are in no rule. A counter is never summed before its
rate is taken: a missing pod would look like a reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import PHASES_WITH_BUDGET, duration
from headway_alerts.model import Group, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_alerts.config import Config

FILE: Final = "recording"
SHORT: Final = 300
"""Seconds over which rates are taken. Longer windows are averages of these: one series a run to read instead of one a pod and state."""
RESET_MARGIN: Final = 120
"""Seconds: a few scrapes."""
LONGEST_SHORT: Final = 3_600
"""Seconds. Longer windows read many samples and change slowly: they are evaluated once a minute."""

_RUN: Final = ("run",)
_UNAVAILABLE: Final = "init|detect|restart|down"
_RESETS: Final = "pod:headway_rank_elapsed_seconds_total:resets"


def reset_window(seconds: float) -> float:
    """Where to look for a reset that an increase over so many seconds must not count.

    Longer than the increase's own window: when the last sample from before the reset has left that one, the 0 after it is its first, and
    the way back up to the old count looks like news.
    """
    return seconds + RESET_MARGIN


def groups(config: Config) -> tuple[Group, ...]:
    """All of them, those that others need first."""
    short = [seconds for seconds in windows(config) if seconds <= LONGEST_SHORT]
    long = [seconds for seconds in windows(config) if seconds > LONGEST_SHORT]
    return (
        Group("headway-pod.rules", FILE, _pod()),
        Group("headway-run.rules", FILE, (*_progress(), *_checkpoints(), *_incidents(config))),
        Group("headway-goodput.rules", FILE, (*_totals(), *_rates(config), *_live(config, short))),
        Group("headway-goodput-long.rules", FILE, tuple(_live(config, long)), interval_seconds=60),
    )


def windows(config: Config) -> tuple[int, ...]:
    """Seconds of every window over which live goodput is recorded, shortest first."""
    asked = {seconds for one in config.objectives for w in one.windows for seconds in (w.long_seconds, w.short_seconds)}
    return tuple(sorted({SHORT, 3_600} | asked))


def _max(name: str, labels: tuple[str, ...] = _RUN, matchers: str = "", level: str = "run") -> Recording:
    """The largest over all series with these labels."""
    return Recording(f"{level}:{name}:max", labels, f"max by ({', '.join(labels)}) ({name}{matchers})")


def _pod() -> tuple[Recording, ...]:
    pod = ("run", "pod_index")
    return (
        _max("headway_ranks", pod, level="pod"),
        _max("headway_incident_recurring", pod, '{reason!="same_entity"}', level="pod"),
        Recording(
            "pod:headway_phase_open:seconds",
            (*pod, "state"),
            f"""\
(
  time()
  - max by (run, pod_index) (headway_state_since_timestamp_seconds)
)
* on (run, pod_index) group_right ()
max by (run, pod_index, state) (
  headway_state{{state=~"{"|".join(PHASES_WITH_BUDGET)}"}} == 1
)""",
        ),
    )


def _progress() -> tuple[Recording, ...]:
    return (
        Recording("run:headway_age:seconds", _RUN, "time() - min by (run) (headway_run_start_timestamp_seconds)"),
        Recording("run:headway_pods:count", _RUN, "count by (run) (pod:headway_ranks:max)"),
        _max("headway_pods_expected"),
        Recording("run:headway_ranks:sum", _RUN, "sum by (run) (pod:headway_ranks:max)"),
        _max("headway_state", ("run", "state")),
        Recording(
            "run:headway_active_ranks:sum",
            _RUN,
            """\
run:headway_ranks:sum
unless on (run)
run:headway_state:max{state="finished"} == 1""",
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
        Recording(
            "run:headway_checkpoint_exposure:seconds",
            _RUN,
            "time() - max by (run) (headway_checkpoint_content_timestamp_seconds)",
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


def _sum(what: str) -> str:
    """A series of every pod, once, summed over the run."""
    return f"sum by (run) (\n  max by (run, pod_index) ({what})\n)"


def _totals() -> tuple[Recording, ...]:
    """Goodputs since the run began, by the formulas of the ledger."""
    productive = _sum('headway_rank_seconds_total{state="productive"}')
    standby = 'headway_rank_seconds_total{state="standby"}'
    counted = f"{_sum('headway_rank_elapsed_seconds_total')}\n-\n{_sum(standby)}"
    unavailable = _indent(f"sum by (run) (\n  max by (run, pod_index, state) ({_states(_UNAVAILABLE)})\n)")
    return (
        Recording("run:headway_counted_rank_seconds:sum", _RUN, counted),
        Recording(
            "run:headway_training_goodput:ratio",
            _RUN,
            f"(\n{_indent(productive)}\n  -\n{_indent(_sum('headway_unregained_rank_seconds'))}\n)\n"
            "/ (run:headway_counted_rank_seconds:sum > 0)",
        ),
        Recording(
            "run:headway_infrastructure_goodput:ratio",
            _RUN,
            f"1 -\n(\n{unavailable}\n)\n/ (run:headway_counted_rank_seconds:sum > 0)",
        ),
        # Time in which there was a run to fail, by the time of one of its ranks; absent before the first incident.
        Recording(
            "run:headway_mtbf:seconds",
            _RUN,
            """\
run:headway_counted_rank_seconds:sum
/ on (run)
(max by (run) (headway_world_size) > 0)
/ on (run)
(
  sum by (run) (run:headway_incidents_total:max)
  + on (run)
  run:headway_incident_open:max
  > 0
)""",
        ),
    )


def _rates(config: Config) -> Iterator[Recording]:
    """Rank-seconds a second. A pod whose counters were reset says nothing for the length of the window, rather than something wrong."""
    window = f"[{duration(SHORT)}]"

    def rate(name: str, *terms: str) -> Recording:
        lines = "\n  - on (run, pod_index)\n".join(f"  max by (run, pod_index) ({term})" for term in terms)
        expr = f"sum by (run) (\n{lines}\n  unless on (run, pod_index)\n  {_RESETS}\n)"
        return Recording(f"run:headway_{name}_rank_seconds:rate{duration(SHORT)}", _RUN, expr)

    yield Recording(
        _RESETS,
        ("run", "pod_index"),
        f"max by (run, pod_index) (resets(headway_rank_elapsed_seconds_total[{duration(reset_window(SHORT))}])) > 0",
    )
    yield rate("productive", f'rate(headway_rank_seconds_total{{state="productive"}}{window})')
    yield rate(
        "counted",
        f"rate(headway_rank_elapsed_seconds_total{window})",
        f'rate(headway_rank_seconds_total{{state="standby"}}{window})',
    )
    if _has_infrastructure(config):
        yield rate("unavailable", f"sum without (state) (rate({_states(_UNAVAILABLE)}{window}))")


def _has_infrastructure(config: Config) -> bool:
    return any(one.kind == "infrastructure" for one in config.objectives)


def _live(config: Config, windows: list[int]) -> Iterator[Recording]:
    """Goodputs over windows of so many seconds: what became of the time in them."""
    for seconds in windows:
        yield Recording(
            f"run:headway_live_goodput:ratio_rate{duration(seconds)}",
            _RUN,
            f"clamp_max(\n  {_over('productive', seconds)}\n  / {_over('counted', seconds)},\n  1\n)",
        )
    if _has_infrastructure(config):
        for seconds in windows:
            yield Recording(
                f"run:headway_live_infrastructure_goodput:ratio_rate{duration(seconds)}",
                _RUN,
                f"clamp_min(\n  1 - {_over('unavailable', seconds)}\n  / {_over('counted', seconds)},\n  0\n)",
            )


def _over(name: str, seconds: int) -> str:
    series = f"run:headway_{name}_rank_seconds:rate{duration(SHORT)}"
    return series if seconds == SHORT else f"sum_over_time({series}[{duration(seconds)}])"


def _states(states: str) -> str:
    return f'headway_rank_seconds_total{{state=~"{states}"}}'


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
