"""The fault schedule: what is understood, what strikes when, and that nothing strikes twice."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway_trainer import checkpoint
from headway_trainer.faults import (
    KINDS,
    Fault,
    FaultInjector,
    InjectedFault,
    Outcome,
    ScheduleError,
    check_schedule,
    fired_faults,
    load_schedule,
    parse_schedule,
    read_schedule,
)
from headway_trainer.orchestrator import POD_ROOT_VARIABLE
from headway_trainer.storage import WriteFault

CAUSES = {
    *("app_exception", "numeric_nan", "cuda_oom", "host_oom", "illegal_access", "hang_soft", "hang_hard"),
    *("heartbeat_timeout", "collective_timeout", "process_killed", "process_exited", "monitor_failure"),
    *("gpu_memory", "gpu_fell_off_bus", "gpu_driver", "nvlink", "pcie", "nic", "storage_io", "checkpoint_write"),
    *("checkpoint_corrupt", "node_lost", "preempted", "config_error", "peer_failure", "unknown"),
}


def injector(schedule: str, state_dir: Path, rank: int = 1, world_size: int = 2) -> FaultInjector:
    return FaultInjector(parse_schedule(schedule), state_dir, rank, world_size)


# --- the language ------------------------------------------------------------------------------------------------


def test_text_and_yaml_say_the_same(tmp_path: Path) -> None:
    """Every form of a schedule gives equal faults, and options and file add up."""
    text = "exception@50, sigkill@90:rank=0:repeat=2,slow_step@7:seconds=0.5,exit@8:code=137"
    expected = (
        Fault("exception", 50),
        Fault("sigkill", 90, rank=0, repeat=2),
        Fault("slow_step", 7, seconds=0.5),
        Fault("exit", 8, code=137),
    )
    assert parse_schedule(text) == expected
    assert parse_schedule(text.split(",")) == expected
    path = tmp_path / "faults.yaml"
    path.write_text(
        "- exception@50\n- {kind: sigkill, step: 90, rank: 0, repeat: 2}\n- slow_step@7:seconds=0.5\n"
        "- kind: exit\n  step: 8\n  code: 137\n"
    )
    assert read_schedule(path) == expected
    assert load_schedule(["nan_loss@3"], str(path)) == (Fault("nan_loss", 3), *expected)
    path.write_text("")
    assert read_schedule(path) == parse_schedule("") == parse_schedule([]) == load_schedule([]) == ()


@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 10**6),
    st.none() | st.integers(0, 4096),
    st.integers(1, 9),
    st.integers(1, 255),
    st.sampled_from([0.25, 3.0, 8.5]),
)
def test_a_fault_reads_back_from_its_own_text(
    kind: str, step: int, rank: int | None, repeat: int, code: int, seconds: float
) -> None:
    """What logs and markers say of a fault can be given to the command line again."""
    options = KINDS[kind].options
    fault = Fault(
        kind, step, rank, repeat, seconds if "seconds" in options else None, code if "code" in options else None
    )
    assert parse_schedule(str(fault)) == (fault,)


def test_defaults_come_from_the_kind() -> None:
    """Without options a fault strikes once, on rank 1 (rank 0 only when it is alone), as long as its kind says."""
    (slow, gone, hang) = parse_schedule("slow_step@1,exit@2,hard_hang@3")
    assert (slow.seconds, slow.repeat, slow.code) == (2.0, 1, None)
    assert (gone.seconds, gone.code) == (None, 3)
    assert hang.seconds == 10_000
    assert [slow.target(size) for size in (1, 2, 64)] == [0, 1, 1]
    assert Fault("exception", 1, rank=5).target(8) == 5


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("explode@5", "fault 'explode@5': unknown kind; there are exception, nan_loss"),
        ("exception", "should look like kind@step"),
        ("exception@", "should look like kind@step"),
        ("exception@-1", "should look like kind@step"),
        ("exception@0", "step should be a whole number from 1"),
        ("exception@5:", "is no option"),
        ("exception@5:rank", "is no option"),
        ("exception@5:rank=x", "rank should be a number, not 'x'"),
        ("exception@5:rank=-1", "rank should be a whole number from 0"),
        ("exception@5:rank=1:rank=2", "given twice"),
        ("exception@5:repeat=0", "repeat should be a whole number from 1 to 1000"),
        ("exception@5:code=1", "exception has no option code; it has rank, repeat"),
        ("exit@5:code=0", "code should be a whole number from 1 to 255"),
        ("exit@5:color=red", "color should be a number"),
        ("slow_step@5:seconds=0", "seconds should be above 0"),
        ("slow_step@5:seconds=nan", "seconds should be above 0"),
        ("slow_step@5:seconds=inf", "seconds should be above 0"),
        ("exception@5,,nan_loss@6", "fault ''"),
    ],
)
def test_nonsense_gets_one_clear_line(item: str, words: str) -> None:
    """The message names the item and what is allowed, in one line."""
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(item)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{kind: exit}", "should hold a list of faults"),
        ("- {kind: exit}", "a table with at least kind and step"),
        ("- 7", "a table with at least kind and step"),
        ("- {kind: exit, step: '5'}", "step should be a whole number"),
        ("- {kind: exit, step: true}", "step should be a whole number"),
        ("- {kind: [exit], step: 1}", "unknown kind"),
        ("- {kind: slow_step, step: 1, seconds: long}", "seconds should be above 0"),
        ("- {kind: exit, step: 1, rank: null}", "rank should be a whole number"),
        ("- [", "not readable as YAML"),
        ("\udcff", "not readable as YAML"),
    ],
)
def test_a_bad_file_gets_one_clear_line(tmp_path: Path, content: str, words: str) -> None:
    """The message names the file, too."""
    path = tmp_path / "faults.yaml"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ScheduleError) as caught:
        read_schedule(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ScheduleError, match="not readable"):
        read_schedule(tmp_path / "none.yaml")


def test_a_rank_that_does_not_exist_is_refused() -> None:
    """A schedule for more ranks than there are would quietly test nothing."""
    check_schedule(parse_schedule("exception@1,sigkill@2:rank=1"), 2)
    with pytest.raises(ScheduleError, match="this run has ranks 0 to 1"):
        check_schedule(parse_schedule("sigkill@2:rank=2"), 2)


def test_every_kind_says_what_it_should_lead_to() -> None:
    """The table of outcomes uses the closed lists of layers and causes, and recovery never needs an inner layer that is off."""
    layers = {"in_process", "launcher", "orchestrator"}
    for name, kind in KINDS.items():
        for outcome in (kind.outcome, kind.outcome_without_in_process):
            assert outcome.restarts == (outcome.cause is not None), name
            assert outcome == Outcome() or (outcome.layer in layers and outcome.cause in CAUSES), name
        assert kind.outcome_without_in_process.layer != "in_process", name
        assert kind.outcome.restarts == kind.outcome_without_in_process.restarts, name
    assert Fault("soft_hang", 1).outcome == Outcome("in_process", "hang_soft")
    assert KINDS["soft_hang"].outcome_without_in_process == Outcome("launcher", "heartbeat_timeout")
    assert [name for name, kind in KINDS.items() if kind.checkpoint_rejected] == ["corrupt_checkpoint"]
    assert [name for name, kind in KINDS.items() if kind.save_fails] == ["write_error", "writer_killed"]


# --- striking in this process ------------------------------------------------------------------------------------


def test_a_fault_strikes_once_across_restarts(tmp_path: Path) -> None:
    """The step that failed is executed again after every kind of restart, and must then pass."""
    faults = injector("exception@5", tmp_path)
    for step in (1, 4):
        faults.before_step(step)
    with pytest.raises(InjectedFault, match="injected: exception@5"):
        faults.before_step(5)
    faults.before_step(5)
    injector("exception@5", tmp_path).before_step(5)
    (fired,) = fired_faults(tmp_path)
    assert (fired.fault, fired.step, fired.rank) == (Fault("exception", 5), 5, 1)
    assert abs(fired.wall - time.time()) < 60


def test_repeat_counts_the_whole_run(tmp_path: Path) -> None:
    """`repeat=2` strikes the first two times that the run comes to the step, whichever process runs it."""
    for _ in range(2):
        with pytest.raises(InjectedFault):
            injector("exception@5:repeat=2", tmp_path).before_step(5)
    injector("exception@5:repeat=2", tmp_path).before_step(5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fault-0-exception-0", "fault-0-exception-1"]


def test_the_marker_is_there_before_the_fault(tmp_path: Path) -> None:
    """Were it written afterwards, a fault that kills would strike again for ever; a torn marker still counts."""
    (tmp_path / "fault-0-exception-0").touch()
    injector("exception@5", tmp_path).before_step(5)
    assert fired_faults(tmp_path) == []


def test_other_ranks_are_left_alone(tmp_path: Path) -> None:
    """A fault strikes its own rank only, and equal faults at one step each strike."""
    injector("exception@5", tmp_path, rank=0).before_step(5)
    injector("exception@5:rank=0", tmp_path, rank=1).before_step(5)
    assert fired_faults(tmp_path) == []
    twice = injector("exception@5,exception@5", tmp_path)
    for _ in range(2):
        with pytest.raises(InjectedFault):
            twice.before_step(5)
    twice.before_step(5)


def test_no_schedule_touches_nothing(tmp_path: Path) -> None:
    """A run without faults makes no folder and gets neutral answers everywhere."""
    faults = injector("", tmp_path / "none")
    faults.before_step(1)
    faults.after_schedule(1, os.getpid())
    faults.after_commit(1, tmp_path)
    assert faults.slow_step_seconds(1) == faults.data_stall_seconds(1) == 0.0
    assert not faults.poison_loss(1)
    assert faults.storage_fault(1) is None
    assert not (tmp_path / "none").exists()


def test_what_slows_and_poisons_is_told_to_the_loop(tmp_path: Path) -> None:
    """Seconds and NaN go to the place in the loop where they belong, once."""
    schedule = "slow_step@5:seconds=1.5,slow_step@5:seconds=0.5,data_stall@6:seconds=3,nan_loss@7"
    faults = injector(schedule, tmp_path)
    faults.before_step(5)
    assert faults.slow_step_seconds(4) == 0.0
    assert [faults.slow_step_seconds(5) for _ in range(2)] == [2.0, 0.0]
    assert [faults.data_stall_seconds(6) for _ in range(2)] == [3.0, 0.0]
    assert [faults.poison_loss(7) for _ in range(2)] == [True, False]


def test_storage_faults_strike_the_next_save(tmp_path: Path) -> None:
    """The step in the schedule need not be a step that is saved, and repeat counts saves."""
    faults = injector("slow_storage@15:seconds=4:repeat=2,write_error@30", tmp_path)
    answers = [faults.storage_fault(step) for step in (10, 20, 30, 40)]
    assert answers == [None, WriteFault(slow_seconds=4.0), WriteFault(4.0, out_of_space=True), None]


def test_exceptions_survive_a_copy(tmp_path: Path) -> None:
    """NVRx deep-copies the exception that it restarts for; one that cannot be copied would kill the rank."""
    faults = injector("exception@1,cuda_oom@2", tmp_path)
    with pytest.raises(InjectedFault) as plain:
        faults.before_step(1)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate") as memory:
        faults.before_step(2)
    for error in (plain.value, memory.value):
        for copied in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
            assert (type(copied), str(copied)) == (type(error), str(error))


def test_a_soft_hang_can_be_interrupted(tmp_path: Path) -> None:
    """NVRx raises an exception in the hanging thread from outside; a soft hang must let it in."""
    interrupted = threading.Event()

    def hang() -> None:
        try:
            injector("soft_hang@1", tmp_path).before_step(1)
        except KeyboardInterrupt:
            interrupted.set()

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    while not fired_faults(tmp_path):
        time.sleep(0.01)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
    assert interrupted.wait(timeout=30)


def test_hangs_end_after_their_seconds(tmp_path: Path) -> None:
    """A hang with a length goes on with the step afterwards, as a network that comes back would."""
    faults = injector("soft_hang@1:seconds=0.1,hard_hang@1:seconds=0.1", tmp_path)
    before = time.monotonic()
    faults.before_step(1)
    assert time.monotonic() - before >= 0.2


def test_a_state_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Without markers a fault would strike for ever."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ScheduleError, match="fault markers"):
        injector("exception@1", tmp_path / "file" / "state")


def test_pod_loss_needs_a_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would start the pod again; and a process that is not above this one is not taken for a supervisor."""
    monkeypatch.delenv(POD_ROOT_VARIABLE, raising=False)
    with pytest.raises(ScheduleError, match="needs a supervisor"):
        injector("pod_loss@1", tmp_path)
    monkeypatch.setenv(POD_ROOT_VARIABLE, str(os.getpid()))
    faults = injector("pod_loss@1", tmp_path)
    with pytest.raises(ScheduleError, match="is not above this process; nothing was killed"):
        faults.before_step(1)


# --- striking in real processes ----------------------------------------------------------------------------------

STRIKE = """
import sys
from pathlib import Path
from headway_trainer.faults import FaultInjector, parse_schedule
state, schedule, root = Path(sys.argv[1]), parse_schedule(sys.argv[2]), Path(sys.argv[3])
faults = FaultInjector(schedule, state, 0, 1, checkpoint_dir=root)
for step in range(1, 10):
    faults.before_step(step)
"""


def strike(schedule: str, state_dir: Path, root: Path | None = None) -> int:
    """Runs nine steps in a process of its own; its exit code."""
    arguments = [str(state_dir), schedule, str(root or state_dir)]
    return subprocess.run([sys.executable, "-c", STRIKE, *arguments], check=False).returncode


@pytest.mark.parametrize(
    ("schedule", "code"),
    [("sigkill@5", -signal.SIGKILL), ("host_oom@5", -signal.SIGKILL), ("exit@5", 3), ("exit@5:code=77", 77)],
)
def test_a_process_that_is_killed_comes_through_the_second_time(tmp_path: Path, schedule: str, code: int) -> None:
    """Real deaths with the right exit code, once: the marker has survived the SIGKILL."""
    assert strike(schedule, tmp_path) == code
    assert strike(schedule, tmp_path) == 0
    assert len(fired_faults(tmp_path)) == 1


def publish(root: Path, step: int) -> Path:
    """A checkpoint of two shards whose content does not matter."""
    folder = checkpoint.save_folder(root, step, "ab")
    for rank in range(2):
        shard = {"version": 1, "step": step, "buffers": {}, "tensors": {"padding": _entry()}, "optimizer": {}}
        shard["buffers"] = {"torch.float32": torch.zeros(1000)}
        checkpoint.write_shard(shard, str(folder), rank, 2)
    checkpoint.publish(folder, step, 2, "ab")
    return folder


def _entry() -> dict[str, object]:
    return {"dtype": "torch.float32", "offset": 0, "size": [1000], "rows": [0, 1000], "shape": [1000]}


def damaged_steps(root: Path) -> list[int]:
    return [
        found.manifest.step
        for found in checkpoint.candidates(root)
        if any(checkpoint.verify_shard(found.folder, shard) for shard in found.manifest.shards)
    ]


def test_corrupt_checkpoint_damages_the_newest_and_kills(tmp_path: Path) -> None:
    """One shard of the newest checkpoint fails its checksum, sizes and older checkpoints are as before, the rank is dead."""
    root, state_dir = tmp_path / "checkpoints", tmp_path / "state"
    publish(root, 2)
    newest = publish(root, 4)
    sizes = [path.stat().st_size for path in sorted(newest.iterdir())]
    assert strike("corrupt_checkpoint@5", state_dir, root) == -signal.SIGKILL
    assert damaged_steps(root) == [4]
    assert [path.stat().st_size for path in sorted(newest.iterdir())] == sizes
    assert strike("corrupt_checkpoint@5", state_dir, root) == 0


def test_corrupt_checkpoint_waits_for_one(tmp_path: Path) -> None:
    """Due before anything was published, it strikes at the first commit."""
    root, state_dir = tmp_path / "checkpoints", tmp_path / "state"
    assert strike("corrupt_checkpoint@5", state_dir, root) == 0
    assert fired_faults(state_dir) == []
    folder = publish(root, 8)
    script = STRIKE + f"faults.after_commit(8, Path({str(folder)!r}))\n"
    arguments = [str(state_dir), "corrupt_checkpoint@5", str(tmp_path / "none")]
    assert subprocess.run([sys.executable, "-c", script, *arguments], check=False).returncode == -signal.SIGKILL
    assert damaged_steps(root) == [8]


def test_writer_killed_kills_the_writer(tmp_path: Path) -> None:
    """The writer dies as it gets the first save from that step on; without a writer the fault waits."""
    faults = injector("writer_killed@15", tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as writer:
        faults.after_schedule(10, writer.pid)
        faults.after_schedule(20, None)
        assert writer.poll() is None
        faults.after_schedule(30, writer.pid)
        assert writer.wait(timeout=30) == -signal.SIGKILL
    assert [fired.step for fired in fired_faults(tmp_path)] == [30]


POD = f"""
import os, subprocess, sys, time
os.environ["{POD_ROOT_VARIABLE}"] = str(os.getpid())
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
launcher = f'''
import subprocess, sys
children = [subprocess.Popen({{sleeper}}, start_new_session=True) for _ in range(2)]
print(*[child.pid for child in children], flush=True)
rank = subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2], "pod_loss@3", "."])
print("the launcher survived", flush=True)
'''
pod = subprocess.Popen([sys.executable, "-c", launcher, *sys.argv[1:]], start_new_session=True)
code = pod.wait()
print(code, flush=True)
"""


def test_pod_loss_kills_the_whole_tree_and_not_its_supervisor(tmp_path: Path) -> None:
    """Launcher, ranks and what sits in sessions of its own are gone; the supervisor sees its pod die by SIGKILL."""
    done = subprocess.run(
        [sys.executable, "-c", POD, STRIKE, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    )
    sleepers, code = done.stdout.splitlines()
    assert int(code) == -signal.SIGKILL
    for pid in sleepers.split():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert [fired.fault.kind for fired in fired_faults(tmp_path)] == ["pod_loss"]
