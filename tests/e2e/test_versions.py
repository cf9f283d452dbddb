"""What the installed version of NVRx does and tells, by one run with a failure for each layer; `.ci/lane` runs this on every version.

The README's table of versions says the same; a cell without a test here is marked there.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import harness
import pytest
from harness import STEPS

from headway.journal import JournalReader
from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway.events import Event

pytestmark = pytest.mark.e2e

ASKED: Final = os.environ.get("HEADWAY_TEST_NVRX")
"""The version that the lane is for."""
VERSION: Final = importlib.metadata.version("nvidia-resiliency-ext")
SINCE_060: Final = tuple(int(part) for part in re.findall(r"\d+", VERSION)[:2]) >= (0, 6)
FAULTS: Final = ("exception@25", "sigkill@45", "hard_hang@65")

RESTART: Final = (
    *("failure_detected", "worker_terminated", "rendezvous_started"),
    *(("health_check_completed",) if VERSION.startswith("0.7") else ()),
    *("rendezvous_completed", "worker_start_started", "worker_start_completed"),
)
"""What a launcher of 0.6 or later tells of a restart."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> harness.Outcome:
    """One run, with an exception for the in-process layer, a kill for the launcher and a hang for the heartbeats."""
    output = tmp_path_factory.mktemp("versions") / "run"
    options = harness.trainer_options(output, steps=STEPS, faults=FAULTS, more=harness.PATIENT)
    more = (f"--ft-cycle-info-dir={output / 'cycles'}",) if SINCE_060 else ()
    return harness.run(harness.ft_launcher(options, more=more), output)


def events(outcome: harness.Outcome, journal: str, kind: str) -> list[Event]:
    """Events of a kind in one of the run's journals."""
    return events_in(outcome.output / "journal" / "e2e" / f"{journal}.jsonl", kind)


def events_in(journal: Path, kind: str) -> list[Event]:
    """Events of a kind in a journal."""
    reader = JournalReader(journal)
    try:
        return [event for event in reader.poll() if event.kind == kind]
    finally:
        reader.close()


def told(outcome: harness.Outcome, kind: str) -> list[dict[str, Any]]:
    """Fields of the launcher's events of a kind."""
    return [dict(event.fields) for event in events(outcome, "launcher", kind)]


def evidence(outcome: harness.Outcome, words: str) -> list[str]:
    """The evidence of all recoveries that has these words in it."""
    return [text for recovery in outcome.status["recoveries"] for text in recovery["evidence"] if words in text]


def test_it_is_the_version_asked_for(outcome: harness.Outcome) -> None:
    """A lane that ran on another version than it says would protect nothing; the ranks' own word counts."""
    assert (ASKED or VERSION) == VERSION
    assert f'nvrx_version="{VERSION}"' in outcome.metrics


def test_each_layer_recovers(outcome: harness.Outcome, undisturbed: Callable[[], list[dict[str, object]]]) -> None:
    """The right layer, cause, origin and rollback for each failure, and the weights of a run without any."""
    assert outcome.exit_code == 0, outcome.log
    assert [str(fired.fault) for fired in outcome.injected] == list(FAULTS)
    assert outcome.differences() == []
    assert outcome.status["restarts"] == {"in_process": 1, "launcher": 2, "orchestrator": 0}
    assert outcome.results == undisturbed()


def test_interruption_records(outcome: harness.Outcome) -> None:
    """Both ranks learn in process whose exception it was."""
    for slot in (0, 1):
        records = events(outcome, f"slot-{slot}", "interruption")[0].fields["records"]
        assert {"rank": 1, "kind": "EXCEPTION"} in records


def test_asynchronous_saves(outcome: harness.Outcome) -> None:
    """Saves are written behind training's back by a process that is known, and the last one is durable."""
    assert outcome.status["checkpoint"]["durable_step"] == STEPS
    assert outcome.status["checkpoint"]["saves"]["failed"] == 0
    for slot in (0, 1):
        written = [told["step"] for told in harness.checkpoints_of_rank(outcome, slot) if told["stage"] == "written"]
        assert STEPS in written
        queues = [dict(event.fields) for event in events(outcome, f"slot-{slot}", "queue")]
        assert any(one["depth"] > 0 and one["writer_alive"] and one["writer_pid"] for one in queues)


def test_what_every_launcher_says(outcome: harness.Outcome) -> None:
    """The signal of a worker that died, a hang by its heartbeat and its slot, the restarts that are left."""
    exits, missed, failed = (
        told(outcome, kind) for kind in ("worker_exited", "heartbeat_missed", "worker_group_failed")
    )
    assert (exits[0]["local_rank"], exits[0]["exit_code"]) == (1, -9)
    assert {one["which"] for one in missed} == {"subsequent"}
    assert {one["local_rank"] for one in missed} <= {0, 1}
    assert [(one["restarts_left"], one["restarts_limit"]) for one in failed] == [(6, 6), (5, 6)]


def test_what_the_launcher_says_of_its_restarts(outcome: harness.Outcome) -> None:
    """0.6 and later time every stage; the moment of detection and the stages' seconds are evidence. Before, nothing is said."""
    phases = [(one["cycle"], one["name"]) for one in told(outcome, "launcher_phase")]
    first_start = RESTART[2:]
    expected = [(0, first_start), (1, RESTART), (2, RESTART)] if SINCE_060 else []
    assert sorted(phases) == sorted((cycle, name) for cycle, names in expected for name in names)
    detected, relaunched = evidence(outcome, " noticed the failure "), evidence(outcome, ", after it noticed: ")
    assert [text.rpartition(" ")[2] for text in detected] == (["1", "2"] if SINCE_060 else [])
    assert len(relaunched) == len(detected)
    assert all("workers gone" in text and "workers started" in text for text in relaunched)


def test_cycle_info(outcome: harness.Outcome) -> None:
    """0.6 and later write who takes part in each cycle; that it is the same node as before is evidence. Before, nothing is written."""
    cycles = told(outcome, "launcher_cycle")
    assert [one["cycle"] for one in cycles] == ([0, 1, 2] if SINCE_060 else [])
    assert len({one["active_nodes"] for one in cycles}) == (1 if SINCE_060 else 0)
    assert evidence(outcome, "the same node") == (
        ["cycle 1: the same node", "cycle 2: the same node"] if SINCE_060 else []
    )


DIES_ONCE: Final = """
import os, pathlib, signal, time
rank = os.environ["RANK"]
lived = pathlib.Path(__file__ + rank)  # 0.4.1 counts no restart on a node that joins one
if not lived.exists():
    lived.touch()
    time.sleep(1)
    if rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""

TWO_ON_ONE: Final = {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"}
"""Else 0.7 takes two launchers of one machine for a mistake."""


def test_a_restart_that_another_node_began(tmp_path: Path) -> None:
    """Of two nodes the one where a worker died says so, and the other's launcher that it joins the restart."""
    worker, port = tmp_path / "worker.py", runner.free_ports()
    worker.write_text(DIES_ONCE)
    command = [
        sys.executable,
        "-m",
        "nvidia_resiliency_ext.fault_tolerance.launcher",
        "--nnodes=2",
        "--nproc-per-node=1",
    ]
    command += [
        "--monitor-interval=0.5",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
    ]
    with contextlib.ExitStack() as stack:
        nodes = []
        for node in (0, 1):
            words = [sys.executable, "-m", "headway", "run", "--dir", str(tmp_path), "--run", f"node{node}", "--"]
            words += [*command, f"--rdzv-conf=is_host={1 - node}", str(worker)]
            nodes.append(stack.enter_context(runner.started(words, tmp_path / f"node{node}.log", TWO_ON_ONE)))
        codes = [process.wait(harness.LIMIT_SECONDS) for process in nodes]
    assert codes == [0, 0], [(tmp_path / f"node{node}.log").read_text() for node in (0, 1)]
    kinds = ("worker_exited", "worker_group_failed", "restart_joined")
    told = [[len(events_in(tmp_path / f"node{node}" / "launcher.jsonl", kind)) for kind in kinds] for node in (0, 1)]
    assert sorted(told) == [[0, 0, 1], [1, 1, 0]]
