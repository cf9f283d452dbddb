"""Thresholds as configuration: on the command line, in the environment, in the summary and for its readers."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_story import WALL, Story
from report_story import loop
from sidecar_process import sidecar

from headway_exporter.listing.folder import Reader
from headway_exporter.listing.query import Query
from headway_exporter.pod import Pod
from headway_exporter.report.load import load
from headway_exporter.report.report import report
from headway_exporter.state_files import LEDGER, pod_folder, read_ledger, write_ledger
from headway_exporter.summary import summary
from headway_exporter.thresholds import DEFAULT, NAMES, Thresholds, pair, pairs, told, unit

if TYPE_CHECKING:
    from pathlib import Path


def run(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "exporter", *options]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abandoned=5", "no NAME=VALUE"),
        ("abandoned_seconds", "number above 0"),
        ("=5", "no NAME=VALUE"),
        ("abandoned_seconds=soon", "number above 0"),
        ("abandoned_seconds=0", "number above 0"),
        ("abandoned_seconds=-1", "number above 0"),
        ("abandoned_seconds=nan", "number above 0"),
        ("abandoned_seconds=inf", "number above 0"),
        ("no_progress_attempts=2.5", "whole number"),
        ("timeout_share=1.5", "at most 1"),
    ],
)
def test_what_is_no_threshold_is_said_with_the_names(text: str, words: str) -> None:
    """Whoever mistypes a name sees in the same line how it is written."""
    with pytest.raises(ValueError, match=words) as raised:
        pair(text)
    assert all(name in str(raised.value) for name in NAMES)


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        (["--threshold", "no_such_thing=1"], {}, "--threshold"),
        (["--threshold", "abandoned_seconds=60", "--threshold", "stop_seconds=x\ny"], {}, "--threshold"),
        ([], {"HEADWAY_THRESHOLDS": "abandoned_seconds=60,stop=1"}, "HEADWAY_THRESHOLDS"),
        (["--threshold", "stop_seconds=1"], {"HEADWAY_THRESHOLDS": "abandoned_seconds:60"}, "HEADWAY_THRESHOLDS"),
    ],
)
def test_a_bad_threshold_gets_one_line_and_exit_2(options: list[str], environ: dict[str, str], words: str) -> None:
    """The sidecar does not start with a limit that nobody asked for, and the line lists what there is."""
    done = run(*options, **environ)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(one in done.stderr for one in (words, *NAMES))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("verdict_after_seconds=10", "pod_live_seconds", "verdict_after_seconds"),
        ("pod_silent_seconds=15", "pod_live_seconds", "pod_silent_seconds"),
        ("verdict_timeout_seconds=20", "verdict_after_seconds", "verdict_timeout_seconds"),
    ],
)
def test_thresholds_that_contradict_each_other_are_refused(text: str, low: str, high: str) -> None:
    """A pod whose last sign of life is from before the failure must not pass for one that lives."""
    done = run("--threshold", text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{low} (" in done.stderr
    assert f"must be below {high} (" in done.stderr


def test_help_names_every_threshold_with_unit_and_default() -> None:
    """What can be set is found where one looks for it."""
    text = " ".join(run("--help", COLUMNS="80").stdout.split())
    assert "HEADWAY_THRESHOLDS" in text
    for name in NAMES:
        assert f"{name} ({unit(name)}, {getattr(DEFAULT, name):g})" in text


def test_the_option_wins_over_the_environment_name_by_name(tmp_path: Path) -> None:
    """A manifest sets some for all, one pod's command line another; the ledger says what was in force."""
    options = (
        "--state-dir",
        str(tmp_path / "state"),
        "--threshold",
        "stop_seconds=7",
        "--threshold",
        "stop_seconds=8.5",
    )
    environ = {
        "HEADWAY_THRESHOLDS": " stop_seconds=3 , no_progress_attempts=5,",
        "HEADWAY_RUN": "r",
        "HEADWAY_POD_INDEX": "0",
    }
    with sidecar(tmp_path / "journals", *options, **environ) as exporter:
        exporter.families()
        ledger = pod_folder(tmp_path / "state", "r", "0") / LEDGER
        end = time.monotonic() + 30
        while not ledger.exists() and time.monotonic() < end:
            time.sleep(0.05)
    found = read_ledger(ledger, "r", "0").body["summary"]["thresholds"]
    assert found == dataclasses.asdict(dataclasses.replace(DEFAULT, stop_seconds=8.5, no_progress_attempts=5))


def test_a_threshold_changes_the_verdict() -> None:
    """The number that was configured is the one that is judged by: the same failures are recurring with one limit and not with another."""
    verdicts = []
    for limit in (2, 3):
        story = Story()
        story.pod = Pod("story", "0", Thresholds(**pairs(f"no_progress_attempts={limit}")))  # type: ignore[arg-type]
        story.pod.set_clock(0.0, WALL)
        end = story.running()
        for number in range(2):
            story.caught(1, end, f"Error{number}")
            story.enter(end + 1, 0, 1, incarnation=f"again{number}", load=0)
            end = story.steps(end + 2, 0, 1, first=1, last=3 + number)
        verdicts.append("no_progress" in story.pod.failures.recurring(story.pod.failures.incidents[-1]))
    assert verdicts == [True, False]


@given(
    st.dictionaries(
        st.sampled_from([*NAMES, "else"]),
        st.one_of(st.sampled_from([None, "", "3", True, [], {}]), st.floats(), st.integers()),
    )
)
def test_a_summary_with_nonsense_is_read(source: dict[str, Any]) -> None:
    """Whatever a ledger says, its reader has limits to judge by, and takes over those that make sense."""
    found = told(source)
    assert all(0 < getattr(found, name) < math.inf for name in NAMES)
    assert told(dataclasses.asdict(found)) == found


def given_up_after(folder: Path, seconds: float) -> Path:
    """Writes into the pods' summaries that this threshold was in force."""
    for path in folder.glob(f"*/{LEDGER}"):
        ledger = read_ledger(path)
        body = dict(ledger.body)
        body["summary"] = dict(body["summary"]) | {"thresholds": {"abandoned_seconds": seconds}}
        write_ledger(path, dataclasses.replace(ledger, body=body))
    return folder


@pytest.mark.parametrize(("limit", "fate", "outcome"), [(60.0, "abandoned", "abandoned"), (1e6, "silent", "open")])
def test_readers_give_a_run_up_by_the_limit_of_its_sidecars(
    limit: float, fate: str, outcome: str, tmp_path: Path
) -> None:
    """Two hours of silence are nothing where a queue takes a day, and the end where a minute was configured."""
    story = loop()
    folder = given_up_after(story.write(tmp_path), limit)
    now = story.wall + 7_200
    assert report(load(folder, now)).verdict.fate == fate
    outcomes = [one.lead.outcome for one in Reader(Query(), now).found([folder])]
    assert outcomes[-1:] == [outcome]


def test_what_the_sidecar_judges_by_is_in_its_summary() -> None:
    """All of them, so that a report months later can say by which limits it was."""
    found = summary(Story().pod, {}, WALL)["thresholds"]
    assert found == dataclasses.asdict(DEFAULT)
