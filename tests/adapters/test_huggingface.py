"""The callback for Hugging Face's Trainer beside the real Trainer, seen through the sidecar's own fold."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from adapted import Seen, Watcher, run

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers", reason="needs Hugging Face's Transformers: pip install 'transformers[torch]'")
pytest.importorskip("accelerate", reason="needs Hugging Face's Accelerate: pip install accelerate")

WORKER = "huggingface_worker.py"
AN_END = ["train_finished", "process_exited"]


def train(folder: Path, **told: Any) -> tuple[int, Seen]:
    """One process: its exit code, and what a sidecar saw."""
    return run(WORKER, folder, told), Watcher(folder).look()


def counted(folder: Path, rank: int = 0) -> int:
    """The Trainer's own count of its steps."""
    return int((folder / f"result-{rank}").read_text())


def test_steps_are_the_trainers_steps_over_several_epochs(tmp_path: Path) -> None:
    """Each is there once, with loss and tokens, and productive; evaluation is evaluation, and after training it is nothing."""
    args = {"eval_strategy": "steps", "eval_steps": 4, "include_num_input_tokens_seen": "all"}
    code, seen = train(tmp_path, args=args)
    assert (code, counted(tmp_path)) == (0, 16), (tmp_path / "output").read_text()
    assert seen.numbers() == list(range(1, 17))
    assert all(loss is not None and loss > 0 for _, _, loss in seen.steps)
    assert seen.phases() == ["eval"] * 4
    assert seen.kinds()[-2:] == AN_END
    assert seen.status["state"] == "finished"
    assert seen.pod.ledger.slots[0].productive_steps == 16
    assert seen.pod.steps.tokens == 16 * 2 * 8
    spent = seen.status["rank_seconds"]
    assert min(spent["productive"], spent["data_wait"], spent["eval"], spent["init"]) > 0
    assert seen.status["incidents"] == []


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """Eight batches an epoch in threes are three steps, the last of them smaller."""
    args = {"gradient_accumulation_steps": 3, "eval_strategy": "epoch", "max_steps": 6}
    code, seen = train(tmp_path, args=args)
    assert (code, counted(tmp_path)) == (0, 6)
    assert seen.numbers() == [1, 2, 3, 4, 5, 6]
    evaluations = (tmp_path / "output").read_text().count("'eval_loss'") - 1  # the last one comes after training
    assert evaluations >= 2
    assert seen.phases() == ["eval"] * evaluations


def test_a_mean_loss_is_told_only_of_as_many_steps_as_always(tmp_path: Path) -> None:
    """The mean of a first, shorter window would make a replay look wrong that is right."""
    _, seen = train(tmp_path, args={"logging_steps": 3, "logging_first_step": True, "max_steps": 7})
    assert [step for _, step, loss in seen.steps if loss is not None] == [6]
    assert seen.numbers() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        ({"args": {"max_steps": 5}}, 5),
        (
            {
                "stop_early": True,
                "args": {
                    "eval_strategy": "steps",
                    "eval_steps": 3,
                    "save_strategy": "steps",
                    "save_steps": 3,
                    "load_best_model_at_end": True,
                    "metric_for_best_model": "loss",
                },
            },
            6,
        ),
    ],
    ids=["max_steps", "early stop"],
)
def test_every_end_in_order_is_the_end(tmp_path: Path, told: dict[str, Any], steps: int) -> None:
    """A run that reaches its limit of steps or stops early has finished, after its last step."""
    code, seen = train(tmp_path, **told)
    assert (code, counted(tmp_path)) == (0, steps), (tmp_path / "output").read_text()
    assert seen.numbers() == list(range(1, steps + 1))
    assert seen.kinds()[-2:] == AN_END


def test_a_fault_is_told_and_the_next_process_resumes(tmp_path: Path) -> None:
    """Saves are committed with their folders, the exception is the cause, and the steps behind the checkpoint are replayed."""
    watcher, args = Watcher(tmp_path), {"save_strategy": "steps", "save_steps": 3}
    assert run(WORKER, tmp_path, {"args": args, "fail_at": 6}) == 1
    seen = watcher.look()
    assert (seen.kinds().count("fault_caught"), seen.kinds().count("train_finished")) == (1, 0)
    assert (seen.numbers(), seen.saves("committed")) == ([1, 2, 3, 4, 5], [3])
    assert run(WORKER, tmp_path, {"args": args, "resume": "saved/checkpoint-3"}) == 0
    seen = watcher.look()
    assert seen.saves("loaded") == [0, 3]
    assert seen.numbers() == [1, 2, 3, 4, 5, *range(4, 17)]
    assert seen.saves("committed") == [3, 6, 9, 12, 15, 16]
    assert seen.pod.ledger.slots[0].productive_steps == 16
    spent = seen.status["rank_seconds"]
    assert min(spent["replay"], spent["checkpoint_save"]) > 0
    (incident,) = seen.status["incidents"]
    assert (incident["cause"], incident["state"]) == ("app_exception", "recovered")


def test_an_interrupt_by_hand_is_no_fault(tmp_path: Path) -> None:
    """Ctrl-C neither finishes the run nor blames anybody."""
    code, seen = train(tmp_path, fail_at=4, fail_with="KeyboardInterrupt")
    assert code != 0
    assert seen.numbers() == [1, 2, 3]
    assert not {"fault_caught", "train_finished"} & set(seen.kinds())


@pytest.mark.parametrize("told", [{"again": True}, {"anew": True}], ids=["again", "anew"])
def test_another_training_goes_on_with_the_steps_of_the_first(tmp_path: Path, told: dict[str, Any]) -> None:
    """The Trainer counts from 0 again; what came before is no rollback for that, and saves are numbered alike."""
    code, seen = train(tmp_path, args={"save_strategy": "steps", "save_steps": 10}, **told)
    assert (code, counted(tmp_path)) == (0, 16), (tmp_path / "output").read_text()
    assert seen.numbers() == list(range(1, 33))
    assert seen.saves("committed") == [10, 16, 26, 32]
    assert seen.pod.ledger.slots[0].productive_steps == 32
    assert (seen.status["rank_seconds"]["replay"], seen.status["incidents"]) == (0, [])


def test_a_training_that_failed_is_begun_anew(tmp_path: Path) -> None:
    """Where the caller catches the exception and trains once more from the start, steps are done again, and count once."""
    code, seen = train(tmp_path, fail_at=5, caught=True, again=True)
    assert code == 0
    assert seen.numbers() == [1, 2, 3, 4, *range(1, 17)]
    assert seen.pod.ledger.slots[0].productive_steps == 16
    assert seen.status["rank_seconds"]["replay"] > 0
    assert seen.status["state"] == "finished"


def test_a_callback_given_twice_records_once(tmp_path: Path) -> None:
    """Each step once, one start, one end; training is told in the log."""
    code, seen = train(tmp_path, twice=True)
    assert code == 0
    assert seen.numbers() == list(range(1, 17))
    assert (seen.kinds().count("train_entered"), seen.kinds().count("train_finished")) == (1, 1)
    assert "given twice" in (tmp_path / "output").read_text()


def test_a_save_for_being_the_best_blocks_training_like_any_other(tmp_path: Path) -> None:
    """The evaluation's result decides on it: its time is a save's from the beginning, and no wait for data."""
    args = {"save_strategy": "best", "metric_for_best_model": "loss", "greater_is_better": False, "learning_rate": 0.01}
    args |= {"eval_strategy": "steps", "eval_steps": 4}
    code, seen = train(tmp_path, args=args)
    assert (code, counted(tmp_path)) == (0, 16), (tmp_path / "output").read_text()
    saved = sorted(int(folder.name.partition("-")[2]) for folder in (tmp_path / "saved").iterdir())
    assert seen.saves("requested") == seen.saves("committed") == saved
    written = [event.fields["seconds"] for _, event in seen.events if event.fields.get("stage") == "staged"]
    assert seen.status["rank_seconds"]["checkpoint_save"] > seen.status["rank_seconds"]["other"]
    assert min(written) > 0
    assert seen.numbers() == list(range(1, 17))


def test_loading_the_best_at_the_end_changes_nothing(tmp_path: Path) -> None:
    """Nor does an old folder's deletion, or a last step of fewer rows."""
    args = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 1}
    args |= {"load_best_model_at_end": True, "gradient_accumulation_steps": 3, "max_steps": 6}
    code, seen = train(tmp_path, rows=15, args=args)
    assert (code, counted(tmp_path)) == (0, 6), (tmp_path / "output").read_text()
    assert seen.numbers() == [1, 2, 3, 4, 5, 6]
    assert seen.saves("committed") == [2, 4, 6]
    assert (seen.saves("loaded"), seen.kinds()[-2:]) == ([0], AN_END)


def test_nothing_to_resume_from_is_no_run(tmp_path: Path) -> None:
    """The Trainer refuses before it trains."""
    assert run(WORKER, tmp_path, {"resume": True}) == 1
    assert "No valid checkpoint" in (tmp_path / "output").read_text()
    assert not (tmp_path / "journals").exists()


def test_training_goes_on_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    """A journal folder that cannot be made costs the records and nothing else."""
    (tmp_path / "journals").write_text("not a folder")
    assert run(WORKER, tmp_path, {"args": {"save_strategy": "steps", "save_steps": 4}}) == 0
    assert counted(tmp_path) == 16


@pytest.mark.parametrize("only", ["evaluate", "predict"])
def test_what_is_no_training_leaves_no_trace(tmp_path: Path, only: str) -> None:
    """Evaluation of a finished model is no run."""
    assert run(WORKER, tmp_path, {"only": only}) == 0
    assert not (tmp_path / "journals").exists()


def test_ranks_of_a_group_are_one_incarnation(tmp_path: Path) -> None:
    """Two processes under torchrun: two slots, one id, both know of both steps and saves."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    told = {"args": {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}}
    assert run(WORKER, tmp_path, told, launcher=launcher) == 0, (tmp_path / "output").read_text()
    seen = Watcher(tmp_path).look()
    assert (counted(tmp_path, 0), counted(tmp_path, 1)) == (4, 4)
    assert seen.numbers(0) == seen.numbers(1) == [1, 2, 3, 4]
    assert seen.saves("committed", 0) == [2, 4]
    entered = [event for _, event in seen.events if event.kind == "train_entered"]
    assert sorted((event.fields["rank"], event.fields["world_size"]) for event in entered) == [(0, 2), (1, 2)]
    assert len({event.incarnation for event in entered}) == 1


def test_without_transformers_the_message_says_what_to_install() -> None:
    """Nobody has to read a traceback for it."""
    code = "import sys; sys.modules.update(transformers=None); import headway.adapters.huggingface"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "pip install 'transformers[torch]'" in done.stderr.splitlines()[-1]
