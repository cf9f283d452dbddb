"""Rules as YAML: plain rule files, or a PrometheusRule manifest for the Prometheus operator. The same rules give the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from headway_alerts import links
from headway_alerts.config import duration
from headway_alerts.model import Alert, Recording

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_alerts.config import Config
    from headway_alerts.model import Group

HEADER: Final = (
    "# Written by `headway rules`; change the configuration or the sources in headway_alerts, not this file.\n"
)


def rule_files(groups: Iterable[Group], config: Config) -> dict[str, str]:
    """Plain rule files: name to content."""
    files: dict[str, list[Group]] = {}
    for group in groups:
        files.setdefault(group.file, []).append(group)
    return {
        f"{name}.yaml": HEADER + _yaml({"groups": [_group(one, config) for one in members]})
        for name, members in files.items()
    }


def rule_file(groups: Iterable[Group], config: Config) -> str:
    """All groups in one plain rule file."""
    return HEADER + _yaml({"groups": [_group(one, config) for one in groups]})


def manifest(groups: Iterable[Group], config: Config) -> str:
    """All groups as one object for the Prometheus operator."""
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "headway", "labels": {"app.kubernetes.io/name": "headway"}},
        "spec": {"groups": [_group(one, config) for one in groups]},
    }
    return HEADER + _yaml(document)


def _group(group: Group, config: Config) -> dict[str, Any]:
    interval = {"interval": duration(group.interval_seconds)} if group.interval_seconds else {}
    return {"name": group.name, **interval, "rules": [_rule(rule, config) for rule in group.rules]}


def _rule(rule: Recording | Alert, config: Config) -> dict[str, Any]:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": rule.expr}
    found: dict[str, Any] = {"alert": rule.name, "expr": rule.expr}
    if rule.wait_seconds:
        found["for"] = duration(rule.wait_seconds)
    if rule.keep_seconds:
        found["keep_firing_for"] = duration(rule.keep_seconds)
    return found | {
        "labels": {"severity": rule.severity, **dict(rule.labels)},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": links.runbook(config, rule),
            "dashboard": links.dashboard(config, rule),
        },
    }


class _Dumper(yaml.SafeDumper):
    """Indents lists, and writes texts of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - lists shall be indented
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def _yaml(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
