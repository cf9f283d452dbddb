"""What is known of XIDs: the built-in table is whole and names its sources, and a file of one's own replaces what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from headway_exporter.cli import _parser
from headway_exporter.health.xids import BLAMES, MOST_BYTES, XidClass, XidTableError, load
from headway_exporter.labels import CAUSES

if TYPE_CHECKING:
    from pathlib import Path

TABLE = load()


def table_file(tmp_path: Path, content: Any) -> Path:
    """A table of one's own; a text is written as it is."""
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("number", "cls", "cause"),
    [
        (13, "application", "illegal_access"),
        (31, "application", "illegal_access"),
        (43, "application", None),
        (45, "echo", None),
        (48, "hardware", "gpu_memory"),
        (63, "informational", None),
        (64, "hardware", "gpu_memory"),
        (74, "fabric", "nvlink"),
        (79, "hardware", "gpu_fell_off_bus"),
        (94, "hardware", "gpu_memory"),
        (95, "hardware", "gpu_memory"),
        (119, "driver", "gpu_driver"),
        (145, "fabric", "nvlink"),
        (154, "informational", None),
        (167, "hardware", "pcie"),
    ],
)
def test_the_numbers_that_decide(number: int, cls: str, cause: str | None) -> None:
    """The XIDs that trainings meet mean what the catalogues say."""
    found = TABLE.of(number)
    assert (found.number, found.cls, found.cause) == (number, cls, cause)


def test_every_row_says_what_to_do_and_where_that_stands() -> None:
    """No row without name, action and a source that the table lists; nothing that is an echo or informs explains a failure."""
    for number, row in TABLE.rows.items():
        assert number == row.number
        assert row.name
        assert row.action
        assert row.sources
        assert set(row.sources) <= TABLE.documents.keys()
        assert row.cls in set(get_args(XidClass)) - {"unknown"}
        if row.cls in ("echo", "informational"):
            assert row.cause is None, number
    assert set(BLAMES) <= set(CAUSES)


def test_disagreements_are_noted() -> None:
    """Where the documents say different things, the row tells."""
    for number in (13, 31, 32, 45, 68, 94, 109, 119):
        assert TABLE.of(number).note, number


def test_a_number_that_is_not_in_the_table() -> None:
    """It explains nothing, and is no hardware fault."""
    found = TABLE.of(4242)
    assert (found.number, found.cls, found.cause) == (4242, "unknown", None)
    assert found.action


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """It replaces the fields that it gives, adds numbers, leaves the other rows alone, and is named as their source."""
    path = table_file(
        tmp_path,
        {
            "v": 1,
            "xids": [
                {"number": 94, "class": "informational", "sources": ["our runbook"]},
                {"number": 4242, "name": "coffee machine", "class": "driver"},
                {"number": 79, "note": "ask Ann"},
            ],
        },
    )
    mine = load(path)
    assert mine.of(94) == replace(TABLE.of(94), cls="informational", cause=None, sources=("our runbook",))
    assert (mine.of(4242).name, mine.of(4242).cls, mine.of(4242).cause) == ("coffee machine", "driver", None)
    assert mine.of(79) == replace(TABLE.of(79), note="ask Ann", sources=(str(path),))
    assert str(path) in mine.documents
    assert {n: row for n, row in mine.rows.items() if n not in (79, 94, 4242)} == {
        n: row for n, row in TABLE.rows.items() if n not in (79, 94)
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no table of XIDs"),
        ({"v": 1}, "no table of XIDs"),
        ({"v": 2, "xids": []}, "this Headway reads 1"),
        ({"xids": []}, "this Headway reads 1"),
        ({"v": 1, "xids": [79]}, "row 1"),
        ({"v": 1, "xids": [{"number": 31}, {"number": True}]}, "row 2"),
        ({"v": 1, "xids": [{"number": -1}]}, "row 1"),
        ({"v": 1, "xids": [{"number": 1 << 31, "name": "x", "class": "driver"}]}, "row 1"),
        ({"v": 1, "xids": [{"number": 79, "class": "bad"}]}, "application, driver, hardware"),
        ({"v": 1, "xids": [{"number": 79, "class": "unknown"}]}, "must be one of"),
        ({"v": 1, "xids": [{"number": 79, "class": ["driver"]}]}, "must be one of"),
        ({"v": 1, "xids": [{"number": 79, "cause": "preempted"}]}, "gpu_fell_off_bus"),
        ({"v": 1, "xids": [{"number": 63, "cause": "gpu_memory"}]}, "needs a class"),
        ({"v": 1, "xids": [{"number": 79, "severity": "high"}]}, "'severity' is none of"),
        ({"v": 1, "xids": [{"number": 79, "note": "a\nb"}]}, "one line"),
        ({"v": 1, "xids": [{"number": 79, "action": 7}]}, "must be a text"),
        ({"v": 1, "xids": [{"number": 79, "sources": "me"}]}, "list of texts"),
        ({"v": 1, "xids": [{"number": 4242, "class": "driver"}]}, '"name"'),
        ({"v": 1, "xids": [{"number": 79}, {"number": 79}]}, "XID 79 is there twice"),
        ({"v": 1, "xids": [{"number": 4242, "name": "x", "class": "driver"}] * 2}, "XID 4242 is there twice"),
        (" " * (MOST_BYTES + 1), "more than"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: Any, words: str) -> None:
    """The message names the file and what is wrong, whatever is in it."""
    path = table_file(tmp_path, content)
    with pytest.raises(XidTableError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert words in message
    assert "\n" not in message


def run(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The sidecar's command, which must end by itself."""
    command = [sys.executable, "-m", "headway_exporter", "--listen", "127.0.0.1:0", *options]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, timeout=60, check=False)


def test_the_command_refuses_a_bad_table(tmp_path: Path) -> None:
    """Option and environment variable alike: exit 2 and one line that names file, row and what would do."""
    path = str(table_file(tmp_path, {"v": 1, "xids": [{"number": 79, "class": "bad"}]}))
    for done in (run("--xid-table", path), run(HEADWAY_XID_TABLE=path)):
        assert done.returncode == 2
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        for words in ("--xid-table", path, "row 1", "XID 79", "hardware"):
            assert words in line


def test_the_command_takes_a_good_table(tmp_path: Path) -> None:
    """What the option names reaches the fold."""
    path = str(table_file(tmp_path, {"v": 1, "xids": [{"number": 79, "class": "driver"}]}))
    options = _parser({}).parse_args(["--xid-table", path])
    assert options.xid_table.of(79).cls == "driver"
    assert _parser({}).parse_args([]).xid_table == TABLE


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The message names it and says why it cannot be read."""
    with pytest.raises(XidTableError, match="No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(XidTableError, match="no regular file"):
        load(tmp_path)


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "huge"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    """A pipe that nobody writes to would hold the sidecar for ever, an endless device or a huge file fill its memory."""
    path = tmp_path / what
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    done = subprocess.run(
        [sys.executable, "-m", "headway_exporter", "--dir", str(tmp_path), "--xid-table", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(path) in done.stderr
    assert ("more than" if what == "huge" else "no regular file") in done.stderr
