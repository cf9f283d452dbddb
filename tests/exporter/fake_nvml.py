"""GPUs for the tests: a real shared library in the driver's place, built with the system's compiler, and the script that it plays.

Processes load it by LD_LIBRARY_PATH, as they would the driver's; see fake_nvml.c for what a script says.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("fake_nvml.c")
COMPILER: Final = shutil.which("cc")
XID: Final = 8
MEMORY_ERROR: Final = 2
HOPPER_LINKS: Final = 18

Script = dict[str, "int | float | str"]


def uuid(gpu: int) -> str:
    """As a driver makes them."""
    return f"GPU-{gpu:08x}-1111-2222-3333-444455556666"


def hopper(gpu: int) -> Script:
    """What an H200 in good health answers."""
    fields = {3: 12, 4: 0, 5: 340, 6: 0, 82: 52, 83: 7_200_500, 94: 3, 142: 1, 143: 0, 144: 0, 145: 0, 230: 0}
    links = {38: 0, 45: 0, 52: 4, 59: 0}
    return {
        "uuid": uuid(gpu),
        "name": "NVIDIA H200",
        "pci": f"00000000:{0x1B + gpu:02X}:00.0",
        "memory_total": 150_754_820_096,
        "memory_used": 75_377_410_048,
        "utilization": 98,
        "temperature": 61,
        "power": 652_000,
        "power_limit": 700_000,
        "clock_sm": 1_980,
        "clock_memory": 3_201,
        "throttle": 0,
        "events": XID | MEMORY_ERROR,
        **{f"field.{number}.0": value for number, value in (fields | links).items()},
        **{f"link.{link}": 1 for link in range(HOPPER_LINKS)},
    }


class FakeNvml:
    """The GPUs that processes with `environ` see."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        if COMPILER is None:
            pytest.skip("no C compiler (cc) is installed")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.machine: Script = {"count": count}
        """Lines that are about no GPU."""
        self.gpus: list[Script] = [hopper(gpu) for gpu in range(count)]
        self._events = folder / "events"
        self._events.touch()
        self.play()

    @property
    def environ(self) -> dict[str, str]:
        """For processes that are to see them."""
        return {
            "LD_LIBRARY_PATH": str(_library()),
            "FAKE_NVML": str(self.folder / "script"),
            "FAKE_NVML_EVENTS": str(self._events),
        }

    def play(self) -> None:
        """From now on the driver answers what `machine` and `gpus` say."""
        lines = [f"{key} {value}\n" for key, value in self.machine.items()]
        lines += [f"{number}.{key} {value}\n" for number, gpu in enumerate(self.gpus) for key, value in gpu.items()]
        fresh = self.folder / "fresh"
        fresh.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))  # a driver may say anything
        fresh.replace(self.folder / "script")

    def change(self, gpu: int, **more: int | float | str) -> None:
        """Other answers from one GPU."""
        self.gpus[gpu].update(more)
        self.play()

    def report(self, gpu: int, data: int, times: int = 1, kind: int = XID) -> None:
        """The driver reports errors by itself."""
        with self._events.open("a") as file:
            file.write(f"{gpu} {kind} {data} {times}\n")


@cache
def _library() -> Path:
    """The folder with the library; built once in a test run's process."""
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, env=os.environ)
    return folder
