"""What of the README and the API's document the code knows better: `python tests/contract/readme.py` writes it anew (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import api_fields

from headway.cli import COMMANDS
from headway.doctor import findings
from headway_exporter import schema
from headway_exporter.labels import DROP_WORDS, REFUSAL_WORDS
from headway_exporter.report.words import CAUSE_WORDS, REASON_WORDS, STATE_WORDS
from headway_exporter.thresholds import DEFAULT, NAMES
from headway_trainer import fault_schedule
from headway_trainer.experiment import formats, table

if TYPE_CHECKING:
    from collections.abc import Callable

README = Path(__file__).parents[2] / "README.md"


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
    "metrics": schema.markdown_table,
}


def rendered(text: str) -> str:
    """The README with every generated section as the code has it now."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
        if found is None:
            sys.exit(f"{README}: no section {begin} … {end}")
        text = text[: found.start()] + f"{begin}\n{section()}\n{end}" + text[found.end() :]
    return text


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
    api_fields.DOCUMENT.write_text(api_fields.document())
