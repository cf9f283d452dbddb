"""What the sidecar's memory costs: taking a snapshot, its size on disk, reading it back. `python tests/benchmarks/bench_state.py`.

The pod is one after months: eight ranks whose step curves are full, and as many incidents as are kept.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "exporter"))

from incident_tale import Tale

from headway_exporter.memory import encoder, recall
from headway_exporter.pod import Pod
from headway_exporter.state_files import Ledger, read_ledger, write_ledger

RANKS = 8
INCIDENTS = 200
STEPS = 5_000
ROUNDS = 9


def old_pod() -> Pod:
    """Full of everything that is bounded."""
    tale, step = Tale(RANKS), 10
    for number in range(INCIDENTS):
        acts = f"fail {number % RANKS}, kill {(number + 1) % RANKS}, launcher {step}, steps {step + 1}-{step + 20}"
        tale.tell(f"{acts}, commit {step + 20}")
        step += 20
    tale.tell(f"steps {step + 1}-{step + STEPS}")
    return tale.pod


def main() -> None:
    """Prints the table."""
    pod = old_pod()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    using, seconds = encoder(), []
    for _ in range(ROUNDS):
        began = time.thread_time()
        document = using.encode(pod)
        seconds.append(time.thread_time() - began)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.json"
        began = time.thread_time()
        write_ledger(path, Ledger("bench", "0", "1", 0.0, {"fold": document}))
        writing = time.thread_time() - began
        size = path.stat().st_size
        began = time.thread_time()
        recall(Pod("bench", "0"), read_ledger(path).body["fold"])
        reading = time.thread_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{RANKS} ranks with full curves, {len(pod.failures.incidents)} incidents, {len(document['objects'])} objects"
    )
    print(f"snapshot, first          {seconds[0] * 1e3:8.1f} ms of processor time")
    print(f"snapshot, from then on   {sorted(seconds[1:])[len(seconds) // 2 - 1] * 1e3:8.1f} ms")
    print(f"writing it (own thread)  {writing * 1e3:8.1f} ms")
    print(f"reading it at a start    {reading * 1e3:8.1f} ms")
    print(f"ledger on disk           {size / 1e6:8.2f} MB")
    print(f"memory at its peak       {(peak - before) / 1e3:8.1f} MB more than the pod alone ({before / 1e3:.0f} MB)")


if __name__ == "__main__":
    main()
