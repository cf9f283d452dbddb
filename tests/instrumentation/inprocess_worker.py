"""A rank under NVRx's in-process wrapper, for test_nvrx_inprocess.py: which faults it meets is in the variable SCENARIO.

`many_faults`, three ranks: rank 1 raises, then is killed, then the rank that moved up into its place raises.
`gives_up`, one rank: raises every time until NVRx's retries are used up.
`broken_recorder`, one rank: raises once, with hooks whose recorder cannot record.
"""

# No `from __future__ import annotations`: NVRx looks for CallWrapper among the annotations and takes no strings.
import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.abort import AbortTorchDistributed

from headway.distributed import agree_incarnation
from headway.nvrx import inprocess as headway_inprocess
from headway.nvrx.gloo import AbortGloo, gloo_sockets
from headway.recorder import Recorder

SCENARIO = os.environ["SCENARIO"]
INITIAL_RANK = int(os.environ["RANK"])
PORT = int(os.environ["MASTER_PORT"])

SECONDS = {
    "monitor_thread_interval": 0.2,
    "monitor_process_interval": 0.2,
    "progress_watchdog_interval": 0.2,
    "heartbeat_interval": 0.5,
    "heartbeat_timeout": 45,  # a busy machine delays heartbeats by seconds, and a rank called unresponsive is lost
    "last_call_wait": 0.3,
    "soft_timeout": 30,
    "hard_timeout": 40,
    "barrier_timeout": 60,
    "completion_timeout": 60,
}


class TwoArgumentError(Exception):
    """Cannot be copied: its arguments are not those of its constructor."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} ({code})")


def fault(iteration: int) -> None:
    where = (SCENARIO, iteration, INITIAL_RANK)
    if where in {("many_faults", 0, 1), ("broken_recorder", 0, 0)} or SCENARIO == "gives_up":
        raise TwoArgumentError("boom", iteration)
    if where == ("many_faults", 1, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if where == ("many_faults", 2, 2):
        raise TwoArgumentError("boom", iteration)


def train(recorder: Recorder, call: inprocess.CallWrapper = None) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = dist.TCPStore("127.0.0.1", PORT, is_master=rank == 0, multi_tenant=True, wait_for_workers=False)
    store = dist.PrefixStore(str(call.iteration), base)
    with gloo_sockets():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=40))
    incarnation = agree_incarnation(store, rank)
    recorder.train_entered(incarnation=incarnation, rank=rank, world_size=world_size, iteration=call.iteration)
    with recorder.capture():
        for step in range(1, 4):
            with recorder.step(step):
                dist.all_reduce(torch.ones(1))
                call.ping()
                if step == 2:
                    fault(call.iteration)
    recorder.train_finished(3)
    dist.destroy_process_group()


def main() -> None:
    recorder = Recorder.from_env()
    broken: Any = None
    wrapper = inprocess.Wrapper(
        **headway_inprocess.hooks(
            broken if SCENARIO == "broken_recorder" else recorder,
            initialize=inprocess.initialize.RetryController(max_iterations=2) if SCENARIO == "gives_up" else None,
            abort=inprocess.Compose(AbortTorchDistributed(), AbortGloo()),
        ),
        store_kwargs={"port": PORT + 1},
        **{name: timedelta(seconds=value) for name, value in SECONDS.items()},
    )
    wrapper(train)(recorder)
    print("errors of hooks:", headway_inprocess.errors, flush=True)


if __name__ == "__main__":
    main()
