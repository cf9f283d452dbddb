"""Ranks that meet in a process group, as launchers of several pods start them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from headway_trainer.demo import runner

MEET: Final = """
import torch
from headway_trainer import group
for iteration in range(2):
    one = group.join(torch.device("cpu"), iteration=iteration, timeout_seconds=20)
    print(one.incarnation, one.total([one.rank]))
    group.leave()
"""


def test_ranks_meet_whatever_their_launchers_counted() -> None:
    """Each pod's launcher counts the restarts that its own ranks asked for; ranks that differ in it are of one group all the same."""
    port, found = runner.free_ports(), []
    for rank in range(2):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(rank),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        command = [sys.executable, "-W", "ignore", "-c", MEET]
        found.append(subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True))
    words = [process.communicate(timeout=120)[0] for process in found]
    assert [process.returncode for process in found] == [0, 0]
    assert words[0] == words[1]
    first, second = words[0].splitlines()
    assert first != second
    assert first.endswith("[1.0]")
