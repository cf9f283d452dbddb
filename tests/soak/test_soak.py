"""A short soak in every CI run; `make soak` is the long one."""

from __future__ import annotations

import os
import random

import soak

KILLS = int(os.environ.get("HEADWAY_SOAK_KILLS", "12"))


def test_the_books_add_up_whoever_is_killed() -> None:
    """Trainers, launchers and sidecars die at random; nothing is lost, nothing counts twice, no counter steps back."""
    seed = int(os.environ.get("HEADWAY_SOAK_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"once more with: HEADWAY_SOAK_SEED={seed} HEADWAY_SOAK_KILLS={KILLS} pytest tests/soak")
    kills = soak.run(KILLS, seed)
    assert sum(kills.values()) == KILLS
