"""`headway postmortem` as people run it: which run, which form, what is said when there is none, and hostile texts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from report_story import Story, four_faults, loop, one_recovery, quiet, ten_thousand, three_pods

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>\"'></title>&lt; `*_[x](http://x.example)|#1 @all \u202ednuora\u202c \x1b[31m\x00 \ud800 \u05d0"


def run(*options: str | Path, **more: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "headway", "postmortem", *map(str, options)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; complains about what is not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def test_the_only_run_is_taken(tmp_path: Path) -> None:
    """With one run in the folder nobody has to name it; the page goes to the standard output."""
    four_faults().write(tmp_path)
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    text = re.sub(r"\s+", " ", Page(done.stdout.decode()).text)
    for words in (
        "Recovered 4 of 4 incidents",
        "Where the time went",
        "Timeline",
        "hang: no heartbeat",
        "RuntimeError: injected fault",
    ):
        assert words in text


def test_several_runs_ask_for_one(tmp_path: Path) -> None:
    """With several runs one must be named; they are listed in one line, and each can be named."""
    quiet().write(tmp_path)
    one_recovery().write(tmp_path)
    done = run(tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert b"one-recovery, quiet" in done.stderr
    assert run(tmp_path / "quiet", "--format", "json").returncode == 0


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda folder: folder / "nothing", 2, "cannot read"),
        (lambda folder: folder, 2, "holds no run"),
        (lambda folder: _broken(folder), 1, "nothing of"),
    ],
)
def test_no_report_is_one_line(make: object, code: int, words: str, tmp_path: Path) -> None:
    """A wrong folder is bad usage, one with nothing readable is a failure; each is said in one line."""
    done = run(make(tmp_path))  # type: ignore[operator]
    assert done.returncode == code
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def _broken(folder: Path) -> Path:
    (folder / "demo" / "0").mkdir(parents=True)
    (folder / "demo" / "0" / "ledger.json").write_text("{")
    return folder


def test_out_is_written_whole_or_not(tmp_path: Path) -> None:
    """`--out` replaces a file by a whole one; where it cannot be written, one line says so and the code is 1."""
    folder = quiet().write(tmp_path / "state")
    out = tmp_path / "report.html"
    out.write_text("old")
    assert run(folder, "--out", out).returncode == 0
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]
    done = run(folder, "--out", tmp_path / "no" / "report.html")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`headway postmortem … | head -1` is no error."""
    folder = three_pods().write(tmp_path)
    command = f'"{sys.executable}" -m headway postmortem "{folder}" --all | head -c 20'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, len(done.stdout)) == (0, b"", 20)


def hostile() -> Story:
    """Texts from people who mean harm, wherever a text can come from."""
    long = HOSTILE + "x" * 100_000
    story = Story(run="hostile", node=HOSTILE + "{}", pods=2, settings={HOSTILE: HOSTILE}).starts().trains(30)
    story.fails("app_exception", 1, evidence=[
        {"kind": HOSTILE, "wall": story.wall, "rank": 1, "text": long, "signature": long, "traceback": long.replace(" ", "\n```\n")},
    ], recurring=(HOSTILE,), decided_by=HOSTILE, alternatives=[HOSTILE])  # fmt: skip
    return story.trains(9).fails(HOSTILE, 1, HOSTILE, versions={HOSTILE: HOSTILE}).trains(9)


@pytest.mark.parametrize("name", ["hostile", "<b>run\"'&"])
def test_hostile_texts_stay_texts(name: str, tmp_path: Path) -> None:
    """No text becomes a tag, an attribute, a link, markup or a control sequence in any form of the report; 100 kB are cut."""
    story = hostile()
    story.run = name
    folder = story.write(tmp_path)
    page, prose, data = (run(folder, "--format", form) for form in ("html", "markdown", "json"))
    assert (page.returncode, prose.returncode, data.returncode) == (0, 0, 0), page.stderr + prose.stderr + data.stderr
    seen = Page(page.stdout.decode())
    assert not {"script", "b>", "img", "iframe"} & set(seen.tags)
    assert not [one for one in seen.attributes if one[0].startswith("on")]
    assert all(
        value.startswith(("#", "data:,")) for attribute, value in seen.attributes if attribute in ("href", "src")
    )
    assert "<script>alert(1)</script>" in seen.text
    for done in (page, prose, data):
        text = done.stdout.decode()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
        assert len(text) < 200_000
    written = prose.stdout.decode()
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", written)
    assert "<script" not in outside
    assert not re.search(r"(?<!\\)\[x\]|http://|#1|@all", outside)
    assert json.loads(data.stdout)["incidents"]["total"] == 2


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    """One file: no script, nothing from the network, and the browser is told to keep it so."""
    source = run(loop().write(tmp_path)).stdout.decode()
    seen = Page(source)
    assert "script" not in seen.tags
    assert any("default-src 'none'" in value for name, value in seen.attributes if name == "content")
    assert "url(http" not in source
    assert "@import" not in source


def test_forms_agree(tmp_path: Path) -> None:
    """The three forms tell the same headline, and JSON keeps its keys."""
    folder = three_pods().write(tmp_path)
    data = json.loads(run(folder, "--format", "json").stdout)
    assert (data["headway"], data["version"]) == ("postmortem", 1)
    assert {"goodput", "rank_seconds", "incidents", "recovery", "offenders", "actions", "missing"} <= set(data)
    assert sum(data["rank_seconds"]["by"].values()) == pytest.approx(data["rank_seconds"]["elapsed"])
    assert [one["number"] for one in data["incidents"]["list"]] == [1, 2, 3, 4]
    headline = data["headline"]
    assert headline in run(folder, "--format", "markdown").stdout.decode().replace("\\", "")
    assert headline in Page(run(folder).stdout.decode()).text.replace("\u00a0", " ")


def test_many_incidents_are_counted_and_the_worst_told(tmp_path: Path) -> None:
    """With more incidents than anybody reads, the worst are told one by one and all are counted; `--all` tells all."""
    folder = ten_thousand(400, pods=1).write(tmp_path)
    page = run(folder).stdout.decode()
    assert page.count('<details class="incident"') == 200
    assert run(folder, "--all").stdout.decode().count('<details class="incident"') == 400
    data = json.loads(run(folder, "--format", "json").stdout)
    assert (data["incidents"]["total"], data["incidents"]["shown"]) == (400, 200)
    assert all(one["recurring"] for one in data["incidents"]["list"] if one["attempts"] > 1)
    assert sum(1 for one in data["incidents"]["list"] if one["recurring"]) == data["incidents"]["recurring"] == 4


def test_a_report_while_the_run_goes_on(tmp_path: Path) -> None:
    """A ledger that is replaced meanwhile and records that are appended do not disturb it; folders may be read-only."""
    folder = loop().write(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run(folder, env=os.environ | {"HOME": str(tmp_path)}).returncode == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
