"""The store by itself: who may write, and what is shown meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from headway import clock
from headway_exporter.state_files import LEDGER, RECORDS, Ledger, append_record, read_ledger, read_records, write_ledger
from headway_exporter.store import Snapshot, Store, View, new_session

if TYPE_CHECKING:
    from pathlib import Path

FIRST = View([], {"step": 0})


def snapshot(step: int, *records: dict[str, object]) -> Snapshot:
    return Snapshot(View([], {"step": step}, 5.0), {"summary": {"step": step}}, list(records))


def test_shown_is_what_is_on_disk(tmp_path: Path) -> None:
    """Not before it is written, records first; and the folder is made on the way."""
    store = Store(tmp_path / "run" / "0", "run", "0", new_session(), FIRST)
    assert store.published is FIRST
    store.offer(snapshot(1, {"v": 1, "id": "a"}), 0.0)
    assert store.settle()
    assert store.published.status == {"step": 1}
    assert read_ledger(tmp_path / "run" / "0" / LEDGER, "run", "0").body == {"summary": {"step": 1}}
    assert list(read_records(tmp_path / "run" / "0" / RECORDS)) == [{"v": 1, "id": "a"}]
    records, faults = store.acknowledged()
    assert ([one["id"] for one in records], sum(faults.values())) == (["a"], 0)
    assert store.acknowledged()[0] == []


@pytest.mark.parametrize("torn", [b"", b'{"v":1,"id":"tor', b"\n\nspoilt\n"])
@pytest.mark.parametrize("before", [0, 5_000])
def test_a_record_that_is_there_is_not_written_again(tmp_path: Path, torn: bytes, before: int) -> None:
    """SIGKILL between record and ledger: the next sidecar comes to the same record, and everybody would read it twice."""
    path = tmp_path / RECORDS
    for number in range(before // 1_000):
        append_record(path, {"v": 1, "id": f"old {number}", "text": "x" * 400_000})
    known = {"v": 1, "id": "a", "revision": 0, "written_wall": 1.0, "loads": {"1": 2}, "evidence": [{"wall": 1.5}]}
    append_record(path, known)
    with path.open("ab") as file:
        file.write(torn)
    size = path.stat().st_size
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    again, more = {**known, "written_wall": 2.0}, {**known, "written_wall": 2.0, "loads": {"1": 3}}
    store.offer(snapshot(1, again), 0.0)
    assert store.settle()
    assert path.stat().st_size == size
    assert store.acknowledged()[0] == [again]
    store.offer(snapshot(2, more), 0.0)
    assert store.settle()
    store.close()
    assert [one for one in read_records(path) if isinstance(one, dict)][-2:] == [known, more]


def test_sessions_are_in_the_order_of_their_starts() -> None:
    """Also where the wall clock was put back between two, or somebody else named his in another way."""
    first = new_session()
    future = f"{10**19:020d}-abc"
    assert new_session(first) > first
    assert new_session(future) > future
    for none in ("ff00", f"{'9' * 20}-abc", f"{'1' * 21}-abc"):  # nothing could come after the second
        assert len(new_session(none)) == len(first)


def test_a_ledger_in_another_ones_name_is_written_over_and_a_newer_ones_is_not(tmp_path: Path) -> None:
    """A session that cannot be put in order must not stop us for ever; one that came after us must."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    write_ledger(tmp_path / LEDGER, Ledger("run", "0", "ffff", 1.0, {}))
    store.offer(snapshot(1), 0.0)
    assert store.settle()
    assert (store.trouble, store.superseded) == (None, False)
    write_ledger(tmp_path / LEDGER, Ledger("run", "0", new_session(), 1.0, {"of": "another"}))
    store.offer(snapshot(2), 0.0)
    assert store.settle()
    assert store.superseded
    assert store.published.status == {"step": 1}
    assert read_ledger(tmp_path / LEDGER).body == {"of": "another"}
    assert not store.wants(1e12, caught_up=True)


@pytest.mark.parametrize(("run", "pod_index"), [("run", "7"), ("another", "0")])
def test_another_pods_ledger_is_set_aside_however_new_it_is(tmp_path: Path, run: str, pod_index: str) -> None:
    """Somebody who copies a folder over ours has not taken over our pod: writing goes on, and theirs is kept."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    write_ledger(tmp_path / LEDGER, Ledger(run, pod_index, new_session(), 1.0, {"of": "another"}))
    store.offer(snapshot(1), 0.0)
    assert store.settle()
    assert (store.trouble, store.superseded, store.acknowledged()[1]) == (None, False, {"state_foreign": 1})
    assert read_ledger(tmp_path / f"{LEDGER}.foreign-0").body == {"of": "another"}
    assert read_ledger(tmp_path / LEDGER, "run", "0").body == {"summary": {"step": 1}}


@pytest.mark.parametrize("wall", [10**400, float("nan"), float("inf"), -1.0, 1e300])
def test_a_ledger_that_says_no_time_is_read_without_one(tmp_path: Path, wall: float) -> None:
    """No calendar has the time at which it says it was written: whoever reads it must survive that."""
    write_ledger(tmp_path / LEDGER, Ledger("run", "0", new_session(), wall, {"step": 1}))
    found = read_ledger(tmp_path / LEDGER)
    assert (found.written_wall, found.body) == (0.0, {"step": 1})


@pytest.mark.parametrize("number", ["9" * 20, "9" * 21, "1" * 30])
def test_a_session_that_none_can_follow_stops_nobody(tmp_path: Path, number: str) -> None:
    """A number at the end of all numbers, as only damage or malice writes it, must not end the pod's memory for ever."""
    before = f"{number}-abc"
    write_ledger(tmp_path / LEDGER, Ledger("run", "0", before, 1.0, {}))
    store = Store(tmp_path, "run", "0", new_session(before), FIRST)
    for step in (1, 2):
        store.offer(snapshot(step), 0.0)
        assert store.settle()
    assert (store.trouble, store.published.status) == (None, {"step": 2})


def test_a_ledger_that_was_spoilt_meanwhile_is_kept_aside(tmp_path: Path) -> None:
    """Somebody may want to look at it; the sidecar's own memory is whole."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    (tmp_path / LEDGER).write_text("spoilt")
    store.offer(snapshot(1), 0.0)
    assert store.settle()
    assert store.acknowledged()[1] == {"state_corrupt": 1}
    assert (tmp_path / f"{LEDGER}.corrupt-0").read_text() == "spoilt"
    assert read_ledger(tmp_path / LEDGER).body == {"summary": {"step": 1}}


def test_chores_are_done_and_may_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that raises costs neither the next one nor the writing, and is told of once, not every second."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    done = threading.Semaphore(0)

    def fails() -> None:
        done.release()
        raise ValueError("on purpose")

    store.every_second(fails)
    store.every_second(lambda: done.release())
    for _ in range(4):
        assert done.acquire(timeout=20)
    store.offer(snapshot(1), 0.0)
    assert store.settle()
    assert store.published.status == {"step": 1}
    assert sum("every second" in line for line in caplog.messages) == 1
    store.close()


def test_closed_store_ends_its_thread_after_the_last_write(tmp_path: Path) -> None:
    """What was offered before is on disk, and nothing goes on in the background."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    store.offer(snapshot(1), 0.0)
    store.close()
    assert store.settle()
    assert read_ledger(tmp_path / LEDGER).body == {"summary": {"step": 1}}
    deadline = time.monotonic() + 20
    while store.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not store.running


def test_snapshot_of_what_is_behind_waits_but_not_for_ever(tmp_path: Path) -> None:
    """While a late sidecar catches up, old numbers under a new time would mislead; but one that never does must not forget."""
    store = Store(tmp_path, "run", "0", new_session(), FIRST)
    now = clock.monotonic()
    assert store.wants(now, caught_up=True)
    assert not store.wants(now, caught_up=False)
    assert store.wants(now + 60.0, caught_up=False)
    store.close()
