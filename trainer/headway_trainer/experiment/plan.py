"""What an experiment runs: the grid, the fault schedule, and what each cell's processes are started with. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.architecture import Architecture
from headway_trainer.fault_schedule import Fault
from headway_trainer.orchestrator import LONGEST_BACKOFF_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAVES: Final = ("sync", "async")
RESTARTS: Final = ("in_process", "launcher", "orchestrator")
RANKS: Final = 2
FIRST_FAULT_AFTER: Final = 10
"""Steps before the first fault, as in the published schedule."""
EXCEPTION_SHARE: Final = 0.7
"""Exceptions among the faults, as there; the others are SIGKILLs."""
BACKOFF_SECONDS: Final = 10.0
"""The kubelet's first pause before a container is started again; it doubles up to `LONGEST_BACKOFF_SECONDS`."""
MODEL: Final = Architecture(dim=64, layers=1, heads=2, kv_heads=1, ffn_dim=128)
STATE_BYTES_PER_WEIGHT: Final = 12
"""A checkpoint holds each weight and AdamW's two means, in float32."""


class PlanError(ValueError):
    """Options that make no experiment; the message says which, and what to do."""


@dataclass(frozen=True, order=True)
class Cell:
    """One run: how it saves, who restarts it, and how many steps lie between two checkpoints."""

    saves: str
    restarts: str
    interval: int

    @property
    def name(self) -> str:
        """As in `--cells` and in the table: ``async/launcher@40``."""
        return f"{self.saves}/{self.restarts}@{self.interval}"

    @property
    def folder(self) -> str:
        """The name without what a folder's may not have."""
        return f"{self.saves}-{self.restarts}-{self.interval}"


@dataclass(frozen=True)
class Plan:
    """What all cells have in common, and what decides whether a result that is on disk belongs to this experiment.

    Attributes:
        steps: of each run.
        faults: of each run, the same in all.
        seed: decides when, where and with what the run is broken; also the first weights.
        rank_zero: whether rank 0 is struck, too; the published schedule leaves it out.
        step_seconds: least time of a step; the model is tiny, so that most of it is slept.
        write_seconds: that writing one checkpoint takes, at least: the storage is slowed down to it.
        backoff_scale: factor on the orchestrator's pauses; 1 is what Kubernetes does.
    """

    steps: int = 200
    faults: int = 4
    seed: int = 0
    rank_zero: bool = True
    step_seconds: float = 0.1
    write_seconds: float = 2.0
    backoff_scale: float = 0.2

    def __post_init__(self) -> None:
        _above_zero(**{"--steps": self.steps, "--step-seconds": self.step_seconds})
        _above_zero(**{"--write-seconds": self.write_seconds, "--backoff-scale": self.backoff_scale})
        if self.faults < 0:
            raise PlanError(f"--faults: must be at least 0, got {self.faults}")
        if self.backoff_scale > 1:
            raise PlanError(
                f"--backoff-scale: must be at most 1, which is what Kubernetes does, got {self.backoff_scale:g}"
            )
        room = self.steps - FIRST_FAULT_AFTER
        if self.faults and room < 5 * self.faults:
            least = FIRST_FAULT_AFTER + 5 * self.faults
            raise PlanError(
                f"--steps: {self.faults} faults after step {FIRST_FAULT_AFTER} need {least} steps, got {self.steps}"
            )

    def settings(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self)

    @property
    def backoff_seconds(self) -> float:
        """The orchestrator's first pause."""
        return BACKOFF_SECONDS * self.backoff_scale

    @property
    def longest_backoff_seconds(self) -> float:
        """Its longest."""
        return LONGEST_BACKOFF_SECONDS * self.backoff_scale

    def schedule(self) -> tuple[Fault, ...]:
        """The faults, in the order of steps.

        One lies in each equal part of the steps after the tenth, at a random place in its first nine tenths: so each has steps of its own
        after it. Exceptions and SIGKILLs are 7:3 to the nearest whole number, and the ranks have equal shares to within one;
        which comes where is drawn from the seed.
        """
        draw = random.Random(self.seed)
        raising = round_half_up(self.faults * EXCEPTION_SHARE)
        kinds = ["exception"] * raising + ["sigkill"] * (self.faults - raising)
        draw.shuffle(kinds)
        targets = list(range(RANKS)) if self.rank_zero else list(range(1, RANKS))
        ranks = [targets[number % len(targets)] for number in range(self.faults)]
        draw.shuffle(ranks)
        return tuple(
            Fault(kind, self._place(number, draw), rank)
            for number, (kind, rank) in enumerate(zip(kinds, ranks, strict=True))
        )

    def _place(self, number: int, draw: random.Random) -> int:
        width = (self.steps - FIRST_FAULT_AFTER) / self.faults
        return FIRST_FAULT_AFTER + 1 + int(width * (number + 0.9 * draw.random()))

    def write_bytes_per_second(self) -> float:
        """The storage's rate for each rank."""
        return MODEL.parameter_count() * STATE_BYTES_PER_WEIGHT / RANKS / self.write_seconds


INTERVALS: Final = (40, 10)


def grid(intervals: Sequence[int]) -> list[Cell]:
    """Every way to save with every way to restart at every interval.

    Raises:
        PlanError: no interval, or one that is none.
    """
    if not intervals or any(one < 1 for one in intervals) or len(set(intervals)) != len(intervals):
        raise PlanError("--intervals: must be different whole numbers of steps from 1, for example 40,10")
    return [Cell(saves, restarts, every) for every in intervals for saves in SAVES for restarts in RESTARTS]


def default_patterns(intervals: Sequence[int]) -> tuple[str, ...]:
    """All cells of the first interval, and of the others those that restart in process: what saving costs needs no more."""
    return (f"*@{intervals[0]}", *(f"*/in_process@{every}" for every in intervals[1:]))


def chosen(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells that a pattern matches, as a shell would, in the grid's order.

    Raises:
        PlanError: a pattern matches none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise PlanError(f"--cells: {pattern!r} is none of {', '.join(cell.name for cell in cells)}")
    return [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]


def trainer_options(plan: Plan, cell: Cell, output: Path) -> list[str]:
    """The command line of `headway train`."""
    model = asdict(MODEL)
    shape = [
        f"--model.{name.replace('_', '-')}={model[name]}" for name in ("dim", "layers", "heads", "kv_heads", "ffn_dim")
    ]
    options = [
        *shape,
        f"--steps={plan.steps}",
        f"--seed={plan.seed}",
        f"--output={output}",
        "--evaluation.every=0",
        f"--checkpoint.mode={cell.saves}",
        f"--checkpoint.every={cell.interval}",
        "--checkpoint.backlog=wait",
        f"--simulation.step-seconds={plan.step_seconds}",
        f"--simulation.write-bytes-per-second={plan.write_bytes_per_second():.0f}",
        f"--resilience.in-process={'true' if cell.restarts == 'in_process' else 'false'}",
        f"--resilience.max-in-process-restarts={plan.faults + 2}",
        # Nothing hangs here, and a busy laptop must not look as if something did.
        "--resilience.soft-timeout-seconds=90",
        "--resilience.hard-timeout-seconds=100",
        "--resilience.barrier-timeout-seconds=120",
        "--resilience.collective-timeout-seconds=90",
    ]
    faults = [str(fault) for fault in plan.schedule()]
    return [*options, "--faults", *faults] if faults else options


def launcher_restarts(plan: Plan, cell: Cell) -> int:
    """How often `ft_launcher` may start the ranks again: more than it needs to; with the orchestrator alone, any failure ends the pod."""
    return 0 if cell.restarts == "orchestrator" else plan.faults + 2


def supervisor_options(plan: Plan) -> list[str]:
    """The command line of the pod's supervisor, which is there in every cell as Kubernetes is: what falls through to it is seen."""
    return [
        *("--restarts", str(plan.faults + 1)),
        *("--backoff", f"{plan.backoff_seconds:g}", "--longest-backoff", f"{plan.longest_backoff_seconds:g}"),
    ]


def estimate_seconds(plan: Plan, cells: Sequence[Cell]) -> float:
    """About how long it takes on an idle machine: to tell people, nothing depends on it."""
    return sum(_estimate(plan, cell) for cell in cells)


_START_SECONDS: Final = 14.0
"""Start and end of launcher, ranks and sidecar."""
_RECOVERY_SECONDS: Final = {"in_process": 3.0, "launcher": 7.0, "orchestrator": 9.0}


def _estimate(plan: Plan, cell: Cell) -> float:
    steps = plan.steps + plan.faults * cell.interval / 2
    writing = plan.write_seconds * math.ceil(steps / cell.interval)
    training = steps * plan.step_seconds
    busy = training + writing if cell.saves == "sync" else max(training, writing) + plan.write_seconds
    pauses = sum(min(plan.backoff_seconds * 2**number, plan.longest_backoff_seconds) for number in range(plan.faults))
    recovering = plan.faults * _RECOVERY_SECONDS[cell.restarts] + (pauses if cell.restarts == "orchestrator" else 0)
    return _START_SECONDS + busy + recovering


def round_half_up(value: float) -> int:
    """3.5 is 4, and so is 4.4 (Python's own `round` takes 2.5 to 2)."""
    return math.floor(value + 0.5)


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise PlanError(f"{name}: must be above 0, got {value:g}")


QUICK: Final = Plan(steps=60, faults=2, step_seconds=0.1, write_seconds=1.0)
QUICK_INTERVALS: Final = (20,)
QUICK_CELLS: Final = ("sync/in_process@*", "async/launcher@*", "async/orchestrator@*")
"""What `--quick` runs instead: each way to save and each to restart at least once."""
