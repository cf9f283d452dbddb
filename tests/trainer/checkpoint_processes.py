"""A process that has imported torch and forks others on request, so that a test can have fresh ranks and writers in milliseconds.

It reads one JSON command a line from stdin and answers with one JSON line: `{"do": "group", …}` runs a job in a gloo group of
forked ranks, `{"do": "writer", …}` forks a writer that saves checkpoint after checkpoint and gives its process id.
It never uses torch itself before it forks: threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # FSDP2 would import it on first use, in every forked rank
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from headway_trainer import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

LEARNING_RATE = 0.05


class Uneven(nn.Module):
    """Dimensions of 7, 5, 3 and 1: over 2 or 3 ranks some shards are short and some are empty. One buffer is replicated."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.norm = nn.LayerNorm(5)
        self.middle = nn.Linear(5, 3)
        self.head = nn.Linear(3, 1)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += tokens.numel()
        return self.head(torch.tanh(self.middle(self.norm(self.embed(tokens)))))


def build(seed: int, *, shard: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Uneven()
    if shard:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (model.embed, model.middle, model.head, model):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        tokens = (torch.arange(12) + step) % 7
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All weights, buffers and optimizer state, unsharded; a collective."""
    tensors = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        tensors |= {f"{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in tensors.items()
    }


def save_job(rank: int, world_size: int, *, root: str, step: int, dump: str) -> dict[str, Any]:
    """Trains a little, saves, publishes, and dumps the whole state for comparison."""
    model, optimizer = build(seed=1, shard=world_size > 1)
    take_steps(model, optimizer, step)
    folder = checkpoint.save_folder(Path(root), step, "0a1b2c3d")
    checkpoint.write_shard(checkpoint.local_shard(model, optimizer, step), str(folder), rank, world_size)
    dist.barrier()
    if rank == 0:
        checkpoint.publish(folder, step, world_size, "0a1b2c3d")
    _dump(whole_state(model, optimizer), rank, dump)
    return {}


def load_job(
    rank: int, world_size: int, *, roots: list[str], dump: str, seed: int = 2, steps_before: int = 0
) -> dict[str, Any]:
    """Loads into a model of other weights; `roots` gives each rank its own view of the checkpoint folder."""
    model, optimizer = build(seed=seed, shard=world_size > 1)
    take_steps(model, optimizer, steps_before)
    rejected: list[tuple[str, int, str]] = []

    def all_ok(ok: bool) -> bool:
        vote = torch.tensor(int(ok))
        dist.all_reduce(vote, dist.ReduceOp.MIN)
        return bool(vote)

    def share_names(names: list[str]) -> list[str]:
        box = [names]
        dist.broadcast_object_list(box)
        return box[0]

    step = checkpoint.load_newest(
        Path(roots[rank % len(roots)]),
        model,
        optimizer,
        rank=rank,
        world_size=world_size,
        all_ok=all_ok,
        on_rejected=lambda folder, at, reason: rejected.append((folder.name, at, reason)),
        share_names=share_names,
    )
    _dump(whole_state(model, optimizer), rank, dump)
    take_steps(model, optimizer, 1)  # what was loaded can be trained on
    _dump(whole_state(model, optimizer), rank, f"{dump}.next")
    return {"step": step, "rejected": rejected}


def _dump(state: dict[str, torch.Tensor], rank: int, path: str) -> None:
    if rank == 0:
        torch.save(state, path)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"save": save_job, "load": load_job}


def run_group(command: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a job on every rank of a new group; one answer a rank."""
    meeting = Path(command["meeting"])
    shutil.rmtree(meeting, ignore_errors=True)
    meeting.mkdir()
    world_size = command["world_size"]
    pids = [fork(lambda rank=rank: _rank_main(rank, world_size, meeting, command)) for rank in range(world_size)]
    for pid in pids:
        os.waitpid(pid, 0)
    return [json.loads((meeting / f"answer-{rank}").read_text()) for rank in range(world_size)]


def _rank_main(rank: int, world_size: int, meeting: Path, command: dict[str, Any]) -> None:
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=rank, world_size=world_size)
        answer = JOBS[command["job"]](rank, world_size, **command["arguments"])
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - the test reads it
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    (meeting / f"answer-{rank}").write_text(json.dumps(answer))


WRITER_WORLD_SIZE = 2


def write_for_ever(root: Path, first_step: int, save_id: str, floats: int) -> None:
    """Saves, publishes and prunes step after step until it is killed; the weights of step s are 0, s, 2 s, ..."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.zeros(floats)))
    optimizer = torch.optim.AdamW(model.parameters())
    step = first_step
    while True:
        with torch.no_grad():
            model.weight.copy_(torch.arange(floats, dtype=torch.float32) * step)
        folder = checkpoint.save_folder(root, step, save_id)
        for rank in range(WRITER_WORLD_SIZE):
            shard = checkpoint.local_shard(model, optimizer, step)
            checkpoint.write_shard(shard, str(folder), rank, WRITER_WORLD_SIZE)
        checkpoint.publish(folder, step, WRITER_WORLD_SIZE, save_id)
        checkpoint.prune(root, keep=2)
        step += 1


def fork(body: Callable[[], None]) -> int:
    """The process id of a child that runs `body` and then ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "group":
            answer: Any = run_group(command)
        elif command["do"] == "writer":
            arguments = (Path(command["root"]), command["first_step"], command["save_id"], command["floats"])
            answer = fork(lambda arguments=arguments: write_for_ever(*arguments))
        else:
            answer = os.waitpid(command["pid"], 0)[1]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
