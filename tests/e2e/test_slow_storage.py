"""A storage that is slower than the interval between two checkpoints: what becomes of saves and of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import harness
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

STEPS = 12
WRITE_SECONDS = 0.5
SHARD_BYTES = 200_000 * 12
"""About what the debug model's checkpoint takes in one process: the storage needs about a second for it."""


def slow(output: Path, *more: str) -> harness.Outcome:
    """Twelve steps with a checkpoint after every second one, which takes far longer to write than two steps do."""
    options = [f"--steps={STEPS}", f"--output={output}", "--evaluation.every=0", "--checkpoint.every=2", *more]
    options += [f"--simulation.write-bytes-per-second={SHARD_BYTES / WRITE_SECONDS:.0f}"]
    return harness.run(harness.alone(options), output)


def stages(outcome: harness.Outcome) -> dict[str, list[int]]:
    """Steps of the saves by what was told of them."""
    told = harness.checkpoints_of_rank(outcome, 0)
    kinds = ("requested", "committed", "aborted")
    return {kind: [event["step"] for event in told if event["stage"] == kind] for kind in kinds}


def test_a_backlog_is_skipped(tmp_path: Path) -> None:
    """By default training does not wait: saves that find two others unfinished are left out and said to be."""
    told = stages(slow(tmp_path))
    assert told["requested"] == [2, 4, 6, 8, 10, 12]
    assert told["aborted"] != []
    assert sorted(told["committed"] + told["aborted"]) == told["requested"]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_backlog_can_be_waited_for(tmp_path: Path, mode: str) -> None:
    """With --checkpoint.backlog wait every save is made, and the time it holds training up is booked as such."""
    outcome = slow(tmp_path, "--checkpoint.backlog=wait", f"--checkpoint.mode={mode}")
    told = stages(outcome)
    assert told["committed"] == told["requested"] == [2, 4, 6, 8, 10, 12]
    assert told["aborted"] == []
    assert outcome.status["rank_seconds"]["checkpoint_save"] >= 3 * WRITE_SECONDS
