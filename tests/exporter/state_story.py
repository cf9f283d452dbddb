"""State folders of made-up runs, for the tests of everything that reads them: real pods fold tales, real code writes the files.

    folder = write(tmp_path, RUNS["recurring"]())      # -> tmp_path/story, with ledger.json and incidents.jsonl of each pod

Second 0 of a tale is `pod_story.WALL`. A record is written when its incident has a verdict and again when more is known, as a sidecar
that looks after every act would do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from incident_tale import Tale
from pod_story import WALL

from headway_exporter import records
from headway_exporter.state_files import LEDGER, RECORDS, Ledger, append_record, pod_folder, write_ledger
from headway_exporter.summary import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headway_exporter.pod import Pod

TOLD: Final[Mapping[str, Any]] = {
    "node": "n1",
    "pods_expected": 1,
    "backend": "gloo",
    "restart_budget": 6,
    "versions": {"torch": "2.13.0", "nvrx": "0.4.1", "headway": "0.3.0"},
    "settings": {
        "total_steps": 300,
        "checkpoint_interval_steps": 10,
        "heartbeat_initial_seconds": 60.0,
        "heartbeat_rank_seconds": 8.0,
        "in_process_restart_budget": 3,
        "soft_timeout_seconds": 4.0,
        "hard_timeout_seconds": 8.0,
        "config_fingerprint": "0123456789abcdef",
    },
}
TRACEBACK: Final = "train.py:31 in train\nloss = model(batch)\nmodel.py:7 in forward\nreturn x / 0\n"


class Run(Tale):
    """A tale whose records are kept as a sidecar would write them."""

    def __init__(self, ranks: int = 2, pod_index: str = "0", **more: Any) -> None:
        super().__init__(ranks, pod_index, **(dict(TOLD) | more))
        self.records: list[dict[str, Any]] = []
        self.drift = 0.0
        """What the losses are off since a checkpoint was restored."""

    def tell(self, acts: str) -> Run:
        """The acts in their order; after each of them what is due is written."""
        for act in acts.split(","):
            super().tell(act)
            self.write_due()
        return self

    def write_due(self) -> None:
        """As the sidecar's writer does every few seconds."""
        self.pod.advance(self.now)
        for record in records.due(self.pod):
            records.written(self.pod, record)
            self.records.append(record)

    def _steps(self, span: str) -> None:
        first, last = map(int, span.split("-"))
        for number in range(first, last + 1):
            self.now = self.steps(
                self.now, *self.ranks, first=number, last=number, loss=3.0 - number / 100 + self.drift
            )

    def _drift(self, loss: str) -> None:
        self.drift = float(loss)

    def _fail(self, rank: str) -> None:
        self.caught(int(rank), self.now, message=f"step {self.now} went wrong", traceback=TRACEBACK)

    def _commit(self, step: str) -> None:
        for stage, seconds in (("requested", None), ("staged", 0.05), ("written", 0.4)):
            for slot in self.ranks:
                told = {"stage": stage, "step": int(step)} | ({} if seconds is None else {"seconds": seconds})
                self.event(slot, "checkpoint", self.now, **told | ({"bytes": 4096} if stage == "written" else {}))
        super()._commit(step)

    def _gaps(self, seconds: str) -> None:
        for slot in self.ranks:
            self.event(slot, "sample", self.now, step=self.pod.mark, phase_gaps={"eval": float(seconds), "step": 0.2})


def nothing() -> list[Run]:
    """A run without any incident."""
    return [Run().tell("gaps 1.2, commit 10, steps 11-20, commit 20, steps 21-30, finish")]


def recovered() -> list[Run]:
    """An exception and a SIGKILL, both recovered; the checkpoint on the way back to the first one's mark proves nothing yet."""
    first = "commit 10, steps 11-19, gaps 1.2, fail 1, in_process 10, steps 11-15, commit 15, steps 16-25"
    return [Run().tell(f"{first}, commit 25, steps 26-29, kill 1, launcher 25, steps 26-40, commit 40, finish")]


def recurring() -> list[Run]:
    """It fails at one step again and again, comes back from one checkpoint each time, and nobody has given up yet."""
    again = "fail 1, in_process 10, steps 11-19"
    return [
        Run().tell(f"commit 10, steps 11-19, {again}, {again}, {again}, {again}, fail 1, in_process 10, steps 11-14")
    ]


def escalated() -> list[Run]:
    """In-process tries that fail lead to the launcher, and that to the orchestrator."""
    inner = "commit 10, steps 11-19, fail 0, in_process 10, fail 0, in_process 10, kill 0, launcher 10, gone"
    return [Run().tell(f"{inner}, orchestrator 10, steps 11-25, commit 25, steps 26-28")]


def diverged() -> list[Run]:
    """The first recovery reproduces its steps; the checkpoint of the second one was not what it seemed."""
    first = "commit 10, steps 11-16, fail 1, in_process 10, steps 11-18, commit 18, steps 19-24"
    return [Run().tell(f"{first}, fail 1, in_process 18, drift 0.5, steps 19-30, commit 30, finish")]


def abandoned() -> list[Run]:
    """Everything died, and nobody came back for hours."""
    return [Run().tell("commit 10, steps 11-15, gone, wait 4000")]


def cancelled() -> list[Run]:
    """The operator ended it."""
    return [Run().tell("commit 10, steps 11-15, stop, gone")]


def under_way() -> list[Run]:
    """A recovery that still goes on, after one that is over."""
    return [Run().tell("commit 10, steps 11-15, fail 0, in_process 10, steps 11-20, commit 20, steps 21-24, kill 1")]


def three_pods() -> list[Run]:
    """A rank of pod 1 of three fails; the others only see a broken collective. Pod 2 has not seen the end yet."""
    pods = [
        Run(2, str(index), first_rank=2 * index, world_size=6, node=f"n{index}", pods_expected=3) for index in range(3)
    ]
    for index, pod in enumerate(pods):
        sign = "fail 0" if index == 1 else "wait 1, echo 0"
        pod.tell(f"commit 10, steps 11-15, {sign}, in_process 10, steps 11-14")
    for pod in pods[:2]:
        pod.tell("steps 15-20, commit 20, steps 21-25")
    return pods


def many(incidents: int = 50) -> list[Run]:
    """So many incidents one after the other; both kinds of failures, on both ranks."""
    run, step = Run(), 10
    for number in range(incidents):
        way = "fail {}, in_process" if number % 3 else "kill {}, launcher"
        there = way.format(number % 2)
        run.tell(f"commit {step}, steps {step + 1}-{step + 4}, {there} {step}, steps {step + 1}-{step + 5}")
        step += 5
    return [run.tell(f"commit {step}, finish")]


RUNS: Final[Mapping[str, Callable[[], list[Run]]]] = {
    "nothing": nothing,
    "recovered": recovered,
    "recurring": recurring,
    "escalated": escalated,
    "diverged": diverged,
    "abandoned": abandoned,
    "cancelled": cancelled,
    "under_way": under_way,
    "three_pods": three_pods,
    "many": many,
}


def write(state_dir: Path, runs: list[Run]) -> Path:
    """The pods' ledgers and records; returns the run's folder."""
    for run in runs:
        run.write_due()
        write_pod(state_dir, run.pod, run.records, WALL + run.now)
    return state_dir / runs[0].pod.run


def write_pod(state_dir: Path, pod: Pod, kept: list[dict[str, Any]], wall: float) -> None:
    """One pod's ledger and records, at this time."""
    folder = pod_folder(state_dir, pod.run, pod.pod_index)
    folder.mkdir(parents=True, exist_ok=True)
    for record in kept:
        append_record(folder / RECORDS, record)
    body = {"summary": summary(pod, pod.dropped, wall), "fold": None, "position": None}
    write_ledger(folder / LEDGER, Ledger(pod.run, pod.pod_index, "story", wall, body))
