"""A real sidecar beside real recorders: what a scrape shows through starts, kills and restarts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sysfs_tree
from journal_folder import RUN, finish, launcher, meet, trainer, wait_ready
from sidecar_process import OPENMETRICS, sidecar

from headway_exporter.labels import CONTAINER_ENDS, DISRUPTIONS, DROP_REASONS, LAYERS, STATES
from headway_exporter.nics import MOST_COUNTED

OF_KUBERNETES = len(CONTAINER_ENDS) + len(DISRUPTIONS) + 2 + 4
"""Series that a pod there has besides: of two containers, and of the instrument itself."""


def states_and_pending(samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> float:
    booked = sum(value for (name, _), value in samples.items() if name == "headway_rank_seconds_total")
    return booked + samples["headway_pending_rank_seconds", ()]


def test_counters_that_alerts_use_are_there_from_the_start(tmp_path: Path) -> None:
    """Before any trainer: a counter that appears with its first increment hides that increment from `increase()`."""
    with sidecar(tmp_path) as exporter:
        samples = exporter.samples()
    for layer in LAYERS:
        assert samples["headway_restarts_total", (("layer", layer),)] == 0
    assert all(samples["headway_rank_seconds_total", (("state", state),)] == 0 for state in STATES)
    assert all(samples["headway_events_dropped_total", (("reason", reason),)] == 0 for reason in DROP_REASONS)
    assert all(
        samples["headway_checkpoint_saves_total", (("outcome", one),)] == 0
        for one in ("committed", "failed", "aborted")
    )
    assert samples["headway_ranks", ()] == 0
    assert ("headway_step", ()) not in samples


def test_a_run_with_a_kill_and_a_restart(tmp_path: Path) -> None:
    """Two ranks, one killed, the launcher restarts both: what the demo shows, in small."""
    with sidecar(tmp_path) as exporter:
        (tmp_path / RUN).mkdir()
        say = launcher(tmp_path)
        say("launcher_started", pid=1)
        first = [
            trainer(tmp_path, slot, "meet", "enter=a", "load=0", "steps=1-6", "save=4", "commit=4", "ready", "wait")
            for slot in (0, 1)
        ]
        meet(*first)
        exporter.until(lambda status: [rank["step"] for rank in status["ranks"]] == [6, 6], "the first steps")
        assert exporter.status()["checkpoint"]["durable_step"] == 4
        assert exporter.value("headway_ranks") == 2
        assert exporter.value("headway_async_writer_up") == 1
        first[1].kill()
        exporter.until(lambda status: status["state"] == "restart", "the death")
        first[0].kill()
        for process in first:
            process.communicate()
        exporter.until(lambda status: not any(rank["alive"] for rank in status["ranks"]), "the other death")
        assert exporter.value("headway_ranks") == 0
        assert exporter.value("headway_async_writer_up") == 0
        assert exporter.value("headway_async_queue_oldest_timestamp_seconds") is None
        say("worker_exited", local_rank=1, pid=first[1].pid, exit_code=-9)
        say("worker_group_failed", restarts_left=3, restarts_limit=3)
        second = [
            trainer(tmp_path, slot, "meet", "enter=b", "load=4", "steps=5-8", "finish=8", cycle=1) for slot in (0, 1)
        ]
        meet(*second)
        finish(*second)
        status = exporter.until(lambda status: status["finished"], "the end")
        samples = exporter.samples()
        assert exporter.stop()[0] == 0
    [recovery] = status["recoveries"]
    told = {
        name: recovery[name]
        for name in ("layer", "cause", "origin_rank", "tip_step", "loaded_step", "steps_lost", "attempts")
    }
    assert told == {
        "layer": "launcher",
        "cause": "process_killed",
        "origin_rank": 1,
        "tip_step": 6,
        "loaded_step": 4,
        "steps_lost": 2,
        "attempts": 1,
    }
    assert recovery["seconds_to_first_step"] > 0
    assert "rank 1: SIGKILL" in recovery["evidence"]
    assert status["restarts"] == {"in_process": 0, "launcher": 1, "orchestrator": 0}
    assert status["state"] == "finished"
    assert [rank["step"] for rank in status["ranks"]] == [8, 8]
    assert samples["headway_steps_total", (("kind", "productive"),)] == 8
    assert samples["headway_steps_total", (("kind", "replay"),)] == 2
    assert samples["headway_steps_lost_total", ()] == 2
    assert samples["headway_tokens_total", ()] == 2 * 10 * 10
    assert samples["headway_restart_causes_total", (("cause", "process_killed"), ("layer", "launcher"))] == 1
    assert samples["headway_rank_failures_total", (("rank", "1"),)] == 1
    assert samples["headway_restart_budget_remaining", (("layer", "launcher"),)] == 2
    assert samples["headway_last_rollback_steps", ()] == 2
    assert samples["headway_unregained_rank_seconds", ()] == 0
    assert samples["headway_lost_rank_seconds_total", ()] > 0
    elapsed = samples["headway_rank_elapsed_seconds_total", ()]
    assert states_and_pending(samples) == pytest.approx(elapsed, abs=1e-3)


def test_states_add_up_in_every_scrape_and_no_counter_steps_back(tmp_path: Path) -> None:
    """Invariants 1 and 2 as a scraper sees them, while processes come and go."""
    with sidecar(tmp_path) as exporter:
        before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for life in range(3):
            process = trainer(tmp_path, 0, f"enter={life}", "load=0", "steps=1-5", "ready", "wait", ranks=1)
            wait_ready(process)
            for _ in range(5):
                samples = exporter.samples()
                assert states_and_pending(samples) == pytest.approx(
                    samples["headway_rank_elapsed_seconds_total", ()], abs=1e-3
                )
                counters = {
                    key: value for key, value in samples.items() if key[0].endswith(("_total", "_bucket", "_count"))
                }
                assert all(counters[key] >= value for key, value in before.items())
                before = counters
                time.sleep(0.02)
            process.kill()
            process.communicate()
        exporter.until(lambda status: len(status["recoveries"]) == 3, "the last death")


def test_a_pod_that_starts_again_in_a_fresh_folder_continues_the_run(tmp_path: Path) -> None:
    """The orchestrator's restart: the folder is gone and made anew, the counters go on."""
    with sidecar(tmp_path) as exporter:
        finish(trainer(tmp_path, 0, "enter=a", "load=0", "steps=1-5", "ready", "wait", ranks=1), kill=True)
        exporter.until(lambda status: status["state"] == "restart", "the death")
        shutil.rmtree(tmp_path / RUN)
        again = trainer(tmp_path, 0, "enter=b", "load=0", "steps=1-7", "ready", "wait", attempt=1, ranks=1)
        wait_ready(again)
        status = exporter.until(lambda status: status["step"] == 7, "the new steps")
        samples = exporter.samples()
        again.kill()
        again.communicate()
    [recovery] = status["recoveries"]
    assert (recovery["layer"], recovery["cause"], recovery["origin_rank"]) == ("orchestrator", "node_lost", None)
    assert samples["headway_steps_total", (("kind", "productive"),)] == 7
    assert samples["headway_steps_total", (("kind", "replay"),)] == 5
    assert samples["headway_rank_seconds_total", (("state", "down"),)] > 0


def test_a_late_sidecar_tells_the_same_story(tmp_path: Path) -> None:
    """Whoever starts after the trainer reads what happened from the journals."""
    finish(
        trainer(
            tmp_path,
            0,
            "enter=a",
            "load=0",
            "steps=1-6",
            "fault",
            "enter=b",
            "load=3",
            "steps=4-9",
            "ready",
            "wait",
            ranks=1,
        ),
        kill=True,
    )
    with sidecar(tmp_path) as exporter:
        status = exporter.until(lambda status: len(status["recoveries"]) == 2, "both failures")
    first, second = status["recoveries"]
    assert (first["layer"], first["cause"], first["origin_rank"], first["steps_lost"]) == (
        "in_process",
        "app_exception",
        0,
        3,
    )
    assert (second["cause"], second["seconds_to_first_step"]) == ("process_killed", None)
    assert status["ranks"][0]["alive"] is False
    assert status["high_water_step"] == 9


def test_both_exposition_formats(tmp_path: Path) -> None:
    """Prometheus asks for OpenMetrics, people and promtool for the classic text; the numbers are the same."""
    with sidecar(tmp_path) as exporter:
        finish(trainer(tmp_path, 0, "steps=1-3", "finish=3", ranks=1))
        exporter.until(lambda status: status["finished"], "the end")
        status, headers, body = exporter.get("/metrics", accept=OPENMETRICS)
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, "application/openmetrics-text")
        assert body.endswith("# EOF\n")
        modern, classic = exporter.families(OPENMETRICS), exporter.families()
    assert set(modern) == set(classic)
    assert modern["headway_steps"].samples == classic["headway_steps"].samples


def test_eight_ranks_stay_within_the_series_budget(tmp_path: Path) -> None:
    """At most 450 series a pod, with everything that eight ranks, three volumes and the most cards can show."""
    acts = ("enter=a", "load=0", "save=1", "gap=2", "steps=1-6", "fault", "enter=b", "load=1", "steps=2-8", "finish=8")
    acts = (f"saves_in={tmp_path}", *acts)
    finish(*(trainer(tmp_path, slot, *acts, ranks=8) for slot in range(8)))
    for card in range(MOST_COUNTED):
        sysfs_tree.port(tmp_path / "sys", f"mlx5_{card}")
    options = ("--sysfs-root", str(tmp_path / "sys"), "--state-dir", str(tmp_path / "state"))
    with sidecar(tmp_path, *options) as exporter:
        exporter.until(lambda status: status["finished"], "the end")
        exporter.until(lambda _: len(exporter.labels("headway_nic_up")) == MOST_COUNTED, "the cards")
        exporter.until(lambda _: len(exporter.labels("headway_nic_errors_total")) == 4 * MOST_COUNTED, "their errors")
        exporter.until(lambda _: len(exporter.labels("headway_storage_size_bytes")) == 3, "the volumes")
        assert len(exporter.samples()) <= 450 - OF_KUBERNETES


def test_only_known_paths_and_methods(tmp_path: Path) -> None:
    """A wrong path must not look like an empty answer, and nothing can be changed through the port."""
    with sidecar(tmp_path) as exporter:
        assert exporter.get("/metric")[0] == 404
        assert exporter.get("/metrics?x=1")[0] == 200
        code, headers, _ = exporter.get("/metrics", "POST")
        assert (code, headers["Allow"]) == (405, "GET, HEAD")
        code, headers, body = exporter.get("/metrics", "HEAD")
        assert (code, body) == (200, "")
        assert int(headers["Content-Length"]) > 1000
        assert exporter.get("/healthz")[::2] == (200, "ok\n")


def test_silent_clients_hold_up_nobody(tmp_path: Path) -> None:
    """A scanner that connects and says nothing must not cost a scrape."""
    with sidecar(tmp_path) as exporter:
        silent = [socket.create_connection(exporter.address) for _ in range(10)]
        assert exporter.get("/healthz")[0] == 200
        for client in silent:
            client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_in_order(tmp_path: Path, number: int) -> None:
    """A native sidecar is told to end by SIGTERM after the job: exit 0, nothing on stderr."""
    with sidecar(tmp_path) as exporter:
        assert exporter.stop(number) == (0, "")


def test_a_hostile_folder_does_not_stop_it(tmp_path: Path) -> None:
    """Garbage of every sort: still serving, still counting, still small."""
    folder = tmp_path / RUN
    folder.mkdir()
    (folder / "slot-0.jsonl").write_bytes(bytes(range(256)) * 40_000)
    (folder / "slot-1.jsonl").write_bytes(b'{"v":1,"kind":"phase","n":' + b"9" * 5_000 + b"}\n" + b"[" * 60_000 + b"\n")
    (folder / "slot-2.jsonl").symlink_to("/dev/zero")
    (folder / "launcher.jsonl").write_bytes(b'{"v":1}\n' * 10_000)
    (folder / "slot-0.1.steps").write_bytes(b"HWSTEPS1" + b"\xff" * 1_000_000)
    with sidecar(tmp_path) as exporter:
        finish(trainer(tmp_path, 3, "steps=1-3", "finish=3", ranks=1))
        exporter.until(lambda status: status["step"] == 3, "the good trainer's steps")
        dropped = exporter.status()["dropped"]
        assert exporter.get("/healthz")[0] == 200
    assert dropped["torn"] > 0
    assert dropped["malformed"] == 10_000
    assert dropped["bad_ring"] == 1
    assert dropped["unreadable"] == 1


def test_text_that_no_encoding_can_hold(tmp_path: Path) -> None:
    """Half a surrogate pair, as a host name of other bytes gives, must not cost every scrape of the run."""
    (tmp_path / RUN).mkdir()
    event = {"v": 1, "kind": "process_started", "n": 0, "wall": time.time(), "mono": time.monotonic(), "life": 7}
    fields = {"node": "a\udcff", "gpu_uuid": "x" * 60_000, "backend": "\ud800", "versions": {"torch": "2\udc80"}}
    (tmp_path / RUN / "slot-0.jsonl").write_text(json.dumps(event | fields) + "\n")
    with sidecar(tmp_path) as exporter:
        deadline = time.monotonic() + 10
        while not any(name == "headway_run_info" for name, _ in exporter.samples()) and time.monotonic() < deadline:
            time.sleep(0.05)
        labels = {name: dict(own) for name, own in exporter.samples()}
    assert labels["headway_run_info"]["node"] == "a?"
    assert len(labels["headway_rank_info"]["UUID"]) == 128


APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
ENTER = f"import os, sys; os.execvp('unshare', [*{APART!r}, sys.executable, '-m', 'headway_exporter', *sys.argv[1:]])"


def _need_apart() -> None:
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs unshare (util-linux) and the right to make a PID namespace: {tried.stderr.strip()}")


def test_no_shared_process_namespace_is_needed(tmp_path: Path) -> None:
    """As in a pod: the sidecar sees no process of the trainer's, and knows of its life and of its death by SIGKILL all the same."""
    _need_apart()
    living = trainer(tmp_path, 0, "enter=a", "steps=1-5", "ready", "wait", ranks=1)
    wait_ready(living)
    with sidecar(tmp_path, "--silence-seconds", "600", program=("-c", ENTER)) as exporter:
        exporter.until(lambda found: found["step"] == 5 and found["ranks"][0]["alive"], "its life")
        living.kill()
        found = exporter.until(lambda found: found["incidents"], "its death")
        exporter.kill()
    finish(living)
    assert (found["incidents"][0]["cause"], found["ranks"][0]["alive"]) == ("process_killed", False)


LONG = "import sys; from headway_exporter import entry; entry.SEEN_SECONDS = 600; sys.exit(entry.main(sys.argv[1:]))"


def test_a_container_whose_start_fails_is_there_to_be_seen(tmp_path: Path) -> None:
    """The kubelet starts the trainer once it has seen the sidecar run: one that ended at once would keep training from beginning."""
    _need_apart()
    command = [*APART, sys.executable, "-c", LONG, "--web-config", str(tmp_path / "missing.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "missing.yml: cannot be read" in process.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()), signal.SIGTERM)
        assert process.wait(20) == 2


def test_clients_that_never_finish_do_not_end_the_scrapes(tmp_path: Path) -> None:
    """Each is within its time limit; the oldest one gives its place to who comes next."""
    with sidecar(tmp_path) as exporter:
        slow = [socket.create_connection(exporter.address) for _ in range(40)]
        for client in slow[8:]:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert exporter.samples()
        assert exporter.samples()
        for client in slow:
            client.close()


def test_an_accept_header_that_makes_no_sense(tmp_path: Path) -> None:
    """It gets the plain text format, as any other unknown wish."""
    with sidecar(tmp_path) as exporter:
        assert exporter.get("/metrics", accept="application/openmetrics-text; version=abc")[0] == 200
