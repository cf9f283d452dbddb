"""The ledger's summary: what a report knows of a pod."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from pod_story import WALL, Story
from state_story import RUNS, write
from test_records import check_form, hostile

from headway_exporter.state_files import LEDGER, RECORDS, pods_of, read_ledger, read_records
from headway_exporter.status import status
from headway_exporter.summary import summary

if TYPE_CHECKING:
    from pathlib import Path

MORE = ("started_wall written_wall node world_size pods_expected backend versions settings budget phase_gap_seconds steps "
        "baseline_step_seconds tokens lost_rank_seconds recovery_seconds recovery_phases restart_causes replay_checks history "
        "open thresholds")  # fmt: skip
CHECKPOINT = ("durable_step committed_wall content_wall saves requests interval_steps interval_seconds last_write_seconds bytes "
              "blocking_seconds write_seconds load_seconds efficiency durability contention")  # fmt: skip


def read(folder: Path) -> dict[str, dict[str, Any]]:
    return {pod: read_ledger(path / LEDGER, folder.name, pod).body["summary"] for pod, path in pods_of(folder).items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_state_folder_reads_back(name: str, tmp_path: Path) -> None:
    """What readers get: the glance of `/status.json` and more, every name there, and records that go with it."""
    runs = RUNS[name]()
    folder = write(tmp_path, runs)
    found = read(folder)
    assert list(found) == [run.pod.pod_index for run in runs]
    for run in runs:
        one = found[run.pod.pod_index]
        glance = json.loads(json.dumps(status(run.pod, run.pod.dropped)))
        assert one.keys() == glance.keys() | set(MORE.split())
        assert one["checkpoint"].keys() == set(CHECKPOINT.split())
        assert {key: value for key, value in one.items() if key in glance and key != "checkpoint"} == {
            key: value for key, value in glance.items() if key != "checkpoint"
        }
        if one["open"] is not None:
            check_form(one["open"])
        path = folder / run.pod.pod_index / RECORDS
        assert list(read_records(path)) == run.records


@pytest.mark.parametrize("name", RUNS)
def test_the_history_adds_up_to_the_books(name: str) -> None:
    """A reader may sum the picture and get the number."""
    for run in RUNS[name]():
        found = summary(run.pod, {}, WALL)
        total: dict[str, float] = dict.fromkeys(found["rank_seconds"], 0.0)
        for slot in found["history"]["slots"].values():
            for _, states in slot["buckets"]:
                total = {state: amount + states.get(state, 0.0) for state, amount in total.items()}
        assert total == pytest.approx(found["rank_seconds"])


def test_a_summary_says_what_was_in_force_and_what_came_of_it() -> None:
    """By hand: two ranks, 40 steps of 10 tokens each, 13 of them lost (from 19 to 10 and from 29 to 25) and done again."""
    (run,) = RUNS["recovered"]()
    found = summary(run.pod, {}, 7.0)
    assert (found["written_wall"], found["started_wall"], found["node"], found["backend"]) == (
        7.0,
        WALL + 1,
        "n1",
        "gloo",
    )
    assert found["budget"]["launcher"] == {"limit": 6, "remaining": 5}
    assert found["settings"]["heartbeat_rank_seconds"] == 8.0
    assert found["phase_gap_seconds"] == {"eval": 1.2, "step": 0.2}
    assert found["steps"] == {"productive": 40, "replay": 13, "lost": 13}
    assert found["tokens"] == 2 * 10 * (40 + 13)
    assert found["baseline_step_seconds"] == 1.0
    assert found["restart_causes"] == [["in_process", "app_exception", 1], ["launcher", "process_killed", 1]]
    assert found["replay_checks"] == {"valid": 2}
    assert sum(found["recovery_seconds"]["first_step"]["counts"]) == 2
    assert found["checkpoint"]["bytes"] == 2 * 4096
    assert found["checkpoint"]["write_seconds"]["sum"] == pytest.approx(4 * 0.4)
    assert found["history"]["begin_wall"] == WALL + 1


def test_a_pod_that_saw_nothing_yet_has_a_summary() -> None:
    """The sidecar may start first."""
    found = summary(Story().pod, {}, 1.0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["started_wall"], found["open"], found["history"]["slots"]) == (None, None, {})


def test_a_summary_is_plain_whatever_the_journals_held() -> None:
    """NaN, infinity and numbers of thousands of digits must not make the file unreadable."""
    story = Story()
    hostile(story)
    story.steps(1000.0, 0, 1, first=5000, last=5001, loss=math.nan)
    assert json.dumps(summary(story.pod, {}, 1.0), allow_nan=False)
