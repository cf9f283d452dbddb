"""What `headway incidents` costs on 100,000 records of 100 runs, beside what merely parsing every line with `json` takes.

Processor time, which a shared machine disturbs least. A listing parses lines only as far as the question needs; what it makes of them
must not cost much more than that saves. Exits with 1 when it does.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.listing.cli import main as incidents
from headway_exporter.state_files import RECORDS, pod_folder

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS: Final = 100
INCIDENTS: Final = 1_000
RATIO: Final = "  / json.loads"
MOST_RATIO: Final = 1.5
TRACEBACK: Final = "".join(
    f"model.py:{line} in forward\n    x = self.layers[{line}](x, mask=mask)\n" for line in range(12)
)


def main() -> int:
    """Prints the figures; 1 when the bound does not hold."""
    memory = Path("/dev/shm")  # so that no disk is measured
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        state = Path(folder)
        size = sum(_write(state, number) for number in range(RUNS))
        parsing = _seconds(lambda: _parse(state))
        rows = [
            ("records", float(RUNS * INCIDENTS), ""),
            ("size", size / 1e6, "MB"),
            ("json.loads of every line", parsing, "s"),
            ("newest 50", newest := _seconds(lambda: _list(state)), "s"),
            (RATIO, newest / parsing, ""),
            (
                "one cause on some nodes",
                _seconds(lambda: _list(state, "--cause", "cuda_oom", "--node", "node-1*")),
                "s",
            ),
            ("a word of one record in 20", _seconds(lambda: _list(state, "node-7")), "s"),
            ("by configuration", _seconds(lambda: _list(state, "--setting", "heartbeat_rank_seconds<60")), "s"),
        ]
    for name, figure, unit in rows:
        print(f"{name:<28}{figure:10.2f} {unit:<3}" + (f"at most {MOST_RATIO:g}" if name == RATIO else ""))
    return int(newest / parsing > MOST_RATIO)


def _list(state: Path, *options: str) -> None:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        if incidents([str(state), *options]) or not out.getvalue():
            sys.exit("nothing was listed")


def _parse(state: Path) -> None:
    for path in state.glob(f"*/*/{RECORDS}"):
        for line in path.read_bytes().splitlines():
            json.loads(line)


def _seconds(act: Callable[[], None]) -> float:
    begin = time.process_time()
    act()
    return time.process_time() - begin


def _write(state: Path, run: int) -> int:
    folder = pod_folder(state, f"run-{run}", "0")
    folder.mkdir(parents=True)
    lines = [json.dumps(_record(run, number), separators=(",", ":")) for number in range(INCIDENTS)]
    return (folder / RECORDS).write_text("\n".join(lines) + "\n")


def _record(run: int, number: int) -> dict[str, Any]:
    wall = 1.8e9 + 3_600 * number + run
    cause = ("process_killed", "app_exception", "cuda_oom", "heartbeat_timeout")[number % 4]
    told = {
        "opened_wall": wall,
        "layer": "launcher",
        "cause": cause,
        "confidence": "confirmed",
        "origin_rank": number % 64,
    }
    phases = {
        "detect": 1.2,
        "teardown": 0.1,
        "respawn": 3.4,
        "rendezvous": 0.3,
        "init": 1.5,
        "load": 0.2,
        "first_step": 0.1,
    }
    one = told | {"alternatives": [], "restarted_wall": wall + 4, "loaded_step": 100, "phases": phases}
    recovery = told | {"attempts": 1, "tip_step": 119, "mark_step": 119, "loaded_step": 100, "rejected_steps": []}
    recovery |= {"steps_lost": 19, "first_step_wall": wall + 8, "high_water_wall": wall + 12, "replay_check": "valid"}
    seen = {
        "kind": "exception",
        "wall": wall,
        "slot": 1,
        "rank": 1,
        "text": "rank 1: RuntimeError: CUDA error",
        "exit_code": None,
    }
    return {
        "v": 1, "kind": "incident", "run": f"run-{run}", "pod_index": "0", "id": f"{run:08x}{number:08x}", "revision": 0,
        "written_wall": wall + 60, "outcome": "recovered", "state": "recovered", "recurring": [], "opened_wall": wall,
        "closed_wall": wall + 50, "layer": "launcher", "escalated": False, "attempts": 1, "cause": cause,
        "confidence": "confirmed", "alternatives": ["host_oom"],
        "origin": {"rank": number % 64, "pod_index": "0", "node": f"node-{number % 20}", "gpu_uuid": f"GPU-{number:032x}"},
        "decided_by": "verdict", "ambiguous": False, "mark_step": 119, "durable_step": 100, "loads": {"100": 1},
        "world_size": 64, "pods_expected": 8, "node": "n1", "versions": {"torch": "2.13.0", "nvrx": "0.4.1"},
        "settings": {"heartbeat_rank_seconds": 8.0, "total_steps": 1_000} | {f"option_{name}": name for name in range(20)},
        "evidence": [seen | {"signature": "RuntimeError", "traceback": TRACEBACK}],
        "recoveries": [recovery | {"tries": [one]}],
        "lost_rank_seconds": {"detect": 2.4, "restart": 11.0, "checkpoint_load": 0.2, "replay": 8.0}, "trace_id": "a" * 32,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
