"""Confidence, alternatives, echoes and fingerprints of a diagnosis; what the causes themselves are is in test_recoveries."""

from __future__ import annotations

from typing import Any

import pytest
from pod_story import Story

from headway_exporter.causes import Diagnosis, diagnose
from headway_exporter.scene import Evidence, EvidenceKind, Marker, Scene, laggard


def sign(kind: EvidenceKind, at: float = 0.0, slot: int | None = None, **more: Any) -> Evidence:
    return Evidence(kind, at, at, f"{kind} of {slot}", slot, **more)


def standing(slot: int, step: int | None = 10, *, base: int = 0, **more: Any) -> Marker:
    return Marker(
        slot, base + slot, base + slot, step, **({"step_end": 0.0, "sampled": None, "in_collective": None} | more)
    )


def records(*pairs: tuple[int, str], at: float = 1.0) -> Evidence:
    return sign("interruption", at, 0, records=pairs)


BOTH = (standing(0), standing(1))
RAISED = sign("exception", 0.1, 1, category="numeric_nan")
KILLED = sign("death", 0.1, 1)
FOUND = sign("death", 0.05, 0, dated=False)
"""Gone when somebody looked: it may have died later than that."""
ECHO = sign("echo", 0.2, 0)

CASES: dict[str, tuple[list[Evidence], dict[str, Any], tuple[str, int | None, str, tuple[str, ...]]]] = {
    "own exception": ([RAISED, ECHO], {}, ("numeric_nan", 1, "confirmed", ())),
    "a death that nobody explained": (
        [KILLED, ECHO],
        {},
        ("process_killed", 1, "likely", ("process_exited", "host_oom")),
    ),
    "a death with its signal": (
        [KILLED, sign("exit", 2, 1, exit_code=-9)],
        {},
        ("process_killed", 1, "confirmed", ("host_oom",)),
    ),
    "two were found gone, and the launcher names the second one": (
        [FOUND, sign("death", 0.1, 1, dated=False), sign("exit", 2, 1, exit_code=-9)],
        {},
        ("process_killed", 1, "confirmed", ("host_oom",)),
    ),
    "one was found gone, and another one's end was seen": (
        [FOUND, KILLED],
        {},
        ("process_killed", 0, "likely", ("process_exited", "host_oom")),
    ),
    "one was found gone, and another one told why it failed": (
        [FOUND, RAISED],
        {},
        ("numeric_nan", 1, "confirmed", ()),
    ),
    "two were found gone, and the launcher only tells of its own end": (
        [FOUND, sign("death", 0.1, 1, dated=False), sign("launcher_exit", 3, exit_code=1)],
        {},
        ("process_killed", 0, "likely", ("process_exited", "host_oom")),
    ),
    "out of memory by the container's word": (
        [KILLED, sign("exit", 2, 1, exit_code=-9)],
        {"oom_rose": 1.0},
        ("host_oom", 1, "confirmed", ("process_killed",)),
    ),
    "out of memory by the container's word, and nobody told the code": (
        [KILLED],
        {"oom_rose": 1.0},
        ("host_oom", 1, "confirmed", ("process_killed",)),
    ),
    "out of memory, in a shell": (
        [KILLED, sign("exit", 2, 1, exit_code=137)],
        {"oom_rose": 1.0},
        ("host_oom", 1, "confirmed", ("process_killed",)),
    ),
    "a rise beside an end of its own": (
        [KILLED, sign("exit", 2, 1, exit_code=1)],
        {"oom_rose": 1.0},
        ("process_exited", 1, "confirmed", ()),
    ),
    "a rise before the failure": (
        [KILLED],
        {"oom_rose": 0.05},
        ("process_killed", 1, "likely", ("process_exited", "host_oom")),
    ),
    "only echoes, one rank was waited for": ([ECHO], {}, ("collective_timeout", 1, "likely", ())),
    "only echoes": ([ECHO, sign("echo", 0.3, 1)], {}, ("collective_timeout", None, "unknown", ())),
    "only echoes, ranks elsewhere": ([ECHO], {"world_size": 16}, ("peer_failure", None, "unknown", ())),
    "nothing": ([sign("group_failed")], {}, ("unknown", None, "unknown", ())),
    "a peer's exception record and a rank that was terminated": (
        [ECHO, records((0, "EXCEPTION"), (1, "TERMINATED"))],
        {},
        ("process_killed", 1, "likely", ()),
    ),
    "a far peer's exception record and a rank that was terminated": (
        [KILLED, records((7, "EXCEPTION"), (1, "TERMINATED"))],
        {},
        ("process_killed", 1, "likely", ("process_exited", "host_oom")),
    ),
    "a far peer's exception record and a hard time-out": (
        [records((7, "EXCEPTION"), (0, "SOFT_TIMEOUT"), (1, "HARD_TIMEOUT"), (1, "TERMINATED"))],
        {},
        ("hang_hard", 1, "confirmed", ()),
    ),
    "a rank's own exception stands beside a rank that was terminated": (
        [RAISED, records((1, "EXCEPTION"), (0, "TERMINATED"))],
        {},
        ("numeric_nan", 1, "confirmed", ()),
    ),
    "an exception elsewhere": ([records((7, "EXCEPTION"))], {}, ("app_exception", 7, "likely", ())),
    "a line about a heartbeat": (
        [sign("heartbeat", 10, 1), sign("death", 10.1, 1)],
        {},
        ("heartbeat_timeout", 1, "confirmed", ("process_killed",)),
    ),
    "a lost pod": ([KILLED], {"layer": "orchestrator"}, ("node_lost", None, "likely", ("process_killed",))),
    "no line, but silence as long as the heartbeat time-out": (
        [sign("death", 50, 1, silent_seconds=46.0)],
        {"heartbeat_timeout": 45.0, "markers": (standing(0, 11), standing(1, 10))},
        ("heartbeat_timeout", 1, "likely", ("process_killed",)),
    ),
    "silence, and the monitor of a victim struck first": (
        [sign("death", 50, 0, silent_seconds=46.0)],
        {"heartbeat_timeout": 45.0, "markers": (standing(0, 11), standing(1, 10))},
        ("heartbeat_timeout", 1, "likely", ("process_killed",)),
    ),
    "no silence: a kill": (
        [sign("death", 50, 1, silent_seconds=20.0)],
        {"heartbeat_timeout": 45.0},
        ("process_killed", 1, "likely", ("process_exited", "host_oom")),
    ),
    "the monitor's own signal": (
        [sign("exit", 50, 1, exit_code=-10)],
        {},
        ("heartbeat_timeout", 1, "likely", ("process_killed",)),
    ),
    "no time-out is known, and the process did not even take samples": (
        [sign("death", 100, 1, silent_seconds=100.0)],
        {"markers": (standing(0), standing(1, sampled=20.0))},
        ("hang_hard", 1, "likely", ("process_killed",)),
    ),
    "no time-out is known, and the process took samples till the end": (
        [sign("death", 100, 1, silent_seconds=100.0)],
        {"markers": (standing(0), standing(1, sampled=96.0))},
        ("process_killed", 1, "likely", ("process_exited", "host_oom")),
    ),
    "the operator's signal": ([sign("stop"), KILLED], {}, ("preempted", None, "confirmed", ("process_killed",))),
}


@pytest.mark.parametrize("name", CASES)
def test_diagnosis(name: str) -> None:
    """Cause, origin, how sure that is, and what else it may have been."""
    evidence, more, expected = CASES[name]
    circumstances = {"markers": BOTH, "layer": None, "world_size": 2} | more
    found = diagnose(Scene(tuple(evidence), **circumstances))
    assert (found.cause, found.origin, found.confidence, found.alternatives) == expected
    assert set(found.evidence) <= set(evidence)
    assert found.evidence


@pytest.mark.parametrize(
    ("markers", "named", "slot"),
    [
        ((standing(0, 10), standing(1, 9)), 0, 1),
        ((standing(0), standing(1, phase="data_wait")), None, 1),
        ((standing(0, phase="eval"), standing(1, phase="eval")), None, None),
        ((standing(0, sampled=99.0, in_collective=True), standing(1, sampled=99.0, in_collective=False)), 0, 1),
        ((standing(0, sampled=99.0, in_collective=True), standing(1, sampled=50.0)), 0, 1),
        ((standing(0), standing(1)), 1, 1),
        ((standing(0), standing(1)), None, None),
        ((standing(0, None), standing(1, 3)), None, None),
    ],
)
def test_laggard(markers: tuple[Marker, ...], named: int | None, slot: int | None) -> None:
    """Least step, then phase, then samples, then the monitor's word; a tie names nobody."""
    assert laggard(Scene((sign("heartbeat", 100.0),), markers, None), named) == slot


def fingerprint(message: str, traceback: str = "", **fields: Any) -> Any:
    """Of a failure of rank 1 with this exception."""
    story = Story()
    end = story.running()
    story.caught(1, end, message=message, traceback=traceback, **fields)
    return story.pod.failures.recoveries[-1].diagnosis.fingerprint


def test_a_fingerprint_ignores_what_varies() -> None:
    """Numbers and addresses differ between two failures of one kind; type, text and place do not."""
    place = "step (/home/me/train.py:40)\nforward (/venv/lib/python3.11/site-packages/torch/nn/module.py:7)"
    one = fingerprint("index 17 of <Tensor at 0x7f01> is out of 4.5", place)
    assert one == fingerprint("index 3 of <Tensor at 0xbeef> is out of 9", place)
    assert one == ("app_exception", "ValueError: index # of <Tensor at #> is out of # step (/home/me/train.py:40)", 1)
    assert one != fingerprint("index 17 of <Tensor at 0x7f01> is out of 4.5", place.replace("40", "41"))


def test_echoes_and_unknown_causes_have_no_fingerprint() -> None:
    """What every failure looks like on a peer would make any two of them the same."""
    assert fingerprint("Connection closed by peer", collective=True) is None
    assert Diagnosis("unknown", 1, "confirmed").fingerprint is None
    assert Diagnosis("collective_timeout", 1, "likely").fingerprint is None
    assert Diagnosis("node_lost", None, "likely").fingerprint is None
