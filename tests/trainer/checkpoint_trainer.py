"""A stand-in for a trainer: gives one save to NVRx's real persistent writer and stays until it is killed.

Prints the writer's process id once the save is written. The limit on open files is far below the number of tensors.
"""

from __future__ import annotations

import inspect
import os
import resource
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from headway.nvrx import writer
from headway_trainer import checkpoint

TENSORS = 300
OPEN_FILES = 256


def main(root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest

    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=0, world_size=1)
    model = nn.ParameterList([nn.Parameter(torch.full((number % 4,), float(number))) for number in range(TENSORS)])
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cat(list(model)).sum().backward()
    optimizer.step()
    shard = checkpoint.local_shard(model, optimizer, 1)
    with torch.no_grad():
        for parameter in model:
            parameter.fill_(-1.0)  # training goes on while the save is under way

    shared_memory = (
        {"cpu_shm_mode": True} if "cpu_shm_mode" in inspect.signature(AsyncCallsQueue.__init__).parameters else {}
    )
    queue = AsyncCallsQueue(persistent=True, **shared_memory)
    folder = checkpoint.save_folder(root, 1, "5afe")
    queue.schedule_async_request(
        AsyncRequest(partial(writer.write, root / "reason", checkpoint.write_shard), (shard, str(folder), 0, 1), [])
    )
    process = queue._get_async_caller().process
    while not queue.maybe_finalize_async_calls(blocking=False, no_dist=True) and process.is_alive():
        time.sleep(0.05)
    checkpoint.publish(folder, 1, 1, "5afe")
    print(process.pid, flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    finally:
        sys.stderr.flush()
        os._exit(1)  # it is killed before it comes here, or else failed; a writer that is no daemon would keep it alive
