"""Prometheus and Alertmanager beside the demo: the rules and routes of `headway rules`, at the pace of a run of minutes.

Both are the machine's own programs, started on free ports of the loopback interface. Alertmanager's receivers are the demo's webhook.
What is shortened for the demo is in `PACE`, and goes the way that any user's configuration goes: `headway rules --config`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.demo import alerting, runner
from headway_trainer.demo.webhook import Notification, Webhook, webhook

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PACE: Final[Mapping[str, float]] = {
    "note_seconds": 10,
    "keep_firing_seconds": 2,
    "memory_seconds": 3,
    "stalled_floor_seconds": 8,
    # The failures of a day come within a minute here: a second one that takes queued saves with it is no failing storage.
    "failing_window_seconds": 10,
    "notify_wait_seconds": 1,
    "notify_interval_seconds": 1,
}
"""Of `headway_alerts.config.Config`: how long things stand and who is told when. Every other threshold is the default."""

PACE_IN_WORDS: Final = (
    "the committed rules at the demo's pace: a recovery is news for 10 s instead of 10 min, an alert ends 2 s after its cause instead of "
    "5 min, the last word of a pod that is gone counts for 3 s instead of 10 min, training that stands still makes an alert pending after "
    "8 s instead of 2 min, two restarts that lose saves are failing storage within 10 s instead of 6 h, and Alertmanager waits 1 s instead "
    "of 15 s to 2 min"
)
SECONDS: Final = 1
"""Between two scrapes and between two evaluations."""
SETTLE_SECONDS: Final = 30.0
"""For the last alerts to be resolved, once the sidecar is gone."""
PACKAGES: Final = "prometheus prometheus-alertmanager"
"""Debian's."""


class MissingError(runner.DemoError):
    """A program is not on the PATH; the message names its Debian package."""


@dataclass(frozen=True)
class Programs:
    """Where the machine has them."""

    prometheus: str
    alertmanager: str


def programs() -> Programs:
    """Those on the PATH.

    Raises:
        MissingError: one is not there.
    """
    prometheus = shutil.which("prometheus")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if prometheus is not None and alertmanager is not None:
        return Programs(prometheus, alertmanager)
    missing = {"Prometheus": prometheus, "Alertmanager": alertmanager}
    names = " and ".join(name for name, found in missing.items() if found is None)
    raise MissingError(f"{names} not found on the PATH (Debian: apt install {PACKAGES})")


@dataclass(frozen=True)
class Outcome:
    """The whole story of the alerts; it is kept in `alerts.json`.

    Attributes:
        episodes: each time that an alert was up.
        notifications: who was told.
        problems: in words, what is not as it must be.
    """

    episodes: tuple[alerting.Episode, ...]
    notifications: tuple[Notification, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Stack:
    """Both, running.

    Attributes:
        prometheus: its address.
        alertmanager: its address.
        webhook: what Alertmanager sends to.
        folder: their files and logs.
        began: when they were ready, seconds since 1970.
    """

    prometheus: str
    alertmanager: str
    webhook: Webhook
    folder: Path
    began: float

    def watch(self, *sidecars: str) -> None:
        """From now on Prometheus scrapes these, and nothing else; each is a host and a port."""
        new = self.folder / "targets.new"
        new.write_text(json.dumps([{"targets": list(sidecars)}]))
        new.replace(self.folder / "targets.json")

    def history(self) -> alerting.History:
        """Every alert's states since the beginning."""
        end = time.time()
        found = self._ask("query_range", query="ALERTS", start=f"{self.began}", end=f"{end}", step=f"{SECONDS}")
        return alerting.History(found["result"], SECONDS, end)

    def active(self) -> list[dict[str, Any]] | None:
        """The alerts that are pending or firing now; None while Prometheus does not answer."""
        try:
            found: list[dict[str, Any]] = self._ask("alerts")["alerts"]
        except runner.DemoError:
            return None
        return found

    def settled(self, run: str, quiet_run: str) -> Outcome:
        """What the alerts came to, once that is what it must be; after half a minute whatever it is then.

        Raises:
            DemoError: Prometheus does not answer.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            found, notes = alerting.episodes(self.history()), self.webhook.notes()
            wrong = alerting.problems(found, notes, run, quiet_run)
            if not wrong or time.monotonic() > deadline:
                outcome = Outcome(tuple(found), tuple(notes), tuple(wrong))
                (self.folder / "alerts.json").write_text(json.dumps(asdict(outcome), indent=1))
                return outcome
            time.sleep(SECONDS / 2)

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own loopback address
                return json.load(answer)["data"]
        except (OSError, ValueError) as error:
            raise runner.DemoError(f"Prometheus does not answer ({error}); its log is in {self.folder}") from error


class Bulletin:
    """What is new about the alerts."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._active: list[dict[str, Any]] = []
        self._told: set[str] = set()
        self._next = 0.0

    def lines(self) -> list[str]:
        """One for each alert that changed since the last time, about once a second; what did not fire is told once."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + SECONDS
        active = self._stack.active()
        if active is None:
            return []
        before, self._active = self._active, active
        lines = [
            line
            for line in alerting.changes(before, active)
            if line not in self._told or not line.endswith(alerting.QUIET)
        ]
        self._told.update(lines)
        return lines


@contextlib.contextmanager
def stack(found: Programs, folder: Path, pace: Mapping[str, float] = PACE) -> Iterator[Stack]:
    """Starts both in a folder, an absolute path, that is made for them; ends them whatever happens.

    Raises:
        DemoError: one does not come up.
    """
    folder.mkdir()
    with webhook(folder / "notifications.jsonl") as receiver, contextlib.ExitStack() as running:
        _write_rules(folder, {**pace, "webhook_base_url": receiver.url})
        port = runner.free_ports(2)
        prometheus, alertmanager = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        one = Stack(f"http://{prometheus}", f"http://{alertmanager}", receiver, folder, time.time())
        one.watch()
        (folder / "prometheus.yaml").write_text(json.dumps(_prometheus(folder, alertmanager)))
        for name, command in {
            "alertmanager": [
                found.alertmanager,
                f"--config.file={folder / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={alertmanager}",
                "--cluster.listen-address=",
            ],
            "prometheus": [
                found.prometheus,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={prometheus}",
                "--enable-feature=exemplar-storage",
            ],
        }.items():
            running.enter_context(_ready(command, folder / f"{name}.log"))
        yield one


@contextlib.contextmanager
def _ready(command: list[str], log: Path) -> Iterator[None]:
    """Runs one of the two; the block begins when it answers."""
    address = next(word for word in command if word.startswith("--web.listen-address=")).partition("=")[2]
    with runner.started(command, log) as process:
        deadline = time.monotonic() + runner.START_SECONDS
        while not _answers(f"http://{address}/-/ready"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise runner.DemoError(f"{command[0]} does not come up; its output is in {log}")
            time.sleep(0.1)
        yield


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own loopback address
            return True
    except OSError:
        return False


def _write_rules(folder: Path, values: Mapping[str, float | str]) -> None:
    config = folder / "config.yaml"
    config.write_text(json.dumps(values))  # JSON is YAML
    for form, out in (("prometheus", folder / "rules"), ("alertmanager", folder)):
        command = [
            sys.executable,
            "-m",
            "headway",
            "rules",
            "--config",
            str(config),
            "--format",
            form,
            "--out",
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise runner.DemoError(f"no rules: {done.stderr.strip() or done.stdout.strip()}")


def _prometheus(folder: Path, alertmanager: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SECONDS}s", "evaluation_interval": f"{SECONDS}s"},
        "rule_files": [f"{folder / 'rules'}/*.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "headway", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}],
    }
