from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headway.journal import JournalReader
from headway.ring import DEFAULT_CAPACITY, RingReader

pytestmark = pytest.mark.slow

KILLS = 200
SERVER = Path(__file__).with_name("sigkill_server.py")


def check_ring(folder: Path, told_steps: int) -> None:
    (path,) = folder.glob("slot-*.steps")
    reader = RingReader.open(path)
    records = reader.poll(limit=DEFAULT_CAPACITY)
    assert reader.poll() == []
    reader.close()
    path.unlink()
    assert reader.torn == 0
    assert told_steps <= reader.overwritten + len(records) <= told_steps + 1
    for position, record in enumerate(records, start=reader.overwritten):
        assert (record.sequence, record.step, record.loss) == (position, position + 1, (position + 1) / 2)
        assert record.tokens == (record.step if record.step % 2 else None)
        assert 0 < record.start_ns < record.end_ns


def check_journal(folder: Path, told_events: int) -> None:
    (path,) = folder.glob("slot-*.jsonl")
    reader = JournalReader(path)
    events = reader.poll()
    reader.close()
    path.unlink()
    assert not reader.dropped
    assert [event.n for event in events] == list(range(len(events)))
    assert told_events <= len(events) <= told_events + 1
    assert [event.fields["step"] for event in events[1:]] == [50 * n for n in range(1, len(events))]


def test_sigkill_at_any_moment_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    """200 kills at random moments: no torn record is read as good, no step or event from before the kill is missing."""
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "killed"}
    chance = random.Random(20_261_130)
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for _ in range(KILLS):
            server.stdin.write(f"run 0 {chance.randrange(4_000)}\n")
            server.stdin.flush()
            told_steps, told_events = map(int, server.stdout.readline().split())
            check_ring(tmp_path / "killed", told_steps)
            check_journal(tmp_path / "killed", told_events)
        server.stdin.close()
