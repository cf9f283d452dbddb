"""What the README shows of outputs is what the programs print today; of long runs, that its words are still theirs."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

import blocks
import golden_story
import pytest
from journal_folder import finish, trainer
from readme_shell import shell
from report_story import four_faults
from sidecar_process import sidecar

from headway_alerts import catalogue
from headway_alerts.config import Config
from headway_alerts.model import Recording
from headway_exporter.listing.table import COLUMNS
from headway_exporter.report.words import STATE_WORDS
from headway_trainer.demo import plan

HERE: Final = "tests/contract/test_readme_output.py::"
TESTS: Final = blocks.ROOT / "tests"


def shape(line: str) -> str:
    """A line without what differs from run to run: figures with their units, and the width of gaps."""
    figures = re.sub(r"\d[\d.,]*( (ms|s|min|h)\b)?", "#", line)
    return " ".join(figures.split())


def shapes(lines: list[str]) -> list[str]:
    """Of all lines that are not left out (`…`)."""
    return [shape(line) for line in lines if line.strip() not in ("", "…")]


def test_the_doctor_says_this() -> None:
    """Of a misspelt variable and of a run whose name differs, in a folder in memory; line by line."""
    block = blocks.only(f"{HERE}test_the_doctor_says_this")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    folder.chmod(0o755)
    try:
        finish(trainer(folder, 0, "enter=a", "ready", "wait", HEADWAY_RUN="my-run"), kill=True)
        done = shell(block.commands(), folder, HEADWAY_DIR=str(folder), COLUMNS="120")
        said = [line.replace(str(folder), "/dev/shm/headway") for line in done.stdout.splitlines()]
    finally:
        shutil.rmtree(folder)
    shown = shapes(block.output())
    assert len(shown) > 5
    assert shapes(said)[: len(shown)] == shown


def test_the_status_is_shown_like_this(tmp_path: Path) -> None:
    """Of that very story, line by line."""
    block = blocks.only(f"{HERE}test_the_status_is_shown_like_this")
    with sidecar(tmp_path / "journals") as exporter:
        acts = ("enter=a", "load=0", "steps=1-50", "save=40", "commit=40", "steps=51-60", "ready", "wait")
        finish(trainer(tmp_path / "journals", 0, *acts, ranks=1), kill=True)
        exporter.until(lambda found: found["incidents"], "the incident")
        done = shell(block.commands(), tmp_path, {"localhost:9838": f"127.0.0.1:{exporter.address[1]}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert shapes(done.stdout.splitlines()) == shapes(block.output())


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A folder in which a demo's state folder lies: a run with the demo's four faults."""
    state = tmp_path / "demo-output" / "state"
    four_faults().write(state)
    (state / "four-faults").rename(state / "broken")
    return tmp_path


def test_incidents_are_listed_like_this(records: Path) -> None:
    """The same outcomes, causes and layers; each column is one of the table's, and in its order."""
    block = blocks.only(f"{HERE}test_incidents_are_listed_like_this")
    done = shell(block.commands(), records, COLUMNS="110")
    assert (done.returncode, done.stderr) == (0, "")
    titles = [column.title for column in COLUMNS]
    header = re.split(r"  +", block.output()[0])
    assert header == [title for title in titles if title in header]
    words = [{tuple(line.split()[3:6]) for line in lines[1:]} for lines in (block.output(), done.stdout.splitlines())]
    assert words[0] == words[1]


def test_advice_is_given_like_this(records: Path) -> None:
    """The same first line, pieces of advice and settings; every figure's name is one that the advice has."""
    block = blocks.only(f"{HERE}test_advice_is_given_like_this")
    done = shell(block.commands(), records, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    shown, said = shapes(block.output()), shapes(done.stdout.splitlines())
    assert shown[0] == said[0].replace("four-faults", "broken")
    marked = ("CHANGE", "set ", "ft_launcher")
    assert {line for line in shown if line.startswith(marked)} <= {*said}
    code = "\n".join(
        path.read_text() for path in Path(catalogue.__file__).parents[2].rglob("headway_exporter/advice/*.py")
    )
    figures = [line[14:] for line in block.output() if re.match(r" {8}(from|    ) ", line)]
    names = {
        found[1]
        for line in figures
        for part in line.split(" · ")
        if (found := re.match(r"(?:· )?([a-z][^\d]+?) [\d.]+", part)) and not part.startswith("ft_launcher")
    }
    assert len(names) > 15
    assert [name for name in names if name not in code and not name.startswith("longest in ")] == []


def test_the_demo_prints_this() -> None:
    """Faults, states and their meanings, alerts and ends are those that the demo knows."""
    block = blocks.only(f"{HERE}test_the_demo_prints_this")
    injected = re.findall(r"^ \d\d:\d\d:\d\d +(\w+@\d+) .* ok$", block.text, re.MULTILINE)
    assert tuple(injected) == plan.FAULTS
    states = dict(re.findall(r"^ (\w+) +[\d.]+ % +[\d.]+   (.+)$", block.text, re.MULTILINE))
    assert len(states) > 5
    assert {state: STATE_WORDS[state] for state in states} == states
    alerts = {rule.name for rule in catalogue.alerts(Config())}
    assert set(re.findall(r"\bHeadway[A-Z]\w+", block.text)) <= alerts
    assert "bit-equal" in block.text


def test_figures_have_the_names_that_the_benchmarks_print() -> None:
    """In each part, in any order; what they are is for `make bench` to say."""
    block = blocks.only(f"{HERE}test_figures_have_the_names_that_the_benchmarks_print")
    code = {path.stem.removeprefix("bench_"): path.read_text() for path in (TESTS / "benchmarks").glob("bench_*.py")}
    names = re.search(r"for name in ([\w ]+);", (blocks.ROOT / "Makefile").read_text())
    assert names is not None
    parts = re.split(r"^-- (\w+)\n", block.text, flags=re.MULTILINE)[1:]
    assert parts[::2] == names.group(1).split()
    for part, lines in zip(parts[::2], parts[1::2], strict=True):
        for line in lines.splitlines():
            words = re.findall(r"[a-z_][a-z_ -]{3,}[a-z]", re.split(r"  +-?\d", line.strip())[0])
            assert [one for one in words if one not in code[part]] == [], line


def test_what_a_large_prometheus_evaluates_exists() -> None:
    """Groups, recorded series and alerts that the long table names are those of the rules."""
    block = blocks.only(f"{HERE}test_what_a_large_prometheus_evaluates_exists")
    groups = catalogue.groups(Config())
    recorded = {rule.record for group in groups for rule in group.rules if isinstance(rule, Recording)}
    alerts = {rule.name for rule in catalogue.alerts(Config())}
    listed, dearest = block.text.partition("dearest rules")[::2]
    assert set(re.findall(r"^  (headway-\S+)", listed, re.MULTILINE)) == {group.name for group in groups}
    rules = re.findall(r"^  (\S+) +[\d.]+ s$", dearest, re.MULTILINE)
    assert len(rules) > 5
    assert {*rules} <= recorded | alerts
    assert set(re.findall(r"\bHeadway\w+", block.text.rpartition("firing: ")[2])) <= alerts


def test_goodput_by_hand_is_that_of_the_golden_cases() -> None:
    """The column that others are held against, to the last digit that is shown, and ours beside it; no case is left out."""
    block = blocks.only(f"{HERE}test_goodput_by_hand_is_that_of_the_golden_cases")
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+) ", block.text, re.MULTILINE)
    assert [name for name, *_ in rows] == sorted(path.stem for path in golden_story.FOLDER.glob("*.yaml"))
    assert f"of {len(rows)} cases, ours is the answer by hand in {len(rows)}," in block.text
    for name, by_hand, ours in rows:
        case = golden_story.load(golden_story.FOLDER / f"{name}.yaml")
        assert by_hand == ours == f"{case['expect']['training_goodput']:.4f}", name
