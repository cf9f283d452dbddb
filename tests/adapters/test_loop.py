"""What both adapters share: no waiting for a device, no exception into training, no step that was none."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest
from adapted import RUN, Watcher

from headway.adapters import saves
from headway.adapters.loop import Loop, Turn, never_raises, number_of
from headway.adapters.saves import Saves
from headway.environment import Identity
from headway.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="needs torch")


def test_a_loss_on_a_device_is_read_only_when_it_is_due() -> None:
    """A tensor without storage stands for one on a GPU: reading it at the wrong time would raise here and wait there."""
    away = torch.zeros((), device="meta")
    assert number_of(away, due=False) is None
    with pytest.raises(RuntimeError):
        number_of(away, due=True)
    assert [number_of(loss, due=False) for loss in (None, 2, 0.5, torch.tensor(0.25))] == [None, 2, 0.5, 0.25]


def test_a_hook_that_fails_is_told_of_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """A framework's next version may lack what a hook asks for."""

    @never_raises
    def hook(trainer: object) -> None:
        print(trainer.no_such_thing)  # type: ignore[attr-defined]

    with caplog.at_level(logging.WARNING, "headway"):
        hook(object())
    assert "no_such_thing" in caplog.text
    assert "training goes on" in caplog.text


def test_a_step_that_only_waited_is_taken_back(tmp_path: Path) -> None:
    """Evaluation between two steps is in neither, a save amid one is in it, and what is left at the end leaves no record."""
    recorder = Recorder(Identity(directory=tmp_path / "journals", run=RUN, pod_index="0"))
    loop = Loop(recorder)
    recorder.train_entered(incarnation="a", rank=0, world_size=1)
    loop.wait(1)
    loop.begin("eval")
    assert recorder.current_phase == "eval"
    loop.wait(1)
    loop.work(1)
    loop.begin("checkpoint_save")
    loop.work(1)
    loop.completed(1, 0.5)
    loop.wait(2)
    loop.leave()
    assert recorder.current_phase == "other"
    recorder.close()
    seen = Watcher(tmp_path).look()
    assert (seen.steps, seen.phases()) == ([(0, 1, 0.5)], ["eval"])
    spent = seen.status["rank_seconds"]
    assert min(spent["productive"], spent["data_wait"], spent["eval"], spent["checkpoint_save"]) > 0


def test_a_save_that_never_becomes_complete_is_looked_for_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking takes training's time: whoever asks at every step looks a hundredth of the time, and after a new save at once."""
    looks: list[object] = []

    def slow(path: object, *, since: float) -> None:
        looks.append((path, since))
        time.sleep(0.02)

    monkeypatch.setattr(saves, "complete", slow)
    recorder = Recorder(Identity(directory=tmp_path / "journals", run=RUN, pod_index="0"))
    found = Saves(Loop(recorder))
    for step in (1, 2):
        found.begin(step)
        found.end()
        found.lies_in(step, tmp_path)
        for _ in range(1_000):
            found.look()
        assert len(looks) == (1, 3)[step - 1]
    recorder.close()


def test_the_newest_training_records_and_of_its_callbacks_the_first() -> None:
    """A training that was left by an exception, of which nobody was told, keeps no later one from being recorded."""

    class Callback:
        forgotten = 0

        def forget(self) -> None:
            self.forgotten += 1

    turn, first, second, training = Turn(), Callback(), Callback(), object()
    assert [turn.take(first, training), turn.take(second, training), turn.take(first, training)] == [True, False, True]
    assert turn.take(second, object())
    assert (first.forgotten, second.forgotten) == (1, 0)
    assert not turn.take(first, turn._training)
    turn.end()
    assert turn.take(first, training)
    assert (first.forgotten, second.forgotten) == (1, 0)
