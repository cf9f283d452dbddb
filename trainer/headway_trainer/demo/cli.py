"""The command `headway demo`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rich.console import Console

from headway.command_line import Parser
from headway_trainer.demo import alerting, plan, report, runner, stack, view
from headway_trainer.faults import fired_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_SECONDS: Final = 0.25
TIME_LIMIT_SECONDS: Final = 600.0
LAST_WORD_SECONDS: Final = 30.0

REPORT: Final = "postmortem.html"
STATE: Final = "state"
"""Folder that both runs' sidecars keep their records in."""

ALERTS: Final = "stack"
"""Folder of Prometheus and Alertmanager: their rules, data and logs, and what became of the alerts."""

LINGER_SECONDS: Final = 8.0
"""For Prometheus to scrape a sidecar's last word."""

MARKER: Final = ".headway-demo"
"""Tells a demo's folder from anybody else's; locked while the demo runs."""

Status = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when everything observed is what was injected and the result is bit-equal, else 1."""
    options = _parser().parse_args(argv)
    console = wide_console()
    started = time.monotonic()
    stop_on_signals()
    try:
        good = _demo(options.output, options.stack, console)
    except _FolderError as error:
        print(f"headway demo: --output: {error}", file=sys.stderr)
        return 2
    except stack.MissingError as error:
        print(f"headway demo: --stack: {error}", file=sys.stderr)
        return 2
    except runner.DemoError as error:
        print(f"headway demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headway demo: stopped", file=sys.stderr)
        return 1
    report_path, seconds = options.output / REPORT, time.monotonic() - started
    console.print(f"\n{seconds:.0f} s in all; the report is {report_path}, logs and checkpoints lie beside it")
    return 0 if good else 1


def _parser() -> Parser:
    parser = Parser("headway demo", description=DESCRIPTION)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="folder for logs and checkpoints, emptied first (default: %(default)s)",
    )
    parser.add_argument(
        "--stack",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="start Prometheus with Headway's rules, and Alertmanager, and check which alerts come and go "
        "(default: when both are installed)",
    )
    return parser


def _demo(output: Path, wanted: bool | None, console: Console) -> bool:
    """Both runs and what became of them; whether that is what it should be."""
    if wanted:
        stack.programs()  # before anything is touched
    with _folder(output), offered_stack(wanted, output.resolve() / ALERTS, console) as alerts:
        reference, broken = plan.runs(output.resolve())
        _run(reference, console, alerts)
        status = _run(broken, console, alerts)
        runner.postmortem(output / STATE, broken.name, output / REPORT)
        outcome = None if alerts is None else alerts.settled(broken.name, reference.name)
    good = _conclude(reference, broken, status, console)
    return (outcome is None or _conclude_alerts(outcome, broken, console)) and good


DESCRIPTION: Final = (
    "Trains a small model on real text twice, on two CPU ranks: undisturbed, and broken four times (an exception, a SIGKILL, a hang, a "
    "corrupt checkpoint). A sidecar watches; at the end its account is compared with what was injected, and the two results with each "
    "other. Where Prometheus and Alertmanager are installed they watch too, and who was told is compared with who must be. About three "
    "minutes."
)


def wide_console() -> Console:
    """A pipe or a log has no width of its own: wide enough there for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=110)


def stop_on_signals() -> None:
    """SIGTERM and a terminal that goes away do as Ctrl-C does: what the demo has started is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def offered_stack(wanted: bool | None, folder: Path, console: Console) -> Iterator[stack.Stack | None]:
    """Prometheus and Alertmanager; None when nobody asked for them and they cannot be had."""
    with contextlib.ExitStack() as running:
        try:
            found = running.enter_context(stack.stack(stack.programs(), folder)) if wanted is not False else None
        except runner.DemoError as error:
            if wanted:
                raise
            console.print(f"no alerts in this demo: {error}", markup=False, highlight=False, soft_wrap=True)
            found = None
        if found is not None:
            console.print(
                f"Prometheus on {found.prometheus}, Alertmanager on {found.alertmanager}, with {stack.PACE_IN_WORDS}\n",
                highlight=False,
            )
        yield found


class _FolderError(ValueError):
    """The output folder cannot be used."""


@contextlib.contextmanager
def _folder(output: Path) -> Iterator[None]:
    """The output folder, empty and ours alone: one of an earlier demo is emptied, any other with something in it is not."""
    with _locked_marker(output):
        yield


def _locked_marker(output: Path) -> IO[str]:
    marker = output / MARKER
    try:
        if output.exists() and not marker.exists() and any(output.iterdir()):
            raise _FolderError(f"{output} holds something that no demo wrote; name another folder")
        output.mkdir(parents=True, exist_ok=True)
        file = marker.open("w")
    except OSError as error:
        raise _FolderError(f"{output} cannot be used: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise _FolderError(f"another demo is running in {output}") from None
    for entry in output.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    return file


def _run(run: plan.Run, console: Console, alerts: stack.Stack | None) -> Status:
    """One run with its sidecar; returns the sidecar's last word."""
    run.output.mkdir()
    journals = run.output / "journal"
    environment = {"HEADWAY_DIR": str(journals), "HEADWAY_RUN": run.name, "HEADWAY_POD_INDEX": "0"}
    command = runner.launcher_command(runner.free_ports(), plan.RANKS, run.trainer_options())
    with (
        runner.sidecar(
            journals,
            run.name,
            run.output / "sidecar.log",
            state_dir=run.output.parent / STATE,
            linger_seconds=LINGER_SECONDS if alerts else 0,
        ) as sidecar,
        runner.training(command, environment, run.output / "trainer.log") as training,
    ):
        if alerts is not None:
            alerts.watch(sidecar.address)
        with view.view_for(console, run.title) as shown:
            _watch(training, sidecar, shown, None if alerts is None else stack.Bulletin(alerts))
        status = _last_word(sidecar)
        (run.output / "metrics.txt").write_text(sidecar.scrape())
    if training.exit_code != 0:
        raise runner.DemoError(f"the run {run.name!r} ended with {training.exit_code}; its output is in {training.log}")
    return status


def _watch(
    training: runner.Training, sidecar: runner.Sidecar, shown: view.View, bulletin: stack.Bulletin | None
) -> None:
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while training.exit_code is None:
        if time.monotonic() > deadline:
            raise runner.DemoError(f"no end after {TIME_LIMIT_SECONDS:.0f} s; the output so far is in {training.log}")
        status = sidecar.status()
        if status is not None:
            shown.show(status)
        for line in bulletin.lines() if bulletin else ():
            shown.tell(f"{time.strftime('%H:%M:%S')} {line}")
        time.sleep(POLL_SECONDS)


def _last_word(sidecar: runner.Sidecar) -> Status:
    """The status once the sidecar has seen every rank finish."""
    deadline = time.monotonic() + LAST_WORD_SECONDS
    while (status := sidecar.status()) is None or not status["finished"]:
        if time.monotonic() > deadline:
            raise runner.DemoError(f"the sidecar does not see the end of the run; its last word: {status}")
        time.sleep(POLL_SECONDS)
    return status


def _conclude(reference: plan.Run, broken: plan.Run, status: Status, console: Console) -> bool:
    fired = fired_faults(broken.output / "faults")
    resumes = report.read_resumes(broken.output / "history.jsonl")
    rows, problems = report.compare(fired, status["recoveries"], resumes)
    if len(fired) != len(broken.faults):
        problems.append(f"{len(broken.faults)} faults were planned, {len(fired)} struck")
    problems += [f"{row.fired.fault}: {problem}" for row in rows for problem in row.problems]
    verdicts, unexpected = report.verdicts(status)
    problems += unexpected
    results = report.read_results(broken.output)
    differences = report.same_result(report.read_results(reference.output), results)
    console.print()
    console.print(report.recoveries_table(rows))
    console.print(report.time_table(status))
    console.print(f"  {view.signals(status)}", markup=False, highlight=False)
    console.print(f"  {verdicts}", markup=False, highlight=False)
    console.print(
        report.check_line(not problems, "observed is what was injected" if not problems else "; ".join(problems))
    )
    same = (
        f"final loss {results[0]['loss']:.6f} and all weights are bit-equal to the undisturbed run's" if results else ""
    )
    console.print(report.check_line(not differences, same if not differences else "; ".join(differences)))
    return not problems and not differences


def _conclude_alerts(outcome: stack.Outcome, broken: plan.Run, console: Console) -> bool:
    console.print()
    console.print(alerting.alerts_table(outcome.episodes, broken.name))
    console.print(alerting.notes_table(outcome.notifications))
    right = "every recovery was a note, what keeps coming back became tickets, and nobody was paged"
    console.print(report.check_line(not outcome.problems, "; ".join(outcome.problems) or right))
    return not outcome.problems


if __name__ == "__main__":
    sys.exit(main())
