"""What of the README, the runbooks' index and the documents on API and metrics the code knows better: `make docs` writes it anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import api_fields

from headway.cli import COMMANDS
from headway.doctor import findings
from headway_alerts import catalogue
from headway_alerts.config import Config
from headway_exporter import schema
from headway_exporter.labels import DROP_WORDS, REFUSAL_WORDS
from headway_exporter.report.words import CAUSE_WORDS, REASON_WORDS, STATE_WORDS
from headway_exporter.thresholds import DEFAULT, NAMES
from headway_trainer import fault_schedule
from headway_trainer.experiment import formats, table

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RUNBOOKS = ROOT / "alerts" / "runbooks" / "README.md"
METRICS = ROOT / "exporter" / "METRICS.md"


def commands_table() -> str:
    """The sub-commands and what each needs."""
    rows = [
        f"| `headway {name}` | {command.summary} | {f'`{command.extra}`' if command.extra else 'nothing'} |"
        for name, command in COMMANDS.items()
    ]
    return "\n".join(["| command | what it does | extra it needs |", "|---|---|---|", *rows])


def words_table(label: str, words: dict[str, str]) -> Callable[[], str]:
    """What each value of a label means."""
    rows = [f"| `{value}` | {meaning} |" for value, meaning in words.items()]
    return lambda: "\n".join([f"| {label} | meaning |", "|---|---|", *rows])


def reasons_table() -> str:
    """Why an incident is recurring, and from how many times on."""
    limits = {reason: next(name for name in NAMES if name.startswith(f"{reason}_")) for reason in REASON_WORDS}
    rows = [
        f"| `{reason}` | {meaning} | {getattr(DEFAULT, limits[reason])} |" for reason, meaning in REASON_WORDS.items()
    ]
    return "\n".join(["| reason | meaning | from |", "|---|---|--:|", *rows])


def alerts_table() -> str:
    """The alerts with their severities, and what each page says first of what it means."""
    severities: dict[str, set[str]] = {}
    for alert in catalogue.alerts(Config()):
        severities.setdefault(alert.name, set()).add(alert.severity)
    rows = [
        f"| [{name}]({name}.md) | {', '.join(sorted(severity))} | {_first_sentence(RUNBOOKS.parent / f'{name}.md')} |"
        for name, severity in severities.items()
    ]
    return "\n".join(["| alert | severity | what it means |", "|---|---|---|", *rows])


def _first_sentence(page: Path) -> str:
    meaning = " ".join(page.read_text().partition("## Meaning")[2].partition("## ")[0].split())
    return re.split(r"(?<=[\w)`][.])[ ]", meaning, maxsplit=1)[0]


def metrics_document() -> str:
    """The whole file."""
    return f"""# Metrics of the sidecar

`GET /metrics` on the sidecar's port. `run` and `pod_index` are on every series. Units are in the names; *Absent* says when
there is no series. Names, labels and meanings are a contract with people's rules and dashboards: added to, never changed.

{schema.markdown_table()}
"""


SECTIONS = {
    "causes": words_table("cause", CAUSE_WORDS),
    "commands": commands_table,
    "dropped": words_table("reason", DROP_WORDS),
    "reasons": reasons_table,
    "refused": words_table("reason", REFUSAL_WORDS),
    "states": words_table("state", STATE_WORDS),
    "doctor": findings.markdown_table,
    "experiment definitions": lambda: formats.markdown_table(table.definitions_table()).rstrip(),
    "faults": fault_schedule.markdown_table,
}
INDEX = {"alerts": alerts_table}


def rendered(text: str, sections: dict[str, Callable[[], str]] = SECTIONS) -> str:
    """A document, the README unless other sections are given, with every generated section as the code has it now."""
    for name, section in sections.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
        if found is None:
            sys.exit(f"no section {begin} … {end}")
        text = text[: found.start()] + f"{begin}\n{section()}\n{end}" + text[found.end() :]
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
    RUNBOOKS.write_text(rendered(RUNBOOKS.read_text(), INDEX))
    METRICS.write_text(metrics_document())
    api_fields.DOCUMENT.write_text(api_fields.document())
