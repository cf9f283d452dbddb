"""What saving costs and brings, in three ratios: efficiency and durability by their formulas; contention is measured (`contention`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TRAINING: Final = ("productive", "replay")
"""States in which steps are made, whether they last or not."""


def efficiency(times: Mapping[str, float]) -> float | None:
    """Checkpoint efficiency, train / (train + blocked), from times by state in any unit; None before there is any of either."""
    train = sum(times.get(state, 0) for state in TRAINING)
    whole = train + times.get("checkpoint_save", 0)
    return train / whole if whole > 0 else None


def durability(committed: int, requests: int) -> float | None:
    """The share of requested saves that were committed; None before a save was requested. One in flight is not committed yet.

    The request of a save may have been missed, so that more were committed than requested: that is 1.
    """
    return min(1.0, committed / requests) if requests > 0 else None
