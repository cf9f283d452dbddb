"""From what the pods of a run claim to one verdict on where a failure began: a pure function, with answers made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_exporter.labels import CAUSES
from headway_exporter.origins import Claim, EvidenceClass, SilentPod, Standing, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.origins import OriginVerdict


def claim(pod: int, evidence: EvidenceClass = "echo", wall: float = 100.0, **more: Any) -> Claim:
    """Of a pod with the ranks 2 * pod and 2 * pod + 1; an echo unless told otherwise."""
    standings = (Standing(2 * pod, 2 * pod, 10), Standing(2 * pod + 1, 2 * pod + 1, 10))
    if evidence == "echo":
        standings = (replace(standings[0], echoes=True), replace(standings[1], echoes=True))
    said = {"cause": "peer_failure"} if evidence == "echo" else {}
    fields = {
        "wall": wall,
        "node": f"n{pod}",
        "standings": standings,
        "pods_expected": 3,
        "uncertainty_seconds": 0.02,
    }
    return Claim("id", str(pod), evidence, **(fields | said | more))


def standing(one: Claim, rank: int, **more: Any) -> Claim:
    """The claim with one rank standing otherwise."""
    return replace(one, standings=tuple(replace(item, **more) if item.rank == rank else item for item in one.standings))


def killed(pod: int, rank: int, wall: float = 100.0, **more: Any) -> Claim:
    said = {"cause": "process_killed", "confidence": "confirmed", "origin_rank": rank, "alternatives": ("host_oom",)}
    return claim(pod, "direct", wall, **(said | more))


def hung(pod: int, rank: int | None = None, wall: float = 110.0) -> Claim:
    return claim(pod, "direct", wall, cause="heartbeat_timeout", confidence="confirmed", origin_rank=rank)


def recorded(one: Claim, *records: tuple[int, str]) -> Claim:
    return replace(one, records=records)


RAISED_ON_5 = standing(
    killed(2, 5, cause="numeric_nan", signature="ValueError: nan"), 5, raised="numeric_nan", signature="ValueError: nan"
)


@dataclass(frozen=True)
class Case:
    """Claims, and the verdict that a person would give: cause, rank, pod, confidence, ambiguous, who counts it."""

    claims: Sequence[Claim]
    verdict: tuple[str, int | None, str | None, str, bool, str]
    silent: Sequence[SilentPod] = ()
    dead: set[str] = field(default_factory=set)
    """Pods that made a claim and do not live any more."""


GONE = SilentPod("2", 95.0, "n2", (4, 5))

CASES = {
    "one pod's rank died, the others echo": Case(
        [claim(0, wall=50), claim(1, wall=60), killed(2, 5)], ("process_killed", 5, "2", "confirmed", False, "2")
    ),
    "echoes everywhere, one rank did not echo": Case(
        [claim(0), standing(claim(1), 3, echoes=False), claim(2)],
        ("collective_timeout", 3, "1", "likely", False, "1"),
    ),
    "echoes everywhere": Case(
        [claim(0), claim(1), claim(2)], ("collective_timeout", None, None, "unknown", False, "0")
    ),
    "echoes, and a pod that lives but knows nothing": Case(
        [claim(1), claim(2)], ("peer_failure", None, None, "unknown", False, "1")
    ),
    "nobody knows anything": Case([claim(1, "none")], ("unknown", None, None, "unknown", False, "1")),
    "a pod is gone": Case([claim(0), claim(1)], ("node_lost", None, "2", "likely", False, "0"), [GONE]),
    "a pod is gone, and the lowest claimant too": Case(
        [claim(0), claim(1)], ("node_lost", None, "2", "likely", False, "1"), [GONE], {"0"}
    ),
    "a pod was gone before the failed incarnation began": Case(
        [claim(0, began_wall=90.0), claim(1, began_wall=90.0)],
        ("peer_failure", None, None, "unknown", False, "0"),
        [SilentPod("2", 10.0)],
    ),
    "two pods are gone": Case([claim(0)], ("node_lost", None, "1", "likely", True, "0"), [GONE, SilentPod("1", 94.0)]),
    "a pod came back and tells that it was gone": Case(
        [claim(0), claim(1), claim(2, "silence", cause="node_lost", confidence="likely")],
        ("node_lost", None, "2", "likely", False, "2"),
    ),
    "a death of a pod's own beats a pod that is gone": Case(
        [claim(0), killed(1, 2)], ("process_killed", 2, "1", "confirmed", False, "1"), [GONE]
    ),
    "the earlier of two deaths": Case(
        [killed(0, 0, 100.1), killed(1, 2, 100.0), claim(2)], ("process_killed", 2, "1", "confirmed", False, "1")
    ),
    "two deaths that the clocks cannot tell apart": Case(
        [killed(0, 0, 100.03), killed(1, 2, 100.0), claim(2)], ("process_killed", 2, "1", "confirmed", True, "1")
    ),
    "a rank that was found gone, and a death that was seen later": Case(
        [killed(0, 0, 90.0, dated=False), killed(1, 2, 100.0), claim(2)],
        ("process_killed", 2, "1", "confirmed", True, "1"),
    ),
    "a rank that was still well when another died, and was found gone later": Case(
        [killed(0, 0, 110.0, dated=False), killed(1, 2, 100.0), claim(2)],
        ("process_killed", 2, "1", "confirmed", False, "1"),
    ),
    "two ranks that were found gone": Case(
        [killed(0, 0, 90.0, dated=False), killed(1, 2, 100.0, dated=False), claim(2)],
        ("process_killed", 0, "0", "confirmed", False, "0"),
    ),
    "two causes that the clocks cannot tell apart": Case(
        [killed(0, 0, 100.03, cause="cuda_oom"), killed(1, 2, 100.0)], ("process_killed", 2, "1", "unknown", True, "1")
    ),
    "clocks that differ by a minute": Case(
        [
            killed(0, 0, 70.0, offset_seconds=-30.0),
            killed(1, 2, 129.9, offset_seconds=30.0),
        ],
        ("process_killed", 2, "1", "confirmed", False, "1"),
    ),
    "nobody knows how wrong a clock is": Case(
        [killed(0, 0, 100.0), killed(1, 2, 90.0, uncertainty_seconds=3600.0)],
        ("process_killed", 2, "1", "confirmed", True, "1"),
    ),
    "the origin's pod made its claim and died": Case(
        [claim(0), killed(1, 2)], ("process_killed", 2, "1", "confirmed", False, "0"), (), {"1"}
    ),
    "an exception on another pod, by its record and its own word": Case(
        [
            recorded(claim(0), (5, "EXCEPTION")),
            recorded(RAISED_ON_5, (5, "EXCEPTION")),
        ],
        ("numeric_nan", 5, "2", "confirmed", False, "2"),
    ),
    "the first record is an echo on another pod": Case(
        [
            recorded(claim(0), (0, "EXCEPTION"), (5, "EXCEPTION")),
            recorded(RAISED_ON_5, (0, "EXCEPTION"), (5, "EXCEPTION")),
        ],
        ("numeric_nan", 5, "2", "confirmed", False, "2"),
    ),
    "a record beats a death that came earlier": Case(
        [killed(0, 0, 1.0), recorded(RAISED_ON_5, (5, "EXCEPTION"))],
        ("numeric_nan", 5, "2", "confirmed", False, "2"),
    ),
    "a rank that is gone, by its record and its pod's word": Case(
        [recorded(claim(0), (0, "EXCEPTION"), (3, "TERMINATED")), killed(1, 3)],
        ("process_killed", 3, "1", "confirmed", False, "1"),
    ),
    "a record of a rank whose pod is gone": Case(
        [recorded(claim(0), (5, "UNRESPONSIVE")), claim(1)], ("node_lost", 5, "2", "likely", False, "0"), [GONE]
    ),
    "a record of a rank that nobody claims": Case(
        [recorded(claim(1, "recorded"), (99, "EXCEPTION"))], ("app_exception", 99, None, "likely", False, "1")
    ),
    "soft time-outs name victims; the culprit is a step behind": Case(
        [
            recorded(claim(0, "recorded", cause="hang_soft", confidence="likely"), (0, "SOFT_TIMEOUT")),
            standing(
                recorded(claim(1, "recorded", cause="hang_soft", confidence="likely"), (0, "SOFT_TIMEOUT")), 3, step=9
            ),
        ],
        ("hang_soft", 3, "1", "likely", False, "1"),
    ),
    "monitors killed on all pods; the culprit is a step behind on the last one": Case(
        [hung(0, 0, 110.0), hung(1, 2, 111.0), standing(hung(2, None, 115.0), 4, step=9)],
        ("heartbeat_timeout", 4, "2", "confirmed", False, "2"),
    ),
    "monitors killed on all pods, and nobody was behind": Case(
        [hung(0), hung(1), hung(2)], ("heartbeat_timeout", None, None, "unknown", True, "0")
    ),
    "monitors killed because a pod is gone": Case(
        [hung(0, 0), hung(1, 2)], ("node_lost", None, "2", "likely", False, "0"), [GONE]
    ),
    "a death long before the others' monitors gave up": Case(
        [hung(0, 0, 110.0), killed(1, 2, 100.0)], ("process_killed", 2, "1", "confirmed", False, "1")
    ),
    "a launcher's clean-up, and nothing else anywhere": Case(
        [claim(0), claim(1, "echo", cause="process_killed", confidence="confirmed", origin_rank=3)],
        ("process_killed", 3, "1", "confirmed", False, "1"),
    ),
    "the operator ended all pods": Case(
        [claim(pod, "direct", 100.0 + pod / 100, cause="preempted", confidence="confirmed") for pod in range(3)],
        ("preempted", None, "0", "confirmed", True, "0"),
    ),
    "pods are counted as numbers": Case([claim(10), claim(9)], ("peer_failure", None, None, "unknown", False, "9")),
}


def answer(case: Case) -> OriginVerdict:
    live = {one.pod_index for one in case.claims} - case.dead
    return resolve(case.claims, live, case.silent)


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    """Precedence of evidence, then time beyond the clocks' error; who counts it lives and knows of it."""
    case = CASES[name]
    found = answer(case)
    told = (found.cause, found.rank, found.pod_index, found.confidence, found.ambiguous, found.claimed_by)
    assert told == case.verdict


def test_the_verdict_places_the_origin() -> None:
    """What to drain, and what tells this failure from another, comes with it."""
    gpu = standing(RAISED_ON_5, 5, gpu_uuid="GPU-5")
    found = resolve([recorded(claim(0), (5, "EXCEPTION")), recorded(gpu, (5, "EXCEPTION"))], {"0", "2"})
    assert (found.node, found.gpu_uuid, found.signature) == ("n2", "GPU-5", "ValueError: nan")
    assert resolve([claim(0)], {"0"}, [GONE]).node == "n2"


def test_other_causes_are_alternatives() -> None:
    """A verdict does not hide what other pods saw."""
    found = resolve([killed(0, 0, 200.0, cause="cuda_oom"), killed(1, 2, 100.0)], {"0", "1"})
    assert found.alternatives == ("host_oom", "cuda_oom")


QUARTERS = st.integers(-400, 400).map(lambda count: count / 4)
STANDINGS = st.builds(
    Standing,
    rank=st.integers(0, 5),
    initial_rank=st.none() | st.integers(0, 5),
    step=st.none() | st.integers(8, 10),
    sampled_age_seconds=st.none() | QUARTERS,
    in_collective=st.none() | st.booleans(),
    phase=st.none() | st.just("eval"),
    echoes=st.booleans(),
    raised=st.none() | st.just("cuda_oom"),
)
RECORDS = st.tuples(st.integers(0, 6), st.sampled_from(["EXCEPTION", "SOFT_TIMEOUT", "HARD_TIMEOUT", "TERMINATED"]))
CLAIMS = st.lists(
    st.builds(
        Claim,
        incident=st.just("id"),
        pod_index=st.sampled_from(["0", "1", "2", "10", "host"]),
        evidence=st.sampled_from(get_args(EvidenceClass)),
        cause=st.sampled_from(["app_exception", "process_killed", "heartbeat_timeout", "peer_failure", "unknown"]),
        confidence=st.sampled_from(["confirmed", "likely", "unknown"]),
        origin_rank=st.none() | st.integers(0, 5),
        wall=QUARTERS,
        began_wall=QUARTERS,
        standings=st.lists(STANDINGS, max_size=2).map(tuple),
        records=st.lists(RECORDS, max_size=3).map(tuple),
        pods_expected=st.none() | st.integers(1, 3),
        offset_seconds=QUARTERS,
        uncertainty_seconds=st.sampled_from([0.0, 0.25, 30.0]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.pod_index,
)
SILENT = st.lists(
    st.builds(SilentPod, st.sampled_from(["0", "3", "4"]), QUARTERS), max_size=2, unique_by=lambda one: one.pod_index
)
LIVE = st.sets(st.sampled_from(["0", "1", "2", "10", "host"]))


@settings(max_examples=50, deadline=None)
@given(CLAIMS, LIVE, SILENT, st.randoms())
def test_the_order_of_the_claims_does_not_matter(
    claims: list[Claim], live: set[str], silent: list[SilentPod], random: Any
) -> None:
    """Folders list their files in any order."""
    shuffled, other = claims.copy(), silent.copy()
    random.shuffle(shuffled)
    random.shuffle(other)
    assert resolve(claims, live, silent) == resolve(shuffled, live, other)


@settings(max_examples=50, deadline=None)
@given(CLAIMS, LIVE, SILENT, st.data())
def test_a_clock_that_is_known_to_be_wrong_changes_nothing(
    claims: list[Claim], live: set[str], silent: list[SilentPod], data: st.DataObject
) -> None:
    """A pod's clock may be off by minutes: what was measured of it is taken off."""
    skews = [data.draw(QUARTERS) for _ in claims]
    skewed = [
        replace(
            one,
            wall=one.wall + skew,
            began_wall=one.began_wall + skew,
            offset_seconds=one.offset_seconds + skew,
        )
        for one, skew in zip(claims, skews, strict=True)
    ]
    assert resolve(claims, live, silent) == resolve(skewed, live, silent)


@settings(max_examples=50, deadline=None)
@given(CLAIMS, LIVE, SILENT)
def test_exactly_one_pod_counts_it(claims: list[Claim], live: set[str], silent: list[SilentPod]) -> None:
    """One that knows of the failure, and lives if any of those does; the cause is one of the closed list."""
    found = resolve(claims, live, silent)
    pods = {one.pod_index for one in claims}
    assert found.claimed_by in (pods & live or pods)
    assert found.cause in CAUSES
