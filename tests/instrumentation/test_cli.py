"""The `headway` command finds its sub-commands and says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headway._version import __version__
from headway.cli import COMMANDS, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `headway exporter` a module with the given source."""

    def make(source: str) -> None:
        (tmp_path / "headway_fake_command.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "headway_fake_command", raising=False)
        command = COMMANDS["exporter"]
        monkeypatch.setitem(COMMANDS, "exporter", type(command)("headway_fake_command", command.summary, command.extra))

    return make


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is listed with what it does, also one whose extra is not installed."""
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, command.summary] for line in out.splitlines())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`headway --version` is the package's version."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"headway {__version__}\n"


@pytest.mark.parametrize("argv", [["nonsense"], ["--nonsense"]])
def test_unknown_command_is_bad_usage(argv: list[str]) -> None:
    """A typing error ends with 2, the exit code of bad usage."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2


def test_no_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """`headway` alone shows its help, and does not pretend that something worked."""
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_arguments_and_exit_code_are_the_commands(own_module: Any) -> None:
    """A sub-command gets everything after its name, `--help` and `--` included, and its exit code is ours."""
    own_module("def main(argv):\n    assert argv == ['--help', '--', '-x'], argv\n    return 1\n")
    assert main(["exporter", "--help", "--", "-x"]) == 1


@pytest.mark.parametrize(
    "source",
    ["import not_installed.thing\n", "def main(argv):\n    import not_installed\n"],
    ids=["on import", "later"],
)
def test_missing_extra_says_what_to_install(own_module: Any, capsys: pytest.CaptureFixture[str], source: str) -> None:
    """A third-party module that is not there ends with one line to copy, not with a traceback."""
    own_module(source)
    assert main(["exporter"]) == 2
    assert capsys.readouterr().err == (
        "headway exporter needs not_installed, which is not installed: pip install 'headway[exporter]'\n"
    )


@pytest.mark.parametrize("source", ["import headway.no_such_module\n", "import asyncio.no_such_module\n", "1 / 0\n"])
def test_bug_of_our_own_is_not_hidden(own_module: Any, source: str) -> None:
    """Advice to install something would send a person the wrong way when it is our module that is broken."""
    own_module(source)
    with pytest.raises((ModuleNotFoundError, ZeroDivisionError)):
        main(["exporter"])


def test_needs_only_the_standard_library() -> None:
    """`headway run` starts in any trainer image: it imports nothing but the standard library."""
    code = (
        "import sys; before = set(sys.modules); import headway.cli, headway.supervisor\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "names -= {'headway', *sys.stdlib_module_names}\n"
        "print({name for name in names if not name.startswith('_sysconfigdata')})"  # Python's own, named after the platform
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_interrupt_is_no_traceback(own_module: Any) -> None:
    """Ctrl-C ends a command the way shells expect."""
    own_module("def main(argv):\n    raise KeyboardInterrupt\n")
    assert main(["exporter"]) == 130


INTERRUPTING: str = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["headway.cli", "headway.command_line", "headway.supervisor", "headway.journal"])
def test_an_interrupt_while_it_starts_shows_no_traceback(tmp_path: Path, module: str) -> None:
    """Ctrl-C in the first tenth of a second, while Python still imports, is no fault of Headway's."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-m", "headway", "run", "--", "true"],
        env=os.environ | {"PYTHONPATH": paths, "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
