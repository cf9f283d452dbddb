"""PromQL of the rules: checks every name against what exists, and puts the configured selector into every selection of a raw metric.

Rules are written as plain PromQL. A raw metric is one of the exporter's, a recorded one a `level:metric:operation` of a recording rule.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headway_alerts.model import RuleError
from headway_exporter.schema import COMMON_LABELS, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway_exporter.schema import Metric

_RAW: Final = re.compile(r"(?<![\w:])(headway_\w+)(?![\w:])(?:\{([^{}]*)\})?")
_RECORDED: Final = re.compile(r"(?<![\w:])(\w+:\w+:\w+)(?:\{([^{}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*("[^"]*"|%q)')
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_ALERTS: Final = re.compile(r"(?<![\w:])ALERTS(?:_FOR_STATE)?(?![\w:])")
"""What Prometheus records of the alerts themselves."""
_HISTOGRAM: Final = re.compile(r"_(?:sum|count|bucket)$")


def finished(where: str, expr: str, selector: str, recorded: Mapping[str, tuple[str, ...]]) -> str:
    """The expression as Prometheus gets it.

    Args:
        where: the rule's name, for messages.
        expr: PromQL.
        selector: matchers for every raw metric, may be empty.
        recorded: the recording rules that there are.

    Raises:
        RuleError: it names a metric, a label or a label value that does not exist.
    """
    known = set(COMMON_LABELS) | ({"alertname", "alertstate", "severity"} if _ALERTS.search(expr) else set())
    for name, matchers in _RAW.findall(expr):
        metric = raw_metric(name)
        if metric is None:
            raise RuleError(f"{where}: there is no metric {name}")
        labels = {**dict.fromkeys(COMMON_LABELS), **metric.labels, **({"le": None} if name.endswith("_bucket") else {})}
        known |= labels.keys()
        _check_matchers(where, name, matchers, labels)
    for name, matchers in _RECORDED.findall(expr):
        if name not in recorded:
            raise RuleError(f"{where}: there is no recording rule {name}")
        known |= set(recorded[name])
        _check_matchers(where, name, matchers, dict.fromkeys(recorded[name]))
    for label in _grouped_by(expr):
        if label not in known:
            raise RuleError(f"{where}: none of its metrics has a label {label}")
    return _RAW.sub(lambda found: _selected(found, selector), expr)


def raw_metric(name: str) -> Metric | None:
    """The metric that a series of this name belongs to, None when there is none."""
    family = METRICS.get(_HISTOGRAM.sub("", name))
    if family is not None and family.type == "histogram":
        return family if family.name != name else None
    return METRICS.get(name)


def raw_names(expr: str) -> set[str]:
    """All raw metrics that an expression, or a text with expressions in it, names."""
    return {name for name, _ in _RAW.findall(expr)}


def _check_matchers(where: str, name: str, matchers: str, labels: Mapping[str, tuple[str, ...] | None]) -> None:
    rest = _MATCHER.sub("", matchers).replace(",", "").strip()
    if rest:
        raise RuleError(f"{where}: cannot read the matchers {{{matchers}}} of {name}")
    for label, operator, quoted in _MATCHER.findall(matchers):
        if label not in labels:
            raise RuleError(f"{where}: {name} has no label {label}")
        allowed, text = labels[label], quoted.strip('"')
        values = text.split("|") if operator in ("=~", "!~") else [text]
        if allowed is not None and quoted != "%q" and not set(values) <= set(allowed):
            raise RuleError(f"{where}: {name} has no {label}={text!r}; there is {', '.join(allowed)}")


def _grouped_by(expr: str) -> Iterator[str]:
    for labels in _GROUPING.findall(expr):
        yield from (label.strip() for label in labels.split(",") if label.strip())


def _selected(found: re.Match[str], selector: str) -> str:
    inside = ",".join(part for part in (selector, found.group(2) or "") if part)
    return f"{found.group(1)}{{{inside}}}" if inside else found.group(1)
