"""For every alert: series with which it is silent, fires and is resolved, what it then says, and a near miss.

A sample every 15 s, so `x20` reaches to 5 minutes; the run of `healthy` makes a step a second and saves every minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from promtool import Expected, Series, healthy, one, state, waiting, without

from headway_alerts.config import BurnWindow, Config, Objective

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Case:
    """One alert. Times as promtool writes them."""

    alert: str
    series: Series
    silent: str
    fires: str
    resolved: str
    expected: Expected
    near: Mapping[str, Series]
    """What nearly does it, by what it is; silent when the alert fires above."""
    interval: str = "15s"
    config: Config = field(default_factory=Config)
    since: str = ""
    """When its condition began; empty: as long before it fires as it must hold."""


def with_(*more: Series, base: Series | None = None) -> Series:
    """The healthy run, changed."""
    changed = dict(healthy() if base is None else base)
    for one_more in more:
        changed |= one_more
    return changed


STOPPED = {one("headway_last_step_timestamp_seconds"): "0+15x40 600x360", one("headway_step"): "0+15x40 600x360"}
"""No step after 10 minutes."""
_CLOSED = "headway_incident_closed_timestamp_seconds"
GIVEN_UP = {
    one("headway_last_step_timestamp_seconds"): "0+15x40 600x39 1200+15x320",
    one("headway_step"): "0+15x40 600x39 601+15x320",
    one("headway_ranks"): "2x39 0x360",
    one(_CLOSED, outcome="abandoned"): "_x47 710x352",
}
"""All ranks are gone after 10 minutes, and nobody comes back for ten more."""
_GIVEN_UP_SAYS = Expected(
    "critical",
    "Run demo has made no step for 2m 15s",
    "Run demo stands at step 600, where a step usually takes 1s. No restart is under way, so nobody is mending it. Take stacks of the "
    "ranks to see what they wait for, then restart.",
)
EVAL = {
    **state("eval", values="0x39 1x360", others="1x39 0x360"),
    one("headway_state_since_timestamp_seconds"): "0x39 600x360",
    **waiting("eval", "_x40 600x360"),
}
_BURN = {
    one("headway_run_start_timestamp_seconds"): "0x240",
    one("headway_ranks"): "2x240",
    one("headway_step_duration_baseline_seconds"): "1x240",
    one("headway_rank_elapsed_seconds_total"): "0+120x240",
    one("headway_rank_seconds_total", state="standby"): "0x240",
    one("headway_unregained_rank_seconds"): "0x240",
    one("headway_counted_rank_seconds"): "0+120x240",
}
_HALF = {one("headway_rank_seconds_total", state="productive"): "0+60x240"}
_NONE_AFTER_TWO_HOURS = {one("headway_rank_seconds_total", state="productive"): "0+120x120 14400x60 14520+120x60"}
_PODS = {one("headway_ranks", pod): "1x400" for pod in "01"}
_ATTEMPT = "headway_incident_attempt_started_timestamp_seconds"

CASES: tuple[Case, ...] = (
    Case(
        "HeadwayRecovered",
        with_(
            {
                one("headway_incidents_total", outcome="recovered", recurring="false"): "0x20 1x380",
                one("headway_last_rollback_steps"): "_x20 19x380",
            }
        ),
        silent="5m",
        fires="6m",
        since="5m15s",
        resolved="16m",
        expected=Expected(
            "info",
            "Run demo recovered (1 in the last 10m)",
            "Run demo is past where it failed, and a newer checkpoint is durable. The last recovery took it back "
            "19 steps. Nothing to do; "
            "look at where it began if it comes often.",
        ),
        near={
            "a sidecar that is first seen with old incidents": with_(
                {one("headway_incidents_total", outcome="recovered", recurring="false"): "_x20 3x380"}
            ),
            "the operator ended it": with_(
                {one("headway_incidents_total", outcome="cancelled", recurring="false"): "0x20 1x380"}
            ),
            "a sidecar that reads its journals again": with_(
                {one("headway_incidents_total", outcome="recovered", recurring="false"): "2x20 0 1 2x380"}
            ),
        },
    ),
    Case(
        "HeadwayRecurringFailure",
        with_(
            {
                one("headway_incident_recurring", reason="no_progress"): "_x21 1x40 stale",
                one("headway_incident_recurring", reason="same_checkpoint"): "_x21 1x40 stale",
                one("headway_incident_attempts"): "0x20 3x40 0x340",
            }
        ),
        silent="5m",
        fires="5m15s",
        resolved="21m",
        expected=Expected(
            "critical",
            "Run demo keeps failing and does not get on (no_progress, same_checkpoint)",
            "The open incident of run demo has had 3 attempts and is recurring: no_progress, same_checkpoint. "
            "Restarting it once more will "
            "not help. Find out what the attempts have in common; stop the run if you cannot mend it now, since "
            "every attempt costs all of "
            "its GPUs.",
        ),
        near={
            "the same place, which is a ticket": with_(
                {one("headway_incident_recurring", reason="same_entity"): "_x21 1x380"}
            ),
            "two attempts": with_({one("headway_incident_attempts"): "0x20 2x380"}),
        },
    ),
    Case(
        "HeadwayRecurringFailure",
        {
            one("headway_ranks"): "2x61 stale",
            one("headway_incident_open"): "0x20 1x40 stale",
            one("headway_incident_recurring", reason="no_progress"): "_x21 1x40 stale",
            one("headway_incident_attempts"): "0x20 3x40 stale",
        },
        silent="5m",
        fires="20m",
        since="5m15s",
        resolved="31m",
        expected=Expected(
            "critical",
            "Run demo keeps failing and does not get on (no_progress)",
            "The open incident of run demo has had 3 attempts and is recurring: no_progress. Restarting it once more will not help. Find "
            "out what the attempts have in common; stop the run if you cannot mend it now, since every attempt costs all of its GPUs.",
        ),
        near={
            "it recovered before its pod went": {
                one("headway_ranks"): "2x61 stale",
                one("headway_incident_open"): "0x20 1x20 0x20 stale",
                one("headway_incident_recurring", reason="no_progress"): "_x21 1x20 stale",
            },
        },
    ),
    Case(
        "HeadwayRecurringEntity",
        with_(
            {
                one("headway_entity_incidents", entity_kind="rank", entity="3"): "_x20 4 5x40 stale",
                one("headway_entity_incidents", entity_kind="node", entity="n7"): "_x20 5x40 stale",
            }
        ),
        silent="4m45s",
        fires="6m",
        since="5m",
        resolved="31m",
        expected=Expected(
            "warning",
            "5 incidents of run demo began in the same place within a day",
            "Incidents of the last 24 hours by where they began: node n7 (5), rank 3 (5). Run demo recovers, but "
            "the next failure is likely "
            "to come from there. Drain that node or GPU at the next good moment.",
        ),
        near={
            "a single incident each": with_(
                {one("headway_rank_failures_total", rank=str(rank)): "0x20 1x380" for rank in range(5)}
            )
        },
    ),
    Case(
        "HeadwayRecurringEntity",
        {one("headway_entity_incidents", entity_kind="rank", entity="3"): "_x20 2x40 stale"},
        silent="4m45s",
        fires="20m",
        since="5m",
        resolved="31m",
        expected=Expected(
            "warning",
            "2 incidents of run demo began in the same place within a day",
            "Incidents of the last 24 hours by where they began: rank 3 (2). Run demo recovers, but the next failure is likely to come "
            "from there. Drain that node or GPU at the next good moment.",
        ),
        near={"gone for long": {one("headway_entity_incidents", entity_kind="rank", entity="3"): "stale"}},
    ),
    Case(
        "HeadwayRecoveryStuck",
        with_({one(_ATTEMPT, layer="launcher"): "_x19 300x65 stale"}),
        silent="20m",
        fires="20m15s",
        resolved="24m",
        expected=Expected(
            "critical",
            "Run demo has been trying to restart for 15m 15s without a step",
            "The attempt under way in run demo waits for: launcher. It is over its budget of 15m 0s. All GPUs of "
            "the run idle meanwhile. See "
            "in which phase it hangs; restart from outside if nothing moves.",
        ),
        near={
            "an outer layer has longer": with_({one(_ATTEMPT, layer="orchestrator"): "_x19 300x380"}),
            "a peer that still expects the inner layer": with_(
                {
                    one(_ATTEMPT, layer="orchestrator"): "_x19 300x380",
                    one(_ATTEMPT, "1", layer="in_process"): "_x19 300x380",
                }
            ),
            "it made its first step in time": with_({one(_ATTEMPT, layer="launcher"): "_x19 300x55 stale"}),
        },
    ),
    Case(
        "HeadwayTrainingStalled",
        with_(
            {
                one("headway_last_step_timestamp_seconds"): "0+15x40 600x39 1200+15x320",
                one("headway_step"): "0+15x40 600x39 601+15x320",
            }
        ),
        silent="12m15s",
        fires="12m45s",
        resolved="26m",
        expected=Expected(
            "critical",
            "Run demo has made no step for 2m 45s",
            "Run demo stands at step 600, where a step usually takes 1s. No restart is under way, so nobody is "
            "mending it. Take stacks of "
            "the ranks to see what they wait for, then restart.",
        ),
        near={
            "an evaluation": with_(STOPPED, EVAL),
            "an evaluation that just ended": with_(
                STOPPED,
                state("productive", values="1x39 0x10 1x350", others="0x400"),
                {
                    one("headway_state", state="eval"): "0x39 1x10 0x350",
                    one("headway_state_since_timestamp_seconds"): "0x39 600x10 765x350",
                    **waiting("eval", "_x40 600x10 stale"),
                },
            ),
            "an attempt under way": with_(STOPPED, {one(_ATTEMPT, layer="launcher"): "_x39 600x360"}),
            "the run finished": with_(STOPPED, state("finished", values="0x39 1x360", others="1x39 0x360")),
            "the operator ended it": with_(
                STOPPED,
                {
                    one("headway_ranks"): "2x39 0x360",
                    one("headway_incidents_total", outcome="cancelled", recurring="false"): "0x40 1x360",
                },
            ),
            "slow steps": with_(STOPPED, {one("headway_step_duration_baseline_seconds"): "30x400"}),
            "slow steps, too few for a median": with_(
                {
                    **STOPPED,
                    one("headway_step_duration_seconds_sum"): "90x400",
                    one("headway_step_duration_seconds_count"): "3x400",
                },
                base=without(healthy(), "headway_step_duration_baseline_seconds"),
            ),
            "another pod goes on": with_(STOPPED, healthy("1")),
        },
    ),
    Case(
        "HeadwayTrainingStalled",
        with_(GIVEN_UP, {one("headway_ranks"): "2x39 0x40 2x319"}),
        silent="12m",
        fires="12m15s",
        resolved="26m",
        expected=_GIVEN_UP_SAYS,
        near={
            "the operator ended it": with_(GIVEN_UP, {one(_CLOSED, outcome="cancelled"): "_x47 710x352"}),
            "given up before the last step": with_(GIVEN_UP, {one(_CLOSED, outcome="abandoned"): "_x20 300x379"}),
            "another attempt is under way": with_(GIVEN_UP, {one(_ATTEMPT, layer="orchestrator"): "_x47 710x352"}),
            "the run finished": with_(GIVEN_UP, state("finished", values="0x39 1x360", others="1x39 0x360")),
        },
    ),
    Case(
        "HeadwayTrainingStalled",
        with_(
            GIVEN_UP,
            {one("headway_ranks"): "2x39 0x40 2x319", one(_CLOSED, outcome="cancelled"): "_x20 300x379"},
        ),
        silent="12m",
        fires="12m15s",
        resolved="26m",
        expected=_GIVEN_UP_SAYS,
        near={"told to end since": with_(GIVEN_UP, {one(_CLOSED, outcome="cancelled"): "_x47 710x352"})},
    ),
    Case(
        "HeadwayPhaseOverdue",
        with_(
            state("eval", values="0x20 1x160 0x219", others="1x20 0x160 1x219"),
            {one("headway_state_since_timestamp_seconds"): "0x20 315x160 2730x219"},
            waiting("eval", "_x21 315x160 stale"),
        ),
        silent="36m15s",
        fires="36m30s",
        resolved="52m",
        expected=Expected(
            "warning",
            "Run demo has been in one phase for 31m 15s (eval)",
            "Run demo makes no steps while eval is open, longer than such a phase should take. See whether it moves at all, and what it "
            "reads or writes; raise the phase's budget in the rules if this is normal for this run.",
        ),
        near={
            "the start-up of an attempt": with_(
                state("init", values="0x20 1x379", others="1x20 0x379"),
                {
                    one("headway_state_since_timestamp_seconds"): "0x20 315x379",
                    **waiting("init", "_x21 315x379"),
                    one(_ATTEMPT, layer="orchestrator"): "_x20 315x379",
                },
            ),
            "training": with_(),
        },
    ),
    Case(
        "HeadwayRestartBudgetLow",
        with_(
            {
                one("headway_restart_budget_limit", layer="launcher"): "6x400",
                one("headway_restart_budget_remaining", layer="launcher"): "6x20 1x40 6x340",
            }
        ),
        silent="5m",
        fires="5m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "Run demo is running out of restarts: 1 left on one layer",
            "Restarts left in run demo: launcher 1. When they are spent the next failure ends the job. Find out "
            "why it restarts, or raise "
            "the budget at the next planned restart.",
        ),
        near={
            "a third is left": with_(
                {
                    one("headway_restart_budget_limit", layer="launcher"): "6x400",
                    one("headway_restart_budget_remaining", layer="launcher"): "2x400",
                }
            ),
            "a small budget, untouched": with_(
                {
                    one("headway_restart_budget_limit", layer="launcher"): "1x400",
                    one("headway_restart_budget_remaining", layer="launcher"): "1x400",
                }
            ),
            "one restart of six": with_(
                {
                    one("headway_restart_budget_limit", layer="launcher"): "6x400",
                    one("headway_restart_budget_remaining", layer="launcher"): "6x19 5x380",
                    one("headway_restarts_total", layer="launcher"): "0x19 1x380",
                }
            ),
        },
    ),
    Case(
        "HeadwayReplayDivergence",
        with_({one("headway_replay_diverged_timestamp_seconds"): "_x21 315x380"}),
        silent="5m",
        fires="5m15s",
        resolved="77m",
        expected=Expected(
            "critical",
            "Run demo does not reproduce its own losses after a recovery",
            "Replayed steps of run demo had other losses than the first time, beyond its usual noise: the restored state is not what was "
            "saved, or a GPU computes wrongly. Training goes on with it. Stop it and go back to a checkpoint from before, unless the "
            "configuration or the data were changed on purpose.",
        ),
        near={
            "a sidecar that reads its journals again, hours later": with_(
                {one("headway_replay_diverged_timestamp_seconds"): "-7200x19 _x22 -7200x359"}
            ),
        },
    ),
    Case(
        "HeadwayGoodputBurn",
        {**_BURN, **_NONE_AFTER_TWO_HOURS},
        silent="2h40m",
        fires="2h50m",
        since="2h46m",
        resolved="3h20m",
        expected=Expected(
            "critical",
            "Run demo burns its budget for lost time: training goodput is 21.31%",
            "The objective for run demo is 80%; since its start it has 70.59%. At this rate the budget of 30d is spent early. See which "
            "state the time went into, and mend the largest.",
            {"objective": "training"},
        ),
        near={
            "half of the time, in a run too young for the six hours": {**_BURN, **_HALF},
            "a run that has only begun": {
                **_BURN,
                **_NONE_AFTER_TWO_HOURS,
                one("headway_run_start_timestamp_seconds"): "7200x240",
            },
            "steps so long that no window holds ten": {
                **_BURN,
                **_NONE_AFTER_TWO_HOURS,
                one("headway_step_duration_baseline_seconds"): "600x240",
            },
            "nobody is left to work": {**_BURN, **_NONE_AFTER_TWO_HOURS, one("headway_ranks"): "2x120 0x120"},
        },
        interval="1m",
    ),
    Case(
        "HeadwayGoodputBurn",
        {**_BURN, **_HALF, one("headway_rank_seconds_total", state="productive"): "0+60x180 10800+120x60"},
        silent="1h55m",
        fires="2h10m",
        since="2h1m",
        resolved="3h59m",
        expected=Expected(
            "warning",
            "Run demo burns its budget for lost time: training goodput is 50%",
            "The objective for run demo is 90%; since its start it has 50%. At this rate the budget of 1d is "
            "spent early. See which state "
            "the time went into, and mend the largest.",
            {"objective": "training"},
        ),
        near={
            "exactly at the objective": {**_BURN, one("headway_rank_seconds_total", state="productive"): "0+108x240"}
        },
        interval="1m",
        config=replace(
            Config(), objectives=(Objective("training", 0.9, 86_400, (BurnWindow("warning", 7_200, 1_800, 0.25),)),)
        ),
    ),
    Case(
        "HeadwayTrainerSilent",
        with_({one("headway_source_last_update_timestamp_seconds", source="trainer"): "0+15x40 600x39 1200+15x320"}),
        silent="13m",
        fires="13m15s",
        resolved="26m",
        expected=Expected(
            "warning",
            "Sidecars of run demo that hear nothing from their trainer: 1",
            "What Headway shows of run demo is not what happens there: trainers write nothing into the folder that the sidecar reads (at "
            "least in pod 0). Most often the two do not share it, the run's name differs, or the ranks hang outside of Python. Compare "
            "HEADWAY_DIR and HEADWAY_RUN of both.",
        ),
        near={
            "the run finished": with_(
                {
                    **state("finished", values="0x39 1x360", others="1x39 0x360"),
                    one("headway_source_last_update_timestamp_seconds", source="trainer"): "0+15x40 600x360",
                }
            ),
            "all processes are gone": with_(
                {
                    one("headway_ranks"): "2x39 0x360",
                    one("headway_source_last_update_timestamp_seconds", source="trainer"): "0+15x40 600x360",
                }
            ),
            "a sidecar that is new": {one("headway_ranks"): "_x20 0x400"},
        },
    ),
    Case(
        "HeadwaySidecarDown",
        {
            **_PODS,
            one("headway_pods_expected"): "2x400",
            one("headway_ranks", "1"): "1x40 stale _x39 1x300",
        },
        silent="15m",
        fires="15m15s",
        resolved="26m",
        expected=Expected(
            "critical",
            "Pods of run demo that do not report: 1",
            "Run demo should have 2 pods. Nobody would see a failure on those that are missing, and other alerts "
            "may be silent because of "
            "it. See whether the pods are gone or only their sidecars.",
        ),
        near={
            "back in time": {
                **_PODS,
                one("headway_pods_expected"): "2x400",
                one("headway_ranks", "1"): "1x40 stale _x15 1x300",
            },
            "the run finished": {
                text: "1x40 stale" if 'finished"' in text or "ranks" in text else "0x40 stale"
                for text in {**_PODS, **state("finished"), one("headway_pods_expected"): ""}
            },
            "the operator ended it": {
                **dict.fromkeys(_PODS, "1x38 0 0 stale"),
                one("headway_incidents_total", outcome="cancelled", recurring="false"): "0x38 1 1 stale",
            },
        },
    ),
    Case(
        "HeadwaySidecarDown",
        # All at once, and nobody had said how many there should be.
        {one("headway_ranks", pod): "1x40 stale _x79 1x300" for pod in "01"},
        silent="15m",
        fires="15m15s",
        resolved="36m",
        expected=Expected(
            "critical",
            "Pods of run demo that do not report: 2",
            "Run demo should have 2 pods. Nobody would see a failure on those that are missing, and other alerts may be silent because of "
            "it. See whether the pods are gone or only their sidecars.",
        ),
        near={"back in time": {one("headway_ranks", pod): "1x40 stale _x15 1x300" for pod in "01"}},
    ),
    Case(
        "HeadwayRunUnwatched",
        # Pods 11 and 12 are no witnesses; the one that is goes, and comes back.
        {
            **{one("headway_ranks", pod): "1x400" for pod in ("11", "12")},
            one("headway_ranks", "10"): "1x40 stale _x59 1x300",
        },
        silent="15m",
        fires="15m15s",
        resolved="31m",
        expected=Expected(
            "critical",
            "Nobody would be told if run demo failed: 2 of its pods report, and the rules ask none of these",
            "What all pods of run demo see, such as its steps, incidents and checkpoints, the rules read of a few of them only, its "
            "witnesses, and none of these reports: most alerts on this run cannot fire. See whether the witnesses are gone, or were never "
            "among the pods that this Prometheus scrapes; the rules' configuration says which pods are asked (witnesses).",
        ),
        near={
            "one witness is left": {one("headway_ranks", pod): "1x400" for pod in ("11", "12", "20")},
            "a witness that is away for a moment": {
                one("headway_ranks", "11"): "1x400",
                one("headway_ranks", "10"): "1x40 stale _x15 1x300",
            },
            "pods that have names": {one("headway_ranks", pod): "1x400" for pod in ("node-11", "node-12")},
            "nobody is left at all": {one("headway_ranks", pod): "1x40 stale" for pod in ("10", "11")},
            "the run finished": {
                one("headway_ranks", "11"): "1x400",
                one("headway_ranks", "10"): "1x40 stale",
                one("headway_state", "10", state="finished"): "1x40 stale",
            },
        },
    ),
)
