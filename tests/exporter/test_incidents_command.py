"""`headway incidents` and `headway advise` as people call them, on real state folders; where a process matters, in one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import state_story
from state_story import RUNS

from headway.cli import main
from headway_exporter.state_files import LEDGER, RECORDS, Ledger, append_record, pod_folder, write_ledger
from headway_exporter.terminal import cut, padded, shown_width

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\r\n\u202egnp.exe\u2028\x00" + "深" * 300


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(command: str, *options: object, columns: int = 100) -> Done:
    """The whole command line, without the second that starting Python takes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", str(columns))
        try:
            code = main([command, *map(str, options)])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a run of every kind."""
    folder = tmp_path_factory.mktemp("state")
    for name, make in RUNS.items():
        state_story.write(folder, make()).rename(folder / name)
    return folder


def test_a_line_that_was_written_twice_is_told_once(tmp_path: Path) -> None:
    """A sidecar killed between record and ledger may leave one: neither the list nor the report may count it twice."""
    folder = state_story.write(tmp_path, RUNS["recovered"]())
    path = folder / "0" / RECORDS
    once = ids(tmp_path), reported(folder)
    path.write_bytes(path.read_bytes() * 2)
    assert (ids(tmp_path), reported(folder)) == once
    assert len(once[0]) == len(set(once[0])) == once[1]["total"] == 2


def reported(folder: Path) -> dict[str, Any]:
    """The incidents of the report."""
    out = folder.parent / "report.json"
    assert run("postmortem", folder, "--format", "json", "--out", out).returncode == 0
    incidents: dict[str, Any] = json.loads(out.read_text())["incidents"]
    return incidents


def ids(*options: object) -> list[str]:
    done = run("incidents", *options, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def records(*options: object) -> list[dict[str, Any]]:
    done = run("incidents", *options, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_incidents_of_all_runs_newest_first(state: Path) -> None:
    """Every incident of every run is there once, whatever the number of pods and revisions, the newest first."""
    found = records(state)
    counts: dict[str, int] = {}
    for one in found:
        counts[one["run"]] = counts.get(one["run"], 0) + 1
    assert counts == {
        "many": 50, "recovered": 2, "diverged": 2, "under_way": 2, "three_pods": 1,
        "recurring": 1, "escalated": 1, "abandoned": 1, "cancelled": 1,
    }  # fmt: skip
    walls = [one["opened_wall"] for one in found]
    assert walls == sorted(walls, reverse=True)


def test_pods_are_merged_and_the_origins_word_counts(state: Path) -> None:
    """Three pods saw it; the cause is that of the pod where it began, the lost time that of all."""
    (merged,) = records(state, "--run", "three_pods")
    apart = records(state, "--run", "three_pods", "--all-pods")
    assert len(apart) == 3
    assert (merged["cause"], merged["pod_index"], merged["pods"]) == ("app_exception", "1", ["0", "1", "2"])
    assert merged["outcome"] == "recovered"
    lost = [sum(one["lost_rank_seconds"].values()) for one in apart]
    assert sum(merged["lost_rank_seconds"].values()) == pytest.approx(sum(lost))


def test_filters_and_words_reach_the_records(state: Path) -> None:
    """Options narrow the list the way the records say, in any order with the words."""
    assert {one["run"] for one in records(state, "--recurring", "any")} == {"recurring", "escalated"}
    assert {one["run"] for one in records(state, "--outcome", "cancelled")} == {"cancelled"}
    assert len(ids(state, "--run", "many", "--layer", "launcher")) == 17
    assert ids(state, "ValueError", "--run", "many") == ids("--run", "many", state, "ValueError")
    assert len(ids("--run", "many", state, "ValueError")) == 33
    assert ids(state, "--setting", "heartbeat_rank_seconds<8") == []
    assert len(ids(state, "--setting", "heartbeat_rank_seconds<=8")) == len(ids(state))
    (one,) = records(state, "--run", "many", "--sort", "lost", "--limit", "1")
    assert sum(one["lost_rank_seconds"].values()) == max(
        sum(each["lost_rank_seconds"].values()) for each in records(state, "--run", "many")
    )


def test_open_incidents_come_from_ledgers(tmp_path: Path) -> None:
    """A running run's incident is open while its sidecar writes, and abandoned when nobody has for an hour."""
    folder = state_story.write(tmp_path, RUNS["under_way"]()) / "0"
    assert [one["outcome"] for one in records(tmp_path)] == ["abandoned", "recovered"]
    text = (folder / LEDGER).read_bytes().partition(b"\n")[2]
    ledger = Ledger("story", "0", "now", 4e9, json.loads(text))
    write_ledger(folder / LEDGER, ledger)
    assert [one["outcome"] for one in records(tmp_path)] == ["open", "recovered"]
    assert len(ids(tmp_path, "--outcome", "open")) == 1


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_table_fits_and_lines_up(state: Path, columns: int) -> None:
    """No line is wider than the terminal, and what must be there is there."""
    done = run("incidents", state, columns=columns)
    lines = done.stdout.splitlines()
    assert len(lines) == 51
    assert max(map(shown_width, lines)) <= columns
    assert lines[0].startswith("OPENED (UTC)")
    assert "50 of 61 shown" in done.stderr
    if columns >= 80:
        at = lines[0].index("CAUSE")
        assert all(line[at - 1] == " " and line[at] != " " for line in lines)


def test_the_configuration_in_force_is_a_column(tmp_path: Path) -> None:
    """Which time-out was in force when: each incident shows its own, and not that of today."""
    record = RUNS["recovered"]()[0].records[0]
    folder = pod_folder(tmp_path, "demo", "0")
    folder.mkdir(parents=True)
    for number, timeout in enumerate((8.0, 900.0, 2.5)):
        settings = record["settings"] | {"heartbeat_rank_seconds": timeout, "mode": "a"}
        told = record | {"id": f"{number:016x}", "settings": settings, "opened_wall": record["opened_wall"] + number}
        append_record(folder / RECORDS, told)
    for width in (80, 160):
        options = ("--setting", "heartbeat_rank_seconds>3", "--setting", "mode", "--setting", "mode")
        title, *lines = run("incidents", tmp_path, *options, columns=width).stdout.splitlines()
        assert title.split().count("mode") == 1
        end = title.index("heartbeat_rank_seconds") + len("heartbeat_rank_seconds")
        assert [line[:end].split()[-1] for line in lines] == ["900", "8"]
    assert "heartbeat_rank_seconds" not in run("incidents", tmp_path, columns=160).stdout


def test_hostile_text_never_reaches_the_terminal(tmp_path: Path) -> None:
    """Escape sequences, line ends and marks that turn text around are spelt out, wherever they come from."""
    record = RUNS["recovered"]()[0].records[0]
    evil = record | {
        "cause": HOSTILE, "node": HOSTILE, "layer": HOSTILE, "id": HOSTILE, "outcome": HOSTILE,
        "origin": {"rank": 1, "node": HOSTILE, "pod_index": HOSTILE, "gpu_uuid": HOSTILE},
        "evidence": [{"kind": HOSTILE, "text": HOSTILE, "traceback": HOSTILE}],
    }  # fmt: skip
    folder = pod_folder(tmp_path, "evil\x1b[2J", "0\x1b[2J")
    folder.mkdir(parents=True)
    append_record(folder / RECORDS, evil)
    (folder / LEDGER).write_text(HOSTILE)
    for options in ([], ["--all-pods"], ["--format", "jsonl"], ["--run", "none\x1b"], ["gnp", "OR", "owned"]):
        done = run("incidents", tmp_path, *options, columns=160)
        assert done.returncode == 0
        assert [line for line in (done.stdout + done.stderr).splitlines() if not line.isprintable()] == []
        assert len((done.stdout + done.stderr).splitlines()) <= 3
    assert "rank 1" in run("incidents", tmp_path).stdout


def test_damage_is_counted_in_one_line(tmp_path: Path) -> None:
    """Torn, newer and empty lines and a broken ledger leave out themselves only, and are told of once, on stderr."""
    folder = state_story.write(tmp_path, RUNS["recovered"]()) / "0"
    with (folder / RECORDS).open("ab") as file:
        file.write(b'{"v":1,"id":"torn","opened_wa\n{"v":9,"id":"x","opened_wall":1}\n\n{"v":1}\nnonsense\n')
    (folder / LEDGER).write_bytes(b"{}")
    done = run("incidents", tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.count("\n") == 1
    assert "3 damaged lines" in done.stderr
    assert "1 line of a newer Headway" in done.stderr
    assert "1 unusable ledger," in done.stderr


def test_a_read_only_folder_is_enough(tmp_path: Path) -> None:
    """Nothing is written into the state folder, not even an index."""
    state_story.write(tmp_path, RUNS["recovered"]())
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    assert len(ids(tmp_path, "ValueError")) == 1
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cause", "cuda_oomm"], "did you mean cuda_oom"),
        (["--since", "soon"], "is no time"),
        (["--setting", "a<b"], "needs a number"),
        (["--recurring", "often"], "no_progress"),
        (["--layer", "kubelet"], "invalid choice"),
        (["--limit", "-1"], "no number"),
        (["--rank", "one"], "--rank"),
        (["a", "OR"], "cannot search"),
        (["--nonsense"], "unrecognized"),
    ],
)
def test_a_bad_question_gets_one_line_and_exit_2(state: Path, options: list[str], words: str) -> None:
    """At 3 a.m. nobody reads a usage screen, least of all a traceback."""
    done = run("incidents", state, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_only_the_folder_must_be_given() -> None:
    """What is asked for without it is the folder, not words to search for as well."""
    done = run("incidents")
    assert done.returncode == 2
    assert "required: STATE_DIR (see" in done.stderr


def test_a_missing_folder_is_bad_usage(tmp_path: Path) -> None:
    """Both commands say which folder cannot be read."""
    for command in ("incidents", "advise"):
        done = run(command, tmp_path / "nowhere")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "nowhere" in done.stderr


def test_nothing_found_is_no_failure(state: Path, tmp_path: Path) -> None:
    """An empty answer is an answer, and says where was looked."""
    for options, words in (
        ([state, "--rank", "77"], "no incident fits, in 10 runs"),
        ([tmp_path], "no run in"),
        ([state, "--run", "x*"], "no run fits --run"),
    ):
        done = run("incidents", *options)
        assert (done.returncode, done.stdout) == (0, "")
        assert words in done.stderr


@pytest.mark.parametrize("command", ["incidents", "advise"])
def test_a_reader_that_has_had_enough_is_no_error(state: Path, command: str) -> None:
    """`| head -1` ends the command quietly, with a page or with far more than a pipe holds."""
    target = state if command == "incidents" else state / "many"
    line = f"{sys.executable} -m headway {command} {target} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr.count("Traceback")) == ("0", 0)


@pytest.mark.parametrize("command", ["incidents", "advise", "postmortem"])
def test_without_a_standard_output_it_says_so(command: str, state: Path) -> None:
    """Closed by whoever started it, as some supervisors do: a line and exit code 1, no traceback."""
    target = state if command == "incidents" else next(path for path in sorted(state.iterdir()) if path.is_dir())
    line = f"exec {sys.executable} -m headway {command} {target} >&-"
    done = subprocess.run(["/bin/bash", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"headway {command}: cannot write ")
    assert "there is no standard output" in done.stderr


def test_output_that_cannot_be_written_is_a_failure(state: Path) -> None:
    """A full disk is told, with exit code 1."""
    line = f"{sys.executable} -m headway incidents {state} --format jsonl > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_advise_takes_the_only_run_or_asks(state: Path, tmp_path: Path) -> None:
    """With one run its folder need not be named, with several the runs are listed."""
    done = run("advise", state)
    assert done.returncode == 2
    assert "many" in done.stderr
    state_story.write(tmp_path, RUNS["recovered"]())
    text, document = run("advise", tmp_path), run("advise", tmp_path, "--format", "json")
    assert text.returncode == document.returncode == 0
    assert "Checkpoint interval" in text.stdout
    assert {one["topic"] for one in json.loads(document.stdout)["advice"]} >= {"heartbeat_rank", "checkpoint_interval"}


def test_advise_says_what_it_could_not_read(tmp_path: Path) -> None:
    """With a pod's ledger gone there is advice from the rest, and one line that says what is missing."""
    folder = state_story.write(tmp_path, RUNS["three_pods"]())
    (folder / "2" / LEDGER).write_bytes(b"rubbish")
    done = run("advise", folder)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "pod 2" in done.stderr


@pytest.mark.parametrize("command", ["incidents", "advise"])
def test_help_explains_every_option(command: str) -> None:
    """Everything that can be asked for is in the help, with its units and defaults."""
    text = run(command, "--help").stdout
    assert "STATE_DIR" in text
    assert "default" in text
    assert "Exit codes" in text


@pytest.mark.parametrize(
    ("act", "text", "width", "shown"),
    [
        (cut, "abcdef", 4, "abc…"),
        (cut, "深深深", 5, "深深…"),
        (cut, "深深深", 4, "深…"),
        (cut, "é", 1, "é"),
        (cut, "e\u0301" * 3, 3, "e\u0301" * 3),
        (cut, "abc", 0, ""),
        (padded, "深", 4, "深  "),
        (padded, "深深深", 4, "深… "),
    ],
)
def test_columns_of_wide_and_combining_letters(
    act: Callable[[str, int], str], text: str, width: int, shown: str
) -> None:
    """Letters of two columns and of none are counted as terminals draw them."""
    assert act(text, width) == shown
