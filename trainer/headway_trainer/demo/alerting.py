"""What became of the alerts: from Prometheus' `ALERTS` and the webhook's notes to tables and a verdict. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headway_trainer.demo.webhook import Notification

EXPECTED: Final = {
    "HeadwayRecovered": "channel",
    "HeadwayRecurringEntity": "ticket",
    "HeadwayRestartBudgetLow": "ticket",
}
"""What the broken run must come to, and who must be told.

Each recovery is a note. All faults strike rank 1, and most of them cost a restart of the launcher's few: both are tickets, although every
single fault was recovered from. Nothing may page.
"""
PAGE: Final = "critical"
PAGER: Final = "page"
PENDING: Final = "pending"
WITHDRAWN: Final = "withdrawn, it never fired"
QUIET: Final = (PENDING, WITHDRAWN)
"""Words of an alert that nobody is told of."""
CHANNEL: Final = "channel"
"""Is not told of an end: that of a note is no news."""


@dataclass(frozen=True)
class Episode:
    """One time that an alert was up. Times in seconds since 1970.

    Attributes:
        alert: its name.
        severity: critical, warning or info.
        run: which run it was about.
        pending: since when its condition held without it firing; None for an alert that waits for nothing.
        firing: since when it fired; None when it never did.
        ended: when it was over, resolved or withdrawn; None while it is not.
    """

    alert: str
    severity: str
    run: str
    pending: float | None
    firing: float | None
    ended: float | None


@dataclass(frozen=True)
class History:
    """The answer to a range query of `ALERTS`.

    Attributes:
        series: as Prometheus gives them.
        step_seconds: the query's.
        end: the query's, seconds since 1970.
    """

    series: Sequence[dict[str, Any]]
    step_seconds: float
    end: float


def episodes(history: History) -> list[Episode]:
    """In the order of time; a gap parts two of them."""
    states: dict[tuple[str, str, str, str], dict[float, str]] = {}
    for one in history.series:
        labels = one["metric"]
        others = str(sorted((name, text) for name, text in labels.items() if name != "alertstate"))
        key = (labels["alertname"], labels.get("severity", ""), labels.get("run", ""), others)
        moments = states.setdefault(key, {})
        for at, _ in one["values"]:
            if moments.get(at) != "firing":
                moments[at] = labels["alertstate"]
    found = [
        _episode(key[:3], moments, part, history)
        for key, moments in states.items()
        for part in _parts(sorted(moments), 1.5 * history.step_seconds)
    ]
    return sorted(found, key=lambda one: (_begin(one), one.alert))


def _parts(moments: list[float], most_seconds: float) -> list[list[float]]:
    """The moments, parted where two are further from each other."""
    parts: list[list[float]] = []
    for at in moments:
        if parts and at - parts[-1][-1] <= most_seconds:
            parts[-1].append(at)
        else:
            parts.append([at])
    return parts


def _episode(labels: tuple[str, str, str], moments: dict[float, str], part: list[float], history: History) -> Episode:
    firing = next((at for at in part if moments[at] == "firing"), None)
    pending = part[0] if moments[part[0]] == "pending" else None
    over = part[-1] + history.step_seconds <= history.end
    return Episode(*labels, pending, firing, part[-1] + history.step_seconds if over else None)


def _begin(one: Episode) -> float:
    return min(at for at in (one.pending, one.firing) if at is not None)


def problems(found: Sequence[Episode], notes: Sequence[Notification], run: str, quiet_run: str) -> list[str]:
    """In what the alerts of the broken run and of the undisturbed one differ from what they must be; a ticket too many is none."""
    fired = [one for one in found if one.firing is not None]
    wrong = [f"{one.alert} paged for the run {one.run!r}" for one in fired if one.severity == PAGE]
    wrong += [
        f"{one.alert} fired for the undisturbed run" for one in fired if one.run == quiet_run and one.severity != PAGE
    ]
    wrong += [f"{note.alert} reached the pager" for note in notes if note.receiver == PAGER]
    for alert, receiver in EXPECTED.items():
        own = [one for one in fired if (one.alert, one.run) == (alert, run)]
        told = {note.status for note in notes if (note.alert, note.run, note.receiver) == (alert, run, receiver)}
        if not own:
            wrong.append(f"{alert} did not fire")
        elif own[-1].ended is None:
            wrong.append(f"{alert} was not resolved")
        missing = [
            status
            for status in ("firing", "resolved")
            if status not in told and (receiver, status) != (CHANNEL, "resolved")
        ]
        if own and missing:
            wrong.append(f"{alert}: receiver {receiver} was not told that it is {' and '.join(missing)}")
    return list(dict.fromkeys(wrong))


def changes(before: Iterable[dict[str, Any]], after: Iterable[dict[str, Any]]) -> list[str]:
    """What is different between two answers to "which alerts are active", a line each."""
    old, new = _states(before), _states(after)
    lines = [
        f"alert {alert} of {run}: {state}" + (f" ({severity})" if state == "firing" else "")
        for (alert, severity, run), state in new.items()
        if old.get((alert, severity, run)) != state
    ]
    ends = {"firing": "resolved", PENDING: WITHDRAWN}
    lines += [f"alert {key[0]} of {key[2]}: {ends.get(state, 'over')}" for key, state in old.items() if key not in new]
    return lines


def _states(active: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], str]:
    found: dict[tuple[str, str, str], str] = {}
    for one in active:
        labels = one["labels"]
        key = (labels.get("alertname", ""), labels.get("severity", ""), labels.get("run", ""))
        if found.get(key) != "firing":
            found[key] = one["state"]
    return found


def alerts_table(found: Sequence[Episode], run: str) -> Table:
    """Each time that an alert fired, since when and until when, and whether that is as it must be; once for all what never fired."""
    table = _table("The alerts, as Prometheus tells", "alert", "severity", "run", "pending", "firing", "over", "")
    for one, times in _rows(found):
        mark = Text(f"never fired{times}", style="dim") if one.firing is None else _mark(one, run)
        moments = (_clock(at) for at in (one.pending, one.firing, one.ended))
        table.add_row(one.alert, one.severity, one.run, *moments, mark)
    return table


def _rows(found: Sequence[Episode]) -> list[tuple[Episode, str]]:
    """All that fired; of each alert that was only pending, the first time and how many there were."""
    quiet = Counter((one.alert, one.run) for one in found if one.firing is None)
    rows, told = list[tuple[Episode, str]](), set[tuple[str, str]]()
    for one in found:
        key = (one.alert, one.run)
        if one.firing is not None:
            rows.append((one, ""))
        elif key not in told:
            told.add(key)
            rows.append((one, f" x{quiet[key]}" if quiet[key] > 1 else ""))
    return rows


def _mark(one: Episode, run: str) -> Text:
    if one.severity == PAGE or one.run != run:
        return Text("WRONG", style="bold red")
    if one.alert not in EXPECTED:
        return Text("not expected", style="yellow")
    return Text("not over", style="bold red") if one.ended is None else Text("ok", style="bold green")


def notes_table(notes: Sequence[Notification]) -> Table:
    """What the webhook received, in order."""
    table = _table("Who was told, as Alertmanager's webhook received it", "time", "receiver", "status", "alert", "run")
    for note in notes:
        table.add_row(_clock(note.wall), note.receiver, note.status, note.alert, note.run)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _clock(wall: float | None) -> str:
    return "-" if wall is None else datetime.fromtimestamp(wall).strftime("%H:%M:%S")
