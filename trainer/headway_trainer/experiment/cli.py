"""The command `headway experiment`."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table as Shown

from headway.command_line import Parser
from headway_trainer.demo.cli import stop_on_signals, wide_console
from headway_trainer.demo.runner import DemoError
from headway_trainer.experiment import cell as cells
from headway_trainer.experiment import formats, kept, measure, page, plan, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from headway_trainer.experiment.measure import Row
    from headway_trainer.experiment.plan import Cell, Plan

WIDTH: Final = 150
"""Columns of the tables where no terminal says how many it has."""

DESCRIPTION: Final = (
    "Trains a tiny model on two CPU ranks under one fault schedule, once for each cell of a grid: how it saves (sync, async), who restarts "
    "it (in_process, launcher, orchestrator), and how many steps lie between two checkpoints. Writes table.md, table.csv, results.json and "
    "experiment.html: our figures, the published formulas on the same runs and the published figures side by side. It goes on where it "
    "was interrupted. About eleven minutes on an idle machine with two cores."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid; 0 when every cell came to its end, 1 when one failed or it was interrupted, 2 for options that cannot be used."""
    options = _parser().parse_args(argv)
    stop_on_signals()
    console = wide_console()
    if not console.is_terminal:
        console.width = WIDTH
    try:
        what, chosen = _asked(options)
        with kept.opened(options.out, what):
            rows = _run_all(options.out, what, chosen, console)
    except (plan.PlanError, kept.FolderError) as error:
        print(f"headway experiment: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headway experiment: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "headway experiment: stopped; cells that had ended are kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 1
    _conclude(options.out, what, rows, console)
    return int(any(row.figures is None for row in rows))


def _asked(options: argparse.Namespace) -> tuple[Plan, list[Cell]]:
    """The plan and its cells: the options' own, and for the rest the defaults or those of `--quick`."""
    base = plan.QUICK if options.quick else plan.Plan()
    given = {name: getattr(options, name) for name in base.settings() if getattr(options, name) is not None}
    intervals = options.intervals or (plan.QUICK_INTERVALS if options.quick else plan.INTERVALS)
    patterns = options.cells or (plan.QUICK_CELLS if options.quick else plan.default_patterns(intervals))
    return replace(base, **given), plan.chosen(plan.grid(intervals), patterns)


def _parser() -> Parser:
    normal, quick = plan.Plan(), plan.QUICK
    parser = Parser("headway experiment", description=DESCRIPTION)
    add = parser.add_argument
    add(
        "--steps",
        type=int,
        metavar="N",
        help=f"optimizer steps of each run (default: {normal.steps}; quick: {quick.steps})",
    )
    add(
        "--faults",
        type=int,
        metavar="N",
        help=f"faults of each run, exceptions and SIGKILLs 7:3 (default: {normal.faults}; quick: {quick.faults})",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help=f"decides where the faults strike, and the first weights (default: {normal.seed})",
    )
    add(
        "--rank-zero",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let faults strike rank 0 as well; the published schedule leaves it out (default: --rank-zero)",
    )
    add(
        "--intervals",
        type=_whole_numbers,
        metavar="N,N",
        help="steps between two checkpoints, the main interval first "
        f"(default: {','.join(map(str, plan.INTERVALS))}; quick: {','.join(map(str, plan.QUICK_INTERVALS))})",
    )
    add(
        "--cells",
        type=_words,
        metavar="PATTERN,PATTERN",
        help="which cells of the whole grid, as a shell would match SAVES/RESTARTS@INTERVAL, for example 'async/*@40'; '*' is all of them "
        f"(default: all at the first interval, and */in_process at the others; quick: {','.join(plan.QUICK_CELLS)})",
    )
    add(
        "--step-seconds",
        type=float,
        metavar="SECONDS",
        help=f"least seconds of a step, mostly slept (default: {normal.step_seconds:g})",
    )
    add(
        "--write-seconds",
        type=float,
        metavar="SECONDS",
        help=f"seconds that the slow storage takes for a checkpoint (default: {normal.write_seconds:g}; quick: {quick.write_seconds:g})",
    )
    add(
        "--backoff-scale",
        type=float,
        metavar="X",
        help=f"factor on the orchestrator's pauses, which are Kubernetes' {plan.BACKOFF_SECONDS:g} s doubled up to 300 s with 1 "
        f"(default: {normal.backoff_scale:g}, for a laptop)",
    )
    add("--quick", action="store_true", help="three cells of two faults each, about two minutes: to see that it works")
    add(
        "--out",
        type=Path,
        default=Path("experiment-output"),
        metavar="FOLDER",
        help="folder for results, logs and checkpoints (default: %(default)s)",
    )
    return parser


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers between commas, got {text!r}") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _run_all(out: Path, what: Plan, chosen: Sequence[Cell], console: Console) -> list[Row]:
    """Every cell that is not on disk yet; the tables are written after each, so that an interrupted grid has some, too."""
    results = {cell: kept.kept(out, cell) for cell in chosen}
    done = [cell for cell, result in results.items() if result is not None and result["state"] == "done"]
    missing = [cell for cell in chosen if cell not in done]
    if done:
        _say(console, f"{len(done)} of {len(chosen)} cells are in {out} already" + ("; going on" if missing else ""))
    if missing:
        minutes = plan.estimate_seconds(what, missing) / 60
        _say(console, f"{len(missing)} to run, about {minutes:.0f} min on an idle machine with two cores")
    for number, cell in enumerate(missing, 1):
        results[cell] = _run_one(out, what, cell, f"{number}/{len(missing)} {cell.name}", console)
        _write(out, what, _rows(chosen, results))
    rows = _rows(chosen, results)
    _write(out, what, rows)
    return rows


def _run_one(out: Path, what: Plan, cell: Cell, title: str, console: Console) -> kept.Result:
    """A cell to its end or its failure, which is then its result."""
    started = time.monotonic()
    _say(console, f"{time.strftime('%H:%M:%S')} {title}")
    with console.status(title) as line:
        try:
            result = cells.run(what, cell, kept.fresh_folder(out, cell), _shower(line.update, title, what))
        except (cells.CellError, DemoError, OSError) as error:
            result = cells.failed(f"{error}")
    try:
        kept.keep(out, cell, result)
    except OSError as error:
        _say(console, f"  the result of {cell.name} cannot be kept: {error}")
    seconds = time.monotonic() - started
    row = measure.row(cell, result)
    found = row.figures.spread if row.figures else None
    told = f"failed: {row.reason}" if row.figures is None else "done"
    if found is not None:
        told += f", recovery {found.median:.1f} s (median of {found.count})"
    _say(console, f"{time.strftime('%H:%M:%S')}   {told}; {seconds:.0f} s in all")
    return result


def _shower(update: Callable[[str], None], title: str, what: Plan) -> Callable[[dict[str, Any]], None]:
    def show(status: dict[str, Any]) -> None:
        restarts = sum(status["restarts"].values())
        update(
            f"{title}: step {status['step'] or 0}/{what.steps}, {status['state'] or 'starting'}, {restarts} restarts"
        )

    return show


def _rows(chosen: Sequence[Cell], results: dict[Cell, kept.Result | None]) -> list[Row]:
    return [measure.row(cell, result) for cell in chosen if (result := results[cell]) is not None]


def _write(out: Path, what: Plan, rows: Sequence[Row]) -> None:
    for name, text in {
        "table.md": formats.markdown(what, rows),
        "table.csv": formats.csv_text(rows),
        "results.json": formats.json_text(what, rows),
        "experiment.html": page.html(what, rows),
    }.items():
        (out / name).write_text(text)


def _conclude(out: Path, what: Plan, rows: Sequence[Row], console: Console) -> None:
    for one in table.tables(rows):
        console.print()
        console.print(_shown(one))
    for note in table.notes(what):
        _say(console, f"- {note}")
    _say(console, f"\nwritten: {out}/experiment.html, table.md, table.csv, results.json; logs lie in {out}/cells")


def _shown(one: table.Table) -> Shown:
    shown = Shown(title=one.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for number, text in enumerate(one.header):
        named = number < one.named
        shown.add_column(text, justify="left" if named else "right", overflow="fold", no_wrap=named and one.named == 1)
    for line in one.rows:
        shown.add_row(*line)
    return shown


def _say(console: Console, text: str) -> None:
    """What may hold anything: printed as it is."""
    console.print(text, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
