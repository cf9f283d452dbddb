"""The Lightning callback beside the real Lightning, seen through the sidecar's own fold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from adapted import Seen, Watcher, run

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("lightning", reason="needs PyTorch Lightning: pip install lightning")

WORKER = "lightning_worker.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
A_START = ["process_started", "train_entered"]
AN_END = ["train_finished", "process_exited"]


def fit(folder: Path, **told: Any) -> tuple[int, Seen]:
    """One process: its exit code, and what a sidecar saw."""
    return run(WORKER, folder, told), Watcher(folder).look()


def counted(folder: Path, rank: int = 0) -> dict[str, int]:
    """Lightning's own count of its optimizer steps, and the batches that the model saw."""
    return json.loads((folder / f"result-{rank}").read_text())  # type: ignore[no-any-return]


def test_steps_are_lightnings_steps_over_several_epochs(tmp_path: Path) -> None:
    """Each optimizer step is there once, in order, with its loss and productive; validation is evaluation; the try before it is none."""
    code, seen = fit(tmp_path)
    assert (code, counted(tmp_path)["global_step"]) == (0, 16)
    assert seen.numbers() == list(range(1, 17))
    assert all(loss is not None and loss >= 0 for _, _, loss in seen.steps)
    assert seen.phases() == ["init", "eval", "eval"]
    assert (seen.kinds()[:2], seen.kinds()[-2:]) == (A_START, AN_END)
    assert seen.status["state"] == "finished"
    assert seen.pod.ledger.slots[0].productive_steps == 16
    spent = seen.status["rank_seconds"]
    assert min(spent["productive"], spent["data_wait"], spent["eval"], spent["init"]) > 0
    assert spent["detect"] == spent["restart"] == spent["replay"] == 0
    assert seen.status["incidents"] == []


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """Validation in the middle of an accumulation, and one cut short by the epoch's end, change nothing of it."""
    options = {"accumulate_grad_batches": 3, "val_check_interval": 4}
    code, seen = fit(tmp_path, trainer=options)
    assert (code, counted(tmp_path)) == (0, {"global_step": 6, "batches": 16})
    assert seen.numbers() == [1, 2, 3, 4, 5, 6]
    assert seen.phases() == ["init", *["eval"] * 4]


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        ({"trainer": {"max_steps": 5, "max_epochs": -1}}, 5),
        ({"stop_early": True, "trainer": {"max_epochs": 9, "val_check_interval": 3}}, 6),
    ],
    ids=["max_steps", "early stop"],
)
def test_every_end_in_order_is_the_end(tmp_path: Path, told: dict[str, Any], steps: int) -> None:
    """A run that reaches its limit of steps or stops early has finished, after its last step."""
    code, seen = fit(tmp_path, **told)
    assert (code, counted(tmp_path)["global_step"]) == (0, steps)
    assert seen.numbers() == list(range(1, steps + 1))
    assert seen.kinds()[-2:] == AN_END
    assert seen.status["state"] == "finished"


def test_saves_are_committed_once_their_files_are_complete(tmp_path: Path) -> None:
    """Each save is requested, has blocked, and is durable only with the file that it left."""
    _, seen = fit(tmp_path, save_every=3, profiler="simple")
    assert seen.saves("requested") == seen.saves("staged") == seen.saves("committed") == [3, 6, 9, 12, 15]
    assert seen.status["checkpoint"]["durable_step"] == 15
    assert len(list((tmp_path / "saved").iterdir())) == 5
    assert seen.status["rank_seconds"]["checkpoint_save"] > 0
    assert seen.numbers() == list(range(1, 17))


def test_a_fault_is_told_and_the_next_process_resumes(tmp_path: Path) -> None:
    """The exception is the cause, the steps behind the checkpoint are replayed, and the incident is recovered."""
    watcher = Watcher(tmp_path)
    assert run(WORKER, tmp_path, {"save_every": 3, "fail_at": 5}) == 1
    seen = watcher.look()
    assert seen.kinds().count("fault_caught") == 1
    assert seen.kinds().count("train_finished") == 0
    assert (seen.numbers(), seen.saves("committed")) == ([1, 2, 3, 4, 5], [3])
    (saved,) = (tmp_path / "saved").iterdir()
    assert run(WORKER, tmp_path, {"save_every": 3, "resume": str(saved)}) == 0
    seen = watcher.look()
    assert seen.saves("loaded") == [0, 3]
    assert seen.numbers() == [1, 2, 3, 4, 5, *range(4, 17)]
    assert seen.pod.ledger.slots[0].productive_steps == 16
    assert seen.status["rank_seconds"]["replay"] > 0
    (incident,) = seen.status["incidents"]
    assert (incident["cause"], incident["state"]) == ("app_exception", "recovered")


def test_an_interrupt_by_hand_is_no_fault(tmp_path: Path) -> None:
    """Ctrl-C neither finishes the run nor blames anybody."""
    code, seen = fit(tmp_path, fail_at=3, fail_with="KeyboardInterrupt")
    assert code == 1
    assert seen.numbers() == [1, 2, 3]
    assert not {"fault_caught", "train_finished"} & set(seen.kinds())
    assert seen.kinds()[-1] == "process_exited"


@pytest.mark.parametrize("only", ["validate", "test", "predict"])
def test_what_is_no_training_leaves_no_trace(tmp_path: Path, only: str) -> None:
    """Evaluation of a finished model is no run."""
    assert run(WORKER, tmp_path, {"only": only}) == 0
    assert not (tmp_path / "journals").exists()


def test_fit_may_be_called_again(tmp_path: Path) -> None:
    """The second call goes on with the steps of the first: nothing is loaded, nothing is lost, nothing failed."""
    code, seen = fit(tmp_path, fits=2)
    assert (code, counted(tmp_path)["global_step"]) == (0, 32)
    assert seen.numbers() == list(range(1, 33))
    assert seen.saves("loaded") == [0]
    assert seen.kinds().count("train_entered") == seen.kinds().count("train_finished") == 2
    assert seen.pod.ledger.slots[0].productive_steps == 32
    assert (seen.status["state"], seen.status["incidents"]) == ("finished", [])


def test_a_second_trainer_goes_on_with_the_steps_of_the_first(tmp_path: Path) -> None:
    """Lightning counts from 0 again; what the first one did is no rollback for that, and was not in vain."""
    code, seen = fit(tmp_path, anew=True)
    assert code == 0, (tmp_path / "output").read_text()
    assert seen.numbers() == list(range(1, 33))
    assert seen.pod.ledger.slots[0].productive_steps == 32
    assert (seen.status["rank_seconds"]["replay"], seen.status["incidents"]) == (0, [])


@pytest.mark.parametrize("when", ["before", "in"])
def test_looking_for_a_learning_rate_is_part_of_the_start(tmp_path: Path, when: str) -> None:
    """Neither is the entry after it a restart, nor its state to be put back a save, nor its tries part of the first step."""
    code, seen = fit(tmp_path, tune=when, save_every=8, trainer={"num_sanity_val_steps": 0})
    assert code == 0, (tmp_path / "output").read_text()
    last = counted(tmp_path)["global_step"]  # 16; Lightning 2.5 leaves out of the first epoch what the search took
    assert counted(tmp_path)["batches"] == last + 5
    assert seen.numbers() == list(range(1, last + 1))
    assert seen.kinds().count("train_entered") == 1
    assert (sum(seen.status["restarts"].values()), seen.status["incidents"]) == (0, [])
    assert seen.saves("requested") == seen.saves("committed") == list(range(8, last + 1, 8))
    (loaded,) = (event for _, event in seen.events if event.fields.get("stage") == "loaded")
    assert seen.began_ns[0] / 1e9 >= loaded.mono
    assert "seconds" not in loaded.fields


def test_a_callback_given_twice_records_once(tmp_path: Path) -> None:
    """Each step once, one start, one end; training is told in the log."""
    code, seen = fit(tmp_path, twice=True)
    assert code == 0
    assert seen.numbers() == list(range(1, 17))
    assert (seen.kinds().count("train_entered"), seen.kinds().count("train_finished")) == (1, 1)
    assert "given twice" in (tmp_path / "output").read_text()


def test_a_bug_in_somebody_elses_callback_is_the_cause(tmp_path: Path) -> None:
    """The step that it broke after is done; the incident is the exception's."""
    code, seen = fit(tmp_path, bad_callback=True)
    assert code == 1
    assert seen.numbers() == [1, 2]
    (fault,) = [event for _, event in seen.events if event.kind == "fault_caught"]
    assert fault.fields["message"] == "a bug of somebody else's"
    assert [incident["cause"] for incident in seen.status["incidents"]] == ["app_exception"]


def test_resumed_where_it_was_to_end_it_ends(tmp_path: Path) -> None:
    """A job that is started again after its last step does none, and has finished, not failed."""
    told = {"trainer": {"max_steps": 3, "max_epochs": -1}, "save_every": 3}
    watcher = Watcher(tmp_path)
    assert run(WORKER, tmp_path, told) == 0
    (saved,) = (tmp_path / "saved").iterdir()
    watcher.look()
    assert run(WORKER, tmp_path, told | {"resume": str(saved)}) == 0
    seen = watcher.look()
    assert seen.numbers() == [1, 2, 3]
    assert (seen.status["state"], seen.status["incidents"]) == ("finished", [])
    assert seen.status["checkpoint"]["durable_step"] == 3


def test_a_sharded_checkpoint_is_committed_as_a_whole(tmp_path: Path) -> None:
    """FSDP2 on two ranks leaves a folder of shards; each rank's journal says the same of it."""
    told = {"sharded": True, "save_every": 2, "trainer": {"devices": 2, "max_epochs": 1}}
    assert run(WORKER, tmp_path, told, launcher=TORCHRUN) == 0, (tmp_path / "output").read_text()
    seen = Watcher(tmp_path).look()
    assert seen.numbers(0) == seen.numbers(1) == [1, 2, 3, 4]
    assert seen.saves("committed", 0) == seen.saves("committed", 1) == [2, 4]
    assert all(len(list(folder.glob("*.distcp"))) == 2 for folder in (tmp_path / "saved").iterdir())


@pytest.mark.parametrize(("text", "told"), [("2.4.0", False), ("2.5.0.post0", True), ("2.10.1", True), ("main", True)])
def test_a_version_that_tells_nobody_of_its_saves_is_known(text: str, told: bool) -> None:
    """Lightning's profiler hears of saves since 2.5."""
    from headway.adapters.lightning import tells_of_saves

    assert tells_of_saves(text) is told


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["own", "torchrun"])
def test_ranks_of_a_group_are_one_incarnation(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    """Two processes, by Lightning's own launcher or another: two slots, one id, both know of both steps and saves."""
    told = {"save_every": 2, "trainer": {"devices": 2, "strategy": "ddp", "max_epochs": 1}}
    assert run(WORKER, tmp_path, told, launcher=launcher) == 0, (tmp_path / "output").read_text()
    seen = Watcher(tmp_path).look()
    assert counted(tmp_path, 1)["global_step"] == 4
    assert seen.numbers(0) == seen.numbers(1) == [1, 2, 3, 4]
    assert seen.saves("committed", 0) == seen.saves("committed", 1) == [2, 4]
    entered = [event for _, event in seen.events if event.kind == "train_entered"]
    assert sorted((event.fields["rank"], event.fields["world_size"]) for event in entered) == [(0, 2), (1, 2)]
    assert len({event.incarnation for event in entered}) == 1
    assert seen.status["incidents"] == []


@pytest.mark.alone
@pytest.mark.parametrize("name", ["FaultToleranceCallback", "FaultToleranceSectionsCallback"])
def test_it_works_beside_nvrxs_callbacks(tmp_path: Path, name: str) -> None:
    """Under `ft_launcher`, with NVRx's heartbeats or sections from its own Lightning callback, both do their work."""
    launcher = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--nproc-per-node=2", "--max-restarts=0")
    launcher += ("--ft-param-initial_rank_heartbeat_timeout=60", "--ft-param-rank_heartbeat_timeout=60", "--standalone")
    launcher += (
        "--ft-param-rank_section_timeouts=setup:60,step:60,checkpointing:60",
        "--ft-param-rank_out_of_section_timeout=60",
    )
    told = {
        "nvrx": name,
        "save_every": 2,
        "trainer": {"devices": 2, "strategy": "ddp", "max_epochs": 1},
    }
    assert run(WORKER, tmp_path, told, launcher=launcher) == 0, (tmp_path / "output").read_text()
    seen = Watcher(tmp_path).look()
    assert seen.numbers(0) == seen.numbers(1) == [1, 2, 3, 4]
    assert seen.saves("committed") == [2, 4]
    assert (tmp_path / "nvrx-finished").exists(), "NVRx's callback did not see training finish"


def test_training_goes_on_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    """A journal folder that cannot be made costs the records and nothing else."""
    (tmp_path / "journals").write_text("not a folder")
    assert run(WORKER, tmp_path, {"save_every": 3}) == 0
    assert counted(tmp_path)["global_step"] == 16


def test_without_lightning_the_message_says_what_to_install() -> None:
    """Nobody has to read a traceback for it; Headway itself does not care."""
    code = "import sys; sys.modules.update(lightning=None, pytorch_lightning=None); import headway.adapters.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "pip install lightning" in done.stderr.splitlines()[-1]
