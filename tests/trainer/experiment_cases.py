"""A run of two ranks that is small enough to work out by hand, as the sidecar's summary would tell it.

Twenty seconds of rank 0: 1 s init, ten new steps of 0.6 s, four replayed ones of 0.5 s, 3 s blocked by saves, 8 s of detect, restart and
down, nothing else. Rank 1's are the same but for a second more of restart. Two failures, after steps 7 and 9, checkpoints every 4 steps;
the first one's checkpoint of step 4 was committed, so that 3 steps were lost; at the second nothing newer was, so that 5 were.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

STEPS = 10
INTERVAL = 4

_RANK_ZERO = {
    "init": 1.0,
    "productive": 6.0,
    "replay": 2.0,
    "checkpoint_save": 3.0,
    "detect": 1.0,
    "restart": 5.0,
    "down": 2.0,
}


def summary(**changes: Any) -> dict[str, Any]:
    """The run's summary, with other values for some of its fields."""
    rank_one = _RANK_ZERO | {"restart": 6.0}
    by_state = {state: _RANK_ZERO[state] + rank_one[state] for state in _RANK_ZERO}
    told = {
        "step": STEPS,
        "training_goodput": 12 / 41,
        "infrastructure_goodput": 1 - 23 / 41,
        "rank_seconds": by_state | {"standby": 0.0},
        "pending_rank_seconds": 0.0,
        "steps": {"productive": 10, "replay": 4, "lost": 8},
        "checkpoint": {
            "efficiency": 16 / 22,
            "requests": 4,
            "saves": {"committed": 3, "failed": 0, "aborted": 1},
            "write_seconds": {"bounds": [1.0], "counts": [2, 4], "sum": 9.0},
        },
        "recoveries": [
            recovery("launcher", 1, 7, 5.0),
            recovery("in_process", 0, 9, 3.0),
        ],
        "history": {
            "slots": {
                "0": {
                    "rank": 1,
                    "buckets": [[0, rank_one]],
                },  # a slot is no rank: they are told apart by what is said of them
                "1": {
                    "rank": 0,
                    "buckets": [
                        [0, {"init": 1.0, "productive": 2.5}],
                        [3, {**_RANK_ZERO, "init": 0.0, "productive": 3.5}],
                    ],
                },
            }
        },
    }
    return deepcopy(told | changes)


def recovery(layer: str, rank: int | None, tip: int, seconds: float | None) -> dict[str, Any]:
    """As in `/status.json`."""
    return {
        "layer": layer,
        "cause": "app_exception",
        "origin_rank": rank,
        "tip_step": tip,
        "seconds_to_first_step": seconds,
    }


def result(**changes: Any) -> dict[str, Any]:
    """What is kept of a cell that ended well."""
    return {"version": 1, "state": "done", "storage_seconds": 1.5, "fired": [{}, {}], "summary": summary(**changes)}
