"""Asks many things at once, each in a process of its own, and waits for none longer than the deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Probe = Callable[[], Mapping[str, Any]]

DEADLINE_SECONDS: Final = 12.0
"""NVIDIA's driver may need some seconds to wake eight GPUs that nobody uses."""
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe found; `problem` says why there is nothing, and `hangs` that it did not answer in time."""

    facts: Mapping[str, Any] | None = None
    problem: str = ""
    hangs: bool = False


def gather(probes: Mapping[str, Probe], seconds: float = DEADLINE_SECONDS) -> dict[str, Answer]:
    """The answer of each probe. To be called while this process has one thread, for it forks."""
    children = {name: _start(probe) for name, probe in probes.items()}
    heard = {name: bytearray() for name in probes}
    deadline = clock.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for name, (_, source) in children.items():
            selector.register(source, selectors.EVENT_READ, name)
        while selector.get_map() and (left := deadline - clock.monotonic()) > 0:
            for key, _ in selector.select(left):
                data = os.read(key.fd, _CHUNK)
                heard[key.data] += data
                if not data:
                    selector.unregister(key.fd)
        late = {key.data for key in selector.get_map().values()}
    for name, (child, source) in children.items():
        os.close(source)
        _end(child, late=name in late)
    return {name: _answer(bytes(heard[name]), name in late, seconds) for name in probes}


def _start(probe: Probe) -> tuple[int, int]:
    source, sink = os.pipe()
    child = os.fork()
    if child:
        os.close(sink)
        return child, source
    try:
        os.close(source)
        with os.fdopen(sink, "wb") as pipe:
            pipe.write(_words(probe).encode())
    finally:
        os._exit(0)  # nothing of the parent's is ended a second time


def _words(probe: Probe) -> str:
    try:
        return json.dumps({"facts": probe()})
    except Exception as error:  # noqa: BLE001 - one probe's trouble is that probe's finding
        return json.dumps({"problem": f"{type(error).__name__}: {error}"})


def _end(child: int, *, late: bool) -> None:
    """A process that the kernel cannot end, deep in a driver, is left behind."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        if late:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG if late else 0)


def _answer(words: bytes, late: bool, seconds: float) -> Answer:
    if late:
        return Answer(problem=f"no answer within {seconds:g} s", hangs=True)
    try:
        told = json.loads(words)
    except ValueError:
        return Answer(problem="the process that looked died")
    return Answer(told.get("facts"), told.get("problem", ""))
