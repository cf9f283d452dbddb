"""`headway postmortem`: the command line of the report."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway.command_line import Parser
from headway_exporter.report import fields
from headway_exporter.report.json_document import json_text
from headway_exporter.report.load import RunError, find_run, load
from headway_exporter.report.markdown import markdown
from headway_exporter.report.page import html
from headway_exporter.report.report import MOST_SHOWN, report
from headway_exporter.state_files import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headway_exporter.report.report import Report

FORMATS: Final[dict[str, Callable[[Report], str]]] = {"html": html, "markdown": markdown, "json": json_text}
STDOUT: Final = "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report; returns the exit code: 0, 1 when nothing could be read or written, 2 for bad usage."""
    parser = _parser()
    options = parser.parse_args(argv)
    with _no_collection():
        try:
            run = load(find_run(options.state_dir), time.time())
        except RunError as error:
            print(f"{parser.prog}: {fields.text(str(error), 2_000)}", file=sys.stderr)
            return 2 if error.usage else 1
        text = FORMATS[options.format](report(run, None if options.all else MOST_SHOWN))
    try:
        _write(options.out, text.encode())
    except OSError as error:
        print(f"{parser.prog}: cannot write {options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser(
        "headway postmortem",
        description="Tells what became of a run: where its time went, each incident and how it was recovered from, and what to do next. "
        "Reads the state folder only, so it works while the run goes on and after all pods are gone.",
    )
    parser.add_argument(
        "state_dir",
        type=Path,
        metavar="STATE_DIR[/RUN]",
        help="the folder that the sidecars have as --state-dir, with the run's name when it holds several runs",
    )
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        default="html",
        help="html: one file without scripts; markdown: for a pull request; json: for programs (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        default=STDOUT,
        metavar="FILE",
        help="where to write it; - is the standard output (default %(default)s)",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"tell every incident one by one, not only the worst {MOST_SHOWN}"
    )
    return parser


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A report builds a million objects that all live to its end: looking for garbage among them costs a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _write(out: str, content: bytes) -> None:
    path = Path(out)
    if out == STDOUT:
        _print(content)
    elif path.exists() and not path.is_file():  # a pipe or a device
        path.write_bytes(content)
    else:
        replace(path, content)


def _print(content: bytes) -> None:
    if sys.stdout is None:  # it was closed before we began
        raise OSError(errno.EBADF, "there is no standard output")
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
