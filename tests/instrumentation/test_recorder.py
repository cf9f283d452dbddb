from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway import Recorder, Step
from headway._version import __version__
from headway.exceptions import PlainError
from headway.journal import JournalReader
from headway.ring import RingReader, StepRecord, ring_name

if TYPE_CHECKING:
    from headway.events import Event

Make = Callable[..., Recorder]


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the process's recorder, and closes it after the test."""
    made: list[Recorder] = []

    def start(directory: Path = tmp_path, **environ: str) -> Recorder:
        settings = {"HEADWAY_DIR": str(directory), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0", **environ}
        made.append(Recorder.from_env(environ=settings, settings={"total_steps": 300}, backend="gloo"))
        return made[-1]

    yield start
    for recorder in made:
        recorder.close()


def events(recorder: Recorder) -> list[Event]:
    reader = JournalReader(recorder.identity.folder / "slot-0.jsonl")
    found = reader.poll()
    reader.close()
    assert not reader.dropped
    return found


def records(recorder: Recorder) -> list[StepRecord]:
    reader = RingReader.open(recorder.identity.folder / ring_name(0, recorder.life))
    found = reader.poll()
    reader.close()
    assert reader.torn == 0
    return found


def phases(recorder: Recorder) -> list[tuple[str, str]]:
    return [(event.fields["name"], event.fields["edge"]) for event in events(recorder) if event.kind == "phase"]


def test_a_life_begins_with_what_it_is(make: Make) -> None:
    """The first event says which process this is and what holds; the incarnation goes with everything after its entry."""
    recorder = make(RANK="5", WORLD_SIZE="8", TORCHELASTIC_MAX_RESTARTS="4", HEADWAY_ATTEMPT="2", HEADWAY_PODS="3")
    recorder.train_entered(incarnation="a1", rank=5, world_size=8, iteration=1)
    recorder.train_finished(300)
    started, entered, finished = events(recorder)
    assert started.kind == "process_started"
    assert started.life == recorder.life
    wanted = {
        "pid": os.getpid(),
        "rank": 5,
        "world_size": 8,
        "restart_budget": 4,
        "attempt": 2,
        "pods_expected": 3,
        "life_lock": True,
        "ring": True,
        "backend": "gloo",
        "settings": {"total_steps": 300},
    }
    assert {name: started.fields[name] for name in wanted} == wanted
    versions = {"headway": __version__, "torch": installed_version("torch")}
    assert {name: started.fields["versions"].get(name) for name in versions} == versions
    assert started.incarnation is None
    assert entered.fields == {"rank": 5, "world_size": 8, "mode": "active", "attempt": 2, "cycle": 0, "iteration": 1}
    assert (finished.incarnation, finished.fields) == ("a1", {"step": 300})


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("saves", "{here}/saves"),
        (Path("/a/b"), "/a/b"),
        (None, None),
        (7, None),
    ],
)
def test_the_folder_of_checkpoints_is_told_by_its_full_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | Path | None, told: str | None
) -> None:
    """The sidecar has another working directory; what is no folder's name costs nothing but itself."""
    monkeypatch.chdir(tmp_path)
    environ = {"HEADWAY_DIR": str(tmp_path / "journals"), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0"}
    recorder = Recorder.from_env(environ=environ, checkpoint_dir=folder)
    (started,) = events(recorder)
    recorder.close()
    assert started.fields.get("checkpoint_dir") == (told and told.format(here=tmp_path))
    assert recorder.dropped == 0


def test_steps_are_recorded_with_what_was_set(make: Make) -> None:
    """A loss, a token count, both or neither: each step has its own, and nothing of the step before."""
    recorder = make()
    for number, (loss, tokens) in enumerate([(0.5, None), (None, 3), (0.25, 4), (None, None), (2.0, None)], start=1):
        with recorder.step(number) as step:
            assert isinstance(step, Step)
            if loss is not None:
                step.loss = loss
            if tokens is not None:
                step.tokens = tokens
    found = [(record.step, record.loss, record.tokens) for record in records(recorder)]
    assert found == [(1, 0.5, None), (2, None, 3), (3, 0.25, 4), (4, None, None), (5, 2.0, None)]
    assert recorder.last_step == 5
    assert recorder.dropped == 0


def test_waits_inside_a_step_go_into_its_record(make: Make) -> None:
    """Inside a step data waits and blocking saves are added up and write no event; outside they are phases."""
    recorder = make()
    with recorder.step(1) as step:
        for _ in range(2):
            with recorder.phase("data_wait"):
                time.sleep(0.01)
        with recorder.phase("checkpoint_save"):
            time.sleep(0.01)
            with recorder.phase("data_wait"):  # counted once, as data wait
                time.sleep(0.02)
        step.loss = 1.0
    with recorder.step(2):
        pass
    with recorder.phase("data_wait"):
        pass
    first, second = records(recorder)
    assert first.data_wait_ns >= 40_000_000
    assert first.blocked_ns >= 10_000_000
    assert first.data_wait_ns + first.blocked_ns <= first.duration_ns
    assert (second.data_wait_ns, second.blocked_ns) == (0, 0)
    assert phases(recorder) == [("data_wait", "begin"), ("data_wait", "end")]


def test_a_wait_inside_an_event_phase_of_a_step_is_not_counted_twice(make: Make) -> None:
    """An evaluation inside a step owns its time by events; a wait in it writes events too, and nothing into the record."""
    recorder = make()
    with recorder.step(1), recorder.phase("eval"), recorder.phase("data_wait"):
        assert recorder.current_phase == "data_wait"
    assert [name for name, _ in phases(recorder)] == ["eval", "data_wait", "data_wait", "eval"]
    assert records(recorder)[0].data_wait_ns == 0


def test_the_current_phase_is_the_innermost(make: Make) -> None:
    """What the heartbeat asks for: init before the first step of an incarnation, step, phases, else other."""
    recorder = make()
    assert recorder.current_phase == "init"
    with recorder.phase("rendezvous"):
        assert recorder.current_phase == "rendezvous"
        with recorder.step(1):
            assert recorder.current_phase == "step"
            with recorder.phase("data_wait"):
                assert recorder.current_phase == "data_wait"
            assert recorder.current_phase == "step"
        assert recorder.current_phase == "rendezvous"
    assert recorder.current_phase == "other"
    recorder.train_entered(incarnation="b", rank=0, world_size=1)
    assert recorder.current_phase == "init"


def test_a_step_that_raises_leaves_no_trace(make: Make) -> None:
    """The record of a step exists only if the step completed; the next one has none of its waits or tokens."""
    recorder = make()
    with contextlib.suppress(ValueError), recorder.step(1) as step, recorder.phase("data_wait"):
        step.tokens = 7
        raise ValueError
    assert recorder.last_step is None
    with recorder.step(1):
        pass
    (record,) = records(recorder)
    assert (record.tokens, record.data_wait_ns) == (None, 0)


@dataclass(frozen=True)
class _FrozenError(Exception):
    code: int


class _StrictError(Exception):
    def __getattr__(self, name: str) -> object:
        raise KeyError(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise KeyError(name)


@pytest.mark.parametrize(
    "error", [_FrozenError(3), _StrictError("boom")], ids=["frozen dataclass", "attributes of its own"]
)
def test_an_exception_that_takes_no_attribute_is_recorded_once(make: Make, error: Exception) -> None:
    """What the trainer raises may forbid to be marked as recorded: its fault is told all the same, and not twice."""
    recorder = make()
    for _ in range(2):
        recorder.fault_caught(error)
    assert [event.fields["type"] for event in events(recorder) if event.kind == "fault_caught"] == [
        f"{__name__}.{type(error).__name__}"
    ]
    assert recorder.dropped == 0


def test_a_loss_that_is_no_number_costs_only_itself(make: Make) -> None:
    """A wrong type in a step is counted, and the step is recorded all the same."""
    recorder = make()
    for loss in ("high", object(), [1.0]):
        with recorder.step(1) as step:
            step.loss = loss  # type: ignore[assignment]
    with recorder.step(2**70):
        pass
    assert [(record.step, record.loss) for record in records(recorder)] == [(1, None)] * 3
    assert recorder.dropped == 4


def test_entering_training_closes_what_an_interrupted_iteration_left_open(make: Make) -> None:
    """An in-process restart never leaves a phase of the iteration before on the stack."""
    recorder = make()
    recorder.phase("eval").__enter__()
    recorder.phase("mine").__enter__()
    recorder.step(1).__enter__()
    recorder.train_entered(incarnation="b", rank=0, world_size=1)
    assert recorder.current_phase == "init"
    assert phases(recorder) == [("eval", "begin"), ("mine", "begin"), ("mine", "end"), ("eval", "end")]


def test_every_event_reaches_the_journal_with_its_fields(make: Make) -> None:
    """Each method writes the kind and the fields that the vocabulary promises, and leaves out what is unknown."""
    recorder = make()
    recorder.checkpoint("committed", step=100, verified=True)
    recorder.checkpoint("failed", step=200, seconds=0.5, bytes=7, reason="x" * 10_000)
    recorder.queue(depth=1, oldest_wall=5.0, writer_alive=True, writer_pid=7)
    recorder.queue(depth=1, oldest_wall=5.0, writer_alive=True, writer_pid=7)
    recorder.interruption([(1, "EXCEPTION"), (2, "SOFT_TIMEOUT")], iteration=3)
    recorder.aborted(iteration=3)
    recorder.finalized(iteration=3)
    recorder.ranks_reassigned(iteration=4, initial_rank=1, rank=None, world_size=2, mode="terminated", terminated=(1,))
    recorder.operator_rollback(100)
    _, *found = events(recorder)
    assert [(event.kind, event.fields.get("reason", "")[:1]) for event in found[:2]] == [
        ("checkpoint", ""),
        ("checkpoint", "x"),
    ]
    assert found[0].fields == {"stage": "committed", "step": 100, "verified": True}
    assert len(found[1].fields["reason"]) == 4_096
    assert [event.kind for event in found[2:]] == [
        "queue",
        "interruption",
        "aborted",
        "finalized",
        "ranks_reassigned",
        "operator_rollback",
    ]
    assert found[3].fields["records"] == [{"rank": 1, "kind": "EXCEPTION"}, {"rank": 2, "kind": "SOFT_TIMEOUT"}]
    assert found[6].fields == {
        "iteration": 4,
        "initial_rank": 1,
        "world_size": 2,
        "mode": "terminated",
        "terminated": [1],
    }


def test_a_fault_is_written_once_and_raised_on(make: Make) -> None:
    """However many edges an exception crosses, it is one fault; what training sees is the exception itself."""
    recorder = make()
    with recorder.step(1):
        pass
    error = ValueError("bad batch")
    with pytest.raises(ValueError, match="bad batch") as caught, recorder.capture(), recorder.capture():
        raise error
    assert caught.value is error
    recorder.fault_caught(error)
    (fault,) = [event for event in events(recorder) if event.kind == "fault_caught"]
    wanted = {"type": "ValueError", "message": "bad batch", "collective": False, "step": 1}
    assert {name: fault.fields[name] for name in wanted} == wanted
    assert Path(__file__).name in fault.fields["traceback"].splitlines()[-1]


def test_an_exception_that_cannot_be_copied_is_replaced(make: Make) -> None:
    """NVRx would die of copying it: training sees a plain one with the same text, recorded once under its own name."""

    class TwoArguments(Exception):  # noqa: N818 - as users name them
        def __init__(self, what: str, where: str) -> None:
            super().__init__(f"{what} at {where}")

    recorder = make()
    with pytest.raises(PlainError, match="TwoArguments: overflow at 3"), recorder.capture(), recorder.capture():
        raise TwoArguments("overflow", "3")
    (fault,) = [event for event in events(recorder) if event.kind == "fault_caught"]
    assert fault.fields["type"].endswith("TwoArguments")


def test_an_orderly_exit_is_no_fault(make: Make) -> None:
    """sys.exit() with success passes; with a failure it is recorded."""
    recorder = make()
    for code in (None, 0, 3):
        with pytest.raises(SystemExit), recorder.capture():
            sys.exit(code)
    assert [event.fields["message"] for event in events(recorder) if event.kind == "fault_caught"] == ["3"]


def test_there_is_one_recorder_in_a_process(make: Make) -> None:
    """A second one would drop the life lock: asking again, as an in-process restart does, gives the same one."""
    recorder = make()
    assert make() is recorder
    assert [event.kind for event in events(recorder)] == ["process_started"]
    recorder.close()
    successor = make()
    assert successor.life != recorder.life
    assert successor.enabled
    assert [event.kind for event in events(successor)] == ["process_started", "process_exited", "process_started"]


def test_a_closed_recorder_does_nothing(make: Make) -> None:
    """Calls after the end are harmless and leave the journal as it is."""
    recorder = make()
    recorder.close()
    recorder.close()
    with recorder.step(1) as step, recorder.phase("data_wait"):
        step.loss = 1.0
    recorder.train_finished(1)
    assert not recorder.enabled
    assert [event.kind for event in events(recorder)] == ["process_started", "process_exited"]
    assert records(recorder) == []


def test_a_forked_child_records_nothing(make: Make) -> None:
    """A data loader's process is not the trainer: neither its calls nor its exit touch the journal, the ring or the lock."""
    recorder = make()
    with recorder.step(1):
        pass
    code = """
import os
from headway import Recorder
recorder = Recorder.from_env()
with recorder.step(1): pass
if os.fork() == 0:
    for _ in range(2):
        assert Recorder.from_env() is recorder and not recorder.enabled
    with recorder.step(2) as step, recorder.phase("eval"): step.loss = 1.0
    recorder.train_finished(2)
    recorder.close()
    raise SystemExit(0)
assert os.wait()[1] == 0
with recorder.step(2): pass
print(recorder.life, flush=True)
input()
"""
    environ = os.environ | {"HEADWAY_DIR": str(recorder.identity.directory), "HEADWAY_RUN": "forked"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=-1, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        life = int(process.stdout.readline())
        folder = recorder.identity.directory / "forked"
        reader = RingReader.open(folder / ring_name(0, life))
        assert [record.step for record in reader.poll()] == [1, 2]
        reader.close()
        kinds = [event.kind for event in JournalReader(folder / "slot-0.jsonl").poll()]
        assert set(kinds) == {"process_started", "sample"}
        locked = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import fcntl; fcntl.lockf(open({str(folder / 'slot-0.lock')!r}, 'r+'), 6, 1, {life})",
            ],
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert locked.returncode == 1
        _, told = process.communicate("\n")
    assert process.returncode == 0
    assert told.count("records nothing in this process: its parent made a recorder before it forked") == 1
    assert JournalReader(folder / "slot-0.jsonl").poll()[-1].kind == "process_exited"


def test_signals_are_written_and_handed_on(make: Make) -> None:
    """Watching a signal records it and changes nothing of what it does, also when it is watched twice."""
    recorder = make()
    delivered: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: delivered.append(number))
    try:
        recorder.watch_signals(signal.SIGUSR1, signal.SIGUSR1)
        recorder.watch_signals(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert delivered == [signal.SIGUSR1]
    assert [event.fields for event in events(recorder) if event.kind == "signal"] == [{"signal": 10, "name": "SIGUSR1"}]


@pytest.mark.parametrize("with_handler", [False, True])
def test_a_watched_sigterm_still_terminates(tmp_path: Path, with_handler: bool) -> None:
    """A handler of the user's is recorded and called; the default action stays as it is, for a rank stuck in C must die of it."""
    code = f"""
import os, signal, time
from headway import Recorder
recorder = Recorder.from_env()
if {with_handler}:
    signal.signal(signal.SIGTERM, lambda *_: exit(5))
recorder.watch_signals(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, check=False, timeout=60)
    assert done.returncode == (5 if with_handler else -signal.SIGTERM)
    kinds = [event.kind for event in JournalReader(tmp_path / "run" / "slot-0.jsonl").poll()]
    assert kinds == ["process_started"] + ["signal", "process_exited"] * with_handler


def test_watching_from_another_thread_is_refused_quietly(make: Make) -> None:
    """Python allows it in the main thread only; elsewhere it is one more drop."""
    recorder = make()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        thread = threading.Thread(target=recorder.watch_signals, args=(signal.SIGUSR2,))
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert recorder.dropped == 1


def test_bad_arguments_never_raise(make: Make) -> None:
    """Recording is never the reason why training fails, whatever a hook hands over."""
    recorder = make()
    recorder.interruption(None, iteration=1)  # type: ignore[arg-type]
    recorder.checkpoint("failed", step=object())  # type: ignore[arg-type]
    recorder.phase_gap("eval", float("nan"))
    recorder.fault_caught("no exception")  # type: ignore[arg-type]
    with recorder.phase("x" * 1_000):
        pass
    assert recorder.dropped == 3
    (begin, end) = JournalReader(recorder.identity.folder / "slot-0.jsonl").poll()[1:]
    assert begin.fields["name"] == end.fields["name"] == "x" * 64


@pytest.mark.parametrize("run", ["../up", "a/b", ".."])
def test_a_run_name_that_is_no_folder_name_disables(make: Make, caplog: pytest.LogCaptureFixture, run: str) -> None:
    """One warning that says what to set, and a recorder that does nothing."""
    with caplog.at_level(logging.WARNING, logger="headway"):
        recorder = make(HEADWAY_RUN=run)
    assert not recorder.enabled
    with recorder.step(1) as step, recorder.phase("eval"):
        step.loss = 1.0
    assert recorder.last_step == 1
    (message,) = [entry.getMessage() for entry in caplog.records]
    assert "HEADWAY_RUN" in message


def test_a_default_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where everybody may write, somebody else may have put a folder or a link under our name first."""
    monkeypatch.setattr("headway.environment.default_directory", lambda: tmp_path / "link")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, logger="headway"):
        recorder = Recorder.from_env(environ={"HEADWAY_RUN": "run"})
    recorder.close()
    assert not recorder.enabled
    assert "HEADWAY_DIR" in caplog.text
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_made_disables(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file where the folder should be: a warning, and training goes on."""
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, logger="headway"):
        recorder = make(tmp_path / "file" / "dir")
    assert not recorder.enabled
    assert len(caplog.records) == 1


def test_the_folder_removed_under_the_recorder(make: Make) -> None:
    """Steps go on, events go on into a new folder, nothing raises."""
    recorder = make()
    with recorder.step(1):
        pass
    shutil.rmtree(recorder.identity.folder)
    with recorder.step(2) as step:
        step.loss = 1.0
    recorder.train_finished(2)
    assert recorder.last_step == 2
    reader = JournalReader(recorder.identity.folder / "slot-0.jsonl")
    assert [event.kind for event in reader.poll()] == ["train_finished"]
    assert reader.dropped == {"gap": 1}
    shutil.rmtree(recorder.identity.directory)
    recorder.train_finished(2)
    assert recorder.dropped == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "headway-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs takes root in a container that permits it: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_without_room_for_the_ring(small_disk: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """On a full tmpfs a mapped hole would be a SIGBUS: there is no ring, steps are counted as dropped, events still go."""
    with caplog.at_level(logging.WARNING, logger="headway"):
        recorder = make(small_disk)
    with recorder.step(1) as step:
        step.loss = 1.0
    with recorder.step(2):
        pass
    assert recorder.enabled
    assert recorder.dropped == 3
    assert recorder.last_step == 2
    assert [event.fields.get("ring") for event in events(recorder)] == [False]
    assert "room" in caplog.text
    assert {path.name for path in recorder.identity.folder.iterdir()} == {"slot-0.jsonl", "slot-0.lock"}


def test_a_disk_that_fills_up_costs_events_and_frees_itself(small_disk: Path, make: Make) -> None:
    """While the disk is full events are dropped and counted; once there is room they go on, on a fresh line, with a gap."""
    recorder = make(small_disk)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4_096):
            pass
    before = recorder.dropped
    for _ in range(100):
        recorder.checkpoint("failed", step=1, reason="x" * 100)
    lost = recorder.dropped - before
    assert lost > 0
    ballast.unlink()
    recorder.train_finished(1)
    reader = JournalReader(recorder.identity.folder / "slot-0.jsonl")
    assert [event.kind for event in reader.poll()][-1] == "train_finished"
    assert reader.dropped["gap"] == lost
    assert reader.dropped["torn"] <= 1


def test_a_read_only_folder(small_disk: Path, make: Make) -> None:
    """A file system that became read-only stops no step and hangs nothing, whether the run's folder is there or not."""
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    recorder = make(small_disk)
    with recorder.step(1) as step:
        step.loss = 1.0
    recorder.train_finished(1)
    assert recorder.last_step == 1
    assert recorder.dropped >= 3
    recorder.close()
    assert not make(small_disk, HEADWAY_RUN="new").enabled


class Injected(BaseException):
    """Raised in the training thread by another one, as NVRx does."""


def test_exceptions_injected_anywhere_leave_the_recorder_whole(make: Make) -> None:
    """An exception between any two bytecodes loses at most the step or event in hand: no gap, no stuck phase or lock."""
    recorder = make()
    completed: list[int] = []
    number = 0
    caught = 0
    stop = False

    def train() -> None:
        nonlocal number
        while not stop:
            number += 1
            with recorder.step(number) as step:
                step.loss = 1.0
                if number % 3 == 0:
                    step.tokens = number
                    with recorder.phase("data_wait"):
                        pass
            completed.append(number)
            if number % 200 == 0:  # a system call is where another thread gets in: too often it would be there only
                with recorder.phase("eval"):
                    pass

    def keep_training() -> None:
        nonlocal caught
        while not stop:
            try:
                train()
            except Injected:  # noqa: PERF203 - it goes on after each
                caught += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # else nearly all of them hit where the thread waits for a system call
    thread = threading.Thread(target=keep_training)
    thread.start()
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for wanted in range(1, 301):
        before = number
        while number == before:  # only inside `train` is anybody there to catch it
            time.sleep(0)
        raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Injected))
        while caught < wanted:
            time.sleep(0)
    stop = True
    thread.join()
    sys.setswitchinterval(interval)
    recorder.train_entered(incarnation="b", rank=0, world_size=1)
    assert recorder.current_phase == "init"
    recorder.train_finished(1)

    reader = RingReader.open(recorder.identity.folder / ring_name(0, recorder.life))
    found = [record.step for record in reader.poll(limit=65_536)]
    assert found == sorted(set(found))
    assert set(completed[-len(found) + 300 :]) <= set(found)
    assert reader.torn <= 1
    reader.close()
    journal = JournalReader(recorder.identity.folder / "slot-0.jsonl")
    assert journal.poll(limit_bytes=1 << 30)[-1].kind == "train_finished"
    assert journal.dropped["gap"] <= recorder.dropped
    assert journal.dropped["torn"] == 0
    journal.close()


def test_process_exited_is_the_last_word_of_an_orderly_end(tmp_path: Path) -> None:
    """The interpreter's exit closes the recorder, also after an uncaught exception, with the longest silences."""
    code = """
from headway import Recorder
recorder = Recorder.from_env()
recorder.phase_gap("eval", 2.5)
recorder.phase_gap("eval", 1.5)
raise ValueError
"""
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    last = JournalReader(tmp_path / "run" / "slot-0.jsonl").poll()[-1]
    assert last.kind == "process_exited"
    assert last.fields == {"dropped": 0, "phase_gaps": {"eval": 2.5}}


def test_a_refused_life_lock_is_said(make: Make, tmp_path: Path) -> None:
    """Where the kernel cannot tell of this life's end, the first event says so, and everything else works."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slot-0.lock").symlink_to(tmp_path / "nowhere")
    recorder = make()
    assert recorder.enabled
    assert events(recorder)[0].fields["life_lock"] is False


def test_the_files_can_be_read_by_others_under_any_umask(make: Make) -> None:
    """The sidecar may run as another user."""
    before = os.umask(0o077)
    try:
        recorder = make()
    finally:
        os.umask(before)
    folder = recorder.identity.folder
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_importing_headway_loads_nothing_but_the_standard_library() -> None:
    """The recorder lives in other people's environments: it brings nothing along."""
    code = "import json, sys; old = set(sys.modules); import headway; headway.Recorder; print(json.dumps(sorted(set(sys.modules) - old)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in json.loads(told)}
    assert loaded - sys.stdlib_module_names == {"headway"}


def test_all_names_the_public_surface() -> None:
    """What `headway` exports is what it lists, and all of it is there."""
    import headway

    assert all(hasattr(headway, name) for name in headway.__all__)
    public = {name for name, value in vars(headway).items() if not name.startswith("_") and not _is_module(value)}
    assert public | {"__version__"} == set(headway.__all__)


def _is_module(value: object) -> bool:
    return type(value).__name__ == "module"


def test_an_uncaught_exception_is_the_last_word(tmp_path: Path) -> None:
    """Three lines in a plain loop are enough to know why it ended, and the traceback still reaches the terminal."""
    code = """
from headway import Recorder
recorder = Recorder.from_env()
with recorder.step(1) as step: step.loss = 1.0
import sys, threading
def elsewhere():  # as multiprocessing's resource sharer does, and goes on
    try: 1 / 0
    except ZeroDivisionError: sys.excepthook(*sys.exc_info())
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
raise ZeroDivisionError("one over nothing")
"""
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert b"ZeroDivisionError: one over nothing" in done.stderr
    told = JournalReader(tmp_path / "run" / "slot-0.jsonl").poll()
    assert [event.kind for event in told] == ["process_started", "fault_caught", "process_exited"]
    assert told[1].fields["type"] == "ZeroDivisionError"


def test_two_processes_in_one_slot_are_told_of_each_other(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs of the same name, or ranks that were spawned without LOCAL_RANK, would look like one rank that fails again and again."""
    code = "import headway, sys; headway.Recorder.from_env(); print(flush=True); sys.stdin.read()"
    environ = {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "LOCAL_RANK": "1"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=os.environ | environ, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        make(LOCAL_RANK="0").close()
        assert not caplog.messages
        make(LOCAL_RANK="1").close()
        (told,) = caplog.messages
        assert told.startswith(f"process {other.pid} also records as slot 1 of run run in {tmp_path}")
        other.kill()
    make(LOCAL_RANK="1")
    assert len(caplog.messages) == 1


def test_a_second_recorder_of_the_process_records_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Opening and closing the lock's file again would drop the first one's life lock."""
    recorder = make()
    second = Recorder(recorder.identity)
    assert not second.enabled
    assert "use Recorder.from_env()" in caplog.text
    second.close()
    assert recorder.enabled
    assert Recorder.from_env() is recorder
    path = recorder.identity.folder / "slot-0.lock"
    attempt = f"import fcntl; fcntl.lockf(open({str(path)!r}, 'r+'), 6, 1, {recorder.life})"
    assert subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False).returncode == 1


def test_what_a_broken_folder_costs_is_counted(tmp_path: Path, make: Make) -> None:
    """No folder, no records, but the count of what is missing."""
    (tmp_path / "file").touch()
    recorder = make(tmp_path / "file")
    assert not recorder.enabled
    with recorder.step(1) as step:
        step.loss = 1.0
    recorder.train_finished(1)
    assert recorder.dropped == 2


def test_phases_of_several_threads_never_raise(tmp_path: Path) -> None:
    """They belong to the thread that trains; who uses them elsewhere loses order, not the thread."""
    code = """
import sys, threading
import headway
sys.setswitchinterval(1e-6)
recorder = headway.Recorder.from_env()
failed = []
threading.excepthook = lambda hooked: failed.append(hooked.exc_value)
def work():
    for _ in range(400):
        with recorder.phase("eval"):
            pass
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with recorder.phase(None):
    pass
sys.exit(repr(failed[:1]) if failed else 0)
"""
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
