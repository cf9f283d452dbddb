"""Every name in a query exists: the rules' own check, with the recording rules as they are rendered."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from headway_alerts import catalogue, promql
from headway_alerts.config import Config
from headway_alerts.model import Recording

if TYPE_CHECKING:
    from collections.abc import Mapping


def finished(where: str, expr: str, selector: str = "") -> str:
    """The expression as Grafana gets it, the selector put into every selection of a raw metric.

    Raises:
        headway_alerts.model.RuleError: it names a metric, a label, a label value or a recording rule that does not exist.
    """
    return promql.finished(where, expr, selector, _recorded())


@cache
def _recorded() -> Mapping[str, tuple[str, ...]]:
    """Recording rules to their labels."""
    rules = (rule for group in catalogue.groups(Config()) for rule in group.rules)
    return {rule.record: rule.labels for rule in rules if isinstance(rule, Recording)}
