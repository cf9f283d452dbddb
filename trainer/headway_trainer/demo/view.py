"""The terminal while a run goes on: a progress bar and a line of signals, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

STATE_STYLES: Final = {
    "productive": "green",
    "replay": "yellow",
    "checkpoint_save": "cyan",
    "checkpoint_load": "cyan",
    "init": "blue",
    "detect": "bold red",
    "restart": "bold red",
    "down": "bold red",
    "finished": "bold green",
}
PLAIN_SECONDS: Final = 5.0

Status = dict[str, Any]


class View(Protocol):
    """Shows a run while it lasts."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def show(self, status: Status) -> None:
        """The newest answer of the sidecar."""

    def tell(self, line: str) -> None:
        """Something that happened beside it."""


def view_for(console: Console, title: str) -> View:
    """Live on a terminal, plain lines elsewhere."""
    return LiveView(console, title) if console.is_terminal else PlainView(console, title)


class LiveView:
    """Redraws two lines in place below the title; recoveries scroll by above them."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(Text("  starting"), console=console, refresh_per_second=8)
        self._told = _Recoveries()

    def __enter__(self) -> LiveView:
        self._console.print(Text(self._title, style="bold"))
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, status: Status) -> None:
        """Redraw."""
        for line in self._told.new_lines(status):
            self._console.print(Text("  " + line, style="magenta"))
        self._live.update(Group(_bar(status), Text("  " + signals(status))))

    def tell(self, line: str) -> None:
        """Scrolls by above."""
        self._console.print(Text("  " + line, style="cyan"))


class PlainView:
    """A line every few seconds, and one for each recovery: for logs and pipes."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._told = _Recoveries()
        self._next = 0.0

    def __enter__(self) -> PlainView:
        self._print(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    def show(self, status: Status) -> None:
        """Print what is due."""
        for line in self._told.new_lines(status):
            self._print("  " + line)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self._print(f"  {headline(status)}  {signals(status)}")

    def tell(self, line: str) -> None:
        """Print it."""
        self._print("  " + line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Recoveries:
    """Which recoveries have been told already."""

    def __init__(self) -> None:
        self._told = 0

    def new_lines(self, status: Status) -> list[str]:
        finished = [one for one in status["recoveries"] if one["seconds_to_first_step"] is not None]
        lines = [recovery_line(one) for one in finished[self._told :]]
        self._told = len(finished)
        return lines


def _bar(status: Status) -> Table:
    total = status["total_steps"]
    step = status["step"] or 0
    row = Table.grid(padding=(0, 1))
    state = status["state"] or "waiting"
    row.add_row(
        "  step",
        ProgressBar(total=total or 1, completed=step, width=40),
        f"{step:>4}/{total or '?'}",
        f"loss {_number(status['loss'], '.4f')}",
        Text(state, style=STATE_STYLES.get(state, "white")),
    )
    return row


def headline(status: Status) -> str:
    """Step, loss and state in a few words."""
    total = status["total_steps"] or "?"
    loss = _number(status["loss"], ".4f")
    return f"step {status['step'] or 0:>3}/{total}  loss {loss}  {status['state'] or 'waiting':<15}"


def signals(status: Status, now: float | None = None) -> str:
    """What utilisation does not tell: goodput, the newest durable checkpoint and its age, the queue, the restarts."""
    saved, restarts = status["checkpoint"], status["restarts"]
    if saved["durable_step"] is None:
        checkpoint = "no checkpoint yet"
    else:
        age = max(0.0, (time.time() if now is None else now) - saved["committed_wall"])
        checkpoint = f"checkpoint {saved['durable_step']}, {age:.0f} s old"
    return (
        f"goodput {_percent(status['training_goodput'])}, infrastructure {_percent(status['infrastructure_goodput'])}"
        f" | {checkpoint} | queue {status['queue']['depth']}"
        f" | restarts: {restarts['in_process']} in process, {restarts['launcher']} launcher"
    )


def recovery_line(recovery: Status) -> str:
    """One recovery in a sentence."""
    origin = "the pod" if recovery["origin_rank"] is None else f"rank {recovery['origin_rank']}"
    when = datetime.fromtimestamp(recovery["opened_wall"]).strftime("%H:%M:%S")
    lost = recovery["steps_lost"]
    return (
        f"{when} recovered: {recovery['cause']} on {origin}, {recovery['layer']} restart, "
        f"{recovery['seconds_to_first_step']:.1f} s to the first step, {lost} step{'' if lost == 1 else 's'} to replay"
    )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
