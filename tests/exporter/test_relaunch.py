"""What the launcher tells of its own restarts, as evidence of a pod's failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_story import WALL, Story

from headway_exporter import records
from headway_exporter.relaunch import MOST_NODES, expand

STAGES = ("worker_terminated", "rendezvous_started", "rendezvous_completed", "worker_start_completed")


def phase(story: Story, name: str, at: float, *, cycle: int = 1, read_late: float = 0.0) -> None:
    told = {"name": name, "cycle": cycle, "node": "localhost_31124_0", "told_wall": WALL + at}
    story.event(None, "launcher_phase", at + read_late, **told)


def goes_on(story: Story, at: float) -> None:
    story.start(at, 0, 1, cycle=1)
    story.enter(at + 2, 0, 1, incarnation="second", load=10)
    story.steps(at + 2, 0, 1, first=11, last=12)


def texts(story: Story, *kinds: str) -> list[tuple[str, float, str]]:
    (incident,) = story.pod.failures.incidents
    signs = incident.recoveries[0].tries[0].evidence
    return [(one.kind, one.at, one.text) for one in signs if one.kind in kinds]


def test_the_launchers_own_moments_are_evidence() -> None:
    """The failure is dated when the launcher noticed it, not when its line was read; its stages are one line for people."""
    story = Story()
    end = story.running()
    phase(story, "failure_detected", end + 1, read_late=0.5)
    for nth, name in enumerate(STAGES):
        phase(story, name, end + 2 + nth)
    goes_on(story, end + 6)
    assert texts(story, "detected", "relaunch") == [
        ("detected", end + 1, "launcher localhost_31124_0 noticed the failure that began cycle 1"),
        (
            "relaunch",
            end + 5,
            "launcher, after it noticed: workers gone 1.0 s, next round open 2.0 s, nodes met 3.0 s, workers started 4.0 s",
        ),
    ]
    assert story.recoveries == [("launcher", "unknown", None, 0)]
    assert story.pod.failures.recoveries[0].opened == end + 1


def test_a_start_without_a_failure_is_none() -> None:
    """The first start of a job goes through the same stages."""
    story = Story()
    for nth, name in enumerate(STAGES[1:]):
        phase(story, name, nth, cycle=0)
    story.running()
    assert not story.pod.failures.incidents


def test_a_moment_that_cannot_be_true_is_not_believed() -> None:
    """Somebody set the clock between the line and its reading: the failure is dated when it was read of."""
    story = Story()
    end = story.running()
    told = {"name": "failure_detected", "cycle": 1, "node": "n", "told_wall": WALL - 3600}
    story.event(None, "launcher_phase", end + 1, **told)
    assert story.pod.failures.recoveries[0].opened == end + 1


@pytest.mark.parametrize("newer", [True, False])
def test_a_pod_whose_launcher_joins_a_restart_is_no_origin(newer: bool) -> None:
    """Its ranks die because the launcher ends them, even if none could say that it was told to; a failure of its own before counts."""
    story = Story()
    story.world_size = 4
    end = story.running()
    if newer:
        phase(story, "failure_detected", end + 1, read_late=0.5)
    story.event(None, "restart_joined", end + 1.5, group_rank=0, **({} if newer else {"nodes_waiting": 1}))
    story.die(0, end + (1.2 if newer else 1.6))
    story.die(1, end + 2)
    goes_on(story, end + 4)
    assert story.recoveries == [("launcher", "peer_failure", None, 0)]
    assert story.pod.failures.rank_failures == {}

    other = Story()
    other.world_size = 4
    end = other.running()
    other.die(1, end + 0.5)
    other.event(None, "restart_joined", end + 1, group_rank=0)
    goes_on(other, end + 4)
    assert other.recoveries == [("launcher", "process_killed", 1, 0)]


@pytest.mark.parametrize(
    ("before", "fields", "words"),
    [
        ("node[1-3]", {"active_nodes": "node[1-2,5]"}, "node3 left, node5 came"),
        ("node[1-3]", {"active_nodes": "node[1-3]", "standby_nodes": "node[7-8]"}, "the same 3 nodes, 2 in reserve"),
        ("n[01-40]", {"active_nodes": "n[06-40]"}, "n01, n02, n03 and 2 more left"),
        ("one", {"active_nodes": "one"}, "the same node"),
    ],
)
def test_who_takes_part_from_here_on(before: str, fields: dict[str, str], words: str) -> None:
    """Which nodes left and came is told with the failure, also when their file was read long after training went on."""
    story = Story()
    story.event(None, "launcher_cycle", 0.5, cycle=0, active_nodes=before)
    end = story.running()
    phase(story, "failure_detected", end + 1)
    phase(story, "rendezvous_completed", end + 2)
    goes_on(story, end + 3)
    story.event(None, "launcher_cycle", end + 20, cycle=1, **fields)
    assert texts(story, "nodes") == [("nodes", end + 2, f"cycle 1: {words}")]
    story.event(0, "checkpoint", end + 21, stage="committed", step=12)
    (record,) = records.due(story.pod)
    assert [one["text"] for one in record["evidence"] if one["kind"] == "nodes"] == [f"cycle 1: {words}"]


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("node[001-003,7],other", {"node001", "node002", "node003", "node7", "other"}),
        ("a[1],b[2]", {"a1", "b2"}),
        ("localhost", {"localhost"}),
        ("", set()),
        ("a[3-1]", set()),
    ],
)
def test_node_lists(nodelist: str, names: set[str]) -> None:
    """As Slurm writes them, with the zeros that belong to the names."""
    assert expand(nodelist) == names


@given(st.text(alphabet="a[]-,019", max_size=60))
def test_a_node_list_that_makes_no_sense_is_bounded(nodelist: str) -> None:
    """It comes from a file of somebody else's: neither an error nor a billion names."""
    assert len(expand(nodelist)) <= MOST_NODES
