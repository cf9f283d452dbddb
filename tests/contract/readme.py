"""What of the README and the API's document the code knows better: `python tests/contract/readme.py` writes it anew (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import api_fields

from headway.cli import COMMANDS
from headway.doctor import findings
from headway_exporter import schema
from headway_trainer import fault_schedule

README = Path(__file__).parents[2] / "README.md"


def commands_table() -> str:
    """The sub-commands and what each needs."""
    rows = [
        f"| `headway {name}` | {command.summary} | {f'`{command.extra}`' if command.extra else 'nothing'} |"
        for name, command in COMMANDS.items()
    ]
    return "\n".join(["| command | what it does | extra it needs |", "|---|---|---|", *rows])


SECTIONS = {
    "commands": commands_table,
    "doctor": findings.markdown_table,
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
