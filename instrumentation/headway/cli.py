"""The `headway` command: finds the sub-command asked for and imports nothing else.

The recorder's environment has only the standard library, so a sub-command whose extra is not installed must still be listed and
must say what to install. Exit codes: 0 fine, 1 the work failed, 2 bad usage or configuration (`headway run` passes the launcher's).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway._version import __version__
from headway.command_line import Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OWN_PACKAGES: Final = ("headway", "headway_exporter", "headway_trainer", "headway_alerts", "headway_dashboards")


@dataclass(frozen=True)
class Command:
    """A sub-command: where its `main(argv) -> exit code` lives and which extras of the package it needs (as pip takes them: `a,b`)."""

    module: str
    summary: str
    extra: str | None = None


COMMANDS: Final[dict[str, Command]] = {
    "run": Command("headway.supervisor", "start a launcher and record what only the launcher knows"),
    "exporter": Command("headway_exporter.entry", "the sidecar: journal folder in, Prometheus metrics out", "exporter"),
    "doctor": Command("headway.doctor.cli", "check a set-up, and say what to do"),
    "status": Command("headway_exporter.status_cli", "one look at a sidecar or a journal folder, in the terminal"),
    "postmortem": Command(
        "headway_exporter.report.cli", "what became of a run, from its state folder: an HTML report", "exporter"
    ),
    "incidents": Command("headway_exporter.listing.cli", "list and search the incidents of many runs"),
    "advise": Command(
        "headway_exporter.advise_cli", "time-outs, checkpoint interval, restart budgets from a run's own data"
    ),
    "train": Command("headway_trainer.cli", "the reference trainer (FSDP2 with NVRx's three layers)", "trainer"),
    "rules": Command("headway_alerts.cli", "render the Prometheus rules and alerts for one's own thresholds", "alerts"),
    "dashboards": Command("headway_dashboards.cli", "render the Grafana dashboards", "dashboards"),
    "demo": Command(
        "headway_trainer.demo.cli", "train with faults on this machine and watch it recover", "exporter,trainer"
    ),
    "experiment": Command(
        "headway_trainer.experiment.cli",
        "one fault schedule over ways to save and to restart, beside published figures",
        "exporter,trainer",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(arguments[:1])  # what follows the sub-command is the sub-command's
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    command = COMMANDS[options.command]
    try:
        run: Callable[[list[str]], int] = importlib.import_module(command.module).main
        return run(arguments[1:])
    except ModuleNotFoundError as error:
        missing = _third_party(error)
        if missing is None or command.extra is None:
            raise
        print(_what_to_install(options.command, command.extra, missing), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    width = max(len(name) for name in COMMANDS) + 2
    listing = "\n".join(f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items())
    parser = Parser(
        "headway",
        usage="headway [--help] [--version] COMMAND …",
        description="Where every GPU-second of a training run went, and whether a recovery really recovered.",
        epilog=f"commands:\n{listing}\n\n`headway COMMAND --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    parser.add_argument(
        "command", nargs="?", choices=list(COMMANDS), metavar="COMMAND", help="one of the commands below"
    )
    return parser


def _third_party(error: ModuleNotFoundError) -> str | None:
    """Top-level name of the missing module, None when it is one of our own or of Python: that is a bug, not a missing extra."""
    name = (error.name or "").partition(".")[0]
    return None if not name or name in OWN_PACKAGES or name in sys.stdlib_module_names else name


def _what_to_install(name: str, extra: str, missing: str) -> str:
    return f"headway {name} needs {missing}, which is not installed: pip install 'headway[{extra}]'"


if __name__ == "__main__":
    sys.exit(main())
