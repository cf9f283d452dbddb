"""`headway experiment`, its options and its folder: nothing of anybody else is touched, and nothing that was measured is lost."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING

import experiment_cases as cases
import pytest

from headway_trainer.experiment import cli, kept
from headway_trainer.experiment.plan import Cell, Plan

if TYPE_CHECKING:
    from pathlib import Path

ONE = ("--cells", "async/launcher@40")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line with which the command declines."""
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headway experiment: ")
    return line


def keep(out: Path, plan: Plan, **changes: object) -> None:
    """What a finished `async/launcher@40` leaves behind."""
    with kept.opened(out, plan):
        cell = Cell("async", "launcher", 40)
        kept.fresh_folder(out, cell)
        kept.keep(out, cell, cases.result(**changes))


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An experiment works in its own folder only."""
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds something that no experiment wrote" in refused(capsys, "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_experiment_does_not_disturb_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of one that still runs is locked."""
    keep(tmp_path, Plan())
    with (tmp_path / kept.PLAN).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another experiment is running" in refused(capsys, "--out", str(tmp_path))


def test_results_of_other_options_are_neither_mixed_in_nor_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options that decide a result must be those of the folder; the line names what differs."""
    keep(tmp_path, Plan())
    line = refused(capsys, "--out", str(tmp_path), "--seed", "7", "--steps", "300")
    assert "holds an experiment with steps 200, not 300, seed 0, not 7; give the same options" in line
    assert kept.kept(tmp_path, Cell("async", "launcher", 40)) is not None


def test_a_damaged_plan_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, and nothing is written over."""
    (tmp_path / kept.PLAN).write_text("{")
    assert "is damaged" in refused(capsys, "--out", str(tmp_path))
    assert (tmp_path / kept.PLAN).read_text() == "{"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_what_is_no_folder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """One line, no traceback."""
    (tmp_path / "file").touch()
    assert "cannot be used: " in refused(capsys, "--out", str(tmp_path / name))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--steps", "0"), "--steps"),
        (("--backoff-scale", "2"), "--backoff-scale"),
        (("--intervals", "40,40"), "--intervals"),
        (("--cells", "sync"), "--cells"),
    ],
)
def test_options_that_make_no_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], option: str
) -> None:
    """One line that names the option, before anything is written."""
    assert option in refused(capsys, "--out", str(tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [("--intervals", "many"), ("--steps", "1.5"), ("--unknown",)])
def test_options_that_are_none(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """As any other command: exit code 2, one line."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_finished_cells_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With everything on disk the command only says so, writes the tables anew and ends well."""
    keep(tmp_path, Plan())
    assert cli.main([*ONE, "--out", str(tmp_path)]) == 0
    assert f"1 of 1 cells are in {tmp_path} already" in " ".join(capsys.readouterr().out.split())
    document = json.loads((tmp_path / "results.json").read_text())
    assert [(cell["cell"], cell["state"]) for cell in document["cells"]] == [("async/launcher@40", "done")]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("cells", "experiment.json", "experiment.html", "results.json", "table.csv", "table.md")
    }


def test_a_result_of_another_version_is_no_result(tmp_path: Path) -> None:
    """Nor is one that a full disk cut short: the cell is then run again."""
    keep(tmp_path, Plan())
    cell = Cell("async", "launcher", 40)
    path = kept.folder_of(tmp_path, cell) / kept.RESULT
    whole = path.read_text()
    for text in (whole[:100], json.dumps({**json.loads(whole), "version": 2}), ""):
        path.write_text(text)
        assert kept.kept(tmp_path, cell) is None


def test_every_option_says_what_it_is_for() -> None:
    """No option is without help, and those that decide a result have the names of the plan's settings."""
    actions = {action.dest: action for action in cli._parser()._actions}
    assert [name for name, action in actions.items() if not action.help] == []
    assert set(Plan().settings()) <= set(actions)
