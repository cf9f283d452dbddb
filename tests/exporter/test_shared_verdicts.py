"""Failures of a run with several pods in the fold of one: nothing is counted before the pods agree, and everything once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pod_story import WALL, Story
from test_incident_properties import SEQUENCES, TALE, counters, tell

from headway_exporter import records
from headway_exporter.incident_ids import incident_id
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import VerdictSeen
from headway_exporter.origins import Claim, OriginVerdict, resolve
from headway_exporter.pod import Pod
from headway_exporter.status import status
from headway_exporter.undecided import MOST_WAITING


class Telling(Story):
    """One pod of three, each with two ranks, that shares its verdicts."""

    def __init__(self, pod_index: int, *, pods: int = 3, shared: bool = True) -> None:
        super().__init__(str(pod_index))
        self.pod = Pod("story", str(pod_index), shared_verdicts=shared)
        self.pod.set_clock(0.0, WALL)
        self.base = 2 * pod_index
        self.pods = pods
        self.begin(1.0)
        self.train(10.0, "first", 0)
        self.now = self.steps(10.0, 0, 1, first=1, last=10)

    def begin(self, at: float, **fields: Any) -> None:
        world = {"world_size": 2 * self.pods, "pods_expected": self.pods, "node": f"n{self.pod.pod_index}"}
        for slot in (0, 1):
            self.start(at, slot, **(world | {"rank": self.base + slot} | fields))

    def train(self, at: float, incarnation: str, load: int) -> None:
        for slot in (0, 1):
            self.enter(at, slot, incarnation=incarnation, load=load, rank=self.base + slot, world_size=2 * self.pods)

    def recover(self, incarnation: str = "second") -> None:
        """Training goes on, and proves it."""
        self.begin(self.now + 5, cycle=1)
        self.train(self.now + 10, incarnation, 8)
        self.now = self.steps(self.now + 11, 0, 1, first=9, last=12)
        self.event(0, "checkpoint", self.now, stage="committed", step=12)

    def counted(self) -> tuple[dict[tuple[str, str], int], dict[int, int], dict[tuple[str, str], int]]:
        failures = self.pod.failures
        return dict(failures.causes), dict(failures.rank_failures), dict(failures.incident_causes)

    def take(self, verdict: OriginVerdict | None, claim: Claim) -> None:
        self.pod.fold([VerdictSeen(claim.incident, verdict, self.now)])


def three(*, kill: int = 1, shared: bool = True) -> list[Telling]:
    """Three pods, one rank of pod `kill` dies, the others see their collectives break; all recover."""
    pods = [Telling(number, shared=shared) for number in range(3)]
    for number, one in enumerate(pods):
        if number == kill:
            one.die(1, one.now)
        else:
            one.echo(0, one.now + 0.1)
            one.echo(1, one.now + 0.1)
    return pods


NOTHING: tuple[dict[Any, Any], ...] = ({}, {}, {})
KILLED = ({("launcher", "process_killed"): 1}, {3: 1}, {("launcher", "process_killed"): 1})


def settle(pods: list[Telling]) -> OriginVerdict:
    claims = [claim for one in pods for claim in one.pod.claims()]
    verdict = resolve(claims, {claim.pod_index for claim in claims})
    for one in pods:
        for claim in one.pod.claims():
            one.take(verdict, claim)
    return verdict


def test_pods_claim_the_same_failure_under_one_name() -> None:
    """They cannot ask each other: the incarnation that failed is what all know."""
    claims = [claim for one in three() for claim in one.pod.claims()]
    assert {claim.incident for claim in claims} == {incident_id("story", "first", "any", 0.0)}
    assert [claim.evidence for claim in claims] == ["echo", "direct", "echo"]
    assert (claims[1].origin_rank, claims[1].cause, claims[1].node) == (3, "process_killed", "n1")


@pytest.mark.parametrize("late", [False, True])
def test_only_the_origins_pod_counts(late: bool) -> None:
    """Once, whether the verdict comes while the pods recover or long after; what a pod sees alone counts nothing before."""
    pods = three()
    if not late:
        settle(pods)
    for one in pods:
        one.recover()
    if late:
        assert [one.counted() for one in pods] == [NOTHING] * 3
        settle(pods)
    assert [one.counted() for one in pods] == [NOTHING, KILLED, NOTHING]
    for one in pods:
        [told] = status(one.pod, {})["incidents"]
        assert (told["cause"], told["origin_rank"], told["origin_pod_index"]) == ("process_killed", 3, "1")
        assert (told["decided_by"], told["origin_node"], told["ambiguous"]) == ("verdict", "n1", False)
        assert one.pod.claims() == []


def test_a_verdict_that_is_seen_again_counts_nothing() -> None:
    """A restarted reader may bring it twice."""
    pods = three()
    for one in pods:
        one.recover()
    claims = [one.pod.claims()[0] for one in pods]
    verdict = settle(pods)
    for one, claim in zip(pods, claims, strict=True):
        one.take(verdict, claim)
        one.take(None, claim)
    assert [one.counted() for one in pods] == [NOTHING, KILLED, NOTHING]


def test_an_orphan_is_counted_by_whom_the_verdict_names() -> None:
    """A pod that is gone cannot count; a rank that is not local has no series here."""
    pods = three()
    for one in pods:
        one.recover()
    orphan = OriginVerdict("node_lost", "likely", "silence", rank=9, pod_index="4", node="n4", claimed_by="2")
    for one in pods:
        one.take(orphan, one.pod.claims()[0])
    lost = ({("launcher", "node_lost"): 1}, {}, {("launcher", "node_lost"): 1})
    assert [one.counted() for one in pods] == [NOTHING, NOTHING, lost]


def test_without_a_verdict_each_decides_alone() -> None:
    """When the shared folder cannot be used, counts come late and are those of a pod by itself; the record says so."""
    pods = three()
    for one in pods:
        one.recover()
        one.take(None, one.pod.claims()[0])
    assert pods[1].counted() == KILLED
    assert pods[2].counted() == NOTHING
    assert pods[0].counted()[0] == {
        ("launcher", "peer_failure"): 1
    }  # what nobody can place is counted on the first pod
    assert status(pods[1].pod, {})["incidents"][0]["decided_by"] == "timeout"


@pytest.mark.parametrize(("pods", "shared"), [(3, False), (1, True)])
def test_nothing_waits_where_nobody_can_be_asked(pods: int, shared: bool) -> None:
    """A run of one pod, or one without a folder that pods share, counts at once as it always did."""
    one = Telling(1, pods=pods, shared=shared)
    one.die(1, one.now)
    assert one.pod.claims() == []
    one.recover()
    assert one.counted() == KILLED
    assert status(one.pod, {})["incidents"][0]["decided_by"] == "alone"


def test_a_failure_before_the_first_incarnation_is_decided_alone() -> None:
    """Only its pod can name it."""
    one = Telling(1)
    fresh = Pod("story", "1", shared_verdicts=True)
    one.pod = fresh
    one.begin(100.0)
    one.die(1, 101.0)
    assert fresh.claims() == []
    assert fresh.failures.open is not None


def test_a_failure_before_the_next_incarnation_has_a_name_of_its_own() -> None:
    """A crash loop that never enters training again is several failures, each with its verdict."""
    one = Telling(1)
    names = []
    for cycle in range(1, 4):
        one.die(1, one.now)
        names.append(one.pod.claims()[-1].incident)
        one.begin(one.now + 1, cycle=cycle)
        one.now += 2
    assert len(set(names)) == 3
    other = Telling(2)
    for cycle in range(1, 4):
        other.die(0, other.now)
        other.begin(other.now + 1, cycle=cycle)
        other.now += 2
    assert [claim.incident for claim in other.pod.claims()] == names


def again(one: Telling) -> None:
    """The sidecar is started anew, with the memory of the one before."""
    saved = json.loads(json.dumps(encoder().encode(one.pod)))
    one.pod = Pod("story", one.pod.pod_index, shared_verdicts=True)
    recall(one.pod, saved)


@pytest.mark.parametrize("moment", ["failed", "recovered", "decided", "decided early"])
def test_a_restart_of_the_sidecar_counts_nothing_twice_and_loses_nothing(moment: str) -> None:
    """What waits for a verdict is part of the memory, whenever it is saved."""
    pods = three()
    if moment == "decided early":
        settle(pods)
    if moment in ("failed", "decided early"):
        for one in pods:
            again(one)
    for one in pods:
        one.recover()
    if moment == "recovered":
        for one in pods:
            again(one)
    if moment != "decided early":
        settle(pods)
    if moment == "decided":
        for one in pods:
            again(one)
    assert [one.counted() for one in pods] == [NOTHING, KILLED, NOTHING]
    assert all(status(one.pod, {})["incidents"][-1]["decided_by"] == "verdict" for one in pods)


def test_a_pod_that_comes_back_tells_that_it_was_gone() -> None:
    """A rescheduled pod with its memory claims the failure that the others know, with its own absence as the evidence."""
    pods = [Telling(number) for number in range(3)]
    for one in pods[:2]:
        one.echo(0, one.now + 0.1)
    lost = pods[2]
    again(lost)
    lost.pod.came_back()
    lost.begin(lost.now + 60, attempt=1)
    claims = [claim for one in pods for claim in one.pod.claims()]
    assert len({claim.incident for claim in claims}) == 1
    assert [claim.evidence for claim in claims] == ["echo", "echo", "silence"]
    verdict = resolve(claims, {"0", "1", "2"})
    assert (verdict.cause, verdict.pod_index, verdict.claimed_by) == ("node_lost", "2", "2")


def lost_and_others() -> tuple[Telling, list[Telling]]:
    """Pod 2 vanished and its sidecar is back, its ranks are not; the others saw their collectives break."""
    pods = [Telling(number) for number in range(3)]
    for one in pods[:2]:
        one.echo(0, one.now + 0.1)
    again(pods[2])
    pods[2].pod.came_back()
    return pods[2], pods[:2]


def test_a_pod_that_is_back_before_its_ranks_answers_for_them() -> None:
    """Else it looks alive and well when the others settle where it began, and a lost pod becomes a failure of nobody."""
    lost, others = lost_and_others()
    said = lost.pod.absence()
    assert said is not None
    claims = [claim for one in others for claim in one.pod.claims()]
    assert {said.incident} == {claim.incident for claim in claims}
    assert (said.evidence, said.node, said.wall) == ("silence", "n2", WALL + lost.now)
    assert lost.pod.claims() == []  # by itself it is no failure: the run may have been over
    verdict = resolve([*claims, said], {"0", "1", "2"})
    assert (verdict.cause, verdict.pod_index, verdict.claimed_by, verdict.pod_ended) == ("node_lost", "2", "2", True)
    lost.begin(lost.now + 60)
    assert lost.pod.absence() is None
    [claim] = lost.pod.claims()
    assert (claim.incident, claim.evidence, claim.pod_ended) == (said.incident, "silence", True)


def test_a_pod_that_was_down_already_answers_nothing() -> None:
    """Of a failure that it knows it has a claim, and a rank that ended in order was not lost with its pod."""
    failed = Telling(2)
    failed.die(0, failed.now)
    failed.pod.came_back()
    assert failed.pod.absence() is None
    assert len(failed.pod.claims()) == 1
    over = Telling(2)
    for slot in (0, 1):
        over.event(slot, "train_finished", over.now, step=10)
        over.event(slot, "process_exited", over.now)
        over.die(slot, over.now)
    over.pod.came_back()
    assert over.pod.absence() is None


@pytest.mark.parametrize(("ranks", "layer"), [(6, "orchestrator"), (4, "launcher")])
def test_a_pod_that_the_orchestrator_brought_back_counts_once_for_all(ranks: int, layer: str) -> None:
    """The others' launchers only join it again; where they go on without it nobody brought anything back."""
    lost, others = lost_and_others()
    said = lost.pod.absence()
    assert said is not None
    claims = [claim for one in others for claim in one.pod.claims()]
    verdict = resolve([*claims, said], {"0", "1", "2"})
    for one, claim in zip(others, claims, strict=True):
        one.take(verdict, claim)
        assert one.pod.failures.incidents[-1].expected_layer == "orchestrator"
        one.pods = ranks // 2
        one.recover()
    assert [dict(one.pod.failures.restarts) for one in others] == [{layer: 1}] * 2


@pytest.mark.parametrize("ended_by", ["watchdog", "launcher"])
def test_a_rank_that_was_cleared_away_is_no_origin(ended_by: str) -> None:
    """NCCL's watchdog aborts a rank whose peer is gone, and a launcher ends its workers because another pod's failed: both are echoes."""
    pods = three()
    cleared = Telling(0)
    if ended_by == "watchdog":
        cleared.die(1, cleared.now - 0.5)
        cleared.event(None, "worker_exited", cleared.now, local_rank=1, exit_code=-6)
    else:
        cleared.event(1, "signal", cleared.now - 1, signal=15)
        cleared.die(1, cleared.now - 0.5)
        cleared.event(None, "worker_exited", cleared.now, local_rank=1, exit_code=-15)
    verdict = settle([cleared, *pods[1:]])
    assert (verdict.rank, verdict.pod_index, verdict.ambiguous) == (3, "1", False)


def test_a_late_verdict_revises_the_record() -> None:
    """The record is written at the incident's closure and again when the pods agree; all pods' records have one id and one origin."""
    pods = three()
    found = []
    for one in pods:
        one.recover()
        [first] = records.due(one.pod)
        assert (first["decided_by"], first["decided_revision"]) == ("alone", None)
        records.written(one.pod, first)
    settle(pods)
    for one in pods:
        again(one)
        [revised] = records.due(one.pod)
        assert revised["decided_revision"] == 1
        found.append(revised)
        assert (revised["decided_by"], revised["revision"], revised["ambiguous"]) == ("verdict", 1, False)
        assert revised["origin"] == {"rank": 3, "pod_index": "1", "node": "n1", "gpu_uuid": None}
        records.written(one.pod, revised)
        assert records.due(one.pod) == []
        again(one)
        old = one.pid(1) - 1
        one.event(None, "worker_exited", one.now, local_rank=1, pid=old, exit_code=-9)
        [later] = records.due(one.pod)
        assert (later["revision"], later["decided_revision"]) == (2, 1)
    assert {one["id"] for one in found} == {incident_id("story", "first", "any", 0.0)}


def test_a_known_bad_node_is_named_by_every_pod() -> None:
    """A verdict says on which node an incident began, also to the pods that only heard of it."""
    one = Telling(0)
    for number in range(2):
        one.echo(0, one.now + 0.1)
        verdict = OriginVerdict("node_lost", "likely", "silence", pod_index="2", node="n2", claimed_by="0")
        one.take(verdict, one.pod.claims()[0])
        one.recover(f"incarnation {number}")
        one.now += 10
    assert {(item.kind, item.name) for item in one.pod.failures.repeat_offenders(one.now)} == {("node", "n2")}


def test_an_ambiguous_origin_blames_nobody() -> None:
    """A best guess is no reason to drain a node."""
    one = Telling(0)
    for number in range(2):
        one.echo(0, one.now + 0.1)
        verdict = OriginVerdict("process_killed", "confirmed", "direct", (), "", 3, "1", "n1", "GPU", True, "0")
        one.take(verdict, one.pod.claims()[0])
        one.recover(f"incarnation {number}")
        one.now += 10
    assert one.pod.failures.repeat_offenders(one.now) == {}


def test_the_origins_exception_tells_failures_apart_on_every_pod() -> None:
    """Echoes of two different exceptions look alike; the verdict carries what tells them apart."""
    one = Telling(0)
    found = []
    for signature in ("ValueError: a", "ValueError: b"):
        one.echo(0, one.now + 0.1)
        verdict = OriginVerdict("app_exception", "confirmed", "direct", (), signature, 3, "1", claimed_by="1")
        one.take(verdict, one.pod.claims()[0])
        found.append(one.pod.failures.recoveries[-1].diagnosis.fingerprint)
        one.recover(signature)
        one.now += 10
    assert found == [("app_exception", "ValueError: a", 3), ("app_exception", "ValueError: b", 3)]


def test_what_waits_is_bounded_and_never_lost() -> None:
    """A folder that hangs for a day must not grow the sidecar; the oldest failures are decided alone."""
    one = Telling(1)
    failures = MOST_WAITING + 40
    for number in range(failures):
        one.die(1, one.now)
        one.begin(one.now + 1, cycle=number + 1)
        one.train(one.now + 2, f"incarnation {number}", 8)
        one.now = one.steps(one.now + 3, 0, 1, first=9, last=9)
    assert len(one.pod.claims()) == MOST_WAITING
    assert sum(one.counted()[0].values()) == 40
    for claim in one.pod.claims():
        one.take(None, claim)
    assert sum(one.counted()[0].values()) == failures


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, st.data())
def test_counts_are_the_same_however_late_the_verdicts_come(sequence: TALE, data: st.DataObject) -> None:
    """When each verdict is what the pod itself would have said, the sums are those of a pod that never asked."""
    alone, asking, mono = Pod("run", "0"), Pod("run", "0", shared_verdicts=True), 100.0
    for seen, pause in sequence:
        mono += pause
        tell(alone, seen, mono)
        tell(asking, seen, mono)
        if data.draw(st.integers(0, 9)) == 0:
            saved = json.loads(json.dumps(encoder().encode(asking)))
            asking = Pod("run", "0", shared_verdicts=True)
            recall(asking, saved)
        waiting = [claim.incident for claim in asking.claims()]
        for name in waiting if data.draw(st.booleans()) else ():
            asking.fold([VerdictSeen(name, None, mono)])
        assert asking.failures.causes <= alone.failures.causes
    for claim in asking.claims():
        asking.fold([VerdictSeen(claim.incident, None, mono)])
    assert counters(asking) == counters(alone)
    assert asking.dropped["malformed"] == 0
