"""Checkpoints, queue, steps and states of a pod, by hand-made observations."""

from __future__ import annotations

import json
import math

import pytest
from pod_story import WALL, Story

from headway.events import Event
from headway.ring import StepRecord
from headway_exporter.collectors import checkpoints as checkpoint_samples
from headway_exporter.collectors import families, restarts, run, steps
from headway_exporter.observations import EventSeen, StepSeen
from headway_exporter.pod import MOST_SLOTS, Pod
from headway_exporter.status import status


def samples(collected: object) -> dict[tuple[str, ...], float]:
    """Values of gauges and counters by metric and own labels, series that are absent left out."""
    found = {(name, *labels): value for name, labels, value in collected if value is not None}  # type: ignore[attr-defined]
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def save(story: Story, step: int, at: float, *stages: str, slots: tuple[int, ...] = (0, 1)) -> None:
    for number, stage in enumerate(stages):
        for slot in slots:
            seconds = {"staged": 0.1 + slot, "written": 2.0 + slot}.get(stage)
            fields = {"stage": stage, "step": step, "bytes": 100, "seconds": seconds}
            story.event(
                slot, "checkpoint", at + number, **{key: value for key, value in fields.items() if value is not None}
            )


def test_a_checkpoint_counts_once_for_all_ranks() -> None:
    """Every rank tells of every save; the pod counts it once and takes the slowest rank's times."""
    story = Story()
    end = story.running()
    save(story, 10, end + 1, "requested", "staged", "written", "committed")
    known = story.pod.checkpoints
    assert (known.requests, known.outcomes, known.since_commit) == (1, {"committed": 1}, 0)
    assert (known.durable_step, known.committed_wall, known.content_wall) == (10, WALL + end + 4, WALL + end)
    assert (known.last_write_seconds, known.last_bytes) == (3.0, 200)
    assert (known.blocking.total, known.writing.total, known.loading.total) == (pytest.approx(1.1), 3.0, 0.5)


def test_failed_and_aborted_checkpoints_add_up_until_one_is_durable() -> None:
    """`since_commit` is what tells a broken storage from a single hiccup."""
    story = Story()
    end = story.running()
    save(story, 10, end, "requested", "failed")
    save(story, 12, end + 2, "requested", "aborted")
    assert story.pod.checkpoints.since_commit == 2
    assert story.pod.checkpoints.durable_step is None
    save(story, 14, end + 4, "requested", "committed")
    assert story.pod.checkpoints.since_commit == 0
    assert story.pod.checkpoints.outcomes == {"failed": 1, "aborted": 1, "committed": 1}
    assert (story.pod.checkpoints.observed_interval_steps, story.pod.checkpoints.interval_seconds) == (2, 2.0)


def test_a_loop_that_tells_of_commits_only_has_an_interval_as_well() -> None:
    """Without one nobody hears that saves have stopped. A late word about an older save is no new one."""
    story = Story()
    end = story.running(steps=30)
    save(story, 10, end, "committed")
    save(story, 20, end + 7, "committed")
    save(story, 5, end + 8, "aborted")
    known = story.pod.checkpoints
    assert (known.requests, known.observed_interval_steps, known.interval_seconds) == (0, 10, 7.0)
    save(story, 30, end + 15, "committed")
    assert (known.observed_interval_steps, known.interval_seconds) == (10, 8.0)


def test_a_save_that_nobody_speaks_of_after_a_failure_was_aborted() -> None:
    """A killed process cannot report its save; requests and outcomes must still add up."""
    story = Story()
    end = story.running()
    save(story, 10, end, "requested", "staged")
    story.die(1, end + 2)
    story.start(end + 3, 0, 1, cycle=1)
    story.enter(end + 4, 0, 1, incarnation="second", load=5)
    story.steps(end + 5, 0, 1, first=6, last=10)
    assert story.pod.checkpoints.outcomes == {"aborted": 1}
    save(story, 10, end + 11, "requested", "committed")
    assert story.pod.checkpoints.requests == 2
    assert story.pod.checkpoints.outcomes == {"aborted": 1, "committed": 1}


def test_a_checkpoint_that_was_passed_over_on_load_is_not_durable() -> None:
    """Durable is said only of a checkpoint that loads."""
    story = Story()
    end = story.running()
    save(story, 5, end, "committed")
    save(story, 10, end + 1, "committed")
    story.enter(end + 4, 0, 1, incarnation="second", load=5)
    assert story.pod.checkpoints.durable_step == 5
    assert story.pod.checkpoints.committed_wall == WALL + end


def test_the_queue_dies_with_its_process() -> None:
    """A dead source is shown as dead: no oldest save, no writer, no ranks."""
    story = Story()
    end = story.running()
    story.event(1, "queue", end, depth=2, oldest_wall=WALL + 5, writer_alive=True, writer_pid=77)
    story.event(1, "sample", end, writer_rss_bytes=1000)
    alive = samples(checkpoint_samples(story.pod))
    assert alive["headway_async_queue_depth",] == 2
    assert alive["headway_async_queue_oldest_timestamp_seconds",] == WALL + 5
    assert alive["headway_async_writer_up",] == 1
    assert alive["headway_async_writer_memory_bytes",] == 1000
    story.die(0, end + 1)
    story.die(1, end + 1)
    dead = samples(checkpoint_samples(story.pod))
    assert dead["headway_async_queue_depth",] == 0
    assert dead["headway_async_writer_up",] == 0
    assert ("headway_async_queue_oldest_timestamp_seconds",) not in dead
    assert ("headway_async_writer_memory_bytes",) not in dead
    assert samples(run(story.pod))["headway_ranks",] == 0


def test_an_empty_queue_has_no_oldest_save() -> None:
    """A drained queue must not look as if a save had been waiting for hours."""
    story = Story()
    end = story.running()
    story.event(0, "queue", end, depth=1, oldest_wall=WALL, writer_alive=True)
    story.event(0, "queue", end + 1, depth=0, writer_alive=False)
    found = samples(checkpoint_samples(story.pod))
    assert ("headway_async_queue_oldest_timestamp_seconds",) not in found
    assert found["headway_async_writer_up",] == 0


def test_steps_count_once_for_all_ranks_and_tokens_for_each() -> None:
    """Two ranks do the same step, each with its own tokens."""
    story = Story()
    end = story.running(steps=10)
    story.caught(0, end)
    story.enter(end + 1, 0, 1, incarnation="second", load=6)
    story.steps(end + 2, 0, 1, first=7, last=12, loss=2.5)
    found = samples(steps(story.pod))
    assert found["headway_steps_total", "productive"] == 12
    assert found["headway_steps_total", "replay"] == 4
    assert found["headway_steps_lost_total",] == 4
    assert found["headway_tokens_total",] == 2 * 16 * 10
    assert (found["headway_step",], found["headway_high_water_step",], found["headway_loss",]) == (12, 12, 2.5)
    assert found["headway_step_duration_baseline_seconds",] == 1.0
    assert found["headway_slowest_rank_ratio",] == 1.0


def test_the_slowest_rank_shows() -> None:
    """A straggler is told by its own step times."""
    story = Story()
    story.start(0.0, 0, 1, 2)
    for number in range(1, 10):
        for slot, seconds in ((0, 1.0), (1, 1.0), (2, 1.5)):
            step = StepRecord(0, number, round(number * 2e9), round(seconds * 1e9))
            story.pod.fold([StepSeen(slot, story.lives[slot], step)])
    assert samples(steps(story.pod))["headway_slowest_rank_ratio",] == 1.5


def test_the_pods_state_follows_its_most_disturbed_rank() -> None:
    """One word for what the pod does, and since when."""
    story = Story()
    pod = story.pod
    story.event(None, "launcher_started", 0.0)
    assert pod.state is None
    story.start(1.0, 0, 1)
    assert (pod.state, pod.state_since_wall) == ("init", WALL + 1)
    story.enter(10.0, 0, 1, incarnation="first", load=0)
    end = story.steps(10.0, 0, 1, first=1, last=3)
    assert (pod.state, pod.state_since_wall) == ("productive", WALL + 11)
    story.event(1, "phase", end, name="eval", edge="begin")
    assert pod.state == "eval"
    story.die(1, end + 1)
    assert (pod.state, pod.state_since_wall) == ("restart", WALL + end + 1)
    story.die(0, end + 2)
    story.event(None, "launcher_exited", end + 3, exit_code=-9)
    assert pod.state == "down"
    story.start(end + 10, 0, 1, attempt=1)
    story.enter(end + 12, 0, 1, incarnation="second", load=0)
    story.steps(end + 13, 0, 1, first=1, last=1)
    assert pod.state == "replay"


def test_limits_in_force_and_longest_silences() -> None:
    """What the trainer says of its time-outs and budgets; a user's own phase names stay out of the labels."""
    story = Story()
    story.start(0.0, 0, cycle=1, restart_budget=3, settings={"heartbeat_rank_seconds": 45, "total_steps": "many"})
    story.event(0, "sample", 1.0, phase_gaps={"eval": 3, "mine": 4, "other": 1, "bad": -1, "init": "x"})
    story.event(0, "sample", 2.0, phase_gaps={"eval": 2})
    found = samples(run(story.pod))
    assert found["headway_heartbeat_timeout_seconds", "rank"] == 45
    assert ("headway_heartbeat_timeout_seconds", "initial") not in found
    gaps = {key[1]: value for key, value in found.items() if key[0] == "headway_phase_gap_max_seconds"}
    assert gaps == {"eval": 3, "other": 4}
    budget = samples(restarts(story.pod))
    assert budget["headway_restart_budget_limit", "launcher"] == 3
    assert budget["headway_restart_budget_remaining", "launcher"] == 2
    story.event(0, "train_entered", 1.0, iteration=3, settings={"in_process_restart_budget": 10})
    budget = samples(restarts(story.pod))
    assert budget["headway_restart_budget_limit", "in_process"] == 10
    assert budget["headway_restart_budget_remaining", "in_process"] == 7


def test_a_life_whose_start_was_rotated_away_is_known_by_its_traces() -> None:
    """A sidecar that starts on the tenth day finds no start in the journal."""
    story = Story()
    story.lives[0] = 7
    story.steps(5.0, 0, first=1000, last=1004)
    assert samples(run(story.pod))["headway_ranks",] == 1
    assert samples(steps(story.pod))["headway_step",] == 1004


def test_writers_losses_are_added_up_over_lives() -> None:
    """Each process counts from 0 what it could not record."""
    story = Story()
    story.start(0.0, 0)
    story.event(0, "sample", 1.0, dropped=3)
    story.event(0, "sample", 2.0, dropped=5)
    story.start(3.0, 0)
    story.event(0, "sample", 4.0, dropped=2)
    assert story.pod.dropped["writer"] == 7


def test_a_stepped_wall_clock_is_counted() -> None:
    """Ages are differences of wall times: a step in them must show."""
    story = Story()
    story.start(0.0, 0)
    story.pod.fold([EventSeen(0, Event("sample", 1, WALL + 3601, 1.0, story.lives[0]))])
    assert story.pod.clock_anomalies == {"wall_stepped": 1}


def test_slots_beyond_the_bound_are_counted_and_left_out() -> None:
    """A hostile journal cannot add ranks, and so series, without end."""
    pod = Pod("run", "0")
    for slot in range(3 * MOST_SLOTS):
        pod.fold([EventSeen(None, Event("worker_exited", 0, WALL, 1.0, 1, None, {"local_rank": slot, "exit_code": 1}))])
    assert len(pod.slots) == MOST_SLOTS
    assert pod.dropped["limit"] == 2 * MOST_SLOTS


def test_an_observation_that_cannot_be_folded_costs_only_itself() -> None:
    """Whatever got past the checks, the next observation still counts."""
    story = Story()
    story.start(0.0, 0)
    story.event(0, "phase", 1.0, name=["no", "name"], edge="begin")  # a type that the parser would have refused
    story.steps(2.0, 0, first=1, last=1)
    assert story.pod.dropped["malformed"] == 1
    assert story.pod.steps.step == 1


def test_status_is_plain_json_whatever_the_numbers() -> None:
    """NaN is no JSON; a reader in another language must still get the document."""
    story = Story()
    end = story.running(settings={"total_steps": 300})
    story.steps(end, 0, 1, first=11, last=11, loss=math.nan)
    story.caught(0, end + 2)
    document = json.loads(json.dumps(status(story.pod, {"torn": 1}), allow_nan=False))
    assert document["loss"] is None
    assert document["total_steps"] == 300
    assert document["recoveries"][0]["seconds_to_first_step"] is None
    assert document["ranks"][0] == {
        "slot": 0,
        "rank": 0,
        "life": story.lives[0],
        "alive": True,
        "step": 11,
        "state": "restart",
        "incarnation": "first",
    }
    assert document["elapsed_rank_seconds"] == pytest.approx(
        sum(document["rank_seconds"].values()) + document["pending_rank_seconds"], abs=1e-6
    )


def test_families_come_in_the_schemas_order_without_absent_series() -> None:
    """A metric with no series now is no empty family."""
    names = [family.name for family in families([("headway_step", (), None), ("headway_ranks", (), 2)], ("run", "0"))]
    assert names == ["headway_ranks"]
