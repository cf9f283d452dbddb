"""Told to end, a sidecar sees the trainer out and waits for its last numbers to be scraped: real processes."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN, finish, launcher, trainer, wait_ready
from sidecar_process import sidecar

from headway_exporter.state_files import LEDGER, pod_folder, read_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar_process import Sidecar

pytestmark = pytest.mark.slow


def test_the_last_word_waits_for_a_scrape(tmp_path: Path) -> None:
    """A native sidecar is told to end right after the trainer: the end of the run must be seen by the next scrape, once."""
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state"), HEADWAY_LINGER_SECONDS="60") as exporter:
        assert exporter.samples()
        finish(trainer(tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "finish=5", ranks=1))
        exporter.process.send_signal(signal.SIGTERM)
        exporter.until(lambda status: status["finished"], "the final fold")
        ledger = read_ledger(pod_folder(tmp_path / "state", RUN, "0") / LEDGER)
        assert ledger.body["summary"]["finished"]
        assert exporter.get("/healthz")[0] == 200
        assert exporter.get("/metrics", "HEAD")[0] == 200  # which tells nobody anything
        time.sleep(0.3)
        assert exporter.process.poll() is None
        assert exporter.value("headway_steps_total", kind="productive") == 5
        assert exporter.process.wait(20) == 0


@pytest.mark.parametrize(
    ("signals", "seconds"),
    [((signal.SIGTERM,), "0"), ((signal.SIGTERM, signal.SIGTERM), "600"), ((signal.SIGINT,), "600")],
    ids=["lingering is off", "told twice", "by a person"],
)
def test_nobody_is_kept_waiting_who_does_not_want_to(tmp_path: Path, signals: tuple[int, ...], seconds: str) -> None:
    """A person at a terminal, and an orchestrator that insists, get their way at once."""
    with sidecar(tmp_path, HEADWAY_LINGER_SECONDS=seconds) as exporter:
        assert exporter.samples()
        for number in signals:
            time.sleep(0.5)  # the same signal twice at once is one
            exporter.process.send_signal(number)
        assert exporter.process.wait(20) == 0


def test_the_trainer_is_seen_out(tmp_path: Path) -> None:
    """Slurm and Docker tell all processes at once: what the trainer does after that is in the numbers of the last scrape, and in memory."""
    process = trainer(tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "meet", "steps=6-9", "finish=9", ranks=1)
    wait_ready(process)
    told = launcher(tmp_path / "pod")
    told("launcher_started", pid=1, command=[], attempt=0)
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state"), HEADWAY_LINGER_SECONDS="60") as exporter:
        exporter.until(lambda status: status["step"] == 5, "the first steps")
        exporter.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert exporter.samples()  # not the last one yet: somebody still trains
        process.communicate("\n", timeout=30)
        exporter.until(lambda status: status["finished"], "the end of training")
        assert exporter.value("headway_steps_total", kind="productive") == 9
        told("launcher_exited", exit_code=0)
        wait_until_over(exporter)
    summary = read_ledger(pod_folder(tmp_path / "state", RUN, "0") / LEDGER).body["summary"]
    assert (summary["step"], summary["finished"]) == (9, True)


def wait_until_over(exporter: Sidecar) -> None:
    """Scrapes until it has ended, in order."""
    deadline = time.monotonic() + 20
    while exporter.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            exporter.samples()
        time.sleep(0.1)
    assert exporter.process.poll() == 0


def test_each_of_two_who_scrape_is_waited_for(tmp_path: Path) -> None:
    """A pair of Prometheus for safety: the one that missed the end would see a pod that is lost. Who looked in once is not waited for."""
    with sidecar(tmp_path, HEADWAY_LINGER_SECONDS="60") as exporter:
        for client in ("127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.3", "127.0.0.4"):
            scraped_by(client, exporter)
        exporter.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        scraped_by("127.0.0.2", exporter)
        time.sleep(0.5)
        assert exporter.process.poll() is None
        scraped_by("127.0.0.3", exporter)
        assert exporter.process.wait(20) == 0


def scraped_by(client: str, exporter: Sidecar) -> None:
    """A scrape that comes from this address."""
    connection = http.client.HTTPConnection(*exporter.address, timeout=10, source_address=(client, 0))
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
