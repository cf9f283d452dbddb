"""Reading a run's state folder. Only opens files for reading, so a running sidecar does not notice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.report import fields, parse
from headway_exporter.report.merge import incidents
from headway_exporter.report.model import Problem, Record, Run
from headway_exporter.state_files import (
    INCIDENTS,
    LEDGER,
    RECORDS,
    StateFileError,
    pods_of,
    read_ledger,
    read_records,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headway_exporter.report.model import Pod

MOST_LINES_NAMED: Final = 5
"""Bad lines of one file that are named; the others are counted."""


class RunError(Exception):
    """There is no report; the message says why and what to do, in one line.

    Attributes:
        usage: the folder that was asked for is not one, or not one alone: exit code 2 instead of 1.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class _PodFiles:
    """What could be read of one pod."""

    pod: Pod | None
    run: str | None
    """The run that its ledger names."""
    records: list[Record]
    problems: list[Problem]


def find_run(folder: Path) -> Path:
    """The run's folder: `folder` itself, or the only run in it.

    Raises:
        RunError: there is no run, or more than one.
    """
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        if _is_run(folder):
            return folder
        runs = [path for path in inside if _is_run(path)]
    except OSError as error:
        raise RunError(f"cannot read {folder}: {error.strerror or error}", usage=True) from error
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise RunError(
            f"{folder} holds no run of Headway; give the folder that sidecars have as --state-dir", usage=True
        )
    named = ", ".join(fields.text(path.name) for path in runs[:20]) + (", …" if len(runs) > 20 else "")
    raise RunError(f"{folder} holds {len(runs)} runs: name one, as {folder}/RUN, of: {named}", usage=True)


def load(folder: Path, now: float) -> Run:
    """The run in this folder, as it is `now` (seconds since 1970).

    Raises:
        RunError: nothing of it could be read.
    """
    try:
        pods = pods_of(folder)
    except OSError as error:
        raise RunError(f"cannot read {folder}: {error.strerror or error}") from error
    found = {index: _pod(path, index) for index, path in pods.items() if _is_pod(path)}
    problems = [problem for one in found.values() for problem in one.problems]
    if not any(one.pod or one.records for one in found.values()):
        first = f" ({problems[0].message})" if problems else ""
        raise RunError(f"nothing of {folder} could be read{first}")
    names = Counter(one.run for one in found.values() if one.run is not None)
    name = names.most_common(1)[0][0] if names else folder.name  # a folder may have been copied under another name
    own = [one for one in found.values() if one.run in (None, name)]
    foreign = [index for index, one in found.items() if one.run not in (None, name)]
    run = Run(
        name=fields.text(name),
        pods=tuple(one.pod for one in own if one.pod is not None),
        incidents=incidents(record for one in own for record in one.records),
        problems=(
            *problems,
            *(Problem(f"pod {fields.text(one)}", "it is of another run: left out") for one in foreign),
        ),
        read_wall=now,
    )
    return _with_missing(run, len(own))


def _is_pod(path: Path) -> bool:
    return (path / LEDGER).exists() or (path / RECORDS).exists()


def _is_run(folder: Path) -> bool:
    return any(_is_pod(path) for path in folder.iterdir() if path.is_dir() and path.name != INCIDENTS)


def _with_missing(run: Run, found: int) -> Run:
    """The run, beside the pods that should have left something and did not."""
    missing = (run.pods_expected or found) - found
    if missing <= 0:
        return run
    some = "1 pod" if missing == 1 else f"{missing} pods"
    message = f"of {run.pods_expected}, {some} left nothing here: their time and losses are in no number"
    return replace(run, problems=(Problem("pods", message), *run.problems))


def _pod(folder: Path, index: str) -> _PodFiles:
    shown = fields.text(index)
    records, problems = _records(folder / RECORDS, shown)
    try:
        ledger = read_ledger(folder / LEDGER, pod_index=index)
    except FileNotFoundError:
        problems.append(Problem(f"pod {shown}", "it left no ledger: its time is in no number"))
        return _PodFiles(None, None, records, problems)
    except (OSError, StateFileError) as error:
        problems.append(Problem(f"pod {shown}, {LEDGER}", f"{_said(error)}: its time is in no number"))
        return _PodFiles(None, None, records, problems)
    summary = fields.mapping(ledger.body.get("summary"))
    still_open = summary.get("open")
    if isinstance(still_open, dict):
        records += [one for one in [_record(still_open, shown)] if isinstance(one, Record)]
    return _PodFiles(parse.pod(summary, shown, ledger.written_wall), ledger.run, records, problems)


def _records(path: Path, index: str) -> tuple[list[Record], list[Problem]]:
    what = f"pod {index}, {RECORDS}"
    records: list[Record] = []
    problems: list[Problem] = []
    bad: list[str] = []
    try:
        for line in read_records(path):
            one = line if isinstance(line, StateFileError) else _record(line, index)
            if isinstance(one, Record):
                records.append(one)
            else:
                bad.append(str(one))
    except OSError as error:
        problems.append(Problem(what, f"{_said(error)}: incidents are missing"))
    problems += [Problem(what, f"{fields.text(one)}: left out") for one in bad[:MOST_LINES_NAMED]]
    if len(bad) > MOST_LINES_NAMED:
        problems.append(Problem(what, f"{len(bad) - MOST_LINES_NAMED} more such lines: left out"))
    return records, problems


def _record(source: Mapping[str, Any], index: str) -> Record | parse.RecordError:
    try:
        return parse.record(source, index)
    except parse.RecordError as error:
        return error


def _said(error: OSError | StateFileError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    return fields.text(str(error))
