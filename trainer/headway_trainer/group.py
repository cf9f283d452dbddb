"""One incarnation's process group: how the ranks find each other, sum small vectors and part again."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

from headway.distributed import agree_incarnation
from headway.nvrx.gloo import gloo_sockets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Group:
    """The ranks that train together until one of them fails.

    Attributes:
        rank: this process's global rank.
        world_size: number of ranks.
        incarnation: random id that all of them share.
        device: where this rank computes.
    """

    rank: int
    world_size: int
    incarnation: str
    device: torch.device

    def total(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks; every rank must call it with as many values."""
        if self.world_size == 1:
            return list(values)
        vector = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(vector)
        return [float(value) for value in vector.tolist()]

    def all_agree(self, opinion: bool) -> bool:
        """Whether every rank says yes."""
        return self.total([0.0 if opinion else 1.0])[0] == 0

    def rank_zeros(self, names: list[str]) -> list[str]:
        """The list that rank 0 holds, on every rank."""
        if self.world_size == 1:
            return names
        box = [names]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def ensure_rank_variables() -> None:
    """Give a process that no launcher started the variables of a world of one."""
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})


def join(device: torch.device, *, iteration: int, timeout_seconds: float) -> Group:
    """Meet the other ranks and agree on the incarnation.

    Args:
        device: of this rank; decides between NCCL and gloo.
        iteration: in-process restarts so far; it names keys that no earlier incarnation used (a second group on the same ones
            would hang).
        timeout_seconds: of every collective.
    """
    environ = os.environ
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    agent_hosts_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    base = TCPStore(
        environ["MASTER_ADDR"],
        int(environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0 and not agent_hosts_store,
        multi_tenant=True,
        timeout=timedelta(seconds=timeout_seconds),
    )
    store = PrefixStore(_prefix(environ, iteration, lasting=agent_hosts_store), base)
    with gloo_sockets():
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
            device_id=device if device.type == "cuda" else None,
        )
    return Group(rank, world_size, agree_incarnation(store, rank), device)


def _prefix(environ: Mapping[str, str], iteration: int, *, lasting: bool) -> str:
    """Keys of this incarnation alone, the same ones on every rank.

    The launcher's count of restarts is left out wherever it can be: each pod's launcher counts those that its own ranks asked for, and
    ranks whose pods differ in it would never meet. A store of rank 0's process is new with every launcher cycle and needs no such number.

    Args:
        environ: of this process.
        iteration: in-process restarts so far.
        lasting: the store is the launcher's own and keeps the keys of earlier cycles.
    """
    return f"{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{iteration}" if lasting else f"{iteration}"


def leave() -> None:
    """Dissolve the group at the end of the run."""
    if dist.is_initialized():
        dist.destroy_process_group()
