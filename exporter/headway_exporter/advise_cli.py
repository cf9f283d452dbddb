"""`headway advise STATE_DIR[/RUN]`: time-outs, checkpoint interval and restart budgets from what a run went through."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.command_line import Parser
from headway_exporter.advice import advise, observe
from headway_exporter.advice.text import as_json, as_text
from headway_exporter.report import fields
from headway_exporter.report.load import RunError, find_run, load
from headway_exporter.terminal import columns, printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.report.model import Run

PROGRAM: Final = "headway advise"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the advice; returns the exit code: 0, 1 when the run cannot be read, 2 for bad usage."""
    options = _parser().parse_args(argv)
    try:
        run = load(find_run(options.folder), time.time())
    except RunError as error:
        print(f"{PROGRAM}: {fields.text(str(error), 2_000)}", file=sys.stderr)
        return 2 if error.usage else 1
    _say_what_is_missing(run)
    seen, advice = observe(run), advise(run)
    if options.format == "json":
        return printed([json.dumps(as_json(seen, advice), indent=2, allow_nan=False)], PROGRAM)
    return printed([as_text(seen, advice, min(columns(), 120)).rstrip("\n")], PROGRAM)


def _say_what_is_missing(run: Run) -> None:
    if run.problems:
        first = run.problems[0]
        more = f" (and {len(run.problems) - 1} more)" if len(run.problems) > 1 else ""
        print(f"{PROGRAM}: not all could be read: {first.what}: {first.message}{more}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        PROGRAM,
        description="Says what a run's own data advise: heartbeat time-outs from the longest silences, the checkpoint interval from what "
        "saves cost and how often the job fails (Young 1974, Daly 2006), restart budgets from the restarts so far. Each piece of "
        "advice shows the numbers that it comes from and how sure it is; where too little was seen it says so.",
        epilog="Exit codes: 0 advice was given, whatever it is; 1 the run cannot be read; 2 bad usage.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="STATE_DIR[/RUN]",
        help="the folder that the sidecars have as --state-dir, with the run's name when it holds several runs",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        metavar="FORMAT",
        help="text for people, or json (durations in seconds; default %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
