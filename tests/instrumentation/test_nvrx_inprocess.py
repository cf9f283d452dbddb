"""The in-process hooks inside NVRx's real wrapper, with real processes and gloo."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.journal import JournalReader

pytest.importorskip("nvidia_resiliency_ext")
from nvidia_resiliency_ext import inprocess

from headway.nvrx.inprocess import hooks
from headway.recorder import Recorder
from headway_trainer.demo.runner import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.events import Event

pytestmark = pytest.mark.alone

WORKER = Path(__file__).with_name("inprocess_worker.py")
SECONDS = 120.0


class Job:
    """The ended processes of one scenario and what they recorded."""

    def __init__(self, folder: Path, scenario: str, world_size: int) -> None:
        self._folder = folder
        port = free_ports(2)
        outputs = [folder / f"output-{rank}" for rank in range(world_size)]
        with contextlib.ExitStack() as stack:
            # Into files: NVRx's monitor process outlives a killed rank for a while and would hold a pipe open.
            processes = [
                subprocess.Popen(
                    [sys.executable, str(WORKER)],
                    env=environment(folder, scenario, rank, world_size, port),
                    stdout=stack.enter_context(output.open("w")),
                    stderr=subprocess.STDOUT,
                )
                for rank, output in enumerate(outputs)
            ]
            for process in processes:
                stack.callback(process.wait)
                stack.callback(process.kill)
            self.exit_codes = [process.wait(SECONDS) for process in processes]
        self.output = [output.read_text() for output in outputs]

    def events(self, slot: int, *kinds: str) -> list[Event]:
        reader = JournalReader(self._folder / "r" / f"slot-{slot}.jsonl")
        try:
            return [event for event in reader.poll() if event.kind in kinds]
        finally:
            reader.close()

    def fields(self, slot: int, kind: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.events(slot, kind)]


def environment(folder: Path, scenario: str, rank: int, world_size: int, port: int) -> dict[str, str]:
    """A rank's; LOCAL_RANK is hidden, else NVRx 0.6 and later add GPU checks that fail without a GPU."""
    ranks = {"RANK": rank, "WORLD_SIZE": world_size, "HEADWAY_SLOT": rank, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    given = {"HEADWAY_DIR": str(folder), "HEADWAY_RUN": "r", "MASTER_ADDR": "127.0.0.1", "SCENARIO": scenario}
    kept = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    return kept | given | {name: str(value) for name, value in ranks.items()}


@pytest.fixture(scope="module")
def many_faults(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("many"), "many_faults", 3)


def test_job_survives_its_faults(many_faults: Job) -> None:
    """Two exceptions that cannot be copied and a SIGKILL are recovered in process: the hooks stand in nobody's way."""
    assert many_faults.exit_codes == [0, -signal.SIGKILL, 0], many_faults.output
    assert many_faults.output[0].endswith("errors of hooks: 0\n")


@pytest.mark.parametrize("slot", [0, 2])
def test_every_rank_learns_who_was_interrupted(many_faults: Job, slot: int) -> None:
    """The journals name the origin by its rank at start, also after ranks moved: the third fault was rank 1's, initially 2."""
    interruptions = [(fields["iteration"], fields["records"]) for fields in many_faults.fields(slot, "interruption")]
    assert [iteration for iteration, _ in interruptions] == [0, 1, 2]
    records = [records for _, records in interruptions]
    assert records[0] == [{"rank": 1, "kind": "EXCEPTION"}]
    assert {"rank": 1, "kind": "TERMINATED"} in records[1]  # beside it the peers, whose collective broke
    assert records[2] == [{"rank": 2, "kind": "EXCEPTION"}]


def test_origin_and_peers_can_be_told_apart(many_faults: Job) -> None:
    """The origin's exception is on record once, with its text; what a peer saw is a broken collective or nothing."""
    own = many_faults.fields(1, "fault_caught")
    assert [(fault["message"], fault["collective"], fault["step"]) for fault in own] == [("boom (0)", False, 1)]
    assert own[0]["type"].endswith("TwoArgumentError")
    assert [f["message"] for f in many_faults.fields(2, "fault_caught") if not f["collective"]] == ["boom (2)"]
    assert all(fault["collective"] for fault in many_faults.fields(0, "fault_caught"))


def test_order_of_a_restart(many_faults: Job) -> None:
    """A restart reads abort, clean-up, who it was, new ranks, the function again: the phases of a recovery come from it."""
    kinds = ("aborted", "finalized", "interruption", "ranks_reassigned", "train_entered", "train_finished")
    restart = [(kind, i) for i in range(3) for kind in kinds[:3]]
    seen = [(event.kind, event.fields["iteration"]) for event in many_faults.events(0, *kinds[:3])]
    assert seen == restart
    all_kinds = [event.kind for event in many_faults.events(0, *kinds)]
    once = ["ranks_reassigned", "train_entered"]
    assert all_kinds == [*once, *3 * [*kinds[:3], *once], "train_finished"]


def test_ranks_after_a_loss(many_faults: Job) -> None:
    """When a rank is gone for good the journal tells who has which rank now, and who is gone."""
    ranks = [
        (f["iteration"], f["rank"], f["world_size"], f["terminated"]) for f in many_faults.fields(2, "ranks_reassigned")
    ]
    assert ranks == [(0, 2, 3, []), (1, 2, 3, []), (2, 1, 2, [1]), (3, 1, 2, [1])]
    assert {f["mode"] for f in many_faults.fields(2, "ranks_reassigned")} == {"active"}
    assert {f["initial_rank"] for f in many_faults.fields(2, "ranks_reassigned")} == {2}


def test_incarnations_are_common_to_the_ranks(many_faults: Job) -> None:
    """Each iteration has one incarnation, the same on every rank."""
    ids = [[event.incarnation for event in many_faults.events(slot, "train_entered")] for slot in (0, 2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


def test_rank_that_gives_up(tmp_path: Path) -> None:
    """When NVRx's retries are used up the rank's journal says that it leaves."""
    job = Job(tmp_path, "gives_up", 1)
    assert job.exit_codes[0] != 0
    last = job.fields(0, "ranks_reassigned")[-1]
    assert (last["mode"], last["terminated"], last.get("rank")) == ("terminated", [0], None)


def test_failing_hook_stops_nothing(tmp_path: Path) -> None:
    """A defect of ours costs the record of the restart, with one traceback, and never the restart."""
    job = Job(tmp_path, "broken_recorder", 1)
    assert job.exit_codes == [0], job.output
    assert not job.output[0].endswith("errors of hooks: 0\n")
    assert job.output[0].count("a Headway hook failed") == 1
    assert [fields["iteration"] for fields in job.fields(0, "train_entered")] == [0, 1]


@pytest.fixture
def disabled_recorder() -> Iterator[Recorder]:
    recorder = Recorder.from_env(environ={"HEADWAY_DIR": "/dev/null", "HEADWAY_RUN": "r"})
    yield recorder
    recorder.close()


def test_hooks_are_what_the_wrapper_takes(disabled_recorder: Recorder) -> None:
    """What the user passes stays in, what he leaves out is NVRx's default, and the wrapper of this version takes it all."""
    retry = inprocess.initialize.RetryController(max_iterations=3)
    given = hooks(disabled_recorder, initialize=retry)
    assert given["initialize"] is retry
    assert set(given) == {"initialize", "abort", "finalize", "rank_assignment", "terminate"}
    default = inspect.signature(inprocess.Wrapper.__init__).parameters["abort"].default
    assert default in given["abort"].instances
    inprocess.Wrapper(**given, enabled=False)
