"""What the demo runs, and how it breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RANKS: Final = 2
STEPS: Final = 300
CHECKPOINT_EVERY: Final = 25

FAULTS: Final = (
    "exception@70:rank=1",
    "sigkill@120:rank=1",
    "hard_hang@190:rank=1",
    "corrupt_checkpoint@265:rank=1",
)
"""One for each way back: in process, by the launcher, by the launcher after a missed heartbeat, and past a spoilt checkpoint."""


@dataclass(frozen=True)
class Run:
    """One of the demo's two runs.

    Attributes:
        name: names the run and its folder.
        title: for the terminal.
        output: its folder.
        faults: its fault schedule.
        steps: optimizer steps.
    """

    name: str
    title: str
    output: Path
    faults: tuple[str, ...]
    steps: int = STEPS

    def trainer_options(self) -> list[str]:
        """The command line of `headway train`."""
        options = {
            "--steps": self.steps,
            "--output": self.output,
            "--checkpoint.every": CHECKPOINT_EVERY,
            "--evaluation.every": 100,
            # Above the launcher's heartbeat time-out of 8 s: the hard hang is to be found by the launcher.
            "--resilience.soft-timeout-seconds": 40,
            "--resilience.hard-timeout-seconds": 50,
            "--resilience.barrier-timeout-seconds": 60,
        }
        words = [str(word) for pair in options.items() for word in pair]
        return [*words, "--faults", *self.faults] if self.faults else words


def runs(output: Path) -> tuple[Run, Run]:
    """The undisturbed run, and the same with the faults."""
    return (
        Run("undisturbed", "1/2  the run as it should be, undisturbed", output / "undisturbed", ()),
        Run("broken", "2/2  the same run, broken four times", output / "broken", FAULTS),
    )
