"""Every fault of the schedule with real processes: the right layer, cause, origin, rollback, and bit-equal weights at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import harness
import pytest
from harness import STEPS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

Undisturbed = "Callable[[], list[dict[str, object]]]"


def test_in_process_layer_recovers_what_the_process_survives(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Exception, NaN, CUDA out of memory and a hang in Python restart in process."""
    faults = ("exception@25", "nan_loss@36", "cuda_oom@56:rank=0", "soft_hang@84")
    # A busy machine must not look like a hang; and the launcher waits longest, so that the hang is the in-process layer's to find.
    patience = ("soft-timeout-seconds=15", "hard-timeout-seconds=30", "barrier-timeout-seconds=45")
    more = tuple(f"--resilience.{option}" for option in patience)
    options = harness.trainer_options(tmp_path, steps=STEPS, faults=faults, more=more)
    outcome = harness.run(harness.ft_launcher(options, heartbeat_timeout_seconds=60), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    assert [str(fired.fault) for fired in outcome.injected] == list(faults)
    assert outcome.differences() == []
    assert outcome.results == undisturbed()
    assert outcome.status["restarts"] == {"in_process": 4, "launcher": 0, "orchestrator": 0}


def test_what_slows_or_fails_a_save_restarts_nothing(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A slow step, a late batch, slow storage, a full disk and a dead writer each leave their own trace; training goes on."""
    faults = (
        "data_stall@7:seconds=1",
        "slow_storage@10:seconds=2",
        "slow_step@12:seconds=8",  # a new writer takes some seconds to start: the saves below must meet a living one
        "write_error@30",
        "slow_step@44:seconds=8",
        "writer_killed@60",
        "slow_step@74:seconds=8",
    )
    more = ("--resilience.in-process=false",)
    options = harness.trainer_options(tmp_path, steps=STEPS, faults=faults, more=more)
    outcome = harness.run(harness.torchrun(options), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    assert [str(fired.fault) for fired in outcome.injected] == list(faults)
    assert outcome.status["recoveries"] == []
    assert outcome.results == undisturbed()
    assert outcome.status["rank_seconds"]["data_wait"] >= 1
    told = harness.checkpoints_of_rank(outcome, 1)
    reasons = [event["reason"] for event in told if event["stage"] == "failed"]
    assert len(reasons) == 2
    assert reasons[0].startswith("write_error: OSError: [Errno 28]")
    assert reasons[1] == "writer_killed: SIGKILL"
    assert outcome.status["checkpoint"]["durable_step"] == STEPS
    written = {event["step"]: event["seconds"] for event in told if event["stage"] == "written"}
    assert written[10] >= 2
    steps = {step.step: step for step in harness.steps_of_rank(outcome, 1)}
    assert steps[7].data_wait_ns >= 1_000_000_000
    assert steps[12].duration_ns >= 8_000_000_000


def test_launcher_recovers_what_kills_the_process(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """An exit code, a kill as by the kernel and a corrupt checkpoint are the launcher's to recover; others are in test_versions."""
    faults = ("exit@40:code=7", "host_oom@45", "corrupt_checkpoint@80")
    options = harness.trainer_options(
        tmp_path, steps=STEPS, faults=faults, more=(*harness.PATIENT, "--checkpoint.mode=sync")
    )
    outcome = harness.run(harness.ft_launcher(options), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    assert [str(fired.fault) for fired in outcome.injected] == list(faults)
    assert outcome.differences() == []
    assert outcome.results == undisturbed()
    assert outcome.status["restarts"] == {"in_process": 0, "launcher": 3, "orchestrator": 0}
    assert [row["steps_lost"] for row in outcome.status["recoveries"]] == [9, 4, 19]


def test_orchestrator_recovers_a_lost_pod(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A pod that loses all its processes and its journal folder goes on in a new one, and the sidecar books it to the orchestrator."""
    options = harness.trainer_options(tmp_path, steps=STEPS, faults=("pod_loss@45",), more=("--checkpoint.mode=sync",))
    outcome = harness.run(harness.orchestrated(harness.ft_launcher(options)), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    assert outcome.differences() == []
    assert outcome.results == undisturbed()
    assert outcome.status["restarts"] == {"in_process": 0, "launcher": 0, "orchestrator": 1}


def test_layers_switch_off_one_by_one(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Without the in-process layer an exception is the launcher's; plain torchrun, without heartbeats, recovers it too."""
    more = ("--resilience.in-process=false", "--resilience.heartbeats=false", "--checkpoint.mode=sync")
    options = harness.trainer_options(tmp_path, steps=STEPS, faults=("exception@25", "sigkill@45"), more=more)
    outcome = harness.run(harness.torchrun(options), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    assert outcome.results == undisturbed()
    observed = [
        (one["layer"], one["cause"], one["origin_rank"], one["steps_lost"]) for one in outcome.status["recoveries"]
    ]
    assert observed == [("launcher", "app_exception", 1, 4), ("launcher", "process_killed", 1, 4)]


def test_one_process_trains_alone(tmp_path: Path) -> None:
    """No launcher, one process, all defaults but the length: an exception still restarts in process."""
    options = harness.trainer_options(tmp_path, steps=30, faults=("exception@25",), more=("--checkpoint.mode=sync",))
    outcome = harness.run(harness.alone(options), tmp_path)
    assert outcome.exit_code == 0, outcome.log
    observed = [
        (one["layer"], one["cause"], one["origin_rank"], one["steps_lost"]) for one in outcome.status["recoveries"]
    ]
    assert observed == [("in_process", "app_exception", 0, 4)]
