"""The command line: everything can be set, and whatever is wrong gives one clear line and exit code 2."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway_trainer import config as config_module
from headway_trainer.arguments import all_options, parse_args, variables_without_effect
from headway_trainer.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HEADWAY_TRAIN")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("some text")
    Path("more").mkdir()


def complaint(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the user reads after a bad command line; checks that it is one line and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        parse_args(argv)
    output, errors = capsys.readouterr()
    assert ended.value.code == 2
    assert output == ""
    assert errors.startswith("headway train: ")
    assert errors.count("\n") == 1
    assert errors.endswith("\n")
    return errors.removeprefix("headway train: ").strip()


def test_no_options_give_the_defaults() -> None:
    """The command alone trains: the defaults in the dataclasses are the defaults of the command line."""
    assert parse_args([]) == TrainConfig()


def test_every_option_arrives_in_its_field() -> None:
    """Options, their short forms, repeated lists and both spellings of a name end up where they belong."""
    line = (
        "--data text.txt more --steps 7 --optimizer.lr 1e-4 --optimizer.min_lr_ratio=0.5 --model small --model.layers 2 "
        "--parallel.compile true --checkpoint.mode sync --faults sigkill@3:rank=1 --data text.txt --faults exit@4 --seed -1"
    )
    config = parse_args(line.split())
    assert config.data.paths == ("text.txt", "more", "text.txt")
    assert (config.steps, config.seed, config.optimizer.lr, config.optimizer.min_lr_ratio) == (7, -1, 1e-4, 0.5)
    assert config.model.architecture().layers == 2
    assert config.parallel.compile
    assert config.checkpoint.mode == "sync"
    assert config.faults.schedule == ("sigkill@3:rank=1", "exit@4")


def test_an_option_wins_over_the_file_and_the_file_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's file holds for all its runs, and one run can still differ."""
    monkeypatch.setenv("HEADWAY_TRAIN_STEPS", "1")
    monkeypatch.setenv("HEADWAY_TRAIN_SEED", "1")
    monkeypatch.setenv("HEADWAY_TRAIN_OPTIMIZER__LR", "0.5")
    Path("job.yaml").write_text("steps: 2\nseed: 2\ndata: {paths: [more], batch_size: 3}\n")
    config = parse_args(["--config", "job.yaml", "--steps", "3"])
    assert (config.steps, config.seed, config.optimizer.lr) == (3, 2, 0.5)
    assert config.data.paths == ("more",)
    assert config.data.batch_size == 3


def test_a_printed_configuration_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    """`--print-config > job.yaml` is how one writes the first file."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--data", "text.txt", "--steps", "9", "--optimizer.lr", "0.01", "--print-config"])
    assert not ended.value.code
    Path("job.yaml").write_text(capsys.readouterr().out)
    assert parse_args(["--config", "job.yaml"]) == parse_args(
        ["--data", "text.txt", "--steps", "9", "--optimizer.lr", "0.01"]
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--steps x", "--steps: must be a whole number, got x"),
        ("--steps 1.5", "--steps: must be a whole number, got 1.5"),
        ("--steps", "--steps: needs a value"),
        ("--steps=", "--steps: must be a whole number, got"),
        ("--steps --seed 1", "--steps: needs a value"),
        ("--steps 0", "--steps: must be at least 1, got 0"),
        ("--optimizer.lr -1", "--optimizer.lr: must be above 0, got -1"),
        ("--optimizer.lr fast", "--optimizer.lr: must be a number, got fast"),
        ("--optimizer.lr .nan", "--optimizer.lr: must be above 0, got nan"),
        ("--optimizer.lrr 1", "--optimizer.lrr: no such option; did you mean --optimizer.lr?"),
        ("--quick", "--quick: no such option; --help lists them"),
        ("-q", "-q: no such option; --help lists them"),
        ("text.txt", "text.txt: no such option; --help lists them"),
        ("--data.paths.first text.txt", "--data.paths.first: no such option; did you mean --data.paths?"),
        ("--data nowhere", "--data.paths: no such file or folder: nowhere"),
        ("--data", "--data.paths: needs a value"),
        ("--data=", "--data.paths: must name files or folders, got an empty text"),
        ("--data.seed x", "--data.seed: must be a whole number or null, got x"),
        ("--model huge", "--model.preset: must be one of debug, small, medium, llama3-8b, llama3-70b, got 'huge'"),
        ("--checkpoint.mode fast", "--checkpoint.mode: must be one of async, sync, off, got fast"),
        ("--checkpoint.mode null", "--checkpoint.mode: must be one of async, sync, off, got null"),
        ("--parallel.compile maybe", "--parallel.compile: must be true or false, got maybe"),
        ("--faults.file missing.yaml", "--faults.file: no such file: missing.yaml"),
        ("--config more", "--config: Path is not a file: "),
        ("--config missing.yaml", "--config: File does not exist: "),
    ],
)
def test_a_bad_command_line_gets_one_clear_line(argv: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At 3 a.m. nobody wants a usage dump: the option, what is wrong, what would be right."""
    assert complaint(argv.split(), capsys).startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"steps: [1\n", "--config: is not valid YAML: "),
        (b"steps: abc\n", "--steps: must be a whole number, got abc"),
        (b"steps: true\n", "--steps: must be a whole number, got True"),
        (b"step: 3\n", "--config: no such option: step; did you mean steps?"),
        (b"optimizer: {lrr: 1}\n", "--config: no such option: optimizer.lrr; did you mean optimizer.lr?"),
        (b"data: 3\n", "--config: data must hold options of that section, got 3"),
        (b"data: {paths: text.txt}\n", "--data.paths: must be a list of texts, got text.txt"),
        (b"- 1\n", "--config: must hold `option: value` lines"),
        (b"", "--config: must hold `option: value` lines"),
        (b"\xff\xfe\x00", "--config: cannot be read: "),
        (b"model: &a [*a]\n", "--config: is nested too deeply, or refers to itself"),
    ],
)
def test_a_bad_file_gets_one_clear_line(content: bytes, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration file is as easy to get wrong as an option, and deserves the same answer."""
    Path("bad.yaml").write_bytes(content)
    assert complaint(["--config", "bad.yaml"], capsys).startswith(expected)


def test_a_bad_environment_variable_gets_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a pod's manifest sets is checked like an option."""
    monkeypatch.setenv("HEADWAY_TRAIN_STEPS", "many")
    assert complaint([], capsys) == "--steps: must be a whole number, got many"


def test_a_misspelt_variable_is_told() -> None:
    """It would train with the default all the same; that of another program, or of Kubernetes for a service, gets a line and no more."""
    known = [f"HEADWAY_TRAIN_{option.key.replace('.', '__').upper()}" for option in all_options()]
    assert variables_without_effect([*known, "HEADWAY_TRAIN_CONFIG", "HEADWAY_TRAINER_PORT", "PATH"]) == []
    assert variables_without_effect(["HEADWAY_TRAIN_STPS", "HEADWAY_TRAIN_OPTIMIZER_LR"]) == [
        "HEADWAY_TRAIN_OPTIMIZER_LR has no effect: no such option; did you mean HEADWAY_TRAIN_OPTIMIZER__LR?",
        "HEADWAY_TRAIN_STPS has no effect: no such option; did you mean HEADWAY_TRAIN_STEPS?",
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(option=st.sampled_from(all_options()), value=st.text(max_size=12))
def test_no_value_causes_a_traceback(option, value, capsys) -> None:  # type: ignore[no-untyped-def]
    """Any text for any option is either taken or refused in one line."""
    code: object = 0
    try:
        parse_args([f"{option.flag}={value}"])
    except SystemExit as ended:
        code = ended.code
    errors = capsys.readouterr().err
    assert (code, errors.count("\n")) in {(0, 0), (2, 1)}


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option is listed with its text and its default; a field without a docstring would show up bare."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    for option in all_options():
        assert option.flag in shown
        assert option.help, f"{option.key} has no docstring in config.py"
        assert option.help in words
    assert "[default: 0.003]" in words
    assert max(len(line) for line in shown.splitlines()) <= 100


def test_every_section_and_field_is_documented() -> None:
    """The help texts come from the source; this keeps anybody from adding a field without one."""
    tree = ast.parse(inspect.getsource(config_module))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    sections = {field.name for field in dataclasses.fields(TrainConfig) if field.name[0].isalpha()}
    assert {option.key.partition(".")[0] for option in all_options()} == sections
    assert all(ast.get_docstring(node) for node in classes.values())


def test_parsing_needs_no_torch() -> None:
    """`--help` and a typing error answer at once, and the pod's supervisor can read the configuration without torch."""
    code = (
        "import sys; from headway_trainer.arguments import parse_args; parse_args([]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_defaults_are_plain_yaml() -> None:
    """The configuration can be written to any log or manifest."""
    assert yaml.safe_load(yaml.safe_dump(dataclasses.asdict(parse_args(["--data", "more"])) | {"data": None}))


@pytest.mark.parametrize("option", ["--output", "--checkpoint.directory"])
def test_a_folder_that_is_a_file_gets_one_clear_line(option: str, tmp_path: Path) -> None:
    """Before the layers that restart: they would try it again and again, and end in a traceback."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "headway_trainer", "--steps", "1", option, "file"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"headway train: {option}: cannot be used as a folder: file: File exists"]
