"""Parts of the messages: Prometheus templates that are filled in when an alert fires."""

from __future__ import annotations

import textwrap
from typing import Final

RUN: Final = "{{ $labels.run }}"
DURATION: Final = "{{ $value | humanizeDuration }}"
PERCENT: Final = "{{ $value | humanizePercentage }}"
NUMBER: Final = '{{ $value | printf "%.0f" }}'

THIS_RUN: Final = "run=%q"
"""Matcher of a condition that an expression asks of all runs and a message of its own: what is counted is named."""
MOST_NAMED: Final = 3
"""Places that a message names, where all of thousands may be meant."""


def of_all_runs(condition: str) -> str:
    """The condition as an expression has it, indented."""
    return textwrap.indent(condition.replace(f"{THIS_RUN},", "").replace(f"{{{THIS_RUN}}}", ""), "  ")


def in_a_line(condition: str) -> str:
    """As a message has it."""
    return " ".join(condition.split())


def value_of(query: str, form: str = '{{ .Value | printf "%.0f" }}') -> str:
    """The value of a query that has one result, filled into `form`; nothing when it has none. `run=%q` in it names the alert's run."""
    return f"{{{{ range {_filled(query)} | query }}}}{form}{{{{ end }}}}"


def names_of(query: str, label: str, form: str | None = None) -> str:
    """What a query finds, in the order of a label and apart by commas; `form` is the text of each, by default the label."""
    text = form or f"{{{{ $one.Labels.{label} }}}}"
    found = f'{_filled(query)} | query | sortByLabel "{label}"'
    return f"{{{{ range $at, $one := {found} }}}}{{{{ if $at }}}}, {{{{ end }}}}{text}{{{{ end }}}}"


def _filled(query: str) -> str:
    """The query with the alert's run in each place for it."""
    return f"printf `{query}`{' $labels.run' * query.count('%q')}"
