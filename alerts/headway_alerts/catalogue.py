"""All groups of rules, finished: names checked, selector put in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway_alerts import checkpoints, goodput, health, incidents, pipeline, promql, recording
from headway_alerts.model import Alert, Group, Recording, RuleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway_alerts.config import Config


def groups(config: Config) -> tuple[Group, ...]:
    """Every group of rules for this configuration.

    Raises:
        RuleError: a rule names a metric, a label or a rule that does not exist.
    """
    found = (
        *recording.groups(config),
        incidents.group(config),
        checkpoints.group(config),
        goodput.group(config),
        pipeline.group(config),
        *health.groups(config),
    )
    recorded = _recorded(found)
    return tuple(
        replace(group, rules=tuple(_finished(rule, config, recorded) for rule in group.rules))
        for group in found
        if group.rules
    )


def alerts(config: Config) -> Iterator[Alert]:
    """The alerts among them."""
    return (rule for group in groups(config) for rule in group.rules if isinstance(rule, Alert))


def _recorded(found: tuple[Group, ...]) -> dict[str, tuple[str, ...]]:
    recorded: dict[str, tuple[str, ...]] = {}
    for rule in (rule for group in found for rule in group.rules if isinstance(rule, Recording)):
        if rule.record in recorded:
            raise RuleError(f"{rule.record}: recorded twice")
        recorded[rule.record] = rule.labels
    return recorded


def _finished(rule: Recording | Alert, config: Config, recorded: Mapping[str, tuple[str, ...]]) -> Recording | Alert:
    if isinstance(rule, Recording):
        return replace(rule, expr=promql.finished(rule.record, rule.expr, config.selector, recorded))

    def finished(text: str) -> str:
        return promql.finished(rule.name, text, config.selector, recorded)

    return replace(
        rule,
        expr=finished(rule.expr),
        summary=finished(rule.summary),
        description=finished(rule.description),
        wait_seconds=rule.wait_seconds * config.wait_ratio,
    )
