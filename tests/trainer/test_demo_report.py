"""The demo's verdict: it must not pass when what was observed is not what was injected."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from headway_trainer.demo import report, view
from headway_trainer.faults import FiredFault, parse_schedule

RECOVERY: dict[str, Any] = {
    "opened_wall": 1000.5,
    "layer": "launcher",
    "cause": "process_killed",
    "origin_rank": 1,
    "steps_lost": 19,
    "seconds_to_first_step": 8.25,
}
RESUME = report.Resume(wall=1008.0, resumed_after=100, rejected=())


def fired(text: str = "sigkill@120", wall: float = 1000.0) -> FiredFault:
    """A fault that struck rank 1 at the step it names."""
    (fault,) = parse_schedule(text)
    return FiredFault(fault, wall, fault.step, 1)


def problems(
    recovery: dict[str, Any] | None, resume: report.Resume | None = RESUME, fault: str = "sigkill@120"
) -> list[str]:
    """What is wrong with one fault's account."""
    rows, surplus = report.compare([fired(fault)], [recovery] if recovery else [], [resume] if resume else [])
    return [*rows[0].problems, *surplus]


def test_a_true_account_has_no_problems() -> None:
    """Layer, cause, origin and lost steps as injected."""
    assert problems(RECOVERY) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"layer": "in_process"}, "layer: in_process observed, launcher injected"),
        ({"cause": "heartbeat_timeout"}, "cause: heartbeat_timeout observed, process_killed injected"),
        ({"origin_rank": 0}, "origin rank: 0 observed, 1 injected"),
        ({"steps_lost": 18}, "steps lost: 18 observed, 19 injected"),
        ({"seconds_to_first_step": None}, "no step followed"),
    ],
)
def test_each_wrong_word_is_a_problem(change: dict[str, Any], problem: str) -> None:
    """Nothing in the account may differ unnoticed."""
    assert problems(RECOVERY | change) == [problem]


def test_what_is_missing_is_a_problem() -> None:
    """A fault that the sidecar did not see, a training that did not go on, a recovery that nothing explains."""
    assert problems(None) == ["not observed"]
    assert problems(RECOVERY, None) == ["training was not resumed", "steps lost: 19 observed, None injected"]
    rows, surplus = report.compare([], [RECOVERY], [RESUME])
    assert rows == []
    assert len(surplus) == 1
    assert surplus[0].startswith("unexplained recovery: process_killed at ")


def test_a_corrupt_checkpoint_must_have_been_rejected() -> None:
    """The fall-back is part of what the demo promises; and no other fault may lead to one."""
    rejected = report.Resume(1008.0, 100, (110,))
    assert problems(RECOVERY, rejected, "corrupt_checkpoint@120") == []
    assert problems(RECOVERY, RESUME, "corrupt_checkpoint@120") == ["checkpoints rejected on resume: none"]
    assert problems(RECOVERY, rejected) == ["checkpoints rejected on resume: [110]"]
    further = report.Resume(1008.0, 100, (115, 110))
    assert problems(RECOVERY, further, "corrupt_checkpoint@120") == ["checkpoints rejected on resume: [115, 110]"]


def test_faults_that_restart_nothing_need_no_recovery() -> None:
    """A slow step or a failed save leaves no row."""
    assert report.compare([fired("slow_step@5"), fired("write_error@6")], [], []) == ([], [])


def test_every_incident_must_have_recovered() -> None:
    """One that is still open, or that keeps coming back, is not what the demo shows off."""
    good = {"opened_wall": 1000.0, "state": "recovered", "recurring": []}
    assert report.verdicts({"incidents": [good, good]}) == ("incidents: 2 recovered", [])
    line, problems = report.verdicts(
        {"incidents": [good, good | {"state": "resumed"}, good | {"recurring": ["no_progress"]}]}
    )
    assert line == "incidents: 1 recovered, 1 resumed, 1 recurring"
    assert [problem.partition(": ")[2] for problem in problems] == [
        "resumed, recurring: no",
        "recovered, recurring: no_progress",
    ]
    assert report.verdicts({"incidents": []})[0] == "incidents: none"


def test_results_must_be_bit_equal() -> None:
    """One different digit of the loss, one different weight, or a missing rank is a difference."""
    results = [{"loss": 1.5, "weights_sha256": "aa"}, {"loss": 1.5, "weights_sha256": "bb"}]
    assert report.same_result(results, results) == []
    other = [results[0], {"loss": 1.5, "weights_sha256": "cc"}]
    assert report.same_result(results, other) == ["rank 1: weights_sha256 is cc, undisturbed bb"]
    assert report.same_result(results, results[:1]) == ["2 ranks finished undisturbed, 1 after the faults"]
    assert report.same_result([], []) == ["0 ranks finished undisturbed, 0 after the faults"]


def test_tables_fit_and_show_everything() -> None:
    """Nothing that matters is cut off at the width of a common terminal."""
    out = io.StringIO()
    console = Console(file=out, width=100)
    rows, _ = report.compare([fired("corrupt_checkpoint@120")], [RECOVERY], [report.Resume(1008.0, 100, (110,))])
    console.print(report.recoveries_table(rows))
    console.print(
        report.time_table({"elapsed_rank_seconds": 200.0, "rank_seconds": {"productive": 150.0, "down": 0.0}})
    )
    text = out.getvalue()
    for word in ("corrupt_checkpoint@120", "launcher", "process_killed", "rank 1", "19", "8.2 s", "ok", "75.0 %"):
        assert word in text
    assert "…" not in text
    assert "down" not in text


STATUS: dict[str, Any] = {
    "total_steps": 300,
    "step": 120,
    "loss": 2.5,
    "state": "productive",
    "training_goodput": 0.734,
    "infrastructure_goodput": 0.9,
    "checkpoint": {"durable_step": 100, "committed_wall": 990.0},
    "queue": {"depth": 1},
    "restarts": {"in_process": 1, "launcher": 2},
    "recoveries": [],
}


def test_plain_view_tells_each_recovery_once() -> None:
    """In a log every recovery is one line, when it is over, in words."""
    out = io.StringIO()
    with view.view_for(Console(file=out, width=200), "a run") as shown:
        shown.show(STATUS)
        shown.show(STATUS | {"recoveries": [RECOVERY | {"seconds_to_first_step": None}]})
        shown.show(STATUS | {"recoveries": [RECOVERY]})
        shown.show(STATUS | {"recoveries": [RECOVERY]})
    lines = out.getvalue().splitlines()
    assert lines[0] == "a run"
    assert lines[1].startswith("  step 120/300  loss 2.5000  productive")
    (line,) = [line for line in lines if "recovered" in line]
    assert line.endswith(
        "recovered: process_killed on rank 1, launcher restart, 8.2 s to the first step, 19 steps to replay"
    )


def test_live_view_shows_bar_and_signals() -> None:
    """On a terminal: step, loss, state, goodput, checkpoint age, queue and restarts."""
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=True, color_system=None, legacy_windows=False)
    with view.view_for(console, "a run") as shown:
        assert isinstance(shown, view.LiveView)
        shown.show(STATUS)
    text = out.getvalue()
    for word in (
        "120/300",
        "loss 2.5000",
        "productive",
        "goodput 73 %",
        "checkpoint 100",
        "queue 1",
        "1 in process, 2 launcher",
    ):
        assert word in text


@pytest.mark.parametrize("terminal", [True, False])
def test_what_happens_beside_the_run_is_told(terminal: bool) -> None:
    """An alert that fires, on a terminal and in a log."""
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=terminal, color_system=None, legacy_windows=False)
    with view.view_for(console, "a run") as shown:
        shown.show(STATUS)
        shown.tell("12:00:00 alert [A] of broken: firing (info)")
    assert "  12:00:00 alert [A] of broken: firing (info)\n" in out.getvalue()


def test_signals_before_anything_is_known() -> None:
    """The first moments of a run have no numbers, and say so."""
    nothing = STATUS | {
        "training_goodput": None,
        "infrastructure_goodput": None,
        "checkpoint": {"durable_step": None, "committed_wall": None},
    }
    assert view.signals(nothing).startswith("goodput -, infrastructure - | no checkpoint yet")
    assert "100, 7 s old" in view.signals(STATUS, now=997.0)
