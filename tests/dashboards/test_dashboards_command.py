"""`headway dashboards` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from rendered import FOLDER

if TYPE_CHECKING:
    from pathlib import Path


def dashboards(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Its output and exit code."""
    return subprocess.run(
        [sys.executable, "-m", "headway", "dashboards", *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_writes_the_committed_files(tmp_path: Path) -> None:
    """What people find in the repository is what they get."""
    done = dashboards("--out", str(tmp_path / "new" / "json"))
    assert done.returncode == 0, done.stderr
    for path in FOLDER.iterdir():
        assert (tmp_path / "new" / "json" / path.name).read_text() == path.read_text()


def test_own_data_source_and_selector(tmp_path: Path) -> None:
    """The option wins over the environment."""
    done = dashboards("--out", str(tmp_path), "--datasource", "Mimir", HEADWAY_DASHBOARDS_DATASOURCE="x")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "headway-run.json").read_text()
    assert json.loads(text)["templating"]["list"][0]["current"] == {"text": "Mimir", "value": "Mimir"}
    assert "cluster" not in text
    done = dashboards(HEADWAY_DASHBOARDS_OUT=str(tmp_path), HEADWAY_DASHBOARDS_SELECTOR='cluster="a"')
    assert done.returncode == 0, done.stderr
    assert r"headway_rank_seconds_total{cluster=\"a\",run=\"$run\"" in (tmp_path / "headway-run.json").read_text()


def test_a_bad_selector_is_one_line(tmp_path: Path) -> None:
    """What is wrong and what would do; nothing is written."""
    done = dashboards("--out", str(tmp_path / "out"), "--selector", "nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "expected matchers" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The work failed: 1, and why."""
    (tmp_path / "file").touch()
    done = dashboards("--out", str(tmp_path / "file" / "json"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write" in done.stderr
