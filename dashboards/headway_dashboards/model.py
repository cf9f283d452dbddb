"""What a dashboard is made of, before it is rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["series", "now", "table"]
"""Over time; the value at the end of the window; that as rows with a column for each label."""


@dataclass(frozen=True)
class Query:
    """A question to Prometheus, with bare metric names: the configured selector is put in when it is rendered."""

    expr: str
    legend: str = ""
    """Name of each series: text with `{{label}}` in it."""
    form: Form = "series"
    exemplars: bool = False


@dataclass(frozen=True)
class Note:
    """What is marked in every panel over time: where `query` has a result."""

    name: str
    query: Query
    colour: str
    title: str
    """Text with `{{label}}` in it."""


@dataclass(frozen=True)
class Variable:
    """What the reader chooses at the top. Without a query it is the data source."""

    name: str
    label: str
    query: str = ""
    several: bool = False
    """Any number of them, from the start all."""


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; `panels` are grafanalib's, in reading order, each with its width and height."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    panels: tuple[Any, ...]
    notes: tuple[Note, ...] = ()
    window: str = "now-6h"
    """Where the time shown begins, as Grafana writes it."""


@dataclass(frozen=True)
class Value:
    """How a number is shown that stands for a word."""

    text: str
    colour: str
