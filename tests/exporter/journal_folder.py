"""Real journal folders for the tests: trainer processes that write them, and what a follower finds in them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.journal import JournalWriter
from headway_exporter.observations import DeathSeen, EventSeen, StepSeen, StepsSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headway_exporter.follow import Follower
    from headway_exporter.observations import Observation

HERE = Path(__file__).parent
RUN = "testrun"


def trainer(
    directory: Path, slot: int, *acts: str, attempt: int = 0, cycle: int = 0, ranks: int = 2, **more: str
) -> subprocess.Popen[str]:
    """Starts a trainer process (see trainer_process.py); `more` are variables of its environment."""
    environ = {
        "HEADWAY_DIR": str(directory),
        "HEADWAY_RUN": RUN,
        "HEADWAY_PODS": "1",
        "HEADWAY_ATTEMPT": str(attempt),
        "LOCAL_RANK": str(slot),
        "RANK": str(slot),
        "WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RESTART_COUNT": str(cycle),
        "TORCHELASTIC_MAX_RESTARTS": "3",
    }
    command = [sys.executable, str(HERE / "trainer_process.py"), *acts]
    return subprocess.Popen(
        command, env=os.environ | environ | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(*processes: subprocess.Popen[str], kill: bool = False) -> None:
    """Waits until they are ready and kills them, or waits for their own end."""
    for process in processes:
        if kill:
            wait_ready(process)
            process.kill()
        process.communicate(timeout=30)


def wait_ready(process: subprocess.Popen[str]) -> None:
    """Waits for the line of the act `ready`."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def launcher(directory: Path, life: int = 5) -> Callable[..., bool]:
    """Writes the launcher's journal: call with kind and fields."""
    writer = JournalWriter(directory / RUN / "launcher.jsonl", life)
    return lambda kind, **fields: writer.write(kind, fields)


def meet(*processes: subprocess.Popen[str]) -> None:
    """Lets processes go on together once all have come to the act `meet`, as a process group would."""
    for process in processes:
        wait_ready(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def one_by_one(observations: Iterable[Observation]) -> list[EventSeen | StepSeen | DeathSeen]:
    """Steps that came many at once, each by itself."""
    alone: list[EventSeen | StepSeen | DeathSeen] = []
    for seen in observations:
        alone += seen.steps() if isinstance(seen, StepsSeen) else [seen]
    return alone


class Seen:
    """Collects what a follower finds."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.all: list[EventSeen | StepSeen | DeathSeen] = []

    def until(self, condition: Callable[[Seen], bool], what: str) -> Seen:
        """Polls until the condition holds."""
        deadline = time.monotonic() + 20
        while not condition(self):
            assert time.monotonic() < deadline, f"{what}: not within 20 s, seen: {self.all}"
            self.all += one_by_one(self.follower.poll().observations)
            self.follower.wake.wait(0.02)
        return self

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps, in the order they came."""
        return [seen.record.step for seen in self.all if isinstance(seen, StepSeen)]

    @property
    def deaths(self) -> list[DeathSeen]:
        """The deaths."""
        return [seen for seen in self.all if isinstance(seen, DeathSeen)]

    def kinds(self, slot: int | None) -> list[str]:
        """Kinds of a slot's events, samples left out."""
        events = [seen.event.kind for seen in self.all if isinstance(seen, EventSeen) and seen.slot == slot]
        return [kind for kind in events if kind != "sample"]


def plain(seen: EventSeen | StepSeen | DeathSeen) -> Any:
    """A word for each observation, to compare sequences."""
    if isinstance(seen, EventSeen):
        return seen.event.kind
    return seen.record.step if isinstance(seen, StepSeen) else f"death by {seen.by}"
