"""`headway incidents STATE_DIR [WORD…]`: lists, filters and searches the incidents of many runs."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headway.command_line import Parser
from headway_exporter.labels import INCIDENT_OUTCOMES, LAYERS
from headway_exporter.listing.folder import Reader, runs_in, sources
from headway_exporter.listing.query import Query, QueryError, cause, moment, reason, setting
from headway_exporter.listing.table import Row, as_record, as_table
from headway_exporter.listing.words import Words
from headway_exporter.report import fields
from headway_exporter.terminal import columns, printed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headway_exporter.listing.briefs import Group

PROGRAM: Final = "headway incidents"
TABLE_LIMIT: Final = 50
_T = TypeVar("_T")

SORTS: Final[dict[str, Callable[[Group], Any]]] = {
    "opened": lambda one: one.opened_wall,
    "closed": lambda one: one.closed_wall or 0.0,
    "duration": lambda one: (one.closed_wall or one.opened_wall) - one.opened_wall,
    "lost": lambda one: one.lost,
    "attempts": lambda one: one.attempts,
    "run": lambda one: one.run,
    "cause": lambda one: one.lead.cause,
}
_RISING: Final = ("run", "cause")
"""What is sorted from A to Z; numbers begin with the largest, times with the newest."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the incidents asked for; returns the exit code: 0 (also when there is none), 1 unreadable, 2 bad usage."""
    options = _parser(time.time()).parse_intermixed_args(argv)
    try:
        return _run(options)
    except QueryError as error:
        print(f"{PROGRAM}: {error} (see --help)", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    words = Words(options.words) if options.words else None
    try:
        runs = runs_in(options.folder, options.run)
    except OSError as error:
        print(f"{PROGRAM}: cannot read {fields.text(str(options.folder))}: {error.strerror or error}", file=sys.stderr)
        return 2
    whole = bool(options.setting) or options.sort == "lost"
    reader = Reader(_query(options), time.time(), words, all_pods=options.all_pods, whole=whole)
    gc.disable()  # a hundred thousand small objects and no cycles: a third of the time would go into looking for some
    try:
        found = reader.found(runs)
    finally:
        gc.enable()
    shown = _sorted(found, options.sort, reverse=options.reverse)[: _limit(options)]
    code = printed(_lines(shown, options), PROGRAM)
    if code == 0:
        _say(len(found), len(shown), len(runs), reader, options)
    return code


def _query(options: argparse.Namespace) -> Query:
    return Query(
        since=options.since,
        until=options.until,
        causes=tuple(options.cause),
        layers=tuple(options.layer),
        outcomes=tuple(options.outcome),
        recurring=options.recurring,
        ranks=tuple(options.rank),
        nodes=tuple(options.node),
        gpus=tuple(options.gpu),
        settings=tuple(options.setting),
    )


def _sorted(found: list[Group], key: str, *, reverse: bool) -> list[Group]:
    newest_first = sorted(found, key=lambda one: (-one.opened_wall, one.run, one.lead.id, one.lead.pod_index))
    return sorted(newest_first, key=SORTS[key], reverse=reverse == (key in _RISING))


def _limit(options: argparse.Namespace) -> int | None:
    if options.limit is not None:
        return options.limit or None
    return TABLE_LIMIT if options.format == "table" else None


def _lines(shown: Sequence[Group], options: argparse.Namespace) -> Iterator[str]:
    if options.format == "jsonl":
        for one in shown:
            yield json.dumps(as_record(Row(one, sources(one))))
    elif shown:
        rows = [Row(one, sources(one)) for one in shown]
        named = [one.name for one in options.setting]
        yield from as_table(rows, columns(), options.words, settings=named, all_pods=options.all_pods)


def _say(found: int, shown: int, runs: int, reader: Reader, options: argparse.Namespace) -> None:
    """On stderr, so that what is piped on holds incidents only."""
    if not runs:
        print(
            f"{PROGRAM}: no run {'fits --run ' if options.run else ''}in {fields.text(str(options.folder))}",
            file=sys.stderr,
        )
    elif not found:
        print(f"{PROGRAM}: no incident fits, in {runs} {'run' if runs == 1 else 'runs'}", file=sys.stderr)
    elif shown < found:
        print(f"{PROGRAM}: {shown} of {found} shown; --limit 0 shows all", file=sys.stderr)
    if reader.trouble.counts:
        print(f"{PROGRAM}: {reader.trouble}", file=sys.stderr)


def _parser(now: float) -> Parser:
    parser = Parser(
        PROGRAM,
        description="Lists the incidents of all runs in a state folder, newest first: one line each, however many pods saw it. "
        "Options of different names must all fit; of one option given several times, any.",
        epilog="Words are looked for in causes, evidence, tracebacks, nodes, GPUs and texts of the configuration, all of them unless OR or "
        "NOT stands between; 'two words' in quotes are a phrase, oom* finds what begins so. A ? after a cause: it is "
        "not confirmed; after an origin: it may have begun elsewhere. "
        "RESUMED is the time from the first sign of a failure to the next step (the longest, where there were several), "
        "STEPS what had to be done again, LOST rank-time. "
        "Times are UTC. Exit codes: 0 fine, also when nothing fits; 1 the output cannot be written; 2 bad usage.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="STATE_DIR", help="the folder that the sidecars have as --state-dir"
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="WORD", help="only incidents in whose records these words stand"
    )
    _several(parser, "--run", str, "GLOB", "only runs of this name; * and ? fit anything")
    parser.add_argument(
        "--since",
        type=_type(lambda text: moment(text, now)),
        metavar="TIME",
        help="opened at or after this time: 2026-11-30, 2026-11-30T17:10, or 24h, 7d ago",
    )
    parser.add_argument(
        "--until", type=_type(lambda text: moment(text, now)), metavar="TIME", help="opened before this time"
    )
    _several(parser, "--cause", _type(cause), "CAUSE", "only this cause; gpu_* fits several")
    _several(parser, "--layer", str, "LAYER", f"only recovered by: {', '.join(LAYERS)}", LAYERS)
    outcomes = (*INCIDENT_OUTCOMES, "open")
    _several(parser, "--outcome", str, "OUTCOME", f"only those that ended so: {', '.join(outcomes)}", outcomes)
    parser.add_argument(
        "--recurring",
        type=_type(reason),
        metavar="REASON",
        help="only recurring ones: any, none, or a reason such as no_progress",
    )
    _several(parser, "--rank", int, "N", "only those that began on this global rank")
    _several(
        parser,
        "--node",
        str,
        "GLOB",
        "only those that began on this node; where nobody knows the node, those seen there",
    )
    _several(parser, "--gpu", str, "GLOB", "only those that began on the GPU with this UUID")
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        type=_type(setting),
        metavar="NAME[OP VALUE]",
        help="only under this configuration: NAME, NAME=VALUE, also with != < <= > >=; several must all hold (quote < and >); "
        "what was in force is a column of the table",
    )
    parser.add_argument(
        "--sort",
        choices=tuple(SORTS),
        default="opened",
        metavar="KEY",
        help=f"{', '.join(SORTS)} (default %(default)s): the newest or largest first, names from A to Z",
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument(
        "--limit",
        type=_type(_count),
        metavar="N",
        help=f"the first N, 0 for all (default: {TABLE_LIMIT} in a table, all as jsonl)",
    )
    parser.add_argument(
        "--all-pods", action="store_true", help="a line for each pod's own record, instead of one for each incident"
    )
    parser.add_argument(
        "--format",
        choices=("table", "jsonl"),
        default="table",
        metavar="FORMAT",
        help="table, or jsonl: a JSON record each line, with the pods that saw it (default %(default)s)",
    )
    return parser


def _several(
    parser: Parser,
    name: str,
    kind: Callable[[str], Any],
    metavar: str,
    words: str,
    choices: Sequence[str] | None = None,
) -> None:
    parser.add_argument(name, action="append", default=[], type=kind, metavar=metavar, help=words, choices=choices)


def _type(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """For argparse, which shows only its own errors' words."""

    def convert(text: str) -> _T:
        try:
            return function(text)
        except QueryError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise QueryError(f"{text[:40]!r} is no number from 0 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
