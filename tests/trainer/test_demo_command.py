"""`headway demo` and the folder it is given: nothing of anybody else is removed, and two demos do not meet."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from headway_trainer.demo import cli

if TYPE_CHECKING:
    from pathlib import Path


def refused(output: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the demo declines."""
    assert cli.main(["--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output folder is emptied first, so it must be a demo's own."""
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds something that no demo wrote" in refused(tmp_path, capsys)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_demo_does_not_disturb_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a demo that still runs is locked."""
    (tmp_path / "undisturbed").mkdir()
    with (tmp_path / cli.MARKER).open("w") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert "another demo is running" in refused(tmp_path, capsys)
    assert (tmp_path / "undisturbed").exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_what_is_no_folder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """One line, no traceback."""
    (tmp_path / "file").touch()
    assert "cannot be used: Not a directory" in refused(tmp_path / name, capsys)
