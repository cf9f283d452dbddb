"""Advice from what was observed: each rule at its threshold, and silence where the data are too few."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pod_story import WALL
from state_story import RUNS, write

from headway_exporter.advice import Advice, Observed, advise, observe
from headway_exporter.advice.budgets import restart_budgets
from headway_exporter.advice.heartbeats import heartbeat_timeouts
from headway_exporter.advice.inprocess import in_process_timeouts
from headway_exporter.advice.intervals import OVERLAP, checkpoint_interval
from headway_exporter.advice.model import plain, round_up, seconds
from headway_exporter.advice.observed import Budget, Saves
from headway_exporter.advice.text import as_json, as_text
from headway_exporter.report.load import load

if TYPE_CHECKING:
    from pathlib import Path

WATCHED = Observed(
    run="big",
    pods=8,
    ranks=64,
    watched=36_000.0,
    failures=12,
    restart=60.0,
    step_seconds=0.5,
    step=60_000,
    total_steps=120_000,
    silences={"eval": 14.0, "init": 31.0, "step": 2.0},
    settings={"heartbeat_rank_seconds": 120.0, "heartbeat_initial_seconds": 120.0},
    saves=Saves(ended=60, blocking_mean=2.0, write_mean=20.0, write_last=22.0, interval_steps=220),
    budgets={"launcher": Budget(12, 100, 88)},
    nvrx_version="0.6.0",
)
"""Ten hours of a healthy set-up: nothing in it asks for a change."""


def number(advice: Advice, name: str) -> Any:
    return next(one.value for one in advice.numbers if one.name == name)


def with_settings(**settings: float) -> Observed:
    return replace(WATCHED, settings={**WATCHED.settings, **settings})


def test_nothing_to_change_is_said_as_such() -> None:
    """A set-up that fits gets no recommendation to change, and every piece of advice shows numbers."""
    for one in (
        *heartbeat_timeouts(WATCHED),
        checkpoint_interval(WATCHED),
        *restart_budgets(WATCHED),
    ):
        assert one.verdict == "keep", one.title
        assert one.numbers
        assert one.settings == ()


@pytest.mark.parametrize(
    ("in_force", "verdict", "words"),
    [
        (20.0, "change", "kills ranks that are well"),
        (31.0, "change", "kills ranks that are well"),
        (40.0, "change", "only 1.29 times"),
        (47.0, "keep", "margin"),
        (475.0, "keep", "margin"),
        (2_700.0, "change", "48 rank-hours"),  # 2700 s x 64 ranks
    ],
)
def test_heartbeat_timeout_against_the_longest_silence(in_force: float, verdict: str, words: str) -> None:
    """The longest silence, 31 s in init, advises 95 s; shorter than 1.5 times it or longer than 5 times 95 s is to be changed."""
    advice = heartbeat_timeouts(with_settings(heartbeat_rank_seconds=in_force))[0]
    assert (advice.verdict, number(advice, "advised")) == (verdict, 95.0)
    assert words in advice.text
    assert "in init" in advice.text


def test_a_timeout_is_not_shortened_on_little_evidence() -> None:
    """After a few minutes nobody knows the long silences: a long time-out stays, one that kills is still to be changed."""
    new = replace(WATCHED, watched=300.0)
    long, short = (
        heartbeat_timeouts(replace(new, settings={"heartbeat_rank_seconds": value}))[0] for value in (3_600.0, 20.0)
    )
    assert (long.verdict, long.confidence) == ("keep", "low")
    assert (short.verdict, short.confidence) == ("change", "low")


def test_no_timeout_in_force_is_a_warning_with_both_spellings() -> None:
    """NVRx 0.6 and later find no hang without the option; its name differs between versions, that in use comes first."""
    for version, first in (("0.6.0", "--ft-rank-heartbeat-timeout"), ("0.4.1", "--ft-param-rank_heartbeat_timeout")):
        rank, initial = heartbeat_timeouts(replace(WATCHED, settings={}, nvrx_version=version))
        assert rank.verdict == initial.verdict == "change"
        assert f"ft_launcher {first} 95" == rank.settings[0][0]
        assert {"--ft-initial-rank-heartbeat-timeout", "--ft-param-initial_rank_heartbeat_timeout"} == {
            text.split()[1] for text, _ in initial.settings
        }


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["init", "eval", "step", "other"]), st.floats(0, 5_000), min_size=1))
def test_an_advised_timeout_never_kills_what_was_well(silences: dict[str, float]) -> None:
    """Whatever was measured, the advice is at least 30 s and three times the longest silence."""
    for one in heartbeat_timeouts(replace(WATCHED, silences=silences, settings={})):
        assert number(one, "advised") >= 30
        if one.topic == "heartbeat_rank":
            assert number(one, "advised") >= 3 * max(silences.values())


@settings(deadline=None)
@given(
    silence=st.floats(0.01, 2_000), soft=st.floats(1, 5_000), hard=st.floats(1, 5_000), heartbeat=st.floats(1, 20_000)
)
def test_advised_timeouts_leave_each_layer_its_time(silence: float, soft: float, hard: float, heartbeat: float) -> None:
    """Once all advice is followed there is nothing left to change: soft before hard before heartbeat, all above the silences."""
    seen = replace(
        with_settings(soft_timeout_seconds=soft, hard_timeout_seconds=hard, heartbeat_rank_seconds=heartbeat),
        silences={"step": silence},
    )
    inner = in_process_timeouts(seen)[0]
    followed_settings = dict(seen.settings)
    if inner.verdict == "change":
        followed_settings |= {f"{kind}_timeout_seconds": number(inner, f"{kind}, advised") for kind in ("soft", "hard")}
    outer = heartbeat_timeouts(seen)[0]
    if outer.verdict == "change":
        followed_settings["heartbeat_rank_seconds"] = number(outer, "advised")
    followed = replace(seen, settings=followed_settings)
    assert in_process_timeouts(followed)[0].verdict == "keep"
    assert heartbeat_timeouts(followed)[0].verdict == "keep"
    soft, hard, heartbeat = (
        followed_settings[f"{kind}_seconds"] for kind in ("soft_timeout", "hard_timeout", "heartbeat_rank")
    )
    assert soft < hard < heartbeat


def test_launcher_must_not_act_before_the_process_can() -> None:
    """A heartbeat time-out below the hard one takes the cheaper restart away."""
    seen = with_settings(soft_timeout_seconds=100, hard_timeout_seconds=150)  # heartbeat: 120
    advice = heartbeat_timeouts(seen)[0]
    assert advice.verdict == "change"
    assert "in-process restart" in advice.text
    assert number(advice, "advised") == 180  # 1.2 times 150


def test_interval_by_hand() -> None:
    """12 failures in 10 h, 2 s a save: Daly says sqrt(2*2*3000) = 109.5, corrected 108.5 s; in steps of 0.5 s that is 217."""
    # sqrt(c/2M) = sqrt(2/6000) = 0.018257; 109.545 * (1 + 0.006086 + 0.000037) - 2 = 108.215 -> 217 steps
    advice = checkpoint_interval(WATCHED)
    assert number(advice, "optimum by Daly (2006)") == pytest.approx(108.215, abs=0.01)
    assert number(advice, "steps in that") == 217
    assert number(advice, "mean time between failures") == 3_000
    # 60 s + 22 s to restart: exp(82/3000) = 1.02771; exp(110.5/3000) - 1 = 0.03752; 1 - 108.5 / (3000 * 1.02771 * 0.03752) = 0.0621
    assert number(advice, "loss an hour, advised") == pytest.approx(3_600 * 0.0621, rel=0.002)


def test_interval_with_contention_by_hand() -> None:
    """Steps that take a quarter longer during 22 s lose 22 * 0.25 / 1.25 = 4.4 s, so a save costs 6.4 s and is to be made less often."""
    slowed = replace(WATCHED, saves=replace(WATCHED.saves, contention=0.25))
    advice = checkpoint_interval(slowed)
    assert number(advice, "extra step time beside a save, as a ratio") == 0.25
    assert number(advice, "that is, of each save") == pytest.approx(4.4)
    # sqrt(2*6.4*3000) = 195.959; c/2M = 6.4/6000 = 0.0010667, its root 0.032660; 195.959 * (1 + 0.010887 + 0.000119) - 6.4 = 191.716
    assert number(advice, "optimum by Daly (2006)") == pytest.approx(191.716, abs=0.01)
    assert number(advice, "optimum by Young (1974)") == pytest.approx(195.959, abs=0.01)
    assert number(advice, "steps in that") == 384
    assert "slows it by 4.4 s more (steps take 25 % longer while it is written)" in advice.text


@pytest.mark.parametrize(("contention", "assumed"), [(None, True), (0.0, False), (-0.05, False)])
def test_what_was_measured_is_not_assumed(contention: float | None, assumed: bool) -> None:
    """No contention, or less than none, changes no number; that it was not measured is said."""
    advice = checkpoint_interval(replace(WATCHED, saves=replace(WATCHED.saves, contention=contention)))
    assert number(advice, "optimum by Daly (2006)") == pytest.approx(108.215, abs=0.01)
    assert any("not measured" in one for one in advice.assumptions) == assumed
    assert "longer while" not in advice.text


def test_interval_far_from_the_best_is_to_be_changed() -> None:
    """Ten times too long loses minutes an hour, and the advice says how many and what to set."""
    rare = replace(WATCHED, saves=replace(WATCHED.saves, interval_steps=2_200))
    advice = checkpoint_interval(rare)
    assert advice.verdict == "change"
    assert advice.settings[0][0] == "headway train --checkpoint.every 217"
    assert number(advice, "loss an hour, in force") > number(advice, "loss an hour, advised")


def test_a_small_gain_is_no_reason_to_change() -> None:
    """The curve is flat near its lowest point: twice the best interval costs less than 1 % of the time."""
    advice = checkpoint_interval(replace(WATCHED, saves=replace(WATCHED.saves, interval_steps=400)))
    assert advice.verdict == "keep"


def test_writes_that_do_not_end_in_time_come_first() -> None:
    """Whatever the failures say, a write must end within 80 % of the interval: 22 s need 27.5 s, less the 2 s of the save itself."""
    often = replace(
        WATCHED, failures=0, saves=replace(WATCHED.saves, interval_steps=40)
    )  # 20 s of steps, 2 s of saving
    advice = checkpoint_interval(often)
    assert (advice.verdict, number(advice, "steps in that")) == ("change", 51)  # 25.5 s
    just = replace(WATCHED, saves=replace(WATCHED.saves, interval_steps=51))
    assert "wait for each other" not in checkpoint_interval(just).text


@pytest.mark.parametrize(
    ("write", "failures", "verdict"),
    [
        (22.0, 12, "change"),  # 110 % of 20 s: they pile up, however often it fails
        (22.0, 600, "change"),
        (18.0, 12, "change"),  # 90 %: a reserve costs next to nothing
        (
            18.0,
            1_200,
            "keep",
        ),  # a failure every 30 s: two seconds more to do again each time cost more than the reserve is worth
        (18.0, 0, "change"),  # nobody knows what it costs
    ],
)
def test_a_reserve_for_slow_writes_is_weighed_against_what_it_costs(write: float, failures: int, verdict: str) -> None:
    """A write that ends in time is no trouble yet: saving less often may lose more than a slow day of the storage would."""
    saves = replace(WATCHED.saves, blocking_mean=0.1, write_mean=write, write_last=write, interval_steps=40)
    advice = checkpoint_interval(replace(WATCHED, failures=failures, saves=saves, restart=5.0))  # 20 s of steps
    assert advice.verdict == verdict
    assert bool(advice.settings) == (verdict == "change")
    assert ("wait for each other" in advice.text) == (verdict == "change")
    assert ("no reserve" in advice.title) == (verdict == "keep")


@settings(deadline=None)
@given(
    blocking=st.floats(0.001, 60),
    write=st.floats(0, 600),
    failures=st.integers(1, 200),
    steps=st.integers(1, 5_000),
    step=st.floats(0.01, 30),
)
def test_advised_interval_always_lets_a_write_end(
    blocking: float, write: float, failures: int, steps: int, step: float
) -> None:
    """The bound of overlapping saves holds for every advice, and an interval is at least one step."""
    saves = Saves(30, blocking, write, write, steps)
    advice = checkpoint_interval(replace(WATCHED, saves=saves, failures=failures, step_seconds=step))
    best = number(advice, "advised interval")
    assert write <= OVERLAP * (best + blocking) + 1e-6
    assert number(advice, "steps in that") >= 1


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(WATCHED, saves=Saves()), "no save has ended"),
        (replace(WATCHED, saves=Saves(ended=20)), "how long a save stops training was not measured"),
        (replace(WATCHED, failures=0), "no failure in 10 h"),
        (replace(WATCHED, failures=0, watched=0.0), "no time"),
    ],
)
def test_too_few_data_for_an_interval(seen: Observed, words: str) -> None:
    """Without saves or failures there is a reason instead of a number to set."""
    advice = checkpoint_interval(seen)
    assert (advice.verdict, advice.confidence, advice.settings) == ("unknown", "none", ())
    assert words in advice.text.lower()


@pytest.mark.parametrize(("failures", "confidence"), [(1, "low"), (3, "medium"), (10, "high")])
def test_confidence_follows_the_count(failures: int, confidence: str) -> None:
    """One failure says little of the rate, and the advice says so."""
    assert checkpoint_interval(replace(WATCHED, failures=failures)).confidence == confidence


def test_budget_against_what_is_to_be_expected() -> None:
    """12 restarts in the first half: 12 more are expected in the other, up to 22 or so; 30 left are enough, 15 are not."""
    enough, short = (
        restart_budgets(replace(WATCHED, budgets={"launcher": Budget(12, 12 + left, left)}))[0] for left in (30, 15)
    )
    ahead = number(enough, "restarts ahead, at most (95 %)")
    assert 15 < ahead <= 30
    assert (enough.verdict, short.verdict) == ("keep", "change")
    assert short.settings[0][0] == f"ft_launcher --max-restarts {12 + ahead}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"finished": True}, "another run as long"),
        ({}, "the remaining steps (10 h)"),
        ({"total_steps": None, "watched": 5e5}, "30 days"),
    ],
)
def test_horizon_is_what_is_left(change: dict[str, Any], what: str) -> None:
    """The remaining steps where their number is known, else a month, and after the end another run like it."""
    assert f"For {what} " in restart_budgets(replace(WATCHED, **change))[0].text


def test_one_restart_is_no_reason_to_raise_a_budget() -> None:
    """What may be needed after a single restart is mostly ignorance of the rate: shown, but nothing is to be changed for it."""
    advice = restart_budgets(replace(WATCHED, budgets={"launcher": Budget(1, 3, 2)}))[0]
    assert number(advice, "restarts ahead, at most (95 %)") > 2
    assert (advice.verdict, advice.confidence, advice.settings) == ("unknown", "low", ())


def test_in_process_budget_is_whole_again_in_every_process() -> None:
    """40 in-process restarts, but never more than a few between two launcher restarts: a budget of 12 is enough, one of 3 is not."""
    verdicts = []
    for limit in (12, 3):
        budgets = {"in_process": Budget(40, limit, limit), "launcher": Budget(9)}
        advice = restart_budgets(replace(WATCHED, budgets=budgets))[0]
        assert number(advice, "time ahead") == 3_600  # ten processes one after the other in ten hours
        verdicts.append(advice.verdict)
    assert verdicts == ["keep", "change"]


def test_a_month_is_not_foretold_from_minutes() -> None:
    """Three restarts in two minutes say nothing of 30 days: no number is made of them."""
    advice = restart_budgets(replace(WATCHED, watched=120.0, total_steps=None))[0]
    assert (advice.verdict, advice.confidence) == ("unknown", "none")
    assert all(one.name != "restarts ahead, at most (95 %)" for one in advice.numbers)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_advice_of_real_records(tmp_path: Path, name: str) -> None:
    """What the sidecar writes of every kind of run leads to advice, to text that fits and to JSON without gaps."""
    run = load(write(tmp_path, RUNS[name]()), WALL)
    seen, advice = observe(run), advise(run)
    assert advice
    assert len({one.topic for one in advice}) == len(advice)
    document = json.loads(json.dumps(as_json(seen, advice), allow_nan=False))
    assert [one["topic"] for one in document["advice"]] == [one.topic for one in advice]
    for width in (60, 80, 120):
        lines = as_text(seen, advice, width).splitlines()
        commands = [text for one in advice for text, _ in one.settings]
        assert [line for line in lines if len(line) > width and not any(one in line for one in commands)] == []


def test_what_is_observed_of_many_failures(tmp_path: Path) -> None:
    """Failures, restarts, silences and saves are those of the tale: 50 failures, a third of them by SIGKILL."""
    seen = observe(load(write(tmp_path, RUNS["many"]()), WALL))
    assert seen.failures == 50
    assert (seen.budgets["launcher"].restarts, seen.budgets["in_process"].restarts) == (17, 33)
    assert seen.finished
    assert seen.ranks == 2
    assert seen.saves.ended >= 50
    assert seen.saves.blocking_mean == pytest.approx(0.05)
    assert seen.saves.write == pytest.approx(0.4)
    assert seen.settings["heartbeat_rank_seconds"] == 8.0


def test_pods_that_see_the_same_are_not_added_up(tmp_path: Path) -> None:
    """Three pods report one failure and one restart: advice counts one."""
    seen = observe(load(write(tmp_path, RUNS["three_pods"]()), WALL))
    assert (seen.pods, seen.ranks, seen.failures) == (3, 6, 1)
    assert seen.budgets["in_process"].restarts == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.004, "4 ms"),
        (0.7, "0.7 s"),
        (31, "31 s"),
        (119, "119 s"),
        (180, "3 min"),
        (9_000, "2.5 h"),
        (2e5, "2.31 days"),
    ],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    """The unit fits the size, and no digit is there that nobody needs."""
    assert seconds(value) == text


def test_numbers_are_for_people() -> None:
    """Thousands are grouped, zeros at the end left out, zeros of whole numbers kept."""
    assert [plain(one) for one in (0, 100, 1_234_567, 1.50, 10.04, 0.1234)] == [
        "0", "100", "1,234,567", "1.5", "10", "0.12",
    ]  # fmt: skip
    assert [round_up(one) for one in (0.1, 93, 95, 121, 601)] == [5, 95, 95, 150, 660]
