"""Layer, cause, origin and rollback of failures, by hand-made observations."""

from __future__ import annotations

import pytest
from incident_tale import Tale
from pod_story import WALL, Story

from headway_exporter import records
from headway_exporter.labels import CAUSES, LAYERS
from headway_exporter.recoveries import MOST_EVIDENCE, MOST_OLD_EVIDENCE, MOST_TRIES


def test_exception_in_process() -> None:
    """NVRx's records name the rank whose exception it was; the peer's broken collective is an echo."""
    story = Story()
    end = story.running()
    story.caught(1, end + 0.1, category="cuda_oom")
    story.echo(0, end + 0.2)
    for slot in (0, 1):
        records = [{"rank": 1, "kind": "EXCEPTION"}, {"rank": 0, "kind": "EXCEPTION"}]
        story.event(slot, "interruption", end + 1, records=records, iteration=0)
    story.enter(end + 2, 0, 1, incarnation="second", load=8)
    story.steps(end + 3, 0, 1, first=9, last=10)
    assert story.recoveries == [("in_process", "cuda_oom", 1, 2)]
    recovery = story.pod.failures.recoveries[0]
    assert recovery.closed is not None
    assert recovery.closed - recovery.opened == pytest.approx(3.9)
    assert recovery.regained == pytest.approx(end + 5)
    assert story.pod.failures.restarts == {"in_process": 1}
    assert story.pod.failures.rank_failures == {1: 1}
    assert story.pod.failures.causes == {("in_process", "cuda_oom"): 1}


def test_a_record_of_an_echo_comes_first() -> None:
    """A killed rank's sockets close at once: its peer may be recorded before it."""
    story = Story()
    end = story.running()
    story.echo(0, end + 0.1)
    story.die(1, end + 0.1)
    story.event(
        0, "interruption", end + 1, records=[{"rank": 0, "kind": "EXCEPTION"}, {"rank": 1, "kind": "TERMINATED"}]
    )
    story.enter(end + 2, 0, incarnation="second", load=10)
    story.steps(end + 3, 0, first=11, last=11)
    assert story.recoveries == [("in_process", "process_killed", 1, 0)]


def test_sigkill_under_a_launcher() -> None:
    """The first death is the origin, though the launcher's only line may name the peer that died of the echo."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.5)
    story.echo(0, end + 0.6)
    story.event(0, "process_exited", end + 0.7)
    story.die(0, end + 0.8)
    story.event(None, "worker_exited", end + 2, local_rank=0, pid=story.pid(0), exit_code=1)
    story.event(None, "worker_group_failed", end + 2, restarts_left=3, restarts_limit=3)
    story.start(end + 4, 0, 1, cycle=1)
    story.enter(end + 6, 0, 1, incarnation="second", load=5)
    story.steps(end + 6, 0, 1, first=6, last=6)
    assert story.recoveries == [("launcher", "process_killed", 1, 5)]
    assert story.pod.info.budget_remaining == {"launcher": 2}


def test_peers_that_the_launcher_ends_are_never_origins() -> None:
    """A peer told to end dies after the failure, whatever its own last words were."""
    story = Story()
    end = story.running()
    story.event(None, "worker_exited", end + 1, local_rank=1, pid=story.pid(1), exit_code=7)
    story.event(0, "signal", end + 1.1, signal=15, name="SIGTERM")
    story.die(0, end + 0.9, by="found")
    story.start(end + 4, 0, 1, cycle=1)
    story.enter(end + 6, 0, 1, incarnation="second", load=10)
    story.steps(end + 6, 0, 1, first=11, last=11)
    assert story.recoveries == [("launcher", "process_exited", 1, 0)]


def test_an_exit_code_beats_the_exception_that_carried_it() -> None:
    """sys.exit(3) passes as SystemExit; the cause is the exit."""
    story = Story()
    end = story.running(slots=(0,))
    story.caught(0, end + 0.1, "SystemExit")
    story.event(0, "process_exited", end + 0.2)
    story.die(0, end + 0.3)
    story.event(None, "worker_exited", end + 1, local_rank=0, pid=story.pid(0), exit_code=3)
    story.start(end + 2, 0, cycle=1)
    story.enter(end + 3, 0, incarnation="second", load=0)
    story.steps(end + 3, 0, first=1, last=1)
    assert story.recoveries == [("launcher", "process_exited", 0, 10)]


def hang(story: Story, end: float, *, collective_of: dict[int, bool], **missed: int) -> None:
    """Samples, a missed heartbeat, and what the launcher does then."""
    for slot, inside in collective_of.items():
        story.event(slot, "sample", end + 5, collective=inside, step=10)
    story.event(None, "heartbeat_missed", end + 12, which="subsequent", waited_seconds=10.0, **missed)
    story.die(0, end + 12.1)
    story.die(1, end + 12.2)
    story.event(None, "worker_exited", end + 13, local_rank=0, pid=story.pid(0), exit_code=-9)
    story.start(end + 15, 0, 1, cycle=1)
    story.enter(end + 16, 0, 1, incarnation="second", load=10)
    story.steps(end + 16, 0, 1, first=11, last=11)


def test_a_hang_that_the_launcher_found() -> None:
    """The missed heartbeat tells a hang from a kill; the rank outside of the collective is the one that hung."""
    story = Story()
    hang(story, story.running(), collective_of={0: True, 1: False}, local_rank=0)
    assert story.recoveries == [("launcher", "heartbeat_timeout", 1, 0)]


@pytest.mark.parametrize(
    ("collective_of", "text"),
    [
        (
            {0: True, 1: False},
            "rank 0: step 10 done, inside a collective 7 s before; rank 1: step 10 done, outside of collectives 7 s before",
        ),
        ({0: True}, "rank 0: step 10 done, inside a collective 7 s before; rank 1: step 10 done, no sample since"),
        ({}, "ranks 0, 1: step 10 done, no sample since"),
    ],
)
def test_a_hang_keeps_what_named_its_rank(collective_of: dict[int, bool], text: str) -> None:
    """Monitors end the victims too, so the origin follows from nothing else in a record but from where the ranks stood."""
    story = Story()
    hang(story, story.running(), collective_of=collective_of)
    found = records.record(story.pod, story.pod.failures.incidents[0], WALL)["evidence"]
    assert [(item["kind"], item["text"]) for item in found][:2] == [
        ("standing", text),
        ("heartbeat", "no subsequent heartbeat for 10 s"),
    ]


@pytest.mark.parametrize(("length", "end"), [(100, "aa"), (400, "a…")])
def test_a_text_that_is_cut_says_so(length: int, end: str) -> None:
    """A message that breaks off in a word is not told as if it were all of it."""
    story = Story()
    story.caught(0, story.running() + 0.1, message="a" * length)
    (sign,) = story.pod.failures.recoveries[0].evidence
    assert sign.text.endswith(end)
    assert len(sign.text) <= 160


def test_a_death_needs_no_standing() -> None:
    """Where the others stood says nothing about a rank that was killed."""
    story = Story()
    story.die(1, story.running() + 1)
    found = records.record(story.pod, story.pod.failures.incidents[0], WALL)["evidence"]
    assert {item["kind"] for item in found} == {"death"}


def test_a_hang_that_stops_even_the_samples() -> None:
    """A rank stuck in C with the interpreter's lock cannot take samples: its silence names it."""
    story = Story()
    hang(story, story.running(), collective_of={0: True})
    assert story.recoveries == [("launcher", "heartbeat_timeout", 1, 0)]


def test_the_kill_may_be_seen_before_the_line_that_announced_it() -> None:
    """The line comes through a pipe, the death through the kernel."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end + 5, collective=True)
    story.event(1, "sample", end + 5, collective=False)
    story.die(1, end + 12)
    story.event(None, "heartbeat_missed", end + 12.3, which="subsequent", waited_seconds=10.0)
    story.start(end + 15, 0, 1, cycle=1)
    story.enter(end + 16, 0, 1, incarnation="second", load=10)
    story.steps(end + 16, 0, 1, first=11, last=11)
    assert story.recoveries == [("launcher", "heartbeat_timeout", 1, 0)]


def test_a_tie_leaves_the_origin_open() -> None:
    """Rather nobody than the wrong rank."""
    story = Story()
    hang(story, story.running(), collective_of={})
    assert story.recoveries == [("launcher", "heartbeat_timeout", None, 0)]
    assert story.pod.failures.rank_failures == {}


def test_the_rank_with_the_fewest_steps_hung() -> None:
    """Without samples the least step names the laggard."""
    story = Story()
    end = story.running()
    story.steps(end, 0, first=11, last=11)
    hang(story, end + 1, collective_of={})
    assert story.recoveries == [("launcher", "heartbeat_timeout", 1, 1)]


def test_soft_hang_in_process() -> None:
    """Soft time-outs are recorded of everybody; the rank whose collective was not broken held the others up."""
    story = Story()
    end = story.running()
    story.echo(0, end + 5)
    story.caught(1, end + 5.1, "RankShouldRestart")
    records = [{"rank": 0, "kind": "SOFT_TIMEOUT"}, {"rank": 1, "kind": "SOFT_TIMEOUT"}]
    story.event(0, "interruption", end + 6, records=records)
    story.enter(end + 7, 0, 1, incarnation="second", load=10)
    story.steps(end + 7, 0, 1, first=11, last=11)
    assert story.recoveries == [("in_process", "hang_soft", 1, 0)]


def test_hard_timeout_in_process() -> None:
    """NVRx's hard time-out ends only the rank that never came to the barrier."""
    story = Story()
    end = story.running()
    story.echo(0, end + 4)
    story.die(1, end + 9)
    kinds = [(0, "SOFT_TIMEOUT"), (1, "SOFT_TIMEOUT"), (1, "HARD_TIMEOUT"), (1, "TERMINATED")]
    story.event(0, "interruption", end + 10, records=[{"rank": rank, "kind": kind} for rank, kind in kinds])
    story.enter(end + 11, 0, incarnation="second", load=10)
    story.steps(end + 11, 0, first=11, last=11)
    assert story.recoveries == [("in_process", "hang_hard", 1, 0)]


def test_hard_timeout_that_ends_the_group() -> None:
    """Under a launcher only the exit by SIGTERM after a long silence is left of it."""
    story = Story()
    end = story.running(settings={"hard_timeout_seconds": 9})
    story.echo(0, end + 5)
    story.die(1, end + 9.1)
    story.event(None, "worker_exited", end + 9.5, local_rank=1, pid=story.pid(1), exit_code=-15)
    story.start(end + 15, 0, 1, cycle=1)
    story.enter(end + 16, 0, 1, incarnation="second", load=10)
    story.steps(end + 16, 0, 1, first=11, last=11)
    assert story.recoveries == [("launcher", "hang_hard", 1, 0)]


@pytest.mark.parametrize(("kills", "cause"), [(1, "process_killed"), (2, "host_oom")])
def test_out_of_memory_needs_the_containers_word(kills: int, cause: str) -> None:
    """A SIGKILL is the kernel's out-of-memory killer only if the container's counter rose."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=1)
    story.die(1, end + 0.5)
    story.event(None, "worker_exited", end + 1, local_rank=1, pid=story.pid(1), exit_code=-9)
    story.start(end + 3, 0, 1, cycle=1)
    story.event(0, "sample", end + 3.1, oom_kills=kills)
    story.enter(end + 4, 0, 1, incarnation="second", load=10)
    story.steps(end + 4, 0, 1, first=11, last=11)
    assert story.recoveries == [("launcher", cause, 1, 0)]


def test_a_lost_pod() -> None:
    """All ranks gone, no word of the launcher, a further attempt: nobody can say whose fault it was."""
    story = Story()
    end = story.running()
    story.die(0, end + 0.5)
    story.die(1, end + 0.5)
    story.event(None, "launcher_started", end + 30, pid=1)
    story.start(end + 31, 0, 1, attempt=1)
    story.enter(end + 35, 0, 1, incarnation="second", load=5)
    story.steps(end + 35, 0, 1, first=6, last=11)
    assert story.recoveries == [("orchestrator", "node_lost", None, 5)]
    assert story.pod.failures.restarts == {"orchestrator": 1}
    seconds = {state: amount / 1e9 for state, amount in story.pod.ledger.slots[0].states.items()}
    assert seconds["down"] == pytest.approx(30.5)
    assert seconds["restart"] == pytest.approx(4)


def test_a_pod_that_vanished_unseen() -> None:
    """The sidecar heard nothing of the end, only of the next attempt."""
    story = Story()
    end = story.running()
    story.start(end + 30, 0, 1, attempt=1)
    story.enter(end + 35, 0, 1, incarnation="second", load=5)
    story.steps(end + 35, 0, 1, first=6, last=6)
    assert story.recoveries == [("orchestrator", "node_lost", None, 5)]
    assert story.pod.ledger.slots[1].states["down"] == 30_000_000_000


def test_a_launcher_that_gave_up_is_the_ranks_failure() -> None:
    """The orchestrator restarted the pod, but it began with a rank's exit code."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.5)
    story.event(None, "worker_exited", end + 1, local_rank=1, pid=story.pid(1), exit_code=4)
    story.die(0, end + 1.5)
    story.event(None, "launcher_exited", end + 2, exit_code=1)
    story.start(end + 30, 0, 1, attempt=1)
    story.enter(end + 35, 0, 1, incarnation="second", load=10)
    story.steps(end + 35, 0, 1, first=11, last=11)
    assert story.recoveries == [("orchestrator", "process_exited", 1, 0)]


def test_preemption() -> None:
    """The launcher was told to end before anybody failed."""
    story = Story()
    end = story.running()
    story.event(None, "signal", end + 1, signal=15, name="SIGTERM")
    for slot in (0, 1):
        story.event(slot, "signal", end + 1.1, signal=15, name="SIGTERM")
        story.die(slot, end + 1.2)
    story.start(end + 30, 0, 1, attempt=1)
    story.enter(end + 35, 0, 1, incarnation="second", load=10)
    story.steps(end + 35, 0, 1, first=11, last=11)
    assert story.recoveries == [("orchestrator", "preempted", None, 0)]


def test_a_try_that_fails_before_its_first_step_is_part_of_the_recovery() -> None:
    """In process first, then the launcher: one recovery, the outermost layer, and the cause it began with."""
    story = Story()
    end = story.running()
    story.caught(1, end + 0.1)
    story.echo(0, end + 0.2)
    story.enter(end + 2, 0, 1, incarnation="second", load=5)
    story.die(0, end + 3)
    story.start(end + 6, 0, cycle=1)
    story.start(end + 6.3, 1, cycle=1)  # ranks never start at the same instant
    story.enter(end + 8, 0, 1, incarnation="third", load=5)
    story.steps(end + 8, 0, 1, first=6, last=6)
    assert story.recoveries == [("launcher", "app_exception", 1, 5)]
    failures = story.pod.failures
    assert failures.recoveries[0].try_count == 2
    assert failures.restarts == {"in_process": 1, "launcher": 1}
    assert failures.closed == {"launcher": 1}
    assert failures.causes == {("in_process", "app_exception"): 1, ("launcher", "process_killed"): 1}
    assert failures.without_progress == 2
    assert failures.same_checkpoint_loads == 2


def test_progress_and_commits_reset_what_counts_failures_in_a_row() -> None:
    """A new mark ends a series without progress; a newer checkpoint ends one of the same."""
    story = Story()
    end = story.running()
    story.caught(0, end + 0.1)
    story.enter(end + 2, 0, 1, incarnation="second", load=9)
    end = story.steps(end + 2, 0, 1, first=10, last=11)
    assert story.pod.failures.without_progress == 0
    assert story.pod.failures.same_checkpoint_loads == 1
    story.event(0, "checkpoint", end, stage="committed", step=11)
    assert story.pod.failures.same_checkpoint_loads == 0


def test_only_echoes() -> None:
    """With every rank here it is the collective's time-out; with ranks elsewhere, a peer's failure."""
    for world_size, cause in ((2, "collective_timeout"), (16, "peer_failure")):
        story = Story()
        end = story.running(world_size=world_size)
        story.echo(0, end + 1)
        story.echo(1, end + 1)
        story.enter(end + 2, 0, 1, incarnation="second", load=10, world_size=world_size)
        story.steps(end + 2, 0, 1, first=11, last=11)
        assert story.recoveries == [("in_process", cause, None, 0)]


def test_causes_are_counted_where_the_failure_began() -> None:
    """Another pod's rank failed: this pod restarts too, and leaves the cause to the other one."""
    story = Story(pod_index="1")
    end = story.running(pods_expected=2, world_size=4)
    story.echo(0, end + 1)
    story.echo(1, end + 1)
    story.event(0, "interruption", end + 1.5, records=[{"rank": 3, "kind": "EXCEPTION"}])
    story.enter(end + 2, 0, 1, incarnation="second", load=10, world_size=4)
    story.steps(end + 2, 0, 1, first=11, last=11)
    assert story.recoveries == [("in_process", "app_exception", 3, 0)]
    assert story.pod.failures.restarts == {"in_process": 1}
    assert not story.pod.failures.causes


def test_a_loop_without_hooks_that_swallows_its_exceptions() -> None:
    """No train_entered, no restart: the rank told of a failure and then went on."""
    story = Story()
    story.start(1.0, 0)
    end = story.steps(2.0, 0, first=1, last=3)
    story.caught(0, end + 0.1)
    story.steps(end + 1, 0, first=4, last=4)
    assert story.recoveries == [("in_process", "app_exception", 0, 0)]


def test_a_peers_last_step_does_not_close_a_recovery() -> None:
    """A step begun before the failure is no recovery; it raises the tip that the rollback is measured from."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.2)
    story.steps(end - 0.5, 0, first=11, last=11)
    assert story.pod.failures.recovering is not None
    story.start(end + 4, 0, 1, cycle=1)
    story.enter(end + 6, 0, 1, incarnation="second", load=10)
    story.steps(end + 6, 0, 1, first=11, last=11)
    assert story.recoveries == [("launcher", "process_killed", 1, 1)]


def test_old_news_opens_nothing() -> None:
    """Lines about a life or an incarnation that is over do not make a second failure."""
    story = Story()
    end = story.running()
    old_pid = story.pid(1)
    story.die(1, end + 0.2)
    story.start(end + 4, 0, 1, cycle=1)
    story.enter(end + 6, 0, 1, incarnation="second", load=10)
    end = story.steps(end + 6, 0, 1, first=11, last=12)
    story.event(None, "worker_exited", end + 0.1, local_rank=1, pid=old_pid, exit_code=-9)
    story.incarnations[0] = "first"
    story.echo(0, end + 0.2)
    assert len(story.recoveries) == 1


def test_an_orderly_end_is_no_failure() -> None:
    """Ranks that finished may go, and the launcher's exit code does not matter then."""
    story = Story()
    end = story.running()
    for slot in (0, 1):
        story.event(slot, "train_finished", end, step=10)
        story.event(slot, "process_exited", end + 0.1)
        story.die(slot, end + 0.2)
    story.event(None, "launcher_exited", end + 1, exit_code=1)
    assert story.recoveries == []
    assert story.pod.state == "finished"


def test_a_rejected_checkpoint_is_told() -> None:
    """Falling back to an older checkpoint explains a longer rollback."""
    story = Story()
    end = story.running()
    story.event(0, "checkpoint", end, stage="committed", step=10)
    story.die(1, end + 0.2)
    story.start(end + 4, 0, 1, cycle=1)
    story.event(0, "checkpoint", end + 5, stage="rejected", step=10, reason="checksum")
    story.enter(end + 6, 0, 1, incarnation="second", load=5)
    story.steps(end + 6, 0, 1, first=6, last=6)
    assert story.recoveries == [("launcher", "process_killed", 1, 5)]
    assert story.pod.failures.recoveries[0].rejected == [10]
    assert story.pod.checkpoints.durable_step == 5


def test_many_failures_stay_bounded() -> None:
    """A crash loop of months must not grow the sidecar, and every counter stays inside its closed set."""
    story = Story()
    end = story.running()
    for number in range(300):
        for _ in range(100):
            story.echo(0, end + 0.1)
        story.start(end + 1, 0, 1, cycle=number)
        story.enter(end + 2, 0, 1, incarnation=f"{number}", load=10)
        if number % 100 == 99:
            end = story.steps(end + 2, 0, 1, first=11, last=11)
        end += 3
    failures = story.pod.failures
    assert failures.restarts["launcher"] == 300
    assert all(
        len(one.tries) <= MOST_TRIES and len(one.evidence) <= MOST_TRIES * MOST_EVIDENCE for one in failures.recoveries
    )
    assert all(layer in LAYERS and cause in CAUSES for layer, cause in failures.causes)


def test_a_crash_loop_keeps_little_of_what_is_settled() -> None:
    """200 failures of 64 ranks, each with all that was seen of them, would take more memory than the sidecar may have."""
    tale = Tale(8)
    for _ in range(2 * MOST_TRIES):
        tale.tell("gone, launcher 10, steps 11-12")
    [incident] = tale.incidents
    made = records.record(tale.pod, incident, 0.0)
    old = [one for one in tale.pod.failures.recoveries if one not in incident.recoveries]
    assert len(old) == MOST_TRIES
    assert all(len(one.evidence) <= MOST_OLD_EVIDENCE and len(one.current.markers) <= 1 for one in old)
    assert all(len(one.evidence) == len(one.current.markers) == 8 for one in incident.recoveries)
    assert [len(one["tries"]) for one in made["recoveries"]] == [1] * MOST_TRIES
    assert {one.diagnosis.cause for one in old} == {incident.diagnosis.cause} == {"process_killed"}


def test_an_incident_at_rest_keeps_little_and_its_record_stands() -> None:
    """What is on disk tells all of it; and where it began is still known, for the next one that begins there."""
    tale = Tale(4)
    for step in (12, 14):
        tale.tell(f"kill 2, launcher {step - 2}, steps {step - 1}-{step}, commit {step}")
    for _ in range(3):
        for one in records.due(tale.pod):
            records.written(tale.pod, one)
        tale.tell("wait 700")
    first, last = tale.incidents
    assert (first.at_rest, last.at_rest) == (True, False)
    assert [len(one.telling.markers) for one in (first, last)] == [1, 4]
    assert first.telling.markers[0].rank == 2
    assert records.due(tale.pod) == []
    assert max(tale.pod.failures.repeat_offenders(tale.pod.now).values()) == 2
