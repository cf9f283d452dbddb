"""Every example of every document is shown by a test, and every command in them is spelt as its program wants it."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from functools import cache
from typing import TYPE_CHECKING

import blocks
import pytest

from headway.cli import COMMANDS, main

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = {
    "--enable-feature": "prometheus",
    "--backoff": "python -m headway_trainer.orchestrator",
    "--ft-cycle-info-dir": "ft_launcher, from 0.6 on",
    "--ft-rank-heartbeat-timeout": "ft_launcher",
    "--longest-backoff": "python -m headway_trainer.orchestrator",
    "--max-restarts": "ft_launcher",
}
"""Options of other programs that the documents name by themselves, and whose."""
NAMES = [str(path.relative_to(blocks.ROOT)) for path in blocks.DOCUMENTS]


@pytest.mark.parametrize("name", NAMES)
def test_every_block_names_a_test_that_exists(name: str) -> None:
    """An example that nothing runs is wrong after the next change, and nobody notices."""
    for block in blocks.blocks_of(blocks.ROOT / name):
        assert block.test, (
            f'{block.place}: put "<!-- shown by tests/FILE.py::TEST -->" before it, and have that test show it'
        )
        file, _, function = block.test.partition("::")
        assert function in functions(blocks.ROOT / file), f"{block.place}: there is no {block.test}"


def test_every_document_is_looked_at() -> None:
    """None is left out because it lies elsewhere."""
    elsewhere = [path for path in blocks.ROOT.glob("*.md") if path not in blocks.DOCUMENTS]
    assert elsewhere == []
    assert blocks.ROOT / "alerts" / "runbooks" / "README.md" in blocks.DOCUMENTS
    assert blocks.ROOT / "exporter" / "API.md" in blocks.DOCUMENTS


def test_every_test_that_is_named_reads_the_document() -> None:
    """It has the block from the document itself, not from memory: by the marks, or by a section of the README or the runbooks."""
    for document in blocks.DOCUMENTS:
        for block in blocks.blocks_of(document):
            source = (blocks.ROOT / block.test.partition("::")[0]).read_text()
            assert re.search(r"\bblocks\b|README|\.md\b", source), block.place


@pytest.mark.parametrize("name", NAMES)
def test_no_option_is_misspelt(name: str) -> None:
    """Whatever `headway` is told in a document, in a block or in passing, it understands."""
    for words in blocks.typed((blocks.ROOT / name).read_text()):
        if re.match(r"--[a-z]", words[0]):
            unknown = [word for word in words if re.match(r"--[a-z]", word) and not anywhere(word.partition("=")[0])]
            assert unknown == [], f"no command has it: {words}"
        if words[0] != "headway" or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        assert words[1] in COMMANDS, words
        told = words[2 : words.index("--")] if "--" in words else words[2:]
        known = options(words[1])
        unknown = [word for word in told if re.match(r"--[a-z]", word) and word.partition("=")[0] not in known]
        assert unknown == [], words


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_what_is_made_can_be_made(name: str) -> None:
    """Each target of `make` is in the Makefile."""
    makefile = (blocks.ROOT / "Makefile").read_text()
    targets = {
        word
        for words in blocks.typed((blocks.ROOT / name).read_text())
        if words[0] == "make"
        for word in words[1:]
        if "=" not in word
    }
    assert {"demo", "test"} <= targets or name != "README.md"
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_a_block_without_a_mark_is_noticed(tmp_path: Path) -> None:
    """Whatever is before it, and though it is indented; a mark counts only in the very line before."""
    document = tmp_path / "x.md"
    document.write_text(
        "<!-- shown by a::b -->\n\n```sh\ntrue\n```\n  ~~~\nx\n  ~~~\n<!-- shown by a::c -->\n```\n$ y\nz\n```\n"
    )
    found = blocks.blocks_of(document)
    assert [(block.language, block.test) for block in found] == [("sh", ""), ("", ""), ("", "a::c")]
    assert (found[2].commands(), found[2].output(), found[2].line) == (["y"], ["z"], 11)


def test_commands_are_found_wherever_they_stand() -> None:
    """At a prompt, in a script, between backticks over two lines, behind variables, in a pipe."""
    text = "x `headway a\n  --b` y\n```console\n$ A=1 headway c --d 'e f' | headway g &    # h\nout\n```\n```sh\nheadway i  # j\n```\n"
    assert sorted(blocks.typed(text)) == [
        ["headway", "a", "--b"], ["headway", "c", "--d", "e f"], ["headway", "g"], ["headway", "i"]
    ]  # fmt: skip


@cache
def functions(file: Path) -> set[str]:
    """The tests of a file."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def anywhere(option: str) -> bool:
    """Whether a sub-command has this option, or options that begin so (`--simulation.…`); a few are other programs'."""
    known = {one for command in COMMANDS for one in options(command)} | OTHERS.keys()
    return option in known or (option.endswith("…") and any(one.startswith(option[:-1]) for one in known))


@cache
def options(command: str) -> set[str]:
    """What a sub-command takes, by its own `--help`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9._-]*[a-z0-9]", out.getvalue()))
