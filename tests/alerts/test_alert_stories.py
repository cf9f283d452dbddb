"""Whole stories, from the journal to the page: who is woken, and by what.

The series are what the real fold makes of made-up journals, scraped through the real collectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import golden_story
from promtool import Test, ever_fired, judge, needs_promtool
from story_series import Scrape, Tape, scrapes, series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = needs_promtool

RECOVERED = {"HeadwayRecovered": "info"}
LOOP = "kill 1, wait 20, launcher 300, wait 20, kill 0, wait 20, launcher 300, wait 20, kill 1"
"""Three times back on one checkpoint, dead before the first step."""


def judged(
    folder: Path,
    scraped: Sequence[Scrape | None],
    alerts: Mapping[str, str],
    *,
    over: str = "7d",
    every: int = 15,
    more: Sequence[dict[str, Any]] = (),
) -> None:
    """Exactly these alerts fire at any time of the story, or of the last `over` of it."""
    end = f"{(len(scraped) - 1) * every}s"
    test = Test("story", series(scraped), list(more), [ever_fired(end, alerts, over)], f"{every}s")
    judge(folder, test)


def seconds(at: float, later: float = 0) -> str:
    """A scrape's time, in promtool's words."""
    return f"{int(at + later) // 15 * 15 + 15}s"


def test_a_clean_recovery_pages_nobody(tmp_path: Path) -> None:
    """A note, and nothing else: neither while it restarts, nor before the next checkpoint, nor after."""
    tape = Tape().tell("train 11-300/60, kill 1, wait 40, launcher 300, wait 30, train 301-900/60")
    judged(tmp_path, tape.scrapes(), RECOVERED)


def test_the_first_incident_of_a_young_run_is_noted(tmp_path: Path) -> None:
    """The counter is there at 0 before anything can be counted, so its very first count is not lost."""
    tape = Tape().tell("fail 1, in_process 0, steps 1-12, commit 12, steps 13-60")
    judged(tmp_path, tape.scrapes(), RECOVERED)


def test_five_recoveries_in_a_day_on_five_ranks_page_nobody(tmp_path: Path) -> None:
    """Large runs fail every few hours; as long as they get on each time, nobody is woken: here five in half a day, which is harder."""
    tape = Tape(5, each=120)
    acts, step = [], 10
    for rank, layer in enumerate(("in_process", "launcher", "in_process", "launcher", "in_process")):
        acts.append(f"train {step + 1}-{step + 65}/5, fail {rank}, wait 60, {layer} {step + 65}, wait 60")
        step += 65
    tape.tell(", ".join(acts) + f", train {step + 1}-{step + 40}/5")
    assert 40_000 < tape.now < 50_000
    judged(tmp_path, tape.scrapes(150), RECOVERED, every=150)


def test_the_same_rank_five_times_is_a_ticket(tmp_path: Path) -> None:
    """Every incident recovers, and still somebody should look at that place, in the morning."""
    acts = [f"fail 1, wait 10, in_process {start}, train {start + 1}-{start + 120}/60" for start in range(60, 660, 120)]
    tape = Tape().tell("train 11-60/60, " + ", ".join(acts))
    judged(tmp_path, tape.scrapes(), {**RECOVERED, "HeadwayRecurringEntity": "warning"})


def test_a_crash_loop_pages_within_its_third_attempt(tmp_path: Path) -> None:
    """Before the third attempt nobody can know; before it ends somebody is awake."""
    tape = Tape().tell(f"train 11-300/60, {LOOP}, wait 60")
    third = tape.when("kill", 3)
    fired = {"HeadwayRecurringFailure": "critical", "HeadwayRestartBudgetLow": "warning"}
    expected = ever_fired(seconds(third, 15), fired)
    test = Test("crash loop", series(tape.scrapes()), values=[ever_fired(seconds(third, -30), {}), expected])
    judge(tmp_path, test)


def test_two_pods_that_see_one_incident_make_one_alert(tmp_path: Path) -> None:
    """However many sidecars tell of it, the phone rings once."""
    pods = [Tape(pod_index=str(pod), pods=2).tell(f"train 11-300/60, {LOOP}, wait 60") for pod in (0, 1)]
    both = [first | second for first, second in zip(*(pod.scrapes() for pod in pods), strict=True)]
    expr = 'count by (alertname) (ALERTS{alertname="HeadwayRecurringFailure",alertstate="firing"})'
    one_alert = {"labels": '{alertname="HeadwayRecurringFailure"}', "value": 1}
    at = seconds(pods[0].when("kill", 3), 30)
    judge(
        tmp_path, Test("two pods", series(both), values=[{"expr": expr, "eval_time": at, "exp_samples": [one_alert]}])
    )


def test_the_page_outlives_the_pod_that_saw_it(tmp_path: Path) -> None:
    """When the only pod that knew is gone, the problem is not."""
    tape = Tape().tell(f"train 11-300/60, {LOOP}, wait 60")
    scraped = [*tape.scrapes(), *[None] * 30]
    at = f"{(len(scraped) - 1) * 15}s"
    expr = 'count by (alertname) (ALERTS{alertname="HeadwayRecurringFailure",alertstate="firing"})'
    one_alert = {"labels": '{alertname="HeadwayRecurringFailure"}', "value": 1}
    judge(tmp_path, Test("gone", series(scraped), values=[{"expr": expr, "eval_time": at, "exp_samples": [one_alert]}]))


def test_a_hang_pages_though_an_old_incident_waits_for_its_checkpoint(tmp_path: Path) -> None:
    """An incident that is open only for want of a checkpoint must not hide that nothing moves any more."""
    tape = Tape().tell("train 11-300/60, fail 1, in_process 300, steps 301-320, wait 300")
    assert tape.pod.failures.open is not None
    judged(tmp_path, tape.scrapes(), {"HeadwayTrainingStalled": "critical"})


def test_an_attempt_without_its_first_step_is_not_called_stalled(tmp_path: Path) -> None:
    """Somebody is mending it: only when that takes too long is it worth a page, and then a page of its own."""
    tape = Tape().tell("train 11-300/60, kill 1, wait 600, launcher 300, wait 400")
    in_time = ever_fired(seconds(tape.when("launcher"), 200), {})
    late = ever_fired(seconds(tape.now, -30), {"HeadwayRecoveryStuck": "critical"})
    judge(tmp_path, Test("attempt", series(tape.scrapes()), values=[in_time, late]))


def test_a_run_that_finishes_pages_nobody(tmp_path: Path) -> None:
    """Not when it is done, not while its sidecar still answers, and not when its pods go."""
    tape = Tape().tell("train 11-310/60, finish, wait 900")
    judged(tmp_path, [*tape.scrapes(), *[None] * 30], {})


def test_a_run_that_its_operator_ends_pages_nobody(tmp_path: Path) -> None:
    """A deliberate end is no failure."""
    tape = Tape().tell("train 11-300/60, stop, gone, wait 600")
    judged(tmp_path, [*tape.scrapes(), *[None] * 40], {})


def test_a_run_that_nobody_brings_back_pages_until_somebody_does(tmp_path: Path) -> None:
    """That the sidecar stops waiting for it is no reason to call the problem solved."""
    tape = Tape(each=5).tell("train 11-60/12, gone, wait 4800")
    first = ever_fired(seconds(tape.when("wait"), 3_000), {"HeadwayRecoveryStuck": "critical"})
    later = ever_fired(seconds(tape.now), {"HeadwayTrainingStalled": "critical"}, "10m")
    judge(tmp_path, Test("gone", series(tape.scrapes(60)), values=[first, later], interval="60s"))


def test_a_restart_of_the_sidecar_pages_nobody(tmp_path: Path) -> None:
    """Three scrapes are missing, the next one is from before the journals were read again, and then all is as it was."""
    tape = Tape().tell("train 11-300/60, kill 1, wait 40, launcher 300, wait 30, train 301-2000/60")
    scraped: list[Scrape | None] = list(tape.scrapes())
    empty = scrapes([], 0, 15)[0]
    scraped[84:88] = [None, None, None, empty]
    judged(tmp_path, scraped, {}, over="16m")


def test_a_reset_of_all_counters_pages_nobody(tmp_path: Path) -> None:
    """A new sidecar without the old one's records counts from what it finds; nothing of that is news."""
    tape = Tape().tell("train 11-300/60, kill 1, wait 40, launcher 300, wait 30, train 301-1200/60")
    late = [seen for seen in tape.pod.told if seen.mono > 800]
    before, after = tape.scrapes(), scrapes(late, tape.now, 15)
    judged(tmp_path, [*before[:54], *after[54:]], {}, over="6m")


def test_a_pod_that_is_missing_for_a_while_pages_nobody(tmp_path: Path) -> None:
    """It takes minutes to start a pod again. A pod that stays away is told, and only that."""
    first, second = (Tape(pod_index=str(pod), pods=2).tell("train 11-1200/60").scrapes() for pod in (0, 1))

    def with_gap(length: int) -> list[Scrape | None]:
        return [
            one if 30 <= at < 30 + length else one | other
            for at, (one, other) in enumerate(zip(first, second, strict=True))
        ]

    judged(tmp_path, with_gap(15), {})
    judged(tmp_path, with_gap(30), {"HeadwaySidecarDown": "critical"})


GOLDEN_PAGES = {
    # The same rank fails with the same words and no new mark: that is recurring, by the second time.
    "in_process_tries_that_escalate": "HeadwayRecurringFailure",
    "never_regained_and_abandoned": "HeadwayRecurringFailure",
    "rollback_of_a_rollback": "HeadwayRecurringFailure",
    "two_failures_on_one_checkpoint": "HeadwayRecurringFailure",
    # Nothing told of the end of the pod, and nothing moved for an hour.
    "resumed_on_another_node": "HeadwayTrainingStalled",
    "no_loss_restart_after_an_hour": "HeadwayRecoveryStuck",
}
"""The golden cases that are worth a page; all others must stay silent, however odd their journals are."""


def test_golden_cases(tmp_path: Path) -> None:
    """Only what does not get on pages."""
    expr = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing",severity="critical"}[2h]))'
    tests = []
    for path in sorted(golden_story.FOLDER.glob("*.yaml")):
        case = golden_story.load(path)
        pages = GOLDEN_PAGES.get(path.stem)
        scraped = scrapes(golden_story.observations(case), min(case["now"], 300 if pages is None else 1_000) + 60, 15)
        found = [] if pages is None else [{"labels": f'{{alertname="{pages}"}}', "value": 1}]
        end = f"{(len(scraped) - 1) * 15}s"
        tests.append(Test(path.stem, series(scraped), values=[{"expr": expr, "eval_time": end, "exp_samples": found}]))
    assert {test.name for test in tests} >= set(GOLDEN_PAGES)
    judge(tmp_path, *tests)
