"""What a trainer counts in may be numpy's or torch's: the recorder takes it like Python's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headway import Recorder
from headway.journal import JournalReader
from headway.ring import RingReader, ring_name

if TYPE_CHECKING:
    from pathlib import Path

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def test_numbers_of_other_libraries_cost_no_event(tmp_path: Path) -> None:
    """A trainer that counts in numpy or in tensors, or by a division, is recorded like any other: start, fault, checkpoints and end."""
    step = torch.tensor(7)
    environ = {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0"}
    settings: dict[str, Any] = {
        "total_steps": np.int64(9),
        "soft_timeout_seconds": np.float32(0.5),
        "who": object(),
        "in": tmp_path,
    }
    recorder = Recorder.from_env(environ=environ, settings=settings)
    try:
        for number in (np.int64(5), 6.0, step):
            with recorder.step(number):
                pass
        recorder.fault_caught(ValueError("boom"))
        recorder.checkpoint("committed", step=6.0, bytes=np.int64(3), seconds=np.float32(0.5), verified=np.bool_(True))
        recorder.checkpoint("failed", step=7, reason=OSError("full"))  # type: ignore[arg-type]
        recorder.train_finished(step)
    finally:
        recorder.close()
    reader = JournalReader(tmp_path / "run" / "slot-0.jsonl")
    started, caught, committed, failed, finished, _ = reader.poll()
    assert started.kind == "process_started"
    assert {name: started.fields["settings"][name] for name in ("total_steps", "soft_timeout_seconds", "in")} == {
        "total_steps": 9,
        "soft_timeout_seconds": 0.5,
        "in": str(tmp_path),
    }
    assert (caught.fields["type"], caught.fields["step"]) == ("ValueError", 7)
    assert committed.fields == {"stage": "committed", "step": 6, "bytes": 3, "seconds": 0.5, "verified": True}
    assert failed.fields["reason"] == "full"
    assert finished.fields == {"step": 7}
    reader.close()
    ring = RingReader.open(tmp_path / "run" / ring_name(0, recorder.life))
    assert [record.step for record in ring.poll()] == [5, 6, 7]
    ring.close()
