"""What becomes of incidents, as stories: what happened, and the verdict that a person would give."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from incident_tale import Tale
from pod_story import Story

from headway_exporter.labels import LAYERS


@dataclass(frozen=True)
class Verdict:
    """A story and what must be said at its end. The run has made ten steps and committed nothing before."""

    acts: str
    state: str
    """Of the last incident."""
    attempts: int = 1
    """Of the last incident."""
    recurring: set[str] = field(default_factory=set)
    """Of the last incident."""
    outcomes: dict[tuple[str, bool], int] = field(default_factory=dict)
    entities: dict[str, int] = field(default_factory=dict)
    """Ranks that several incidents began on."""
    escalated: bool = False
    ranks: int = 2


def five(ranks: str) -> str:
    """Five failures, each with progress and a newer checkpoint after it."""
    rounds = [
        f"fail {rank}, in_process {9 + n}, steps {10 + n}-{11 + n}, commit {11 + n}" for n, rank in enumerate(ranks)
    ]
    return ", ".join(rounds)


LOOP = "kill 0, launcher 8"
"""Back on the same checkpoint, and dead before the first step."""

STORIES = {
    "clean recovery": Verdict(
        "fail 1, in_process 8, steps 9-12, commit 12", "recovered", outcomes={("recovered", False): 1}
    ),
    "resumed, nothing proved yet": Verdict("fail 1, in_process 8, steps 9-9", "resumed"),
    "above the mark, nothing durable yet": Verdict("fail 1, in_process 8, steps 9-11", "progressing"),
    "under way": Verdict("fail 1, in_process 8", "restarting"),
    "a checkpoint below the mark proves nothing": Verdict(
        "commit 4, fail 1, in_process 4, steps 5-8, commit 8", "resumed"
    ),
    "the next one above it does": Verdict(
        "commit 4, fail 1, in_process 4, steps 5-8, commit 8, steps 9-12, commit 12",
        "recovered",
        outcomes={("recovered", False): 1},
    ),
    "a step that always fails, with a newer checkpoint before it each time": Verdict(
        "commit 2, fail 1, in_process 2, steps 3-10, commit 4, fail 1, in_process 4, steps 5-10, commit 6, fail 1, in_process 6",
        "restarting",
        attempts=3,
        recurring={"no_progress", "same_fingerprint", "same_step"},
    ),
    "an old checkpoint proves nothing": Verdict("commit 8, fail 1, in_process 8, steps 9-11, commit 6", "progressing"),
    "a save of before the failure proves nothing": Verdict(
        "fail 1, commit 10, in_process 10, steps 11-12", "progressing"
    ),
    "one that is newer than the newest that loads": Verdict(
        "commit 10, kill 1, reject 10, launcher 4, steps 5-11, commit 8",
        "recovered",
        outcomes={("recovered", False): 1},
    ),
    "five recoveries on five ranks": Verdict(five("01234"), "recovered", outcomes={("recovered", False): 5}, ranks=5),
    "one rank five times": Verdict(five("11111"), "recovered", outcomes={("recovered", False): 5}, entities={"1": 5}),
    "a run of a single rank names nobody": Verdict(
        five("000"), "recovered", outcomes={("recovered", False): 3}, ranks=1
    ),
    "crash loop, second attempt": Verdict("fail 1, launcher 8, kill 0, launcher 8", "restarting", attempts=2),
    "crash loop, third attempt": Verdict(
        f"fail 1, launcher 8, {LOOP}, kill 1, launcher 8",
        "restarting",
        attempts=3,
        recurring={"no_progress", "no_durable_progress", "same_checkpoint"},
    ),
    "crash loop from scratch": Verdict(
        "kill 0, launcher 0, kill 1, launcher 0, fail 0, launcher 0",
        "restarting",
        attempts=3,
        recurring={"no_progress", "no_durable_progress", "same_checkpoint"},
    ),
    "failed in-process tries that escalate": Verdict(
        "fail 1, in_process 8, fail 0, in_process 7, kill 1, launcher 6, steps 7-12, commit 12",
        "recovered",
        outcomes={("recovered", False): 1},
        escalated=True,
    ),
    "three layers, one attempt": Verdict(
        "fail 1, in_process 8, kill 0, launcher 7, gone, orchestrator 6, steps 7-12",
        "progressing",
        escalated=True,
    ),
    "failure again before recovered": Verdict(
        "fail 1, in_process 8, steps 9-12, fail 0, in_process 8, steps 9-9", "resumed", attempts=2
    ),
    "progress but no durable progress": Verdict(
        "fail 0, in_process 8, steps 9-14, fail 1, in_process 8, steps 9-18, fail 2, in_process 9",
        "restarting",
        attempts=3,
        recurring={"no_durable_progress"},
        ranks=3,
    ),
    "a commit between starts the count anew": Verdict(
        "fail 0, in_process 8, steps 9-14, fail 1, in_process 8, steps 9-18, commit 18, fail 2, in_process 9",
        "restarting",
        attempts=1,
        outcomes={("recovered", False): 1},
        ranks=3,
    ),
    "no progress though every attempt makes steps": Verdict(
        "fail 0, in_process 7, steps 8-9, fail 1, in_process 6, steps 7-8, fail 2, in_process 5",
        "restarting",
        attempts=3,
        recurring={"no_progress", "no_durable_progress"},
        ranks=3,
    ),
    "same fingerprint": Verdict(
        "fail 1, in_process 8, steps 9-9, fail 1", "open", attempts=2, recurring={"same_fingerprint"}
    ),
    "same fingerprint, but with a new mark between": Verdict(
        "fail 1, in_process 8, steps 9-14, fail 1", "open", attempts=2
    ),
    "same step": Verdict(
        "fail 0, in_process 6, steps 7-9, fail 1, in_process 7, steps 8-9, fail 2, in_process 8",
        "restarting",
        attempts=3,
        recurring={"no_progress", "no_durable_progress", "same_step"},
        ranks=3,
    ),
    "a reason that was found stays until the verdict": Verdict(
        "fail 1, in_process 8, steps 9-9, fail 1, in_process 8, steps 9-20", "progressing", 2, {"same_fingerprint"}
    ),
    "recurring, and recovered after all": Verdict(
        "fail 1, in_process 8, steps 9-9, fail 1, in_process 8, steps 9-20, commit 20",
        "recovered",
        2,
        {"same_fingerprint"},
        outcomes={("recovered", True): 1},
        entities={},
    ),
    "the operator's signal": Verdict("stop, gone", "cancelled", outcomes={("cancelled", False): 1}),
    "the operator ends a crash loop": Verdict(
        f"fail 1, launcher 8, {LOOP}, kill 1, stop, gone",
        "cancelled",
        3,
        {"no_progress", "no_durable_progress"},
        outcomes={("cancelled", True): 1},
    ),
    "a rank ends by itself long after a signal that was ignored": Verdict("stop, wait 500, kill 1", "open"),
    "back after the operator's signal": Verdict(
        "stop, gone, orchestrator 8, steps 9-12, commit 12", "cancelled", outcomes={("cancelled", False): 1}
    ),
    "a failure after that is another incident": Verdict(
        "stop, gone, orchestrator 8, fail 1", "open", outcomes={("cancelled", False): 1}
    ),
    "the run finished": Verdict(
        "fail 1, in_process 8, steps 9-12, finish", "recovered", outcomes={("recovered", False): 1}
    ),
    "nobody came back": Verdict("gone, wait 4000", "abandoned", outcomes={("abandoned", False): 1}),
    "nobody came back, for now": Verdict("gone, wait 3000", "open"),
    "a process that hangs is not abandoned": Verdict("fail 1, wait 9000", "open"),
    "back after it was given up": Verdict(
        "gone, wait 4000, orchestrator 8, steps 9-12", "abandoned", outcomes={("abandoned", False): 1}
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    """The verdict, its reasons, and each closure counted once."""
    story = STORIES[name]
    tale = Tale(story.ranks).tell(story.acts)
    incident = tale.incidents[-1]
    failures = tale.pod.failures
    assert incident.state.value == story.state
    assert tale.recurring == story.recurring
    assert incident.attempts_now.count == story.attempts
    assert incident.escalated == story.escalated
    assert failures.outcomes == story.outcomes
    assert sum(failures.incident_causes.values()) == sum(story.outcomes.values())
    assert {one.name: count for one, count in failures.repeat_offenders(tale.now).items()} == story.entities


def test_recurring_within_the_third_attempt() -> None:
    """Not later: the reasons are there before the third attempt has ended."""
    tale = Tale().tell(f"kill 1, launcher 8, {LOOP}")
    assert tale.recurring == set()
    assert tale.tell("kill 1").recurring == {"same_fingerprint", "no_progress", "no_durable_progress"}
    assert tale.tell("launcher 8").recurring == {
        "same_fingerprint",
        "no_progress",
        "no_durable_progress",
        "same_checkpoint",
    }


def test_tries_that_escalate_take_their_reasons_back() -> None:
    """Three in-process tries may look like a loop; once the launcher took over they were one attempt."""
    tale = Tale(3).tell("fail 0, in_process 8, fail 1, in_process 7, fail 2, in_process 6")
    assert tale.recurring == {"no_progress", "no_durable_progress"}
    assert tale.tell("kill 0").recurring == set()
    assert tale.tell("launcher 5, steps 6-12, commit 12").recurring == set()
    assert tale.pod.failures.outcomes == {("recovered", False): 1}


def test_coming_back_completes_the_record_and_counts_nothing_twice() -> None:
    """A preempted pod that returns is a restart with a recovery time, of an incident that has its verdict."""
    tale = Tale().tell("stop, gone, orchestrator 8, steps 9-12, commit 12")
    failures = tale.pod.failures
    assert failures.restarts == {"orchestrator": 1}
    assert failures.closed == {"orchestrator": 1}
    assert failures.causes == {("orchestrator", "preempted"): 1}
    assert failures.incident_causes == {("orchestrator", "preempted"): 1}
    assert tale.recoveries == [("orchestrator", "preempted", None, 2)]
    assert len(tale.incidents) == 1


def test_a_repeat_offender_is_forgotten_after_a_day() -> None:
    """An old failure says nothing about a rank today."""
    tale = Tale().tell(five("11"))
    assert tale.pod.failures.repeat_offenders(tale.now) != {}
    assert tale.pod.failures.repeat_offenders(tale.now + 86_400) == {}


def test_nodes_and_gpus_are_entities_where_there_are_several() -> None:
    """What to drain is a node or a GPU, and not one that was hostile enough to be named without end."""
    tale = Tale()
    tale.pod.info.node, tale.pod.info.pods_expected = "node-7", 2
    for slot in tale.ranks:
        tale.pod.slots[slot].gpu_uuid = f"GPU-{slot}" + "x" * 10_000
    tale.tell(five("11"))
    names = {one.kind: one.name for one in tale.pod.failures.repeat_offenders(tale.now)}
    assert (names["rank"], names["node"]) == ("1", "node-7")
    assert names["gpu"].startswith("GPU-1")
    assert len(names["gpu"]) <= 160


def test_the_attempt_under_way_names_the_layer_that_can_still_help() -> None:
    """How long to wait depends on who restarts: before the restart it is the innermost that still can."""
    tale = Tale().tell("fail 1")
    layers = [tale.incidents[-1].current.expected_layer]
    layers.append(tale.tell("kill 1").incidents[-1].current.expected_layer)
    tale.event(None, "launcher_exited", tale.now, exit_code=1)
    layers.append(tale.incidents[-1].current.expected_layer)
    assert tuple(layers) == LAYERS


def test_a_death_that_was_none_is_withdrawn() -> None:
    """A process of another PID namespace that lost its lock writes on: no incident, no restart, whatever the sidecar had to believe."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.5)
    assert story.pod.failures.open is not None
    story.steps(end, 0, 1, first=11, last=20)
    assert story.pod.failures.open is None
    assert not story.recoveries
    assert not story.pod.failures.incidents
    assert not any((*story.pod.failures.restarts.values(), *story.pod.failures.causes.values()))
    assert [slot.alive for slot in story.pod.slots.values()] == [True, True]
    totals = story.pod.ledger.totals(story.pod.now_ns)
    assert sum(totals.states.values()) + totals.pending == totals.elapsed


def test_a_death_that_was_none_within_an_incident_leaves_the_incident_as_it_was() -> None:
    """The failure before was real, and is still to be decided."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.5)
    story.start(end + 5, 0, 1, cycle=1)
    story.enter(end + 10, 0, 1, incarnation="second", load=8)
    end = story.steps(end + 11, 0, 1, first=9, last=20)
    before = story.pod.failures.incidents[-1].state
    story.die(0, end + 0.5)
    story.steps(end, 0, 1, first=21, last=25)
    [incident] = story.pod.failures.incidents
    assert incident.state is before
    assert len(story.recoveries) == 1
    assert story.pod.failures.restarts == {"launcher": 1}


def test_a_death_that_others_tell_of_too_is_not_withdrawn() -> None:
    """The launcher saw the worker's end: a stray word that is dated later does not undo that."""
    story = Story()
    end = story.running()
    story.die(1, end + 0.5)
    story.event(None, "worker_exited", end + 0.6, local_rank=1, pid=story.pid(1), exit_code=-9)
    story.event(1, "sample", end + 0.7, step=10)
    assert story.pod.failures.open is not None
