"""The README's commands as they stand there, typed into a real shell; only ports, folders and sizes are made smaller."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Final

import blocks
import pytest
import readme
import yaml
from journal_folder import finish, trainer
from readme_shell import needs, shell
from sidecar_process import sidecar

from headway_trainer.arguments import parse_args
from headway_trainer.demo import runner

if TYPE_CHECKING:
    from pathlib import Path

HERE: Final = "tests/contract/test_readme_shell.py::"
THREE_LINES: Final = re.findall(r"```python\n(.*?)```", readme.README.read_text(), re.DOTALL)[0]
LOOP: Final = f"start, steps = 0, 3\ndef train_step(n): return 1.0 / n\n{THREE_LINES}\nrecorder.train_finished(steps)\n"
"""The README's three lines, with a loop around them."""
OVERVIEW: Final = readme.README.read_text().partition("## How it fits together")[2].partition("\n## ")[0]


@needs("make")
def test_both_commands_are_made() -> None:
    """The Makefile has them, and they end in what the README says that they do; CI runs both, whole."""
    block = blocks.only(f"{HERE}test_both_commands_are_made")
    assert [command.split()[:2] for command in block.commands()] == [["make", "demo"], ["make", "test"]]
    for command in block.commands():
        said = subprocess.run(
            [*shlex.split(command, comments=True), "--dry-run"],
            cwd=blocks.ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("headway demo" if "demo" in command else "pytest") in said.stdout
    assert re.search(r"^say \"demo\"; +make demo$", (blocks.ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_it_is_installed_from_a_checkout() -> None:
    """Each line names this tree and extras that it has; what the wheel then can do is tests/release's to show."""
    project = (blocks.ROOT / "pyproject.toml").read_text()
    for command in blocks.only(f"{HERE}test_it_is_installed_from_a_checkout").commands():
        words = re.fullmatch(r"pip install \.(?:\[([a-z,]+)\])?", " ".join(shlex.split(command, comments=True)))
        assert words is not None, command
        for extra in (words.group(1) or "").split(","):
            assert not extra or f"\n{extra} = [" in project


@needs("curl")
def test_trainer_and_sidecar_meet(tmp_path: Path) -> None:
    """The four lines in one shell: torchrun runs the loop, the sidecar shows its last step, and the files are those of the overview."""
    picture, block = blocks.shown_by(f"{HERE}test_trainer_and_sidecar_meet")
    (tmp_path / "train.py").write_text(LOOP)
    journals = tmp_path / "journals"
    smaller = {"9838": str(runner.free_ports(1)), "/dev/shm/headway": str(journals)}
    *before, look = block.commands()
    looks = f"until {look} | grep ' 3'; do sleep 0.2; done"  # who types it gives the sidecar a second
    done = shell([*before, looks], tmp_path, smaller)
    assert done.returncode == 0, done.stderr
    assert re.search(r'^headway_step\{.*run="my-run".*\} 3(\.0)?$', done.stdout, re.MULTILINE)
    written = {re.sub(r"\.[^.]+\.steps$", ".<life>.steps", path.name) for path in (journals / "my-run").iterdir()}
    table = re.findall(r"^\| `(\S+)` \|", OVERVIEW.partition("With `--state-dir`")[0], re.MULTILINE)
    assert {name.replace("slot-N", f"slot-{slot}") for name in table for slot in (0, 1)} == written
    assert re.findall(r"\S+\.jsonl", picture.text) == ["launcher.jsonl"]
    assert {*re.findall(r"headway (?:run|exporter)", picture.text)} == {
        *re.findall(r"headway (?:run|exporter)", block.text)
    }


@pytest.mark.alone
def test_the_launcher_of_nvrx_is_watched(tmp_path: Path) -> None:
    """By its real command line, with fewer ranks."""
    block = blocks.only(f"{HERE}test_the_launcher_of_nvrx_is_watched")
    (tmp_path / "train.py").write_text(LOOP)
    done = shell(
        block.commands(),
        tmp_path,
        {"--nproc-per-node 8": "--nproc-per-node 1"},
        HEADWAY_DIR=str(tmp_path),
        HEADWAY_RUN="r",
    )
    assert done.returncode == 0, done.stderr
    assert {"launcher.jsonl", "slot-0.jsonl"} <= {path.name for path in (tmp_path / "r").iterdir()}


def test_rules_of_ones_own(tmp_path: Path) -> None:
    """The file that it names is read, the selector is in every file that it writes."""
    block = blocks.only(f"{HERE}test_rules_of_ones_own")
    (tmp_path / "mine.yaml").write_text("stalled_floor_seconds: 777\n")
    done = shell(block.commands(), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = [path.read_text() for path in (tmp_path / "rules").iterdir()]
    assert any("777" in text for text in written)
    assert any('cluster="a"' in text for text in written)


@needs("curl", "jq")
def test_the_status_is_read_by_programs(tmp_path: Path) -> None:
    """What is picked out of the JSON is there."""
    block = blocks.only(f"{HERE}test_the_status_is_read_by_programs")
    with sidecar(tmp_path / "journals") as exporter:
        acts = ("enter=a", "load=0", "steps=1-50", "save=40", "commit=40", "steps=51-60", "ready", "wait")
        finish(trainer(tmp_path / "journals", 0, *acts, ranks=1), kill=True)
        exporter.until(lambda found: found["incidents"], "the incident")
        done = shell(block.commands(), tmp_path, {"localhost:9838": f"127.0.0.1:{exporter.address[1]}"})
    assert (done.returncode, done.stderr) == (0, "")
    decoder, at, picked = json.JSONDecoder(), 0, []
    while at < len(done.stdout.rstrip()):
        value, at = decoder.raw_decode(done.stdout, at)
        at += 1
        picked.append(value)
    assert len(picked) == 3
    assert None not in picked


def test_the_reference_trainer_starts(tmp_path: Path) -> None:
    """The first line trains, only shorter; of the second, which wants eight GPUs, the trainer's options are understood."""
    first, second = blocks.only(f"{HERE}test_the_reference_trainer_starts").commands()
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("It was the best of times, it was the worst of times. " * 400)
    done = shell(
        [first],
        tmp_path,
        {"1000": "2"},
        HOME=str(tmp_path),
        HEADWAY_DIR=str(tmp_path),
        HEADWAY_TRAIN_CHECKPOINT__MODE="sync",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode == 0, done.stderr
    launcher, _, options = second.partition(" -m headway_trainer ")
    assert launcher.split()[:4] == ["headway", "run", "--", "ft_launcher"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"steps": 7}))
    config = parse_args(shlex.split(options.replace("run.yaml", str(tmp_path / "run.yaml"))))
    assert (config.model.preset, config.steps) == ("llama3-8b", 7)
