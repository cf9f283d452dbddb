"""Cycle-info files as NVRx 0.6.0 and 0.7.0 wrote them, read by `headway run` beside a launcher."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headway import cycle_info
from headway.cycle_info import CycleInfo, current_link, parse
from headway.journal import JournalReader

if TYPE_CHECKING:
    from pathlib import Path

# Of a run with two launchers under Slurm, 0.6.0; nodes renamed. The order of the fields differs from file to file.
WRITTEN = """{
  "job_id": "4712",
  "cycle_number": 1,
  "cycle_start_time": "2026-12-01T04:53:39.527543Z",
  "cycle_end_time": "",
  "active_nodes": "node[01-02]",
  "generation": "0",
  "active_ranks": "0-1",
  "attempt_index": 0,
  "cycle_log_file": "",
  "standby_nodes": ""
}"""
READ = {
    "cycle": 1,
    "attempt": 0,
    "began_wall": 1796100819.527543,
    "active_nodes": "node[01-02]",
    "active_ranks": "0-1",
}


def test_what_nvrx_wrote() -> None:
    """Cycle, attempt, beginning and nodes; what is empty is left out."""
    assert parse(WRITTEN) == READ


@pytest.mark.parametrize(
    "text",
    [
        "",
        WRITTEN[:90],
        "[]",
        "null",
        "{}",
        '{"cycle_number": "x"}',
        '{"cycle_number": 1, "cycle_start_time": 5}',
        "[" * 10_000,
        '{"cycle_number": 1e999, "cycle_start_time": "2026-12-01T04:53:39Z"}',
    ],
)
def test_what_is_no_file_of_a_cycle(text: str) -> None:
    """A file that is not written to its end yet, or is another's, says nothing."""
    assert parse(text) is None


def test_a_long_list_of_nodes_is_cut() -> None:
    """A journal line has an end."""
    told = parse(WRITTEN.replace("node[01-02]", "n," * 1_000_000))
    assert told is not None
    assert len(told["active_nodes"]) == 4_096


@pytest.mark.parametrize(
    ("words", "environ", "link"),
    [
        (["--ft-cycle-info-dir", "/c"], {}, "/c/cycle_info..current"),
        (["--ft-cycle-info-dir=/c/"], {"SLURM_JOB_ID": "7"}, "/c/cycle_info.7.current"),
        (["--ft_cycle_info_dir", "c"], {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5"}, "c/cycle_info.5.current"),
        (["--ft-cycle-info-dir"], {}, None),
        (["--ft-cycle-info-dir="], {}, None),
        (["train.py"], {"SLURM_JOB_ID": "7"}, None),
    ],
)
def test_where_the_launcher_writes(words: list[str], environ: dict[str, str], link: str | None) -> None:
    """The option in each of its spellings, and the job's id as NVRx takes it."""
    found = current_link(["ft_launcher", *words], environ)
    assert (None if found is None else str(found)) == link


def test_it_waits_for_the_file_of_the_cycle(tmp_path: Path) -> None:
    """The former cycle's file, and a file half written, are not taken for the new one's; it is told once."""
    link, told, done = tmp_path / "cycle_info..current", [], threading.Event()

    def tell(fields: dict[str, Any]) -> None:
        told.append(fields)
        done.set()

    info = CycleInfo(link, tell)
    info.look_for(1)
    for content in (WRITTEN.replace('"cycle_number": 1', '"cycle_number": 0'), WRITTEN[:150], WRITTEN):
        time.sleep(2 * cycle_info._PAUSE_SECONDS)
        assert told == []
        link.write_text(content)
    assert done.wait(20)
    info.close()
    assert told == [READ]


def test_headway_run_reads_it_when_the_nodes_have_met(tmp_path: Path) -> None:
    """The launcher's line starts the reading, and what the file says is in the journal with the launcher's other events."""
    line = "- Cycle: 1 Event: rendezvous_completed Node: n_1_0 Rank: None Time: 2026-12-01 04:53:39.570 UTC"
    (tmp_path / "cycle_info.4712.current").write_text(WRITTEN)
    launcher = f"import sys, time; print({line!r}, flush=True); time.sleep(3)"
    command = ["headway", "run", "--dir", str(tmp_path), "--run", "r", "--", sys.executable, "-c", launcher]
    command += ["--ft-cycle-info-dir", str(tmp_path)]
    environ = {"PYTHONPATH": ":".join(sys.path), "SLURM_JOB_ID": "4712"}
    subprocess.run([sys.executable, "-m", *command], env=environ, check=True, timeout=60, capture_output=True)
    reader = JournalReader(tmp_path / "r" / "launcher.jsonl")
    events = [(event.kind, dict(event.fields)) for event in reader.poll()]
    reader.close()
    assert [kind for kind, _ in events] == ["launcher_started", "launcher_phase", "launcher_cycle", "launcher_exited"]
    assert events[2][1] == READ
