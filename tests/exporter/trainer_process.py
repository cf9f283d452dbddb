"""A trainer process for the tests: the real recorder, told what to do by its arguments.

Each argument is one act, in order: `enter=ID`, `load=STEP`, `steps=FIRST-LAST` (with `:SECONDS` each so long), `fault`, `echo`,
`commit=STEP`, `finish`, `exit=CODE`, `save=STEP` (a save is written), `queue=DEPTH` (saves that wait), `phase=NAME:SECONDS`,
`set=NAME:NUMBER` (a setting in force from the start), `saves_in=FOLDER` (where checkpoints lie), `unlock` (loses
its life lock as by accident), `pause=SECONDS`, `wait` (until it is killed), `ready` (writes a line, for whoever started it), `meet`
(does that and waits for a line).
"""

from __future__ import annotations

import os
import sys
import time

from headway.lifelock import lock_name
from headway.recorder import Recorder


def main(acts: list[str]) -> None:
    told = (act.removeprefix("set=").partition(":") for act in acts if act.startswith("set="))
    settings = {name: float(value) for name, _, value in told}
    recorder = Recorder.from_env(
        settings={"total_steps": 100, "checkpoint_interval_steps": 10} | settings,
        backend="gloo",
        checkpoint_dir=next((act.removeprefix("saves_in=") for act in acts if act.startswith("saves_in=")), None),
    )
    for act in acts:
        name, _, value = act.partition("=")
        if name == "enter":
            recorder.train_entered(
                incarnation=value, rank=recorder.identity.rank, world_size=recorder.identity.world_size
            )
        elif name == "load":
            with recorder.phase("checkpoint_load"):
                recorder.checkpoint("loaded", step=int(value), seconds=0.25, bytes=100, verified=True)
        elif name == "steps":
            numbers, _, seconds = value.partition(":")
            first, last = map(int, numbers.split("-"))
            for number in range(first, last + 1):
                with recorder.step(number) as step:
                    time.sleep(float(seconds or 0))
                    step.loss = 1.0 / number
                    step.tokens = 10
        elif name == "save":
            recorder.checkpoint("requested", step=int(value))
            recorder.checkpoint("staged", step=int(value), seconds=0.1)
            recorder.queue(depth=1, oldest_wall=time.time(), writer_alive=True, writer_pid=os.getpid())
            recorder.checkpoint("written", step=int(value), seconds=0.2, bytes=100)
        elif name == "queue":
            oldest = time.time() if int(value) else None
            recorder.queue(depth=int(value), oldest_wall=oldest, writer_alive=True, writer_pid=os.getpid())
        elif name == "phase":
            phase, _, seconds = value.partition(":")
            with recorder.phase(phase):
                time.sleep(float(seconds))
        elif name == "commit":
            recorder.checkpoint("committed", step=int(value), verified=True)
        elif name == "gap":
            recorder.phase_gap("eval", float(value))
        elif name == "fault":
            recorder.fault_caught(ValueError("boom"))
        elif name == "echo":
            recorder.fault_caught(
                RuntimeError("gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
            )
        elif name == "finish":
            recorder.train_finished(int(value))
        elif name == "exit":
            os._exit(int(value))
        elif name == "unlock":
            (recorder.identity.folder / lock_name(recorder.identity.slot)).read_bytes()  # any close of the file does it
        elif name == "ready":
            print("ready", flush=True)
        elif name == "meet":
            print("ready", flush=True)
            sys.stdin.readline()
        elif name == "pause":
            time.sleep(float(value))
        elif name == "wait":
            time.sleep(600)
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1:])
