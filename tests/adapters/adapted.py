"""Runs of training frameworks as the sidecar sees them: real processes, their journals, the real fold."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway_exporter.follow import Follower
from headway_exporter.observations import EventSeen, StepSeen, StepsSeen
from headway_exporter.pod import Pod
from headway_exporter.status import status

if TYPE_CHECKING:
    from headway.events import Event

HERE = Path(__file__).parent
RUN = "adapted"
PYTHON = (sys.executable, "-W", "ignore")
CALM = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""No GPU, no network, no thread more than asked for."""


def run(worker: str, folder: Path, told: dict[str, Any], *, launcher: tuple[str, ...] = ()) -> int:
    """One worker to its end in `folder`, out of a warm process if no launcher starts it; returns its exit code."""
    environ = {
        "HEADWAY_DIR": str(folder / "journals"),
        "HEADWAY_RUN": RUN,
        "HEADWAY_POD_INDEX": "0",
        "TMPDIR": str(folder),
    }
    if not launcher:
        return ask(warm(worker), {"folder": str(folder), "environ": environ, "told": told})
    command = [*PYTHON, *launcher, str(HERE / worker), json.dumps(told)]
    environ = os.environ | CALM | environ
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False)
    (folder / "output").write_text(done.stdout + done.stderr)
    return done.returncode


@functools.cache
def warm(worker: str) -> subprocess.Popen[str]:
    """The process that others of this worker come from; it ends with its input, which ends with the tests."""
    command = [*PYTHON, str(HERE / "warm.py"), str(HERE / worker)]
    process = subprocess.Popen(
        command,
        env=os.environ | CALM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def ask(process: subprocess.Popen[str], asked: dict[str, Any]) -> int:
    """One more process out of it: its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@dataclass
class Seen:
    """What a sidecar made of the journals so far."""

    pod: Pod
    events: list[tuple[int | None, Event]]
    steps: list[tuple[int, int, float | None]]
    """Slot, step, loss."""
    began_ns: list[int]
    """When each of these steps began."""

    def kinds(self, slot: int = 0) -> list[str]:
        """Kinds of the slot's events in order, without samples."""
        return [event.kind for where, event in self.events if where == slot and event.kind != "sample"]

    def numbers(self, slot: int = 0) -> list[int]:
        """The slot's steps in order."""
        return [step for where, step, _ in self.steps if where == slot]

    def saves(self, stage: str, slot: int = 0) -> list[int]:
        """Steps whose checkpoint reached the stage."""
        events = [event for where, event in self.events if where == slot and event.kind == "checkpoint"]
        return [event.fields["step"] for event in events if event.fields["stage"] == stage]

    def phases(self, slot: int = 0) -> list[str]:
        """Names of the phases that began, in order."""
        events = [event for where, event in self.events if where == slot and event.kind == "phase"]
        begun = [event.fields["name"] for event in events if event.fields["edge"] == "begin"]
        assert sorted(begun) == sorted(event.fields["name"] for event in events if event.fields["edge"] == "end")
        return begun

    @property
    def status(self) -> dict[str, Any]:
        """As the sidecar's `/status.json`."""
        return status(self.pod, {})


class Watcher:
    """A sidecar's eye that is there all the time: a slot keeps the rings of its two newest lives only."""

    def __init__(self, folder: Path) -> None:
        self._follower = Follower(folder / "journals", RUN)
        self._seen = Seen(Pod(RUN, "0"), [], [], [])

    def look(self) -> Seen:
        """Everything up to now; the books must add up."""
        seen = self._seen
        while True:
            batch = self._follower.poll()
            seen.pod.set_clock(batch.mono, batch.wall)
            seen.pod.fold(batch.observations)
            seen.pod.advance(batch.mono)
            for found in batch.observations:
                self._note(found)
            if self._follower.caught_up:
                break
        totals = seen.pod.ledger.totals(seen.pod.now_ns)
        assert abs(sum(totals.states.values()) + totals.pending - totals.elapsed) < 1_000_000
        return seen

    def _note(self, found: Any) -> None:
        if isinstance(found, EventSeen):
            self._seen.events.append((found.slot, found.event))
        elif isinstance(found, StepSeen):
            self._seen.steps.append((found.slot, found.record.step, found.record.loss))
            self._seen.began_ns.append(found.record.start_ns)
        elif isinstance(found, StepsSeen):
            for step in found.steps():
                self._note(step)
