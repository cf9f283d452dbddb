"""The sidecar's memory across its own end and the pod's, with real processes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from journal_folder import RUN, finish, meet, trainer, wait_ready
from sidecar_process import Sidecar, sidecar

from headway_exporter.memory import encoder, recall
from headway_exporter.pod import Pod
from headway_exporter.state_files import (
    LEDGER,
    RECORDS,
    Ledger,
    StateFileError,
    pod_folder,
    read_ledger,
    read_records,
    write_ledger,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

pytestmark = pytest.mark.slow


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder, which the first sidecar makes."""
    return tmp_path / "shared" / "state"


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """The pod's own folder."""
    made = tmp_path / "pod"
    made.mkdir()
    return made


def assert_adds_up(samples: Samples) -> None:
    """Invariant 1, of one scrape."""
    booked = sum(value for (name, _), value in samples.items() if name == "headway_rank_seconds_total")
    elapsed = samples["headway_rank_elapsed_seconds_total", ()]
    assert booked + samples["headway_pending_rank_seconds", ()] == pytest.approx(elapsed, abs=1e-3)


def watch(exporter: Sidecar, before: Samples, until: Callable[[dict[str, Any]], object]) -> Samples:
    """Scrapes in a tight loop: no counter steps back and each scrape adds up, until the status is as wanted."""
    deadline = time.monotonic() + 30
    while True:
        wanted = until(exporter.status())
        samples = exporter.samples()
        assert_adds_up(samples)
        assert {key: (value, samples.get(key)) for key, value in before.items() if samples.get(key, -1) < value} == {}
        if wanted:
            return samples
        assert time.monotonic() < deadline, exporter.status()


def change(state: Path, edit: Callable[[Pod], object], **position: Any) -> None:
    """Rewrites the ledger as a machine would have that was started anew."""
    path = pod_folder(state, RUN, "0") / LEDGER
    ledger = read_ledger(path)
    pod = Pod(RUN, "0")
    recall(pod, ledger.body["fold"])
    edit(pod)
    body = {**ledger.body, "fold": encoder().encode(pod), "position": ledger.body["position"] | position}
    write_ledger(path, Ledger(RUN, "0", ledger.session, ledger.written_wall, body))


def test_no_counter_steps_back_when_sidecar_and_pod_are_gone(journals: Path, state: Path) -> None:
    """Whatever a scrape showed is on disk: after a kill, without the journals, and while the next pod's are read."""
    acts = ("enter=a", "load=0", "steps=1-6", "fault", "enter=b", "load=3", "save=3", "commit=3", "steps=4-9")
    first = trainer(journals, 0, *acts, "ready", "wait", ranks=1)
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        wait_ready(first)
        exporter.until(lambda status: status["step"] == 9, "the steps")
        before = exporter.counters()
        exporter.kill()
    first.kill()
    first.communicate()
    shutil.rmtree(journals / RUN)
    assert before["headway_steps_total", (("kind", "productive"),)] == 9
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        samples = watch(exporter, before, lambda status: status["state"] == "down")
        assert samples["headway_ranks", ()] == 0
        before = exporter.counters()
        finish(trainer(journals, 0, "enter=c", "load=3", "steps=4-12", "finish=12", attempt=1, ranks=1))
        samples = watch(exporter, before, lambda status: status["finished"])
        [_, recovery] = exporter.status()["recoveries"]
    assert (recovery["layer"], recovery["cause"], recovery["steps_lost"]) == ("orchestrator", "node_lost", 6)
    assert samples["headway_steps_total", (("kind", "productive"),)] == 12
    assert samples["headway_steps_total", (("kind", "replay"),)] == 3 + 6
    assert samples["headway_rank_seconds_total", (("state", "down"),)] > 0


def test_after_a_long_absence_counters_are_shown_once_as_they_were(journals: Path, state: Path) -> None:
    """A rate has no jump that is wider than its window: the time without a pod must lie between two scrapes of each who scrapes."""
    first = trainer(journals, 0, "enter=a", "load=0", "steps=1-6", "ready", "wait", ranks=1)
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        wait_ready(first)
        exporter.until(lambda status: status["step"] == 6, "the steps")
        exporter.kill()
    first.kill()
    first.communicate()
    shutil.rmtree(journals / RUN)
    path = pod_folder(state, RUN, "0") / LEDGER
    old = read_ledger(path)
    write_ledger(path, replace(old, written_wall=old.written_wall - 600))
    time.sleep(1)
    elapsed = ("headway_rank_elapsed_seconds_total", ())
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        exporter.until(lambda status: status["state"] == "down", "the pod is seen to be gone")
        samples = exporter.samples()
        assert samples[elapsed] == pytest.approx(old.body["summary"]["elapsed_rank_seconds"])
        assert samples["headway_ranks", ()] == 0  # gauges are those of now
        assert_adds_up(samples)
        later = exporter.samples()
        assert_adds_up(later)
        assert later[elapsed] > samples[elapsed] + 1


def test_the_last_word_after_a_long_absence_is_the_newest(journals: Path, state: Path) -> None:
    """Told to end before anybody scraped it, the sidecar has one scrape to show the end of the run in."""
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        finish(trainer(journals, 0, "enter=a", "load=0", "steps=1-6", ranks=1), kill=False)
        exporter.until(lambda status: status["step"] == 6, "the steps")
        exporter.kill()
    path = pod_folder(state, RUN, "0") / LEDGER
    old = read_ledger(path)
    write_ledger(path, replace(old, written_wall=old.written_wall - 600))
    with sidecar(journals, "--state-dir", str(state), HEADWAY_LINGER_SECONDS="60") as exporter:
        finish(trainer(journals, 0, "enter=b", "load=6", "steps=7-9", "finish=9", attempt=1, ranks=1))
        exporter.until(lambda status: status["finished"], "the end of the run")
        exporter.process.send_signal(signal.SIGTERM)
        exporter.until(lambda _: read_ledger(path).body["summary"]["finished"], "the last word is written")
        time.sleep(1)
        assert exporter.value("headway_steps_total", kind="productive") == 9
        assert exporter.process.wait(20) == 0


def test_a_sidecar_that_is_killed_all_the_time_counts_what_one_that_lives_counts(journals: Path, state: Path) -> None:
    """Nothing twice, nothing lost, to the last digit, however often and whenever it dies."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    acts = ["enter=a", "load=0"]
    for number in range(60):
        acts += [f"steps={number * 20 + 1}-{number * 20 + 20}", "pause=0.25"]
        if number % 8 == 3:
            acts += ["fault", f"enter=e{number}", f"load={number * 20}"]
            acts += [
                f"steps={number * 20 + 1}-{number * 20 + 20}",
                f"save={number * 20 + 20}",
                f"commit={number * 20 + 20}",
            ]
    process = trainer(journals, 0, *acts, "finish=1200", ranks=1)
    with sidecar(journals) as steady:
        before: Samples = {}
        for _ in range(20):
            with sidecar(journals, "--state-dir", str(state)) as mortal:
                end = time.monotonic() + rng.uniform(0.0, 0.8)
                while time.monotonic() < end:
                    samples = mortal.samples()
                    assert_adds_up(samples)
                    assert all(samples[key] >= value for key, value in before.items()), f"seed {seed}"
                    before = mortal.counters()
                mortal.kill()
        finish(process)
        with sidecar(journals, "--state-dir", str(state)) as mortal:
            watch(mortal, before, lambda status: status["finished"])
            steady.until(lambda status: status["finished"], "the end")
            found, wanted = mortal.counters(), steady.counters()
    assert found == wanted, f"seed {seed}"


def test_a_death_while_no_sidecar_lives_is_found(journals: Path, state: Path) -> None:
    """The lives it watched are watched again."""
    process = trainer(journals, 0, "enter=a", "load=0", "steps=1-3", "ready", "wait", ranks=1)
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        wait_ready(process)
        exporter.until(lambda status: status["step"] == 3, "the steps")
        exporter.kill()
    process.kill()
    process.communicate()
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        status = exporter.until(lambda status: not status["ranks"][0]["alive"], "the death")
    assert [one["cause"] for one in status["recoveries"]] == ["process_killed"]


def test_steps_whose_rings_went_while_no_sidecar_lived_are_counted(journals: Path, state: Path) -> None:
    """Three lives later the first one's ring is gone; its journal still says how far it came, and its time was no detection."""
    more = ("steps=4-50", "pause=1.0", "save=50", "commit=50", "ready", "wait")
    first = trainer(journals, 0, "enter=a", "load=0", "steps=1-3", "save=3", "ready", "meet", *more, ranks=1)
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        wait_ready(first)
        exporter.until(lambda status: status["step"] == 3, "the steps")
        exporter.kill()
    meet(first)
    wait_ready(first)
    first.kill()
    first.communicate()
    acts = ("enter=b", "load=50", "steps=51-60", "save=60", "commit=60", "ready", "wait")
    finish(trainer(journals, 0, *acts, cycle=1, ranks=1), kill=True)
    finish(trainer(journals, 0, "enter=c", "load=60", "steps=61-70", "finish=70", cycle=2, ranks=1))
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        exporter.until(
            lambda status: status["finished"] and status["dropped"].get("ring_gone"), "the end, and what is gone"
        )
        samples = exporter.samples()
    assert samples["headway_steps_total", (("kind", "productive"),)] == 70
    assert samples["headway_steps_total", (("kind", "replay"),)] == 0
    assert samples["headway_rank_seconds_total", (("state", "other"),)] >= 1.0
    assert samples["headway_events_dropped_total", (("reason", "ring_gone"),)] == 1
    assert_adds_up(samples)


@pytest.mark.parametrize(("hours", "anomalies"), [(-1, 0), (1, 1)], ids=["an hour later", "clock behind"])
def test_another_machine_goes_on_by_wall_clock(journals: Path, state: Path, hours: int, anomalies: int) -> None:
    """Its CLOCK_MONOTONIC says nothing about the one before: the gap between the two is down, and never negative."""
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        finish(trainer(journals, 0, "enter=a", "load=0", "steps=1-5", "ready", "wait", ranks=1), kill=True)
        exporter.until(lambda status: status["step"] == 5 and not status["ranks"][0]["alive"], "the death")
        before = exporter.counters()
        exporter.stop()
    shutil.rmtree(journals / RUN)

    def elsewhere(pod: Pod) -> None:
        pod._offset += 3600 * hours  # what was saved is from an hour ago, by wall clock

    change(state, elsewhere, boot="another")
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        watch(exporter, before, lambda status: status["state"] == "down")
        finish(trainer(journals, 0, "enter=b", "load=0", "steps=1-7", "finish=7", attempt=1, ranks=1))
        samples = watch(exporter, before, lambda status: status["finished"])
    down = samples["headway_rank_seconds_total", (("state", "down"),)]
    assert (down > 3600) == (hours < 0)
    assert samples["headway_clock_anomalies_total", (("reason", "negative_duration"),)] == anomalies
    assert samples["headway_steps_total", (("kind", "productive"),)] == 7


def test_a_pod_that_never_comes_back_is_no_failure(journals: Path, state: Path) -> None:
    """A sidecar that finds an old ledger and no trainer must not make up an incident."""
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        process = trainer(journals, 0, "enter=a", "load=0", "steps=1-5", "ready", "wait", ranks=1)
        wait_ready(process)
        exporter.until(lambda status: status["step"] == 5, "the steps")
        exporter.kill()
    process.kill()
    process.communicate()
    shutil.rmtree(journals / RUN)
    for _ in range(2):
        with sidecar(journals, "--state-dir", str(state)) as exporter:
            status = exporter.until(lambda status: status["state"] == "down", "the gap")
            assert exporter.value("headway_state", state="down") == 1
            assert status["incidents"] == []
            assert exporter.stop()[0] == 0


def test_each_revision_of_a_record_is_written_once(journals: Path, state: Path) -> None:
    """Restarts of the sidecar, orderly ones and kills, tell no incident again; what the ledger's summary says is there for readers."""
    folder = pod_folder(state, RUN, "0")
    acts = ("enter=a", "load=0", "steps=1-6", "fault", "enter=b", "load=3", "steps=4-9", "save=9", "commit=9")
    finish(trainer(journals, 0, *acts, "finish=9", ranks=1))
    for kill in (False, False, True, False):
        with sidecar(journals, "--state-dir", str(state)) as exporter:
            exporter.until(lambda status: status["finished"], "the end")
            if kill:
                exporter.kill()
            else:
                assert exporter.stop()[0] == 0
    records = list(read_records(folder / RECORDS))
    assert not any(isinstance(record, StateFileError) for record in records)
    told = [(record["id"], record["revision"], record["outcome"]) for record in records if isinstance(record, dict)]
    assert [(revision, outcome) for _, revision, outcome in told] == [(0, "recovered")]
    summary = read_ledger(folder / LEDGER, RUN, "0").body["summary"]
    assert (summary["finished"], summary["open"], summary["steps"]["productive"]) == (True, None, 9)


def spoil(path: Path, how: str) -> None:
    """Makes a good ledger one that cannot be used."""
    content = path.read_bytes()
    if how == "a flipped bit":
        path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    elif how == "half of it":
        path.write_bytes(content[: len(content) // 2])
    elif how == "nothing in it":
        path.write_bytes(b"")
    elif how == "of another pod":
        ledger = read_ledger(path)
        write_ledger(path, Ledger("testrun", "7", ledger.session, ledger.written_wall, ledger.body))
    elif how == "of a newer version":
        path.write_bytes(content.replace(b'"version": 1', b'"version": 2', 1))
    else:
        ledger = read_ledger(path)
        body = ledger.body | {"fold": json.loads(how)}
        write_ledger(path, Ledger("testrun", "0", ledger.session, ledger.written_wall, body))


BAD = {
    "a flipped bit": "corrupt",
    "half of it": "corrupt",
    "nothing in it": "corrupt",
    "of another pod": "foreign",
    "of a newer version": "newer",
    "{}": "corrupt",
    '{"root": 0, "classes": {"Pod": ["slots"]}, "objects": {"0": ["Pod", {"r": 0}]}}': "corrupt",
}


@pytest.mark.parametrize("how", BAD)
def test_a_ledger_that_cannot_be_used_is_kept_and_counted(journals: Path, state: Path, how: str) -> None:
    """It may be all that is left of months: never fatal, never written over, and never a silent loss."""
    finish(trainer(journals, 0, "enter=a", "load=0", "steps=1-5", "finish=5", ranks=1))
    path = pod_folder(state, RUN, "0") / LEDGER
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        exporter.until(lambda status: status["finished"], "the end")
        exporter.stop()
    spoil(path, how)
    spoilt = path.read_bytes()
    (path.parent / f".{LEDGER}.1-x.tmp").write_bytes(spoilt[:40])  # what a kill in the middle of writing leaves
    with sidecar(journals, "--state-dir", str(state)) as exporter:
        status = exporter.until(lambda status: status["finished"] and path.exists(), "all read anew")
        assert status["dropped"][f"state_{BAD[how]}"] == 1
        assert exporter.value("headway_events_dropped_total", reason=f"state_{BAD[how]}") == 1
        assert exporter.value("headway_steps_total", kind="productive") == 5
        code, errors = exporter.stop()
    assert code == 0
    assert f"{LEDGER}.{BAD[how]}-0" in errors
    assert path.with_name(f"{LEDGER}.{BAD[how]}-0").read_bytes() == spoilt
    assert not list(path.parent.glob("*.tmp"))
    assert read_ledger(path, RUN, "0").body["summary"]["step"] == 5
