"""`headway incidents`: what the conditions mean, one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_story import RUNS

from headway_exporter.listing.briefs import Group, Place, brief, groups, parse
from headway_exporter.listing.query import Query, QueryError, Setting, cause, moment, reason, setting
from headway_exporter.listing.words import Words
from headway_exporter.state_files import StateFileError

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
RECORD: dict[str, Any] = next(iter(RUNS["recovered"]()[0].records))


def group(path: Path, **changes: Any) -> Group:
    source = RECORD | changes
    one = brief(source, str(source["pod_index"]), Place(path, 0), 1)
    assert one is not None
    return groups("run", [one])[0]


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        (Query(), True),
        (Query(causes=("app_exception",)), True),
        (Query(causes=("gpu_*", "app_*")), True),
        (Query(causes=("cuda_oom",)), False),
        (Query(layers=("launcher",)), False),
        (Query(layers=("launcher", "in_process")), True),
        (Query(outcomes=("recovered",)), True),
        (Query(outcomes=("open", "abandoned")), False),
        (Query(recurring="any"), False),
        (Query(recurring="none"), True),
        (Query(recurring="no_progress"), False),
        (Query(ranks=(1,)), True),
        (Query(ranks=(0, 2)), False),
        (Query(nodes=("n?",)), True),
        (Query(nodes=("N1",)), False),
        (Query(gpus=("GPU-*",)), False),
        (Query(since=RECORD["opened_wall"]), True),
        (Query(until=RECORD["opened_wall"]), False),
        (Query(causes=("app_exception",), ranks=(0,)), False),
    ],
)
def test_conditions(tmp_path: Path, query: Query, fits: bool) -> None:
    """Each condition is about what its option says, and all of them must hold."""
    assert query.matches(group(tmp_path)) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("heartbeat_rank_seconds", True),
        ("heartbeat_rank_seconds=8", True),
        ("heartbeat_rank_seconds=8.0", True),
        (" heartbeat_rank_seconds <= 8 ", True),
        ("heartbeat_rank_seconds<8", False),
        ("heartbeat_rank_seconds>=8e0", True),
        ("heartbeat_rank_seconds!=8", False),
        ("config_fingerprint=0123456789abcdef", True),
        ("config_fingerprint!=x", True),
        ("config_fingerprint<5", False),
        ("no_such_setting!=1", False),
        ("flag=true", True),
        ("nothing=", True),
    ],
)
def test_configuration_in_force(tmp_path: Path, text: str, fits: bool) -> None:
    """Numbers are compared as numbers, texts as texts, and a setting that was not told fits nothing."""
    told = RECORD["settings"] | {"flag": True, "nothing": "", "config_fingerprint": "0123456789abcdef"}
    assert Query(settings=(setting(text),)).matches(group(tmp_path, settings=told)) is fits


@pytest.mark.parametrize("text", ["", "=8", "a b", "x<soon", "x<", "two words=1", "x~1"])
def test_a_bad_condition_is_refused(text: str) -> None:
    """A typing error must not quietly fit nothing."""
    with pytest.raises(QueryError):
        setting(text)


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        ("24h", NOW - 86_400),
        ("1.5d", NOW - 129_600),
        ("90s", NOW - 90),
        ("2027-01-15", 1_799_971_200.0),
        ("2027-01-15T08:00", 1_800_000_000.0),
        ("2027-01-15 09:00+01:00", 1_800_000_000.0),
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
    ],
)
def test_times(text: str, wall: float) -> None:
    """UTC unless it says otherwise; a span is that long ago."""
    assert moment(text, NOW) == wall


@pytest.mark.parametrize("text", ["", "yesterday", "7", "-3h", "2027-13-01", "\x1b[31m"])
def test_no_time(text: str) -> None:
    """What is no time is refused, and not shown raw."""
    with pytest.raises(QueryError) as error:
        moment(text, NOW)
    assert str(error.value).isprintable()


def test_a_misspelt_name_gets_a_hint() -> None:
    """An unknown cause or reason fits nothing for ever: better to say so."""
    with pytest.raises(QueryError, match="did you mean cuda_oom"):
        cause("cuda_oomm")
    with pytest.raises(QueryError, match="no_progress"):
        reason("stuck")
    assert cause("gpu_*") == "gpu_*"


def found(words: list[str], record: dict[str, Any]) -> bool:
    """Whether the record is found, asked as the reader does: only lines that may hold the words are indexed."""
    index = Words(words)
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    if index.possible(line):
        index.add(7, record)
    return index.found() == {7}


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["ValueError"], True),
        (["valueerror"], True),
        (["app_exception"], True),
        (["went", "wrong"], True),
        (["went wrong"], True),
        (["wrong went"], False),
        (["loss", "model"], True),  # both in the traceback, right after a line end
        (["loss", "CUDA"], False),
        (["CUDA", "OR", "ValueError"], True),
        (["ValueError", "NOT", "went"], False),
        (["Value*"], True),
        (["alueError"], False),
        (["n1"], True),
        (["model.py"], True),
        (["0123456789abcdef"], True),
        ([RECORD["id"]], True),
        (["heartbeat_rank_seconds"], False),  # a setting that is a number: --setting asks for it
        (["Größe"], True),
        (["gross*"], False),
        (["a", "(", "went", "OR", "x", ")"], False),
        (["-9"], True),
    ],
)
def test_words(words: list[str], fits: bool) -> None:
    """Words stand for themselves in any case, phrases in their order, operators are FTS5's."""
    evidence = [*RECORD["evidence"], {"kind": "death", "text": "Größe 3\nexit code -9"}]
    settings = RECORD["settings"] | {"config_fingerprint": "0123456789abcdef"}
    assert found(words, RECORD | {"evidence": evidence, "settings": settings}) is fits


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("abC1_-. \n\t\\\"é'/"), max_size=12), max_size=4), st.integers(0, 30))
def test_no_line_is_passed_over_that_holds_the_words(texts: list[str], pick: int) -> None:
    """What is left unparsed for speed is only what full-text search would not find either."""
    record = {"v": 1, "evidence": [{"kind": "death", "text": text} for text in texts]}
    tokens = [token for text in texts for token in text.replace('"', " ").split() if any(map(str.isalnum, token))]
    if tokens:
        index = Words([tokens[pick % len(tokens)]])
        assert index.possible(json.dumps(record).encode())


@pytest.mark.parametrize("words", [["AND"], ["(", "a"], ["a", "OR"], [" "], ["()"], ["NOT", "a"]])
def test_words_that_make_no_sense(words: list[str]) -> None:
    """FTS5's syntax errors become one printable line."""
    with pytest.raises(QueryError) as error:
        Words(words)
    assert str(error.value).isprintable()


def test_part_of_a_line_says_the_same_as_all_of_it() -> None:
    """Parsing only the head of a record changes nothing of its brief but what comes later in it."""
    for run in RUNS.values():
        for pod in run():
            for record in pod.records:
                line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
                head, whole = parse(line, "", whole=False), parse(line, "", whole=True)
                assert isinstance(head, dict)
                assert isinstance(whole, dict)
                assert len(head) < len(whole)
                assert {name: whole[name] for name in head} == head


@pytest.mark.parametrize(
    "line",
    [
        b'{"v":1,"id":"a","opened_wall":1.0,"settings":{"x":1},"evid\n',
        b'{"v":2,"id":"a","opened_wall":1.0,"settings":{"x":1}}\n',
        b'{"v":1,"x":{"settings":1},"y":[{"z":1,"settings":{}}],"id":\n',
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"v":1,"id":"\xff","opened_wall":1.0,"settings":{}}\n',
    ],
)
def test_damage_is_seen_in_part_of_a_line_too(line: bytes) -> None:
    """A torn, newer or nonsensical line is no record, however little of it is looked at."""
    assert isinstance(parse(line, "here", whole=False), StateFileError)


def test_setting_without_comparison_is_about_being_told() -> None:
    """`--setting NAME` finds runs that told it, whatever the value."""
    assert Setting("x").holds({"x": None})
    assert not Setting("x").holds({})
