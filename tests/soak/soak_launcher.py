"""A launcher for the soak: starts the ranks, and when one dies kills the others and starts all anew, for ever.

Arguments: how many ranks, then what `soak_trainer.py` wants. Ends with 0 once all ranks ended in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def main(ranks: int, arguments: list[str]) -> int:
    """Restarts until nobody dies."""
    cycle = 0
    while True:
        workers = [start(rank, ranks, cycle, arguments) for rank in range(ranks)]
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() not in (None, 0) for worker in workers):
                break
            time.sleep(0.01)
        for worker in workers:
            worker.kill()
        codes = [worker.wait() for worker in workers]
        if not any(codes):
            return 0
        cycle += 1


def start(rank: int, ranks: int, cycle: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """One rank; its pid goes where the soak looks for somebody to kill."""
    environ = {
        "LOCAL_RANK": str(rank),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RESTART_COUNT": str(cycle),
    }
    trainer = Path(__file__).with_name("soak_trainer.py")
    worker = subprocess.Popen([sys.executable, str(trainer), *arguments], env=os.environ | environ)
    (Path(arguments[0]) / f"rank-{rank}.pid").write_text(str(worker.pid))
    return worker


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
