"""Pods that settle in a real folder where a failure began, and what a stranger or a crash may have left in it."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from test_origins import claim, killed, standing

from headway_exporter import exchange_files, state_files
from headway_exporter.exchange import Exchange, Patience
from headway_exporter.origins import Claim, Standing
from headway_exporter.pod import Pod
from headway_exporter.state_files import Ledger, StateFileError
from headway_exporter.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway_exporter.observations import VerdictSeen

RUN = "testrun"
ID = "9f86d081884c7d65"
LIMITS = Thresholds()
AFTER = LIMITS.verdict_after_seconds


def of(one: Claim, **more: Any) -> Claim:
    return replace(one, incident=ID, **more)


@dataclass
class Pods:
    """The sidecars of a run's pods, as far as they exchange what they know, and their folder."""

    state: Path
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    mono: float = 1000.0

    def lives(self, pod: int, silent_seconds: float = 0.0, **summary: Any) -> Exchange:
        """The pod's ledger was written so long ago."""
        folder = state_files.pod_folder(self.state, RUN, str(pod))
        folder.mkdir(parents=True, exist_ok=True)
        ledger = folder / state_files.LEDGER
        state_files.write_ledger(ledger, Ledger(RUN, str(pod), "session", 0.0, {"summary": summary}))
        self.since(ledger, silent_seconds)
        return self.exchanges.setdefault(pod, Exchange(self.state, RUN, str(pod), LIMITS))

    @staticmethod
    def since(path: Path, seconds: float) -> None:
        """Makes the file so old."""
        written = path.stat().st_mtime - seconds
        os.utime(path, (written, written))

    def turn(self, pod: int, *claims: Claim, seconds: float = 1.0) -> list[VerdictSeen]:
        self.mono += seconds
        return self.exchanges[pod].turn(self.mono, claims)

    @property
    def folder(self) -> Path:
        return state_files.incident_folder(self.state, RUN, ID)

    @property
    def verdict(self) -> Path:
        return self.folder / state_files.VERDICT


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    """Three pods that live."""
    found = Pods(tmp_path)
    for number in range(3):
        found.lives(number)
    return found


ECHO, KILLED, OTHER = of(claim(0)), of(killed(1, 3)), of(claim(2))


def test_the_lowest_live_pod_settles_it_and_all_take_its_word(pods: Pods) -> None:
    """One file, written once; everybody reads it, its writer too."""
    for one in (OTHER, KILLED, ECHO):
        assert pods.turn(int(one.pod_index), one) == []
    assert pods.turn(2, OTHER, seconds=AFTER + 1) == []
    assert pods.turn(1, KILLED, seconds=0) == []
    assert not pods.verdict.exists()
    [first] = pods.turn(0, ECHO, seconds=0)
    [again] = pods.turn(1, KILLED, seconds=0)
    assert first.verdict is not None
    assert first.verdict == again.verdict
    assert (first.incident, first.verdict.claimed_by, first.verdict.rank) == (ID, "1", 3)
    assert json.loads(pods.verdict.read_text())["resolved_by"] == "0"
    assert not list(pods.folder.glob(".*"))  # nothing half-written is left


def test_nothing_is_settled_before_the_pods_had_time_to_tell(pods: Pods) -> None:
    """A pod that looks first must not decide by what it alone knows."""
    pods.turn(0, ECHO)
    pods.turn(0, ECHO, seconds=AFTER - 1)
    assert not pods.verdict.exists()
    assert {path.name for path in pods.folder.iterdir()} == {"0.json"}


def test_a_pod_that_dies_over_it_is_followed_by_the_next(pods: Pods) -> None:
    """The lowest pod made its claim and is gone."""
    for one in (ECHO, KILLED, OTHER):
        pods.turn(int(one.pod_index), one)
    pods.lives(0, 60.0)
    pods.since(pods.folder / "0.json", 60.0)
    assert pods.turn(2, OTHER, seconds=AFTER + 1) == []
    [seen] = pods.turn(1, KILLED, seconds=0)
    assert seen.verdict is not None
    assert json.loads(pods.verdict.read_text())["resolved_by"] == "1"


def test_a_pod_that_forgot_the_failure_holds_nobody_up(pods: Pods) -> None:
    """Its sidecar was started anew without its memory: it lives, and does not wait for a verdict any more."""
    for one in (ECHO, KILLED):
        pods.turn(int(one.pod_index), one)
    pods.since(pods.folder / "0.json", 60.0)
    pods.lives(0)
    [seen] = pods.turn(1, KILLED, seconds=AFTER + 1)
    assert seen.verdict is not None


def test_evidence_that_comes_late_is_told_too(pods: Pods) -> None:
    """A claim is written anew when more is known, not when nothing changed."""
    pods.turn(1, of(claim(1)))
    path = pods.folder / "1.json"
    before = path.stat().st_ino
    pods.turn(1, of(claim(1)))
    assert path.stat().st_ino == before
    pods.turn(1, KILLED)
    assert exchange_files.parse_claim(path.read_bytes(), ID, "1", "").cause == "process_killed"


@pytest.mark.parametrize("spoilt", [b"", b"garbage", b"{}", b"x" * 100_000])
def test_a_claim_that_was_spoilt_is_written_anew(pods: Pods, spoilt: bytes) -> None:
    """Else this pod's evidence, perhaps the best there is, would be in no verdict, though it says the same all the time."""
    pods.turn(0, ECHO)
    pods.turn(1, KILLED)
    path = pods.folder / "1.json"
    whole = path.read_bytes()
    path.write_bytes(spoilt)
    pods.turn(1, KILLED)
    again = exchange_files.parse_claim(path.read_bytes(), ID, "1", str(path))
    assert (again.cause, again.origin_rank) == (KILLED.cause, KILLED.origin_rank)
    pods.turn(1, KILLED)
    assert len(path.read_bytes()) == pytest.approx(len(whole), abs=60)
    [seen] = pods.turn(0, ECHO, seconds=AFTER + 1)
    assert seen.verdict is not None
    assert (seen.verdict.claimed_by, seen.verdict.rank) == ("1", 3)


def test_a_pod_that_is_gone_is_where_it_began(pods: Pods) -> None:
    """It told nothing and is silent: its last ledger tells which node that was, and the lowest live pod counts it."""
    pods.lives(2, 40.0, node="n2", ranks=[{"slot": 0, "rank": 4}, "hostile"])
    now = pods.state.stat().st_mtime
    for one in (ECHO, of(claim(1))):
        pods.turn(int(one.pod_index), replace(one, began_wall=now - 100))
    [seen] = pods.turn(0, ECHO, seconds=AFTER + 1)
    assert seen.verdict is not None
    assert (seen.verdict.cause, seen.verdict.pod_index, seen.verdict.node) == ("node_lost", "2", "n2")
    assert seen.verdict.claimed_by == "0"


def test_a_pod_that_vanished_answers_only_who_asks(pods: Pods) -> None:
    """Its absence is a failure only where another pod knows of one; then it settles like any claim."""
    gone = of(claim(0, "silence", cause="node_lost", confidence="likely", pod_ended=True))
    assert pods.exchanges[0].turn(pods.mono, [], gone) == []
    assert not pods.folder.exists()
    pods.turn(1, of(claim(1)))
    assert pods.exchanges[0].turn(pods.mono, [], gone) == []
    assert (pods.folder / "0.json").exists()
    [seen] = pods.exchanges[0].turn(pods.mono + AFTER + 1, [], gone)
    assert seen.verdict is not None
    assert (seen.verdict.cause, seen.verdict.pod_index, seen.verdict.pod_ended) == ("node_lost", "0", True)


def test_a_pod_between_life_and_silence_is_waited_for(pods: Pods) -> None:
    """A sidecar that is slow to write is not a lost node."""
    pods.lives(2, LIMITS.pod_live_seconds + 5)
    pods.turn(0, ECHO)
    assert pods.turn(0, ECHO, seconds=AFTER + 1) == []
    pods.lives(2)
    [seen] = pods.turn(0, ECHO)
    assert seen.verdict is not None
    assert seen.verdict.cause == "peer_failure"


def test_a_pod_of_long_ago_is_not_blamed(pods: Pods) -> None:
    """The run was larger once; that pod had no part in what failed now."""
    pods.lives(2, 86_400.0)
    now = pods.state.stat().st_mtime
    pods.turn(0, replace(ECHO, began_wall=now - 3_600))
    [seen] = pods.turn(0, replace(ECHO, began_wall=now - 3_600), seconds=AFTER + 1)
    assert seen.verdict is not None
    assert seen.verdict.cause == "peer_failure"


def test_a_pod_that_completed_the_run_is_not_lost(pods: Pods) -> None:
    """It ended first and in order; what failed afterwards began elsewhere."""
    pods.lives(2, 60.0, node="n2", finished=True)
    now = pods.state.stat().st_mtime
    pods.turn(0, replace(ECHO, began_wall=now - 100))
    [seen] = pods.turn(0, replace(ECHO, began_wall=now - 100), seconds=AFTER + 1)
    assert seen.verdict is not None
    assert seen.verdict.cause == "peer_failure"


def test_names_that_are_no_text_are_passed_over(pods: Pods) -> None:
    """A file system takes any bytes as a name."""
    pods.turn(0, ECHO)
    (pods.folder / os.fsdecode(b"\xff.json")).write_text("{}")
    (pods.state / RUN / os.fsdecode(b"\xfe")).mkdir()
    (pods.state / RUN / "%00").mkdir()
    (pods.folder / "%00.json").write_text("{}")
    [seen] = pods.turn(0, ECHO, seconds=AFTER + 1)
    assert seen.verdict is not None


def test_every_turn_is_a_sign_of_life(pods: Pods) -> None:
    """A sidecar whose ledger takes long to write still shows that it lives."""
    pods.lives(0, 600.0)
    ledger = state_files.pod_folder(pods.state, RUN, "0") / state_files.LEDGER
    old = ledger.stat().st_mtime
    pods.turn(0)
    assert ledger.stat().st_mtime > old + 500


def test_without_a_ledger_the_claim_is_the_sign_of_life(tmp_path: Path) -> None:
    """A sidecar may be too young to have written one."""
    alone = Pods(tmp_path, {0: Exchange(tmp_path, RUN, "0", LIMITS)})
    alone.turn(0, ECHO)
    [seen] = alone.turn(0, ECHO, seconds=AFTER + 1)
    assert seen.verdict is not None
    measured = json.loads((alone.folder / "0.json").read_text())
    assert measured["uncertainty_seconds"] < 60


def spoil_with(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def a_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


GOOD = exchange_files.claim_content(KILLED, 0.0)
BAD_CLAIMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (spoil_with(b""), "state_corrupt"),
    "cut": (spoil_with(GOOD[:100]), "state_corrupt"),
    "not JSON": (spoil_with(b"\xff\x00"), "state_corrupt"),
    "a list": (spoil_with(b"[1]"), "state_corrupt"),
    "nested without end": (spoil_with(b"[" * 60_000), "state_corrupt"),
    "too large": (spoil_with(b" " * (exchange_files.MOST_BYTES + 1)), "state_corrupt"),
    "of another incident": (spoil_with(GOOD.replace(ID.encode(), b"0" * 16)), "state_foreign"),
    "of another pod": (spoil_with(GOOD.replace(b'"pod_index":"1"', b'"pod_index":"7"')), "state_foreign"),
    "of a newer version": (spoil_with(GOOD.replace(b'"v":1', b'"v":2')), "state_newer"),
    "a cause that is none": (spoil_with(GOOD.replace(b'"process_killed"', b'"x{y=1}"')), "state_corrupt"),
    "a number that is none": (spoil_with(GOOD.replace(b'"wall":100.0', b'"wall":NaN')), "state_corrupt"),
    "an endless number": (spoil_with(GOOD.replace(b'"wall":100.0', b'"wall":1e999')), "state_corrupt"),
    "a rank that is half a one": (spoil_with(GOOD.replace(b'"origin_rank":3', b'"origin_rank":3.5')), "state_corrupt"),
    "standings that are none": (spoil_with(GOOD.replace(b'"standings":[', b'"standings":[7,')), "state_corrupt"),
    "a link": (a_link, "state_corrupt"),
    "a pipe": (a_fifo, "state_corrupt"),
}


@pytest.mark.parametrize("name", BAD_CLAIMS)
def test_a_bad_claim_is_left_out_and_counted(pods: Pods, name: str) -> None:
    """Another pod's file may hold anything; the verdict rests on the rest."""
    spoil, reason = BAD_CLAIMS[name]
    pods.turn(0, ECHO)
    spoil(pods.folder / "1.json")
    for seconds in (AFTER + 1, 60.0):
        seen = pods.turn(0, ECHO, seconds=seconds)
    assert [one.verdict.cause for one in seen if one.verdict is not None] == ["peer_failure"]
    assert pods.exchanges[0].dropped == {reason: 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "state_corrupt"),
        (b"x" * 100_000, "state_corrupt"),
        (GOOD, "state_corrupt"),
        (b'{"v":1,"kind":"verdict","incident":"another"}', "state_foreign"),
        (b'{"v":1,"kind":"verdict","incident":"9f86d081884c7d65"}', "state_corrupt"),
    ],
)
def test_a_damaged_verdict_is_set_aside_and_made_anew(pods: Pods, content: bytes, reason: str) -> None:
    """It is kept for people to look at, and never believed."""
    pods.turn(0, ECHO)
    pods.verdict.write_bytes(content)
    pods.turn(0, ECHO)
    [seen] = pods.turn(0, ECHO, seconds=AFTER)
    assert seen.verdict is not None
    [aside] = pods.folder.glob("verdict.json.*")
    assert aside.read_bytes() == content
    assert pods.exchanges[0].dropped == {reason: 1}


def test_a_verdict_of_a_newer_version_stands(pods: Pods) -> None:
    """It is good for the pods that know it; this one will decide alone."""
    pods.turn(0, ECHO)
    pods.verdict.write_text('{"v":99}')
    for _ in range(3):
        assert pods.turn(0, ECHO, seconds=AFTER) == []
    assert pods.verdict.read_text() == '{"v":99}'
    assert pods.exchanges[0].dropped == {"state_newer": 1}


def test_a_verdict_survives_its_own_file(pods: Pods) -> None:
    """What is read is what was resolved, to the last field."""
    gpu = of(standing(KILLED, 3, gpu_uuid="GPU-3"), signature="ValueError: äöü \U0001f600")
    pods.turn(1, gpu)
    pods.turn(0, ECHO)
    [seen] = pods.turn(0, ECHO, seconds=AFTER + 1)
    assert seen.verdict is not None
    assert (seen.verdict.gpu_uuid, seen.verdict.node) == ("GPU-3", "n1")
    assert seen.verdict.signature == "ValueError: äöü \U0001f600"


def test_names_that_are_no_ids_touch_nothing(pods: Pods) -> None:
    """An id comes out of a journal's incarnation by a hash; whatever else it is, it is no path."""
    before = sorted(pods.state.rglob("*"))
    for name in ("", "../../up", "9F86D081884C7D65", ID + "0", "verdict"):
        assert pods.turn(0, replace(ECHO, incident=name), seconds=AFTER) == []
    assert sorted(pods.state.rglob("*")) == before


@pytest.mark.parametrize("pod_index", ["verdict", "..", "a/b", ".hidden", "pod 7", "%", "ä", "x" * 60])
def test_any_pod_index_has_a_claim_of_its_own(tmp_path: Path, pod_index: str) -> None:
    """A pod may be named after its host, and no name may be the verdict's or another folder's."""
    exchange = Exchange(tmp_path, RUN, pod_index, LIMITS)
    one = of(killed(1, 3), pod_index=pod_index)
    exchange.turn(0.0, [one])
    [path] = state_files.incident_folder(tmp_path, RUN, ID).iterdir()
    assert path.name != state_files.VERDICT
    assert state_files.claimant(path.name) == pod_index
    [seen] = exchange.turn(AFTER, [one])
    assert seen.verdict is not None
    assert seen.verdict.claimed_by == pod_index


def test_a_folder_that_cannot_be_used_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training is not ours to stop, and neither is the log ours to fill; once it can be used again, all goes on."""
    state = tmp_path / "state"
    state.write_text("no folder")
    exchange = Exchange(state, RUN, "0", LIMITS)
    for number in range(3):
        assert exchange.turn(number, [ECHO]) == []
    [line] = caplog.messages
    assert "deciding alone after 120 s" in line
    state.unlink()
    exchange.turn(4.0, [ECHO])
    assert "can be used again" in caplog.messages[-1]
    [seen] = exchange.turn(AFTER + 5, [ECHO])
    assert seen.verdict is not None


def test_many_failures_at_once_are_a_bounded_work(pods: Pods) -> None:
    """A crash loop must not make a turn endless; what is not looked at now has its turn later."""
    many = [replace(ECHO, incident=f"{number:016x}") for number in range(100)]
    pods.turn(0, *many)
    made = list((pods.state / RUN / state_files.INCIDENTS).iterdir())
    assert 0 < len(made) < 20
    assert stat.S_ISDIR(made[0].stat().st_mode)


def test_patience_ends_without_a_look_at_the_folder() -> None:
    """It may hang for ever: after a time the pod decides alone, counted from when this process first waited."""
    patience = Patience(LIMITS)
    assert patience.overdue(10.0, [ID]) == []
    assert patience.overdue(10.0 + LIMITS.verdict_timeout_seconds, [ID]) == []
    [seen] = patience.overdue(11.0 + LIMITS.verdict_timeout_seconds, [ID])
    assert (seen.incident, seen.verdict) == (ID, None)
    assert patience.overdue(500.0, []) == []
    assert patience.overdue(501.0, [ID]) == []


def test_the_largest_claim_can_be_read() -> None:
    """A journal may hold long texts in every rank's name; what a pod writes, all can read."""
    text = "\U0001f600" * 512
    standings = tuple(
        Standing(rank, rank, rank, gpu_uuid=text[:160], raised="cuda_oom", signature=text) for rank in range(64)
    )
    records = tuple((rank, "MONITOR_PROCESS_EXCEPTION") for rank in range(256))
    one = of(killed(1, 3), standings=standings, records=records, signature=text, node=text[:128])
    content = exchange_files.claim_content(one, 0.0)
    assert len(content) <= exchange_files.MOST_BYTES
    read = exchange_files.parse_claim(content, ID, "1", "")
    assert [item.rank for item in read.standings] == list(range(64))
    assert read.records == records


def test_what_is_written_is_what_is_read() -> None:
    """Every field of a claim that the fold can make comes back as it was."""
    pod = Pod("story", "1", shared_verdicts=True)
    assert pod.claims() == []
    one = of(
        standing(
            killed(1, 3, dated=False, pod_ended=True),
            3,
            step_age_seconds=1.5,
            sampled_age_seconds=0.5,
            in_collective=False,
            phase="eval",
        ),
        records=((3, "EXCEPTION"),),
        offset_seconds=-3.25,
    )
    assert exchange_files.parse_claim(exchange_files.claim_content(one, 5.0), ID, "1", "") == one
    with pytest.raises(StateFileError, match="no verdict"):
        exchange_files.parse_verdict(exchange_files.claim_content(one, 5.0), ID, "here")
