"""Readers of GPUs for the tests; see nvml_reader.py."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READER: Final = Path(__file__).with_name("nvml_reader.py")


class Reader:
    """A process that reads when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.samples: dict[tuple[str, ...], float] = {}
        """What a scrape would show: by the metric's name without `headway_`, the GPU's UUID, and further labels."""
        self.shown: list[tuple[str, tuple[str, ...], float]] = []
        """The same as the collectors have it."""
        self.labels: dict[str, tuple[str, ...]] = {}
        """Those that tell GPUs apart, by UUID."""
        self.told: list[dict[str, Any]] = []
        """All that the fold would have been told."""

    def do(self, command: str = "read") -> list[dict[str, Any]]:
        """Gives a command; what the fold is told with it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.samples = {}
        self.shown = [(name, tuple(labels), value) for name, labels, value in answer["samples"]]
        for name, labels, value in self.shown:
            gpu = name.startswith("headway_gpu_")
            own = labels[4:] if gpu else labels
            if gpu:
                self.labels[labels[1]] = labels[:4]
            self.samples[(name.removeprefix("headway_"), *([labels[1]] if gpu else []), *own)] = value
        found: list[dict[str, Any]] = answer["told"]
        self.told += found
        return found

    def until(self, condition: Callable[[], object], command: str = "show") -> None:
        """Gives a command again and again until something holds."""
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, (self.samples, self.told)
            self.do(command)
            time.sleep(0.01)

    def happened(self, kind: str) -> list[dict[str, Any]]:
        """What was told of one kind."""
        return [seen for seen in self.told if seen.get("kind") == kind]


@contextlib.contextmanager
def reader(environ: dict[str, str], look_seconds: float = 60.0) -> Iterator[Reader]:
    """Starts one."""
    command = [sys.executable, str(READER), str(look_seconds)]
    with subprocess.Popen(
        command,
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()
