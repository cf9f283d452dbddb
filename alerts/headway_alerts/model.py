"""What a rule is made of, before it is rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway_alerts.config import Severity


class RuleError(ValueError):
    """A rule names something that does not exist; the message says which rule and what."""


@dataclass(frozen=True)
class Recording:
    """A recording rule. PromQL is written with bare metric names; the configured selector is put in when it is rendered."""

    record: str
    """`level:metric:operation`."""
    labels: tuple[str, ...]
    """The result's labels."""
    expr: str


@dataclass(frozen=True)
class Alert:
    """An alerting rule: one alert for each run. Texts are Prometheus templates."""

    name: str
    severity: Severity
    expr: str
    summary: str
    """One line: what happened to which run, with the number that matters."""
    description: str
    """What it means and what to do first."""
    wait_seconds: float = 0
    """How long the condition must hold."""
    keep_seconds: float = 0
    """How long the alert outlives it."""
    labels: tuple[tuple[str, str], ...] = ()
    """Beside the severity."""


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other. `file` is the rule file's name without its ending."""

    name: str
    file: str
    rules: tuple[Recording | Alert, ...]
    interval_seconds: float = 0
    """Time between evaluations; 0 is Prometheus' own."""
