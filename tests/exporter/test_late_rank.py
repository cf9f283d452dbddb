"""Ranks of one pod start at their own times: a failure may be noticed before the rank on which it began has started."""

from __future__ import annotations

from golden_story import pod_after

BOTH = [0, 1]


def test_a_rank_that_started_after_the_first_sign_is_counted_here() -> None:
    """Rank 0 is found gone, its last sign from before rank 1 started; the launcher names rank 1, which is of this pod all the same."""
    first = {"ranks": [0]}
    pod = pod_after(
        {
            "ranks": BOTH,
            "now": 23,
            "story": [
                {"at": 0, "do": "launcher_started"},
                {"at": 0, "do": "process_started", **first},
                {"at": 2, "do": "train_entered", "incarnation": "a", **first},
                {"at": 2, "do": "steps", "from": 1, "to": 1, **first},
                {"at": 3, "do": "death", "by": "found", **first},
                {"at": 5, "do": "process_started", "ranks": [1]},
                {"at": 6, "do": "worker_exited", "local_rank": 1, "exit_code": -9},
                {"at": 7, "do": "worker_group_failed", "restarts_left": 3, "restarts_limit": 3},
                {"at": 10, "do": "process_started"},
                {"at": 20, "do": "train_entered", "incarnation": "b"},
                {"at": 21, "do": "steps", "from": 2, "to": 2},
                {"at": 22, "do": "train_finished"},
            ],
        }
    )
    assert [(one.diagnosis.cause, one.diagnosis.origin) for one in pod.failures.recoveries] == [("process_killed", 1)]
    assert dict(pod.failures.causes) == dict(pod.failures.incident_causes) == {("launcher", "process_killed"): 1}
    assert dict(pod.failures.rank_failures) == {1: 1}
