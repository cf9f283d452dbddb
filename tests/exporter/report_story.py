"""Made-up runs, written as a state folder in the format that sidecars write: what the report is tested with.

A `Story` is told in order (`trains`, `fails`); what each rank's time went to, the records and the ledgers follow from that, so that all
numbers of the folder agree with each other.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway_exporter.incident_ids import incident_id, trace_id
from headway_exporter.state_files import LEDGER, RECORDS, Ledger, pod_folder, write_ledger

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = 1_760_000_000.0
STEP_SECONDS = 0.1
MOST_BUCKETS = 400
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 210, in train_step
    loss = model(batch).loss
RuntimeError: injected fault
"""


@dataclass
class Story:
    """A run of `pods` x `ranks` ranks that train in step."""

    run: str = "demo"
    pods: int = 1
    ranks: int = 2
    backend: str = "gloo"
    total_steps: int | None = 3_000
    node: str = "node-{}"
    wall: float = BEGIN
    begin: float = BEGIN
    step: int = 0
    durable: int | None = None
    finished: bool = False
    segments: list[tuple[float, float, dict[str, float]]] = field(default_factory=list)
    """`(begin, end, share by state)`, the same on each rank."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """Of the first pod; the others' differ in little."""
    restarts: Counter[str] = field(default_factory=Counter)
    settings: dict[str, Any] = field(default_factory=lambda: {"heartbeat_rank_seconds": 8.0, "model": "llama3-8b"})
    open: dict[str, Any] | None = None
    saves: dict[str, int] = field(default_factory=lambda: {"committed": 20, "failed": 0, "aborted": 1})

    def spends(self, seconds: float, **shares: float) -> None:
        """All ranks spend this time on these states."""
        self.segments.append((self.wall, self.wall + seconds, shares))
        self.wall += seconds

    def starts(self, seconds: float = 4.0) -> Story:
        """The first start-up."""
        self.spends(seconds, init=1.0)
        return self

    def trains(self, seconds: float) -> Story:
        """New steps, with a save at the end."""
        self.spends(seconds, productive=0.93, data_wait=0.04, checkpoint_save=0.02, other=0.01)
        self.step += int(seconds / STEP_SECONDS)
        self.durable = self.step
        return self

    def ends(self) -> Story:
        """The run is complete."""
        self.finished, self.total_steps = True, self.step
        return self

    def fails(
        self,
        cause: str = "process_killed",
        rank: int | None = 1,
        layer: str | None = "launcher",
        *,
        detect: float = 2.0,
        restart: float = 6.0,
        load: float = 0.4,
        steps_lost: int = 20,
        attempts: int = 1,
        outcome: str = "recovered",
        recurring: tuple[str, ...] = (),
        pod: int | None = None,
        **changes: Any,
    ) -> Story:
        """A failure, with all that it takes until the mark is regained; `changes` go into the record as they are."""
        opened, losses = self.wall, Counter[str]()
        recoveries = []
        for number in range(attempts):
            back = outcome == "recovered" or number < attempts - 1
            recoveries.append(self._recovery(cause, rank, layer, detect, restart, load, steps_lost, losses, back=back))
        self.restarts[layer or "launcher"] += attempts
        origin_pod = pod if pod is not None else 0 if rank is None else rank // self.ranks
        record = {
            "v": 1,
            "kind": "incident",
            "run": self.run,
            "id": incident_id(self.run, f"{len(self.records)}", "0", opened),
            "revision": 0,
            "written_wall": self.wall,
            "outcome": outcome,
            "state": outcome if outcome != "open" else "restarting",
            "recurring": sorted(recurring),
            "opened_wall": opened,
            "closed_wall": None if outcome == "open" else self.wall + 5.0,
            "layer": layer,
            "escalated": False,
            "attempts": attempts,
            "cause": cause,
            "confidence": "confirmed" if rank is not None else "likely",
            "alternatives": ["host_oom"] if cause == "process_killed" else [],
            "origin": {
                "rank": rank,
                "pod_index": str(origin_pod),
                "node": self.node.format(origin_pod),
                "gpu_uuid": f"GPU-{rank:08x}-5a1b" if rank is not None and self.backend == "nccl" else None,
            },
            "decided_by": "verdict" if self.pods > 1 else "alone",
            "ambiguous": False,
            "mark_step": self.step,
            "durable_step": self.durable,
            "loads": {str(self.step - steps_lost): attempts},
            "world_size": self.pods * self.ranks,
            "pods_expected": self.pods,
            "node": self.node.format(0),
            "versions": {"torch": "2.13.0", "nvrx": "0.4.1"},
            "settings": self.settings,
            "evidence": [
                {
                    "kind": "exception" if cause == "app_exception" else "death",
                    "wall": opened + 0.01,
                    "slot": None if rank is None else rank % self.ranks,
                    "rank": rank,
                    "text": "RuntimeError: injected fault" if cause == "app_exception" else "exit code -9 (SIGKILL)",
                    "exit_code": None if cause == "app_exception" else -9,
                    "signature": "",
                    "traceback": TRACEBACK if cause == "app_exception" else "",
                },
                {"kind": "echo", "wall": opened + 0.4, "slot": 0, "rank": 0, "text": "connection closed by peer"},
            ],
            "recoveries": recoveries,
            "lost_rank_seconds": {state: seconds * self.ranks for state, seconds in losses.items()},
            "trace_id": trace_id(self.run, f"{len(self.records)}"),
        } | changes
        if outcome == "open":
            self.open = record
        else:
            self.records.append(record)
        return self

    def _recovery(
        self,
        cause: str,
        rank: int | None,
        layer: str | None,
        detect: float,
        restart: float,
        load: float,
        steps_lost: int,
        losses: Counter[str],
        *,
        back: bool,
    ) -> dict[str, Any]:
        opened = self.wall
        parts = {"detect": detect, "restart": restart}
        if back:
            parts |= {"init": 1.2, "checkpoint_load": load, "replay": steps_lost * STEP_SECONDS}
        for state, seconds in parts.items():
            if seconds:
                self.spends(seconds, **{state: 1.0})
        losses.update(parts)  # type: ignore[arg-type]  # seconds are no whole numbers
        first = opened + detect + restart + load + 1.2 + STEP_SECONDS
        phases = {"detect": detect, "teardown": 0.1, "respawn": restart * 0.7, "rendezvous": restart * 0.3}
        if back:
            phases |= {"init": 1.2, "load": load, "first_step": STEP_SECONDS, "catch_up": steps_lost * STEP_SECONDS}
        common = {
            "opened_wall": opened,
            "layer": layer,
            "cause": cause,
            "confidence": "confirmed",
            "origin_rank": rank,
            "loaded_step": self.step - steps_lost if back else None,
        }
        return common | {
            "attempts": 1,
            "tip_step": self.step,
            "mark_step": self.step,
            "rejected_steps": [],
            "steps_lost": steps_lost if back else None,
            "first_step_wall": first if back else None,
            "high_water_wall": self.wall if back else None,
            "replay_check": "valid" if back else None,
            "tries": [common | {"alternatives": [], "restarted_wall": opened + detect + restart, "phases": phases}],
        }

    def states(self) -> dict[str, float]:
        """Seconds of one rank by state."""
        total: Counter[str] = Counter()
        for begin, end, shares in self.segments:
            total.update({state: (end - begin) * share for state, share in shares.items()})  # type: ignore[arg-type]
        return dict(total)

    def history(self) -> tuple[float, list[list[Any]]]:
        """Width, and the buckets of one rank."""
        width = 2.0 ** max(0, math.ceil(math.log2(max((self.wall - self.begin) / MOST_BUCKETS, 1))))
        buckets: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for begin, end, shares in self.segments:
            at = begin
            while at < end - 1e-9:
                place = int((at - self.begin + 1e-9) / width)
                until = min(end, self.begin + (place + 1) * width)
                for state, share in shares.items():
                    buckets[place][state] += share * (until - at)
                at = until
        return width, [[place, dict(states)] for place, states in sorted(buckets.items())]

    def summary(self, pod: int) -> dict[str, Any]:
        """The summary of a pod's ledger."""
        states = {state: seconds * self.ranks for state, seconds in self.states().items()}
        elapsed = (self.wall - self.begin) * self.ranks
        bad = sum(states.get(state, 0.0) for state in ("init", "detect", "restart", "down"))
        width, buckets = self.history()
        slots = {str(slot): {"rank": pod * self.ranks + slot, "buckets": buckets} for slot in range(self.ranks)}
        times = {"bounds": [1.0, 10.0], "counts": [0, len(self.records), 0], "sum": 8.0}
        return {
            "run": self.run,
            "pod_index": str(pod),
            "step": self.step,
            "high_water_step": self.step,
            "total_steps": self.total_steps,
            "loss": 2.25,
            "state": None if self.finished else next(iter(self.segments[-1][2]), None),
            "state_since_wall": self.wall,
            "training_goodput": states.get("productive", 0.0) / elapsed,
            "infrastructure_goodput": 1 - bad / elapsed,
            "checkpoint": {
                "durable_step": self.durable,
                "committed_wall": self.wall,
                "content_wall": self.wall,
                "saves": self.saves,
                "requests": 21,
                "interval_steps": 25,
                "interval_seconds": 2.5,
                "last_write_seconds": 0.2,
                "bytes": 123_456,
                "blocking_seconds": times,
                "write_seconds": times,
                "load_seconds": times,
            },
            "restarts": dict(self.restarts),
            "rank_seconds": states,
            "elapsed_rank_seconds": elapsed,
            "pending_rank_seconds": 0.0,
            "unregained_rank_seconds": 0.0,
            "finished": self.finished,
            "dropped": {},
            "started_wall": self.begin,
            "written_wall": self.wall,
            "node": self.node.format(pod),
            "world_size": self.pods * self.ranks,
            "pods_expected": self.pods,
            "backend": self.backend,
            "versions": {"torch": "2.13.0", "nvrx": "0.4.1"},
            "settings": self.settings,
            "budget": {"launcher": {"limit": 6, "remaining": 6 - self.restarts["launcher"]}},
            "phase_gap_seconds": {"step": 0.4, "checkpoint_save": 1.5},
            "steps": {"productive": self.step, "replay": 40, "lost": 40},
            "baseline_step_seconds": STEP_SECONDS,
            "tokens": 4_096 * self.step,
            "lost_rank_seconds": 12.0,
            "recovery_seconds": {"first_step": times, "high_water": times},
            "recovery_phases": [["launcher", "respawn", 3.4]],
            "restart_causes": [["launcher", "process_killed", 1]],
            "replay_checks": {"valid": len(self.records)},
            "history": {"begin_wall": self.begin, "width_seconds": width, "slots": slots},
            "open": None if self.open is None else self.open | {"pod_index": str(pod), "node": self.node.format(pod)},
        }

    def write(self, state_dir: Path) -> Path:
        """Makes the run's folder."""
        for pod in range(self.pods):
            folder = pod_folder(state_dir, self.run, str(pod))
            folder.mkdir(parents=True)
            own = ({**one, "pod_index": str(pod), "node": self.node.format(pod)} for one in self.records)
            write_records(folder / RECORDS, list(own))
            summary = self.summary(pod)
            ledger = Ledger(
                self.run, str(pod), "session", self.wall, {"summary": summary, "fold": None, "position": None}
            )
            write_ledger(folder / LEDGER, ledger)
        return state_dir / self.run


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """As `state_files.append_record` does, without waiting for the disk each time."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one, separators=(",", ":"), allow_nan=False) + "\n" for one in records)


def quiet() -> Story:
    """Nothing happened."""
    return Story(run="quiet").starts().trains(300).ends()


def one_recovery() -> Story:
    """Killed once, recovered."""
    return Story(run="one-recovery").starts().trains(60).fails().trains(120).ends()


def four_faults() -> Story:
    """What `make demo` does to its run."""
    story = Story(run="four-faults").starts()
    story.trains(20).fails("app_exception", 1, "in_process", detect=0.2, restart=1.5).trains(10)
    story.fails("process_killed", 1, steps_lost=19).trains(9).fails(
        "heartbeat_timeout", 1, detect=8.5, steps_lost=14
    ).trains(8)
    story.fails("process_killed", 1, steps_lost=39)
    story.records[-1]["recoveries"][0]["rejected_steps"] = [260]
    return story.trains(12).ends()


def loop() -> Story:
    """The same failure again and again, without progress, and still at it."""
    story = Story(run="loop", total_steps=100_000).starts().trains(90)
    return story.fails(
        "app_exception",
        1,
        attempts=7,
        outcome="open",
        recurring=("no_progress", "same_checkpoint", "same_step"),
        steps_lost=50,
    )


def three_pods() -> Story:
    """Three pods on GPUs: a lost node, a GPU fault on the same node twice, and an end that nobody came back from."""
    story = Story(run="three-pods", pods=3, ranks=8, backend="nccl", total_steps=500_000).starts(90).trains(4_000)
    story.fails("gpu_fell_off_bus", 9, "launcher", detect=4, restart=40, steps_lost=900, load=20).trains(6_000)
    story.fails("node_lost", None, "orchestrator", detect=30, restart=200, steps_lost=1_500, load=25, pod=2).trains(
        9_000
    )
    story.fails("gpu_memory", 9, "launcher", detect=3, restart=45, steps_lost=2_000, load=21).trains(3_000)
    return story.fails(
        "gpu_memory", 9, "launcher", detect=3, restart=3_600, attempts=2, outcome="abandoned", steps_lost=400
    )


def many_ranks(pods: int = 256, ranks: int = 8) -> Story:
    """More ranks than a picture has room for."""
    story = (
        Story(run="many-ranks", pods=pods, ranks=ranks, backend="nccl", total_steps=900_000).starts(300).trains(20_000)
    )
    story.fails("nvlink", 77, "launcher", detect=10, restart=120, steps_lost=3_000, load=60).trains(30_000)
    return story.fails(
        "host_oom", 1_500 % (pods * ranks), "launcher", detect=5, restart=100, steps_lost=2_000, load=60
    ).trains(9_000)


def ten_thousand(incidents: int = 10_000, pods: int = 2) -> Story:
    """A year of bad luck."""
    causes = (
        "app_exception",
        "process_killed",
        "heartbeat_timeout",
        "gpu_memory",
        "node_lost",
        "storage_io",
        "unknown",
    )
    story = Story(run="ten-thousand", pods=pods, ranks=8, backend="nccl", total_steps=9_999_999).starts()
    for number in range(incidents):
        layer = ("in_process", "launcher", "launcher", "orchestrator")[number % 4]
        bad = number % 97 == 96
        story.trains(40 + number % 60).fails(
            causes[number * number % 7],
            number * 7 % (8 * pods),
            layer,
            detect=1 + number % 5,
            restart=2 + number % 13,
            steps_lost=number % 90,
            attempts=4 if bad else 1,
            recurring=("no_progress",) if bad else (),
        )
    return story.trains(100).ends()


STORIES = {
    "quiet": quiet,
    "one_recovery": one_recovery,
    "four_faults": four_faults,
    "loop": loop,
    "three_pods": three_pods,
    "many_ranks": many_ranks,
    "ten_thousand": ten_thousand,
}
