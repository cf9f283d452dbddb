"""The checkpoint writer process, from both sides: the only place that knows NVRx's internals.

All three versions (0.4.1, 0.6.0, 0.7.0) keep the same chain: `TorchAsyncCheckpoint._async_calls_queue` →
`AsyncCallsQueue.persistent_caller` → `PersistentAsyncCaller.process`, a spawned `multiprocessing` process that takes requests
from `.queue` and reports on `.comp_q`. The spawned process imports this module, so it needs no more than the standard library.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

GRACE_SECONDS: Final = 1.0
"""How long a writer has to obey SIGTERM, and then the kernel to carry out SIGKILL."""

MAX_REASON_CHARACTERS: Final = 500
PARENT_POLL_SECONDS: Final = 1.0

_watching = False


def calls_queue(target: Any) -> Any:
    """The `AsyncCallsQueue` of a `TorchAsyncCheckpoint`, or `target` itself when it is one."""
    return target if hasattr(target, "get_num_unfinalized_calls") else target._async_calls_queue


def process_of(calls: Any) -> BaseProcess | None:
    """The writer process of an `AsyncCallsQueue`; None before the first request and after the queue was closed."""
    process: BaseProcess | None = getattr(calls.persistent_caller, "process", None)
    return process


def end(calls: Any, process: BaseProcess | None, graceful_seconds: float) -> None:
    """Ends the writer in bounded time and leaves the queue so that nothing of it blocks later.

    `AsyncCallsQueue.close()` waits for ever for a writer that died or hangs, and 0.6 and 0.7 call it from `__del__` too. So an idle
    writer is asked to leave, any other is killed, and the queue is emptied and detached from it.

    Args:
        calls: the `AsyncCallsQueue`.
        process: its writer.
        graceful_seconds: how long an idle writer may take to leave by itself.
    """
    if process is not None and process.exitcode is None:
        if graceful_seconds > 0 and calls.get_num_unfinalized_calls() == 0:
            closing = threading.Thread(target=calls.close, name="headway-close-writer", daemon=True)
            closing.start()
            closing.join(graceful_seconds)
        for stop in (process.terminate, process.kill):
            if process.exitcode is None:
                stop()
                process.join(GRACE_SECONDS)
    _detach(calls)


def _detach(calls: Any) -> None:
    caller = calls.persistent_caller
    calls.async_calls.clear()
    if caller is not None:
        caller.process = None
        for pipe in (caller.queue, caller.preload_q, caller.comp_q):
            pipe.cancel_join_thread()  # else the interpreter's exit waits until somebody reads what was sent to the dead writer
            pipe.close()
    if "abort" in inspect.signature(calls.close).parameters:  # 0.6, 0.7: undo what the constructor registered globally
        calls.close(abort=True)
    calls.persistent_caller = None


def reason_file() -> Path:
    """Where a writer of this process leaves why its write failed: its exit code alone is 1 for every exception."""
    return Path(tempfile.gettempdir()) / f"headway-writer-{os.getpid()}-{secrets.token_hex(8)}"


def why_it_ended(process: BaseProcess, reason: Path) -> str:
    """A word and what is known: `write_error`, `writer_killed`, or `writer_exited` without one."""
    text = ""
    with contextlib.suppress(OSError):
        text = reason.read_text(errors="replace")[:MAX_REASON_CHARACTERS]
        reason.unlink()
    code = process.exitcode
    if text:
        return f"write_error: {text}"
    if code is not None and code < 0:
        return f"writer_killed: {signal_name(-code)}"
    return f"writer_exited: code {code}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 34` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write(reason: Path, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs in the writer process: the user's write, with its failure put on record and the trainer's death noticed."""
    _end_with_parent()
    try:
        return function(*args, **kwargs)
    except Exception as error:
        _leave_reason(reason, error)
        raise


def _leave_reason(reason: Path, error: Exception) -> None:
    """Best effort: a full disk, the likeliest reason of all, can keep it from being written."""
    with contextlib.suppress(OSError):
        fd = os.open(reason, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS])


def _end_with_parent() -> None:
    """An orphaned writer waits for requests for ever, with torch in its memory: one more after every restart by the launcher."""
    global _watching
    parent = multiprocessing.parent_process()
    if _watching or parent is None:
        return
    _watching = True
    threading.Thread(target=_watch_parent, args=(parent, os.getppid()), name="headway-parent", daemon=True).start()


def _watch_parent(parent: BaseProcess, pid: int) -> None:
    """Two signs, either is enough: adoption by another process, and the end of the pipe that the trainer keeps open.

    The pipe alone can be held open by forked children of the trainer; the parent's pid alone says nothing if the trainer died before
    the first save.
    """
    while os.getppid() == pid and parent.is_alive():
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
