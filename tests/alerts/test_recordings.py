"""Recording rules say what the ledger says, and count a pod once however often it is scraped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import golden_story
import pytest
from promtool import RUN, Test, healthy, judge, needs_promtool, one, waiting, without
from story_series import Tape, scrapes, series

from headway_alerts.config import Config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_promtool


def is_(expr: str, value: float | None, at: str, **labels: str) -> dict[str, Any]:
    """The recorded series has this value, in whole thousandths; None: there is no such series."""
    inside = ",".join(f'{name}="{text}"' for name, text in {"run": RUN, **labels}.items())
    found = [] if value is None else [{"labels": f"{{{inside}}}", "value": math.floor(value * 1000 + 0.5)}]
    return {"expr": f"floor({expr} * 1000 + 0.5)", "eval_time": at, "exp_samples": found}


def test_goodputs_are_those_of_the_ledger(tmp_path: Path) -> None:
    """The golden cases' answers were worked out by hand; sums over counters must come to the same."""
    tests = []
    for path in sorted(golden_story.FOLDER.glob("*.yaml")):
        case = golden_story.load(path)
        if case["now"] > 300:
            continue
        scraped = scrapes(golden_story.observations(case), case["now"], 15)
        end = (len(scraped) - 1) * 15
        totals = golden_story.pod_after({**case, "now": end}).ledger.totals(end * 10**9)
        values = [
            is_("run:headway_training_goodput:ratio", totals.training_goodput, f"{end}s"),
            is_("run:headway_infrastructure_goodput:ratio", totals.infrastructure_goodput, f"{end}s"),
        ]
        tests.append(Test(path.stem, series(scraped), values=values))
    assert len(tests) > 10
    judge(tmp_path, *tests, groups=(".rules",))


def test_a_pod_that_is_scraped_twice_counts_once(tmp_path: Path) -> None:
    """Two targets, one pod: while it is replaced, or when two jobs find it."""
    twice = {
        text.replace("{", f'{{instance="{name}",'): values
        for text, values in healthy().items()
        for name in ("old", "new")
    }
    values = [
        is_("run:headway_pods:count", 2, "10m"),
        is_("run:headway_ranks:sum", 4, "10m"),
        is_("run:headway_counted_rank_seconds:sum", 2 * 30 * 40, "10m"),
        is_("run:headway_counted_rank_seconds:rate5m", 4, "10m"),
        is_("run:headway_live_goodput:ratio_rate5m", 1, "10m"),
    ]
    judge(tmp_path, Test("twice", {**twice, **healthy("1")}, values=values), groups=(".rules",))


def test_a_missing_pod_does_not_change_a_rate_of_the_rest(tmp_path: Path) -> None:
    """Were counters summed before their rate is taken, its leaving would look like a reset, and its coming back like a burst."""
    there = {text: values for text, values in healthy("1").items() if "rank_" in text}
    gone = {text: f"{values.partition('x')[0]}x40 stale" for text, values in there.items()}
    values = [
        is_("run:headway_counted_rank_seconds:rate5m", 4, "10m"),
        is_("run:headway_counted_rank_seconds:rate5m", 2, "16m"),
        is_("run:headway_live_goodput:ratio_rate5m", 1, "16m"),
        is_("run:headway_live_goodput:ratio_rate30m", 1, "16m"),
    ]
    judge(tmp_path, Test("gone", {**healthy(), **gone}, values=values), groups=(".rules",))


def test_a_reset_is_left_out_of_the_rates(tmp_path: Path) -> None:
    """Counters that are read anew from 0 to where they were are not 20 minutes of work in one scrape."""
    again = {
        one("headway_rank_seconds_total", state="productive"): "0+30x80 0 1000+30x300",
        one("headway_rank_elapsed_seconds_total"): "0+30x80 0 2460+30x300",
    }
    values = [
        is_("run:headway_live_goodput:ratio_rate5m", 1, "20m"),
        is_("run:headway_live_goodput:ratio_rate5m", None, "21m"),
        is_("run:headway_live_goodput:ratio_rate5m", 1, "28m"),
        is_("run:headway_live_goodput:ratio_rate30m", 1, "28m"),
    ]
    judge(tmp_path, Test("reset", {**healthy(), **again}, values=values), groups=(".rules",))


def test_what_is_at_risk(tmp_path: Path) -> None:
    """Steps since the durable checkpoint; all of them when there is none."""
    committed = Tape().tell("train 11-130/60")
    never = Tape().tell("steps 11-130")
    at = f"{int(committed.now) // 15 * 15 + 15}s"
    tests = [
        Test("committed", series(committed.scrapes()), values=[is_("run:headway_steps_at_risk:max", 10, at)]),
        Test(
            "never",
            series(never.scrapes()),
            values=[
                is_("run:headway_steps_at_risk:max", 130, f"{int(never.now) // 15 * 15 + 15}s"),
                is_("run:headway_checkpoint_exposure:seconds", None, "2m"),
            ],
        ),
        Test(
            "exposure",
            {one("headway_checkpoint_content_timestamp_seconds"): "_x20 290x100"},
            values=[is_("run:headway_checkpoint_exposure:seconds", 310, "10m")],
        ),
    ]
    judge(tmp_path, *tests, groups=(".rules",))


def test_time_between_failures(tmp_path: Path) -> None:
    """An hour of a two-rank pod with two incidents behind it and one open is 20 minutes; without incidents it is not known."""
    base = {
        **without(healthy(), "headway_counted_rank_seconds"),
        one("headway_counted_rank_seconds"): "7200x400",
        one("headway_world_size"): "2x400",
    }
    failed = {
        one("headway_incidents_total", outcome="recovered", recurring="false"): "1x400",
        one("headway_incidents_total", outcome="cancelled", recurring="false"): "1x400",
        one("headway_incident_open"): "1x400",
    }
    judge(
        tmp_path,
        Test("failed", base | failed, values=[is_("run:headway_mtbf:seconds", 1_200, "5m")]),
        Test("never", base, values=[is_("run:headway_mtbf:seconds", None, "5m")]),
        groups=(".rules",),
    )


def test_time_without_a_pod_is_in_the_goodput_of_the_hour(tmp_path: Path) -> None:
    """Ten minutes of an hour: booked when the pod is back, between its first two scrapes, of which the first is as before (`seam`)."""
    gone, back = "_x39", 3600
    gap = {
        one("headway_rank_elapsed_seconds_total"): f"0+30x120 {gone} {back} {back + 1230}+30x120",
        one("headway_rank_seconds_total", state="productive"): f"0+30x120 {gone} {back} {back + 30}+30x120",
        one("headway_rank_seconds_total", state="down"): f"0x120 {gone} 0 1200x120",
        **{
            one("headway_rank_seconds_total", state=state): f"0x120 {gone} 0x121"
            for state in ("standby", "init", "detect", "restart")
        },
    }
    values = [
        {
            "expr": "abs(run:headway_live_goodput:ratio_rate1h - 50 / 60) < bool 0.02",
            "eval_time": "69m",
            "exp_samples": [{"labels": '{run="demo"}', "value": 1}],
        }
    ]
    judge(tmp_path, Test("gone for ten minutes", gap, values=values), groups=(".rules",))


def test_a_restart_that_never_ends_counts_as_bad(tmp_path: Path) -> None:
    """Its time is in no counter until it ends; a run that nobody brings back must not look ever better."""
    tape = Tape().tell("train 11-600/60, kill 1, wait 1200")
    end = int(tape.now) // 15 * 15
    tape.pod.advance(end)
    totals = tape.pod.ledger.totals(end * 10**9)
    assert totals.infrastructure_goodput is not None
    assert totals.infrastructure_goodput < 0.4
    values = [
        is_("run:headway_infrastructure_goodput:ratio", totals.infrastructure_goodput, f"{end}s"),
        is_("run:headway_training_goodput:ratio", totals.training_goodput, f"{end}s"),
    ]
    judge(tmp_path, Test("stuck", series(scrapes(tape.pod.told, end, 15)), values=values), groups=(".rules",))


def test_what_all_pods_see_is_known_while_a_witness_lives(tmp_path: Path) -> None:
    """A few of many pods are asked, and not only the first ones: a rack that fails takes neighbours."""
    ends = {text: f"{values.partition('x')[0]}x20 stale" for pod in "01" for text, values in healthy(pod).items()}
    rest = healthy("23") | {text: values for text, values in healthy("40").items() if "step" in text}
    values = [
        is_("run:headway_step:max", 600, "10m"),
        is_("run:headway_pods:count", 1, "10m"),
        is_("run:headway_active_ranks:sum", 2, "10m"),
    ]
    judge(tmp_path, Test("a rack is gone", ends | rest, values=values), groups=(".rules",))


@pytest.mark.parametrize(
    ("pod", "asked"), [("0", True), ("10", True), ("11", False), ("2047", False), ("109", True), ("node-17", True)]
)
def test_witnesses_are_spread_and_a_run_of_ten_has_no_others(tmp_path: Path, pod: str, asked: bool) -> None:
    """Whatever pods are numbered from, and where they have names, some speak for the run."""
    test = Test("one pod", healthy(pod), values=[is_("run:headway_step:max", 600 if asked else None, "10m")])
    judge(tmp_path, test, groups=(".rules",))
    every = Test("all are asked", healthy(pod), values=[is_("run:headway_step:max", 600, "10m")])
    judge(tmp_path, every, groups=(".rules",), config=Config(witnesses=""))


def test_a_run_is_in_every_state_that_one_of_its_pods_is_in(tmp_path: Path) -> None:
    """Who waits is seen on every pod, witness or not."""
    waits = {one("headway_ranks", "23"): "2x400", **waiting("restart", "_x20 300x20 stale", "23")}
    values = [
        is_('run:headway_state:max{state="productive"}', 1, "7m", state="productive"),
        is_('run:headway_state:max{state="restart"}', 1, "7m", state="restart"),
        is_('run:headway_state:max{state="restart"}', None, "12m"),
    ]
    judge(tmp_path, Test("one waits", healthy() | waits, values=values), groups=(".rules",))
