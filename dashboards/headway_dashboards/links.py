"""Where a click leads: from a run's name to the run, from an alert to the window around it."""

from __future__ import annotations

from typing import Any, Final

from headway_dashboards.panels import link

_SOURCE: Final = "${datasource:queryparam}"
_WINDOW: Final = "from=${__from}&to=${__to}"

TO_RUN: Final[dict[str, Any]] = link(
    "Open this run", f"/d/headway-run?var-run=${{__data.fields.Run}}&{_SOURCE}&{_WINDOW}"
)
TO_RUN_AT: Final[dict[str, Any]] = link(
    "Open the run in this window", f"/d/headway-run?${{run:queryparam}}&{_SOURCE}&{_WINDOW}"
)
TO_CHECKPOINTS: Final[dict[str, Any]] = link(
    "Open the checkpoints", f"/d/headway-checkpoints?${{run:queryparam}}&${{pod:queryparam}}&{_SOURCE}&{_WINDOW}"
)
TO_HEALTH: Final[dict[str, Any]] = link(
    "Open GPU and host health", f"/d/headway-health?${{run:queryparam}}&${{pod:queryparam}}&{_SOURCE}&{_WINDOW}"
)
TO_WINDOW: Final[dict[str, Any]] = link(
    "Open the postmortem of this window", f"/d/headway-postmortem?${{run:queryparam}}&{_SOURCE}&{_WINDOW}"
)
TO_ALERTS_WINDOW: Final[dict[str, Any]] = link(
    "Open the postmortem around this alert",
    f"/d/headway-postmortem?var-run=${{__data.fields.Run}}&{_SOURCE}"
    "&from=${__data.fields.Begin.numeric}&to=${__data.fields.End.numeric}",
)
