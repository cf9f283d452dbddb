"""Recording rules say what the ledger says, and count a pod once however often it is scraped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import golden_story
from promtool import RUN, Test, healthy, judge, needs_promtool, one, state, without
from story_series import Tape, scrapes, series

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
        if case["now"] > 300 or "reserve" in path.stem:  # a rank in reserve: its open standby is in no metric
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
        **without(healthy(), "headway_rank_elapsed_seconds_total"),
        one("headway_rank_elapsed_seconds_total"): "7200x400",
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


def test_a_restart_that_never_ends_counts_as_bad(tmp_path: Path) -> None:
    """Its time is in no counter until it ends; a run that nobody brings back must not look ever better. A pod in reserve counts nowhere."""
    stuck = {
        **state("restart", values="0x40 1x300", others="0x340"),
        one("headway_state", state="productive"): "1x40 0x300",
        one("headway_rank_seconds_total", state="productive"): "0+30x40 1200x300",
        one("headway_pending_rank_seconds"): "0x40 30+30x300",
    }
    reserve = {
        **state("standby", "1"),
        one("headway_ranks", "1"): "2x400",
        one("headway_rank_elapsed_seconds_total", "1"): "0+30x400",
        one("headway_rank_seconds_total", "1", state="standby"): "0x400",
        one("headway_pending_rank_seconds", "1"): "0+30x400",
    }
    values = [
        is_("run:headway_infrastructure_goodput:ratio", 1, "10m"),
        is_("run:headway_infrastructure_goodput:ratio", 0.5, "20m"),
        is_("run:headway_training_goodput:ratio", 0.5, "20m"),
        is_("run:headway_counted_rank_seconds:sum", 2_400, "20m"),
    ]
    judge(tmp_path, Test("stuck", {**healthy(), **stuck, **reserve}, values=values), groups=(".rules",))
