"""Starts recording children for test_sigkill.py and kills them: `run SLOT MICROSECONDS` on a line, the child's count back.

Each child is a fork of this light process, so that 200 of them take seconds. It records flat out and says after every
step and event how many it has made, in memory that it shares with this process and not with the recorder.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time

from headway import Recorder, process

STEPS_PER_EVENT = 50


def record(told: memoryview, slot: str) -> None:
    """Steps and events without end; `told` holds two numbers, each stored at one stroke."""
    recorder = Recorder.from_env(environ=dict(os.environ) | {"HEADWAY_SLOT": slot, "HEADWAY_SAMPLE_SECONDS": "0"})
    events = 1
    number = 0
    while True:
        number += 1
        with recorder.step(number) as step:
            step.loss = number / 2
            if number % 2:
                step.tokens = number
        if number % STEPS_PER_EVENT == 0:
            recorder.checkpoint("requested", step=number)
            events += 1
        told[0] = number
        told[1] = events


def main() -> None:
    """Serves requests until standard input ends."""
    process.versions()  # imported here once instead of in every child
    for line in sys.stdin:
        _, slot, microseconds = line.split()
        told = memoryview(mmap.mmap(-1, 16)).cast("Q")
        child = os.fork()
        if child == 0:
            record(told, slot)
        while told[1] == 0:
            time.sleep(0.000_5)
        time.sleep(int(microseconds) / 1e6)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(*told, flush=True)


if __name__ == "__main__":
    main()
