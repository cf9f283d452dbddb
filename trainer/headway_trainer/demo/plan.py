"""What the demo runs, and how it breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RANKS: Final = 2
STEPS: Final = 300
CHECKPOINT_EVERY: Final = 25

FAULTS: Final = ("exception@70", "sigkill@120", "hard_hang@190", "corrupt_checkpoint@265")
"""All on rank 1, one for each way back: in process, by the launcher, after a missed heartbeat, past a spoilt checkpoint."""


@dataclass(frozen=True)
class Run:
    """One of the demo's two runs.

    Attributes:
        name: names the run and its folder.
        title: for the terminal.
        output: its folder.
        options: of `headway train`, beside those that both runs have.
        faults: its fault schedule.
    """

    name: str
    title: str
    output: Path
    options: tuple[str, ...]
    faults: tuple[str, ...] = ()

    def trainer_options(self) -> list[str]:
        """The command line of `headway train`."""
        common = [f"--steps={STEPS}", f"--output={self.output}", "--evaluation.every=100", *self.options]
        return [*common, "--faults", *self.faults] if self.faults else common


def runs(output: Path) -> tuple[Run, Run]:
    """The undisturbed run, with no safety net at all, and the same one with all of them and the faults."""
    bare = ("--resilience.in-process=false", "--resilience.heartbeats=false", "--checkpoint.mode=off")
    safe = (
        f"--checkpoint.every={CHECKPOINT_EVERY}",
        # Above the launcher's heartbeat time-out of 8 s: the hard hang is to be found by the launcher.
        "--resilience.soft-timeout-seconds=40",
        "--resilience.hard-timeout-seconds=50",
        "--resilience.barrier-timeout-seconds=60",
    )
    return (
        Run("undisturbed", "1/2  the run as it should be, undisturbed", output / "undisturbed", bare),
        Run("broken", "2/2  the same run, broken four times", output / "broken", safe, FAULTS),
    )
