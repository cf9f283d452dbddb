"""The README says what this version does."""

from __future__ import annotations

import argparse
import os
import re

import readme

from headway import environment
from headway.cli import COMMANDS
from headway.doctor.cli import _parser as doctor_parser
from headway.doctor.findings import CHECKS
from headway.environment import Identity
from headway.supervisor import _parser as supervisor_parser
from headway_exporter.cli import _parser as exporter_parser
from headway_exporter.status_cli import _parser as status_parser
from headway_trainer.arguments import all_options
from headway_trainer.experiment.cli import _parser as experiment_parser

TEXT = readme.README.read_text()


def test_generated_sections_are_up_to_date() -> None:
    """Rendering again changes nothing; `make docs` does it."""
    assert readme.rendered(TEXT) == TEXT
    index = readme.RUNBOOKS.read_text()
    assert readme.rendered(index, readme.INDEX) == index


def test_the_readme_shows_real_output() -> None:
    """What the demo and the bench print is there, from a run that ended well."""
    for name, words in (
        ("demo output", ("bit-equal", "observed is what was injected")),
        ("bench", ("step / observation",)),
        ("experiment output", ("async/orchestrator@40", "SHORTENED")),
    ):
        section = TEXT.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
        assert [word for word in words if word not in section] == []
        assert "WRONG" not in section


def test_no_section_is_empty() -> None:
    """What stands between two marks of the README is written by a command or copied from one: nothing there means that nobody ran it."""
    begun, ended = (re.findall(rf"^<!-- (.+): {edge} -->$", TEXT, re.MULTILINE) for edge in ("begin", "end"))
    assert begun == ended
    assert {*readme.SECTIONS, "demo output", "bench", "experiment output"} <= set(begun)
    sections = {
        name: TEXT.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0] for name in begun
    }
    assert [name for name, content in sections.items() if not re.search(r"\w", content)] == []


def test_every_environment_variable_is_documented() -> None:
    """Each HEADWAY_ variable that the identity or a command reads is in the README."""
    sources = [
        environment.__doc__ or "",
        *(parser.format_help() for parser in (exporter_parser({}), status_parser({}), supervisor_parser(), _doctor())),
    ]
    named = {name for text in sources for name in re.findall(r"HEADWAY_[A-Z_]+", text)}
    assert {name for name in named if f"`{name}`" not in TEXT} == set()


def test_every_option_says_what_it_is_for() -> None:
    """No option of any command is without help."""
    parsers = (
        exporter_parser(os.environ),
        status_parser(os.environ),
        supervisor_parser(),
        experiment_parser(),
        _doctor(),
    )
    for parser in parsers:
        for action in parser._actions:
            assert action.help, action.option_strings
            assert action.help is not argparse.SUPPRESS
    assert [option.flag for option in all_options() if not option.help] == []


def test_every_option_of_the_experiment_is_documented() -> None:
    """What can be varied stands where the grid is explained, as it is typed."""
    flags = {flag for action in experiment_parser()._actions for flag in action.option_strings if flag.startswith("--")}
    implied = {"--help", "--rank-zero"}  # the latter is what happens anyway; its opposite is named
    assert {flag for flag in flags - implied if f"`{flag}" not in TEXT} == set()


def _doctor() -> argparse.ArgumentParser:
    return doctor_parser(Identity.from_env({}), {})


def test_every_check_of_the_doctor_is_documented() -> None:
    """Whoever reads a finding's name finds in the README what it makes sure of."""
    assert [name for name in CHECKS if f"| `{name}` |" not in TEXT] == []


def test_every_command_is_documented() -> None:
    """Each sub-command of `headway` appears as it is typed."""
    assert [name for name in COMMANDS if f"headway {name}" not in TEXT] == []


def test_no_link_leads_nowhere() -> None:
    """Relative links name files that exist."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (readme.README.parent / target).exists()] == []
