"""Alerts on goodput objectives: the error budget burns too fast, over a long window and still over a short one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration
from headway_alerts.model import Alert, Group
from headway_alerts.texts import PERCENT, RUN, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_alerts.config import BurnWindow, Config, Objective, Severity

FILE: Final = "alerts"
_SERIES: Final = {
    "training": "run:headway_live_goodput:ratio_rate",
    "infrastructure": "run:headway_live_infrastructure_goodput:ratio_rate",
}
_TOTAL: Final = {
    "training": "run:headway_training_goodput:ratio",
    "infrastructure": "run:headway_infrastructure_goodput:ratio",
}


def group(config: Config) -> Group:
    """For each objective an alert of each severity that it has windows for."""
    return Group("headway-goodput", FILE, tuple(_alerts(config)))


def _alerts(config: Config) -> Iterator[Alert]:
    severities: tuple[Severity, ...] = ("critical", "warning")
    for objective in config.objectives:
        for severity in severities:
            windows = [window for window in objective.windows if window.severity == severity]
            if windows:
                yield _alert(config, objective, severity, windows)


def _alert(config: Config, objective: Objective, severity: Severity, windows: list[BurnWindow]) -> Alert:
    since_start = value_of(f"{_TOTAL[objective.kind]}{{run=%q}}", "{{ .Value | humanizePercentage }}")
    return Alert(
        name="HeadwayGoodputBurn",
        severity=severity,
        expr="\nor\n".join(_burns(objective, window) for window in windows),
        summary=f"Run {RUN} burns its budget for lost time: {objective.kind} goodput is {PERCENT}",
        description=(
            f"The objective for run {RUN} is {objective.ratio:.0%}; since its start it has {since_start}. At this rate the budget of "
            f"{duration(objective.period_seconds)} is spent early. See which state the time went into, and mend the largest."
        ),
        keep_seconds=config.keep_firing_seconds,
        labels=(("objective", objective.kind),),
    )


def _burns(objective: Objective, window: BurnWindow) -> str:
    """Low over both windows, for a run that is older than the long one and makes at least ten steps in the short one."""
    series, least = _SERIES[objective.kind], objective.least_goodput(window)
    return f"""\
(
  {series}{duration(window.long_seconds)} < {least:g}
  and on (run)
  {series}{duration(window.short_seconds)} < {least:g}
  and on (run)
  run:headway_age:seconds > {window.long_seconds}
  and on (run)
  run:headway_step_duration_baseline_seconds:max < {window.short_seconds / 10:g}
  and on (run)
  run:headway_active_ranks:sum > 0
)"""
