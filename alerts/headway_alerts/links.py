"""Where an alert leads: to its runbook, and to the dashboard that shows what was before it and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway_alerts.config import Config
    from headway_alerts.model import Alert

BEFORE_SECONDS: Final = 900
AFTER_SECONDS: Final = 2_700
"""The window around an alert: what led to it, and what became of it."""

POSTMORTEM: Final = "headway-postmortem"
"""The dashboard's uid."""


def runbook(config: Config, alert: Alert) -> str:
    """Address of the alert's runbook."""
    return f"{config.runbook_base_url.rstrip('/')}/{alert.name}.md"


def dashboard(config: Config, alert: Alert) -> str:
    """Address of the run's postmortem in the window around the alert, as a template that Prometheus fills in."""
    begin, end = (_milliseconds(alert, shift) for shift in (-BEFORE_SECONDS, AFTER_SECONDS))
    return f"{config.dashboard_base_url.rstrip('/')}/d/{POSTMORTEM}?var-run={{{{ $labels.run | urlquery }}}}&from={begin}&to={end}"


def _milliseconds(alert: Alert, shift: int) -> str:
    """Since 1970, so many seconds from when the condition began: at its first evaluation, when nothing is recorded yet, that is now."""
    began = f'min(ALERTS_FOR_STATE{{alertname="{alert.name}",severity="{alert.severity}",run=%q}})'
    query = f"1000 * (({began} or vector(time())) {'+' if shift > 0 else '-'} {abs(shift)})"
    return f'{{{{ range printf `{query}` $labels.run | query }}}}{{{{ .Value | printf "%.0f" }}}}{{{{ end }}}}'
