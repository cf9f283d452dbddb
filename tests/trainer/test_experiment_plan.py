"""What an experiment runs: the same faults for the same seed, in the shares that are promised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headway_trainer.arguments import read
from headway_trainer.experiment import plan as plans
from headway_trainer.experiment.plan import Cell, Plan, PlanError
from headway_trainer.fault_schedule import check_schedule, parse_schedule


@pytest.mark.parametrize(("faults", "exceptions"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (10, 7), (15, 11)])
def test_exceptions_and_kills_are_seven_to_three(faults: int, exceptions: int) -> None:
    """To the nearest whole number, halves upwards, whatever the seed."""
    for seed in range(5):
        kinds = Counter(fault.kind for fault in Plan(steps=500, faults=faults, seed=seed).schedule())
        assert (kinds["exception"], kinds["sigkill"]) == (exceptions, faults - exceptions)


def test_faults_come_after_step_ten_one_in_each_part() -> None:
    """With 200 steps and four faults the parts are 47.5 steps wide; the last tenth of each is left free."""
    for seed in range(200):
        steps = [fault.step for fault in Plan(steps=200, faults=4, seed=seed).schedule()]
        assert 11 <= steps[0] <= 53
        assert 58 <= steps[1] <= 101
        assert 106 <= steps[2] <= 148
        assert 153 <= steps[3] <= 196


def test_ranks_are_struck_evenly_and_rank_zero_only_on_request() -> None:
    """Five faults on two ranks are three and two, on all ranks but the first all five."""
    both = Counter(fault.rank for fault in Plan(steps=400, faults=5, seed=3).schedule())
    assert sorted(both.values()) == [2, 3]
    assert set(both) == {0, 1}
    others = Plan(steps=400, faults=5, seed=3, rank_zero=False).schedule()
    assert {fault.rank for fault in others} == {1}


def test_a_seed_says_everything() -> None:
    """The same seed gives the same schedule, another one another."""
    assert Plan(seed=7).schedule() == Plan(seed=7).schedule()
    assert len({Plan(seed=seed).schedule() for seed in range(20)}) > 15


@pytest.mark.parametrize("cell", plans.grid((40, 10)), ids=lambda cell: cell.name)
def test_the_trainer_takes_its_options(cell: Cell) -> None:
    """Each cell's command line is one that `headway train` understands as it is meant."""
    plan = Plan(steps=400, faults=15)
    config = read(plans.trainer_options(plan, cell, Path("out")), prog="headway train")
    assert (config.checkpoint.mode, config.checkpoint.every, config.steps) == (cell.saves, cell.interval, plan.steps)
    assert config.resilience.in_process is (cell.restarts == "in_process")
    assert config.resilience.max_in_process_restarts >= plan.faults
    assert config.model.architecture() == plans.MODEL
    schedule = parse_schedule(config.faults.schedule)
    assert schedule == plan.schedule()
    check_schedule(schedule, plans.RANKS)


def test_the_storage_needs_as_long_as_was_asked_for() -> None:
    """Half of the state of 12 bytes a weight is one rank's; at this rate it takes 4 s."""
    assert plans.MODEL.parameter_count() * 12 / 2 / Plan(write_seconds=4.0).write_bytes_per_second() == pytest.approx(4)


def test_the_orchestrators_pauses_are_kubernetes_ones_scaled() -> None:
    """10 s doubled to 300 s; a tenth of that is 1 s doubled to 30 s, and the supervisor is told so."""
    plan = Plan(backoff_scale=0.1, faults=6, steps=400)
    words = plans.supervisor_options(plan)
    assert words == ["--restarts", "7", "--backoff", "1", "--longest-backoff", "30"]
    assert Plan(backoff_scale=1).backoff_seconds == 10


def test_only_the_orchestrators_launcher_may_not_restart() -> None:
    """With it any failure ends the pod; the others may restart more often than there are faults."""
    cells = {cell.restarts: plans.launcher_restarts(Plan(faults=4), cell) for cell in plans.grid((40,))}
    assert cells == {"in_process": 6, "launcher": 6, "orchestrator": 0}


def test_the_default_grid() -> None:
    """All six ways at the first interval, and both ways to save at the others."""
    cells = plans.chosen(plans.grid((40, 10)), plans.default_patterns((40, 10)))
    assert [cell.name for cell in cells] == [
        "sync/in_process@40",
        "sync/launcher@40",
        "sync/orchestrator@40",
        "async/in_process@40",
        "async/launcher@40",
        "async/orchestrator@40",
        "sync/in_process@10",
        "async/in_process@10",
    ]
    assert len({cell.folder for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Plan(steps=0), "--steps: must be above 0, got 0"),
        (lambda: Plan(steps=29, faults=4), "--steps: 4 faults after step 10 need 30 steps, got 29"),
        (lambda: Plan(faults=-1), "--faults: must be at least 0"),
        (lambda: Plan(write_seconds=0), "--write-seconds: must be above 0"),
        (lambda: Plan(step_seconds=float("nan")), "--step-seconds: must be above 0, got nan"),
        (lambda: Plan(backoff_scale=1.5), "--backoff-scale: must be at most 1"),
        (lambda: plans.grid(()), "--intervals: must be different whole numbers"),
        (lambda: plans.grid((10, 10)), "--intervals: must be different whole numbers"),
        (lambda: plans.grid((10, 0)), "--intervals: must be different whole numbers"),
        (lambda: plans.chosen(plans.grid((40,)), ("fast/*",)), "--cells: 'fast/*' is none of sync/in_process@40"),
    ],
)
def test_what_makes_no_experiment_is_said(make: object, words: str) -> None:
    """One line that names the option."""
    with pytest.raises(PlanError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value).startswith(words)
