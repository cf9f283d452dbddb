"""The published benchmark that this experiment is a shadow of: its figures, its formulas, and what differs here. Data and arithmetic.

Its set-up: NVRx 0.4.1 and PyTorch 2.9 on Kubernetes, nodes of eight GPUs with EFA, checkpoints on FSx for Lustre, 2,000 steps, a
checkpoint every 500, five faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

RECOVERY_SECONDS: Final = {"in_process": 10.0, "launcher": 17.0, "orchestrator": 270.0}
TRAINING_GOODPUT: Final = {"in_process": 0.31, "launcher": 0.255, "orchestrator": 0.115}
INFRASTRUCTURE_GOODPUT: Final = {"in_process": 0.87, "launcher": 0.859, "orchestrator": 0.358}
EFFICIENCY: Final = {"async": (0.992, 0.998), "sync": (0.57, 0.61)}
"""Training efficiency, lowest and highest."""
SHORT_INTERVAL: Final = {"async": 0.296, "sync": 0.147}
"""At the short interval. Which ratio it is, efficiency or training goodput, the source available to us does not say."""


@dataclass(frozen=True)
class RankZero:
    """What the published formulas need of a run: rank 0's view, since only that is kept there.

    Attributes:
        wall_seconds: from its first start to its end, the time without a process included.
        step_seconds: mean time of a step, without waits for data and saves.
        blocked_seconds: that saves kept it from training.
        final_step: the last step.
    """

    wall_seconds: float
    step_seconds: float
    blocked_seconds: float
    final_step: int


def training_goodput(view: RankZero) -> float:
    """Final step x mean pure step time / wall. Steps done twice are in neither factor: no rollback is subtracted."""
    return view.final_step * view.step_seconds / view.wall_seconds


def infrastructure_goodput(view: RankZero, recovery_seconds: Iterable[float]) -> float:
    """(Wall - shutdown - startup of every restart) / wall; the two together are the time from each failure to the next step."""
    return (view.wall_seconds - sum(recovery_seconds)) / view.wall_seconds


def training_efficiency(view: RankZero) -> float:
    """1 - time blocked by checkpoints / wall."""
    return 1 - view.blocked_seconds / view.wall_seconds


def lost_steps(tips: Iterable[int], interval: int) -> int:
    """Steps since the last multiple of the interval at each failure: as if every interval's checkpoint had been committed.

    Args:
        tips: the last completed step before each failure.
        interval: steps between two checkpoints.
    """
    return sum(tip % interval for tip in tips)


DEFINITIONS: Final = (
    (
        "efficiency",
        "training time / (training time + time blocked by saves), all ranks",
        "1 - time blocked by saves / wall, rank 0: slow recovery makes it better",
    ),
    (
        "training goodput",
        "time of new steps that last / elapsed time of all ranks: what a rollback takes back does not count",
        "final step x mean pure step time / wall, rank 0: nothing is subtracted",
    ),
    (
        "infrastructure goodput",
        "1 - (init + detect + restart + down) / elapsed: the first start is in it",
        "(wall - shutdown - startup of every restart) / wall: the first start is not",
    ),
    (
        "lost steps",
        "completed steps that were taken back, by the checkpoint that was really loaded",
        "steps since the last multiple of the interval: as if each checkpoint had been committed at once",
    ),
    ("recovery", "from the failure's first trace to the first step after it", "as given: 10 s, 17 s, 270 s"),
)
"""What is compared: our definition (the sidecar's own figure) and the published formula, both on the same runs."""
