"""Heartbeats to a real rank monitor, and without one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway.journal import JournalReader
from headway.nvrx.heartbeat import Heartbeat
from headway.recorder import Recorder

pytest.importorskip("nvidia_resiliency_ext")

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.alone

WORKER = Path(__file__).with_name("heartbeat_worker.py")
SILENT_WORKER = Path(__file__).with_name("silent_worker.py")
LAUNCHER = (
    "nvidia_resiliency_ext.fault_tolerance.launcher",
    *("--nproc-per-node", "1", "--max-restarts", "1", "--monitor-interval", "0.2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    *("--ft-rank-heartbeat-timeout", "60", "--ft-initial-rank-heartbeat-timeout", "60"),
)
SECONDS = 120.0


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder.from_env(environ={"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"})
    yield recorder
    recorder.close()


def test_under_ft_launcher(tmp_path: Path) -> None:
    """The monitor hears every connection, also after a kill and a reconnect; losing it does not end training."""
    environ = {**os.environ, "HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    with (tmp_path / "output").open("w") as output:
        command = [sys.executable, "-m", *LAUNCHER, str(WORKER)]
        done = subprocess.run(
            command, env=environ, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
        )
    text = (tmp_path / "output").read_text()
    said = [line for line in text.splitlines() if line.startswith(("cycle", "still connected", "without a monitor"))]
    assert said == [
        "cycle 0 connected True",
        *2 * ["cycle 1 connected True", "still connected True"],
        "without a monitor False",
    ], text
    assert text.count("the launcher's rank monitor does not answer any more") == 1
    assert "failed (exitcode: -9)" in text
    reader = JournalReader(tmp_path / "r" / "slot-0.jsonl")
    events = reader.poll()
    reader.close()
    gaps = [event.fields["phase_gaps"] for event in events if event.kind == "process_exited"]
    settings = [event.fields["settings"] for event in events if event.kind == "train_entered"]
    assert settings == 3 * [{"heartbeat_initial_seconds": 60.0, "heartbeat_rank_seconds": 60.0}]
    assert done.returncode == 0, text
    assert gaps[0]["eval"] >= 0.2


def test_without_a_monitor(
    recorder: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under plain torchrun training goes on, after one warning that says how to have hang detection."""
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    heartbeat = Heartbeat(recorder)
    with caplog.at_level(logging.WARNING, "headway"):
        assert heartbeat.start() is False
        heartbeat.beat()
        heartbeat.beat()
        heartbeat.close()
        heartbeat.close()
    assert len(caplog.records) == 1
    assert "ft_launcher" in caplog.text
    assert heartbeat.connected is False


class Phases:
    """Stands for a recorder: the phases that are open at each look, and the gaps it was told."""

    def __init__(self, *phases: str) -> None:
        self._phases = iter(phases)
        self.gaps: list[str] = []

    @property
    def current_phase(self) -> str:
        return next(self._phases)

    def phase_gap(self, phase: str, seconds: float) -> None:
        assert seconds >= 0
        self.gaps.append(phase)


@pytest.mark.parametrize(
    ("began", "ended", "counts_for"),
    [
        ("init", "other", "init"),
        ("init", "eval", "eval"),
        ("other", "eval", "eval"),
        ("eval", "other", "eval"),
        ("step", "other", "step"),
        ("eval", "checkpoint_load", "eval"),
    ],
)
def test_whose_silence_it_was(began: str, ended: str, counts_for: str) -> None:
    """A silence counts for the named phase that it touches, so that a long first step or evaluation shows as what it is."""
    phases = Phases(began, ended)
    heartbeat = Heartbeat(phases, client=None)  # type: ignore[arg-type]
    heartbeat._mark()
    heartbeat.beat()
    assert phases.gaps == [counts_for]


def test_hang_detection_survives_a_restart_before_the_first_beat(tmp_path: Path) -> None:
    """Two connections without a heartbeat between them would switch the rank's monitor off until the launcher exits."""
    environ = {**os.environ, "HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "r"}
    launcher = [
        *LAUNCHER,
        "--max-restarts",
        "0",
        "--ft-rank-heartbeat-timeout",
        "4",
        "--ft-workload-check-interval",
        "1",
    ]
    command = [sys.executable, "-m", *launcher, str(SILENT_WORKER)]
    with (tmp_path / "output").open("w") as output:
        done = subprocess.run(
            command, env=environ, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
        )
    text = (tmp_path / "output").read_text()
    assert done.returncode == 1, text
    assert "connected True" in text
    assert "Did not get subsequent heartbeat. Waited 4.00 seconds." in text
