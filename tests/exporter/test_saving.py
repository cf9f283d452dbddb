"""What saving costs: efficiency, durability and contention, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pod_story import WALL, Story
from report_story import quiet
from state_story import RUNS

from headway.ring import StepRecord
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import StepSeen
from headway_exporter.pod import Pod
from headway_exporter.report.json_document import document
from headway_exporter.report.load import load
from headway_exporter.report.markdown import markdown
from headway_exporter.report.page import html
from headway_exporter.report.report import report
from headway_exporter.report.saves import Saves, sentences
from headway_exporter.saving import durability, efficiency
from headway_exporter.summary import summary

if TYPE_CHECKING:
    from pathlib import Path


class Tale(Story):
    """Steps one after the other, each as long as it is told to be."""

    def __init__(self) -> None:
        super().__init__()
        self.event(None, "launcher_started", 0.0, pid=1)
        self.start(1.0, 0)
        self.enter(2.0, 0, incarnation="first", load=0)
        self.at, self.step = 10.0, 0

    def make(self, count: int, seconds: float, blocked: float = 0.0) -> None:
        """So many steps."""
        for _ in range(count):
            self.step += 1
            times = (round(one * 1e9) for one in (self.at, seconds, 0.0, blocked))
            self.pod.fold([StepSeen(0, self.lives[0], StepRecord(0, self.step, *times, 1.0, 10))])
            self.at += seconds
        self.pod.advance(self.at)

    def save(self, stage: str, step: int, at: float | None = None) -> None:
        """One word of a save."""
        self.event(0, "checkpoint", self.at if at is None else at, stage=stage, step=step)

    def told(self) -> dict[str, Any]:
        """The summary's checkpoint part."""
        found: dict[str, Any] = json.loads(json.dumps(summary(self.pod, {}, WALL), allow_nan=False))["checkpoint"]
        return found


def slowed() -> Tale:
    """10 steps of 1 s, 8 of 1.25 s while a save is in flight, 10 of 1 s."""
    tale = Tale()
    tale.make(10, 1.0)
    tale.save("requested", 10)
    tale.make(8, 1.25)
    tale.save("committed", 10)
    tale.make(10, 1.0)
    return tale


def test_contention_by_hand() -> None:
    """Steps of 1.25 s beside a save, of 1 s without: a quarter more."""
    assert slowed().told()["contention"] == pytest.approx(0.25)


@pytest.mark.parametrize(("beside", "without", "known"), [(4, 10, False), (5, 4, False), (5, 5, True)])
def test_few_steps_are_no_measure(beside: int, without: int, known: bool) -> None:
    """Five steps of each kind are the least to compare; before that it is not known, never 0."""
    tale = Tale()
    tale.make(without, 1.0)
    tale.save("requested", without)
    tale.make(beside, 2.0)
    assert tale.told()["contention"] == (pytest.approx(1.0) if known else None)


def test_what_a_save_blocks_is_no_contention() -> None:
    """Steps that are 3 s long because a save blocked 2 s of them were not slowed down; efficiency has the 2 s."""
    tale = Tale()
    tale.make(6, 1.0)
    for _ in range(6):
        tale.save("requested", tale.step)
        tale.make(1, 3.0, blocked=2.0)
        tale.save("committed", tale.step - 1)
        tale.make(1, 1.0)
    told = tale.told()
    assert told["contention"] == pytest.approx(0.0)
    assert told["efficiency"] == pytest.approx(18 / (18 + 12))


def test_a_save_shorter_than_a_step_slows_that_step() -> None:
    """Requested and committed inside one step: it is that step which is compared."""
    tale = Tale()
    for _ in range(6):
        tale.make(1, 1.0)
        begin = tale.at
        tale.save("requested", tale.step, begin + 0.2)
        tale.save("committed", tale.step, begin + 0.4)
        tale.make(1, 1.5)
    assert tale.told()["contention"] == pytest.approx(0.5)


@pytest.mark.parametrize("end", ["failed", "aborted", "committed"])
def test_a_save_that_ended_in_any_way_is_in_flight_no_more(end: str) -> None:
    """Steps after a save that failed are those of a run that does not save."""
    tale = Tale()
    tale.save("requested", 1)
    tale.make(6, 1.1)
    tale.save(end, 1)
    tale.make(6, 1.0)
    assert tale.told()["contention"] == pytest.approx(0.1)


def test_a_lost_word_does_not_keep_a_save_in_flight() -> None:
    """The end of the first save was never heard of; that of the next one ends both."""
    tale = Tale()
    tale.save("requested", 1)
    tale.make(6, 1.5)
    tale.save("requested", 7)
    tale.make(6, 1.5)
    tale.save("committed", 7)
    tale.make(6, 1.0)
    assert tale.told()["contention"] == pytest.approx(0.5)


def test_a_failure_ends_what_was_in_flight_and_its_first_step_is_not_compared() -> None:
    """A save that died with its process must not make all later steps ones beside it, nor the slow step after a restart count."""
    tale = Tale()
    tale.make(6, 1.0)
    tale.save("requested", 6)
    tale.make(6, 1.2)
    tale.die(0, tale.at)
    tale.start(tale.at + 1, 0, cycle=1)
    tale.enter(tale.at + 2, 0, incarnation="second", load=6)
    tale.at, tale.step = tale.at + 3, 6
    tale.make(1, 60.0)
    tale.make(6, 1.0)
    assert (len(tale.pod.steps.contention._saving), len(tale.pod.steps.contention._alone)) == (6, 12)
    assert tale.told()["contention"] == pytest.approx(0.2)


def test_only_one_rank_is_compared() -> None:
    """The other ranks wait for the slowest in each step: theirs are no more steps."""
    tale = Tale()
    tale.make(6, 1.0)
    before = len(tale.pod.steps.contention._alone)
    tale.start(20.0, 1)
    tale.enter(20.0, 1, incarnation="first")
    tale.steps(21.0, 1, first=1, last=9)
    assert len(tale.pod.steps.contention._alone) == before == 6


def test_memory_of_it_is_bounded() -> None:
    """A run of months keeps a few hundred steps of each kind, the newest."""
    tale = Tale()
    tale.make(1_000, 1.0)
    tale.save("requested", 1_000)
    tale.make(1_000, 1.5)
    tale.make(1_000, 1.25)
    assert tale.told()["contention"] == pytest.approx(0.25)
    assert len(tale.pod.steps.contention._saving) == len(tale.pod.steps.contention._alone) == 200


def test_a_restarted_sidecar_goes_on_measuring() -> None:
    """What was measured, and that a save is in flight, survives in the ledger."""
    tale = slowed()
    tale.save("requested", 28)
    again = Pod(tale.pod.run, tale.pod.pod_index)
    recall(again, json.loads(json.dumps(encoder().encode(tale.pod))))
    tale.pod = again
    tale.make(200, 3.0)
    assert tale.told()["contention"] == pytest.approx(2.0)


def test_a_ledger_from_before_contention_was_measured_is_read() -> None:
    """An update of the sidecar loses no memory: what the old one did not save begins anew."""
    tale = slowed()
    saved = json.loads(json.dumps(encoder().encode(tale.pod)))
    for name, attribute in (("Steps", "contention"), ("Checkpoints", "saving_until")):
        place = saved["classes"][name].index(attribute)
        del saved["classes"][name][place]
        for row in saved["objects"].values():
            if row[0] == name:
                del row[place + 1]
    again = Pod(tale.pod.run, tale.pod.pod_index)
    recall(again, saved)
    assert again.steps.contention.ratio is None
    tale.pod = again
    tale.make(6, 1.0)
    tale.save("requested", 34)
    tale.make(6, 1.5)
    assert tale.told()["contention"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({}, None),
        ({"init": 9.0}, None),
        ({"productive": 6.0, "replay": 2.0, "checkpoint_save": 2.0, "down": 50.0}, 0.8),
        ({"checkpoint_save": 2.0}, 0.0),
    ],
)
def test_efficiency_by_hand(times: dict[str, float], found: float | None) -> None:
    """Train over train and blocked; what a failure costs is no matter of it."""
    assert efficiency(times) == found


@pytest.mark.parametrize(
    ("committed", "requests", "found"), [(0, 0, None), (0, 4, 0.0), (3, 4, 0.75), (4, 4, 1.0), (5, 4, 1.0)]
)
def test_durability_by_hand(committed: int, requests: int, found: float | None) -> None:
    """Committed over requested, never above 1 when a request was missed."""
    assert durability(committed, requests) == found


def test_a_summary_has_them_of_two_ranks() -> None:
    """Four saves, all committed; their blocking part is not in these steps, so nothing is known to be lost by them."""
    (run,) = RUNS["recovered"]()
    told = summary(run.pod, {}, WALL)["checkpoint"]
    assert (told["durability"], told["efficiency"]) == (1.0, 1.0)


def test_the_postmortem_tells_all_three_in_every_form(tmp_path: Path) -> None:
    """20 of 21 saves committed; 0.93 new steps to 0.02 blocked are 98 %; 12.5 % longer steps in the pod that is slowed most."""
    run = load(quiet().write(tmp_path), 1.0)
    pods = tuple(
        replace(run.pods[0], checkpoint=replace(run.pods[0].checkpoint, contention=ratio)) for ratio in (0.02, 0.125)
    )
    found = report(replace(run, pods=pods))
    assert found.saves == Saves(21, 20, pytest.approx(0.93 / 0.95), 20 / 21, 0.125)
    assert document(found)["checkpoint"].keys() == {"requests", "committed", "efficiency", "durability", "contention"}
    for words in ("98 %", "95 %", "20 of 21 requested saves", "longer while a save is in flight"):
        assert words in html(found).replace("\u00a0", " ")
        assert words in markdown(found)


@pytest.mark.parametrize(
    ("contention", "words"),
    [
        (None, "not measured"),
        (0.004, "none"),
        (-0.06, "6.0 % less"),
        (0.3, "30 % longer"),
    ],
)
def test_contention_in_words(contention: float | None, words: str) -> None:
    """What is not known is not told as 0, and noise is not told as a price."""
    *_, last = sentences(Saves(3, 3, 0.9, 1.0, contention))
    assert words in last


def test_a_run_that_never_saves_is_told_nothing_of_saving() -> None:
    """No line about ratios of nothing."""
    assert list(sentences(Saves(0, 0, 1.0, None, None))) == []


def test_a_loop_that_tells_of_commits_only_has_an_efficiency() -> None:
    """Without requests there is nothing to divide by, and no save that was in flight."""
    (only,) = sentences(Saves(0, 7, 0.9, None, None))
    assert "efficiency 90 %" in only
