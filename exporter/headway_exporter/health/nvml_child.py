"""The process that asks NVIDIA's driver for the sidecar: a library that crashes or hangs ends this process, and nothing else.

It asks what it is told to (a line of JSON on its standard input) and answers in lines of JSON; the sidecar's end is `nvml_pipe`. Its
memory is small because it imports little. It ends with the sidecar, whatever ends that.

Commands: {"look": true, "skip": [numbers], "last": [numbers]}: all GPUs are asked, those of `last` after all others, those of `skip` not at
all; with `look` it is found out anew which there are. Answers, in this order:

    {"ready": true}                     once, before the driver is touched
    {"absent": "no NVIDIA driver"}      and the end; {"failed": "…"} likewise, for a driver that is there
    {"gpus": [[3, {"uuid": "GPU-…", "bus": "…", "model": "…", "parts": [UUIDs of MIG instances]}], …],
     "answers": [[3, {…}], …]}          `gpus` with `look`: the UUID is "" for a GPU that is lost, null for one that is not for this
                                        container; `parts` is null where they are not told; an answer is what `Driver.raw` gives, or a
                                        text: why the GPU gives none. Where some are asked last, there is a second message for them
    {"end": 0.2}                        all were asked; for how many seconds the call that waits for events has not returned

Before each question it notes the GPU and the time in a file in memory, so that it is known where the driver hung or crashed.

and at any time between them what the driver reports by itself, see `nvml_events`:

    {"xids": [[UUID, XID, count, first, first_wall, last, last_wall], …]}
    {"memory_errors": {UUID: time}}
    {"lapses": 1}                       so many times it could not be listened, and something may be missed
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health.nvml_driver import Driver, GpuLostError, NoDriverError, Plan
from headway_exporter.health.nvml_events import Listener
from headway_exporter.health.nvml_notes import NOBODY, NOTE

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_PDEATHSIG: Final = 1


def main(parent: int, notes: int) -> None:
    """Until the standard input ends; `parent` is the process to end with, `notes` the descriptor of the file for notes."""
    pipe = Pipe(_own_output())
    _end_with(parent)
    pipe.say({"ready": True})
    try:
        asker = Asker(Driver(), pipe, notes)
        gc.freeze()  # what was imported stays for good: a collection is not to walk through it again and again
        for line in sys.stdin.buffer:
            command = json.loads(line)
            asker.ask(command["look"], command["skip"], command["last"])
    except NoDriverError as reason:
        pipe.say({"absent": str(reason)})
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the sidecar is told
        pipe.say({"failed": f"{type(error).__name__}: {error}"})
    os._exit(0)  # a thread may hang in the driver


def _own_output() -> int:
    """The standard output, which nobody else may write on: what the library prints goes where errors go."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def _end_with(parent: int) -> None:
    """The kernel ends this process when the thread ends that started it, or when it was told to: never the terminal."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # who crashes again and again fills no disk
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class Pipe:
    """To the sidecar; lines stay whole."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def say(self, message: dict[str, Any]) -> None:
        """Waits until it is written."""
        with self._lock:
            self._write(message)

    def offer(self, message: dict[str, Any]) -> bool:
        """Writes a short one if that needs no waiting; whether it did."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not select.select([], [self._fd], [], 0)[1]:
                return False
            self._write(message)
        except OSError:  # the sidecar is gone, and this process will be
            return False
        finally:
            self._lock.release()
        return True

    def _write(self, message: dict[str, Any]) -> None:
        content = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while content:
            content = content[os.write(self._fd, content) :]


class _Gpu:
    """A GPU that gives a handle."""

    __slots__ = ("handle", "lost", "plan", "uuid")

    def __init__(self, handle: Any, uuid: str) -> None:
        self.handle = handle
        self.uuid = uuid
        self.plan: Plan | None = None
        self.lost = False


class Asker:
    """Asks about all GPUs, again and again."""

    def __init__(self, driver: Driver, pipe: Pipe, notes: int) -> None:
        self._driver = driver
        self._say = pipe.say
        self._notes = notes
        self._listener = Listener(driver.nvml, pipe.offer)
        self._count = 0
        self._gpus: dict[int, _Gpu] = {}

    def ask(self, look: bool, skip: Collection[int], last: Collection[int]) -> None:
        """Once."""
        if look:
            self._count = self._driver.count()
        some = [index for index in range(self._count) if index not in skip]
        self._say(self._visited([index for index in some if index not in last], look))
        if last:
            self._say(self._visited([index for index in some if index in last], look))
        self._say({"end": self._listener.silent_seconds()})

    def _visited(self, indexes: list[int], look: bool) -> dict[str, Any]:
        found = [(index, self._met(index)) for index in (indexes if look else ())]
        self._listener.listen({gpu.uuid: gpu.handle for gpu in self._gpus.values() if not gpu.lost})
        answers = [(index, self._read(index, self._gpus[index])) for index in indexes if index in self._gpus]
        self._note(NOBODY)
        return {"gpus": found, "answers": answers}

    def _note(self, index: int) -> None:
        """That this GPU is asked about now; NOBODY: about none."""
        os.pwrite(self._notes, NOTE.pack(index, clock.monotonic()), 0)

    def _met(self, index: int) -> dict[str, Any]:
        driver = self._driver
        self._note(index)
        before = self._gpus.pop(index, None)
        found = driver.handle(index)
        if found is None or not found[1]:
            return {"uuid": None if found is None else ""}
        handle, uuid = found
        gpu = self._gpus[index] = _Gpu(handle, uuid)
        gpu.lost = before is not None and before.uuid == uuid and before.lost
        try:
            bus, model = driver.name(handle)
            parts: list[str] | None = list(driver.parts(handle))
        except GpuLostError:
            bus = model = ""
            parts = None
        return {"uuid": uuid, "bus": bus, "model": model, "parts": parts}

    def _read(self, index: int, gpu: _Gpu) -> dict[str, Any] | str:
        self._note(index)
        gpu.lost = True
        try:
            if gpu.plan is None:
                gpu.plan = self._driver.plan(gpu.handle)
            raw = self._driver.raw(gpu.handle, gpu.plan)
        except GpuLostError as reason:
            return str(reason)
        gpu.lost = False
        return raw
