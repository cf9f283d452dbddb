"""A trainer for the soak: the real recorder, a loop that does next to nothing, and books of its own to compare with.

Arguments: the folder of its books, then the file that ends the run once it exists. Each line of `rank-N.log` is
written by one `write`: `start` and `end` with CLOCK_MONOTONIC, and for each step `begin` before and `done` after it
is recorded. So whoever is killed in between leaves a step that may or may not have been recorded, and every other one
is certain.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from headway.recorder import Recorder

STEP_SECONDS: Final = 0.01
SAVE_EVERY: Final = 20


def main(books: Path, stop: Path) -> None:
    """Trains until `stop` exists."""
    rank = int(os.environ["RANK"])
    log = os.open(books / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    saved = books / f"rank-{rank}.saved"

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    note("start", time.monotonic())
    recorder = Recorder.from_env(settings={"checkpoint_interval_steps": SAVE_EVERY}, backend="gloo")
    meet(books, "start")
    recorder.train_entered(incarnation=incarnation(), rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    step = int(saved.read_text()) if saved.exists() else 0
    with recorder.phase("checkpoint_load"):
        recorder.checkpoint("loaded", step=step, seconds=0.0, verified=True)
    meet(books, "loaded")
    while not stop.exists():
        step += 1
        note("begin", step)
        with recorder.step(step) as recorded:
            time.sleep(STEP_SECONDS)
            recorded.loss = 1.0 / step
        note("done", step)
        if step % SAVE_EVERY == 0:
            save(recorder, saved, step)
    recorder.train_finished(step)
    note("end", time.monotonic())
    recorder.close()


def meet(books: Path, what: str) -> None:
    """Waits for all ranks, as making a process group or a first collective does."""
    place = books / f"{incarnation()}-{what}"
    place.mkdir(exist_ok=True)
    (place / os.environ["RANK"]).touch()
    while len(list(place.iterdir())) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.002)


def incarnation() -> str:
    """The same on all ranks, another one after each restart."""
    return f"{os.environ['HEADWAY_ATTEMPT']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"


def save(recorder: Recorder, saved: Path, step: int) -> None:
    """A checkpoint of a number."""
    recorder.checkpoint("requested", step=step)
    unfinished = saved.with_suffix(".new")
    unfinished.write_text(str(step))
    unfinished.replace(saved)
    recorder.checkpoint("committed", step=step, verified=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
