"""All dashboards, in the order in which people look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_dashboards import checkpoints, fleet, health, postmortem, run

if TYPE_CHECKING:
    from headway_dashboards.model import Dashboard


def dashboards() -> tuple[Dashboard, ...]:
    """Every dashboard."""
    return (fleet.DASHBOARD, run.DASHBOARD, checkpoints.DASHBOARD, health.DASHBOARD, postmortem.DASHBOARD)
