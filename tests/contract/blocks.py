"""The fenced blocks of our documents, and which test shows that each is true.

A block says it itself, in the line before it: `<!-- shown by tests/….py::test_… -->`. That test takes its blocks from here by its own name,
so that neither can go without the other being missed.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
DOCUMENTS: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(
        path
        for folder in ("alerts", "dashboards", "exporter", "instrumentation", "trainer")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
]
RUNBOOKS: Final = ROOT / "alerts" / "runbooks"
RUNBOOKS_TEST: Final = "tests/alerts/test_runbooks.py::test_scripts_are_valid_shell"
"""Reads every script of every runbook; beside it others see to queries, metrics, sub-commands and fields."""

_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
_MARK: Final = re.compile(r"^<!-- shown by (\S+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        document: the file.
        line: the number of its first line of content.
        language: what stands behind the fence.
        text: the content.
        test: the test that shows it; "" for none.
    """

    document: Path
    line: int
    language: str
    text: str
    test: str

    @property
    def place(self) -> str:
        """For a message."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """The command lines of a console block, without their prompts."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]

    def output(self) -> list[str]:
        """What is no command line in it."""
        return [line for line in self.text.splitlines() if not line.startswith("$ ")]


def blocks_of(document: Path) -> list[Block]:
    """All of a document's blocks, in order; one that is not closed ends with the document."""
    found, inside, fence = [], [], ""
    lines = document.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, start = match[2], match[3].strip(), number
            mark = _MARK.match(lines[number - 2]) if number > 1 else None
        elif fence and match and match[2].startswith(fence) and not match[3].strip():
            text = "".join(one + "\n" for one in inside)
            test = RUNBOOKS_TEST if document.parent == RUNBOOKS and language == "sh" else mark[1] if mark else ""
            found.append(Block(document, start + 1, language, text, test))
            inside, fence = [], ""
        elif fence:
            inside.append(line)
    assert not fence, f"{document}: the block that begins in line {start} does not end"
    return found


def shown_by(test: str) -> list[Block]:
    """The blocks that name this test.

    `test`: file and function, as pytest writes them. There is at least one.
    """
    found = [block for document in DOCUMENTS for block in blocks_of(document) if block.test == test]
    assert found, f"no document has a block `<!-- shown by {test} -->`"
    return found


def only(test: str) -> Block:
    """The one block that names this test."""
    (block,) = shown_by(test)
    return block


def typed(text: str) -> list[list[str]]:
    """The words of the command lines that a text has in blocks and between backticks, split at `&&`, `|` and `&`; comments left out."""
    lines = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    lines += re.findall(
        r"^(?!\$)(?:[A-Za-z].*)$", "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)), re.MULTILINE
    )
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", prose)]
    found = []
    for line in lines:
        for part in re.split(r"&&|\|(?!\|)|&(?= |$)|;", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # no command line: a piece of another language
                continue
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found
