"""The texts here were raised by torch 2.13 with gloo, or are quoted from NCCL's and CUDA's errors."""

from __future__ import annotations

import copy
import errno
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway import exceptions

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
COLLECTIVE_TEXTS = [
    f"{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:12480. This is typically caused by a remote worker crashing.",
    f"{GLOO}/pair.cc:537] Read error [127.0.0.1]:17829: Connection reset by peer. This is typically caused by a remote worker",
    f"{GLOO}/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
    "Application timeout caused pair closure",
    "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
    "wait timeout after 1000ms, keys: /default_pg/0/store_based_barrier_key",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=60000)",
    "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.27.5",
    "NCCL communicator was aborted on rank 3.",
]


class TwoArguments(Exception):  # noqa: N818 - as users name them
    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


def named(name: str, base: type[BaseException] = RuntimeError) -> type[BaseException]:
    """A class as another library would define it."""
    return type(name, (base,), {"__module__": "torch"})


CATEGORIES: list[tuple[BaseException, str | None]] = [
    (FloatingPointError("loss is nan"), "numeric_nan"),
    (named("NonFiniteLossError")("step 3"), "numeric_nan"),
    (named("NaNLossError")("step 3"), "numeric_nan"),
    (named("Finance")("a name that only looks like it"), None),
    (named("OutOfMemoryError")("CUDA out of memory. Tried to allocate 20.00 MiB."), "cuda_oom"),
    (RuntimeError("CUDA error: out of memory"), "cuda_oom"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "illegal_access"),
    (RuntimeError("CUDA error: device-side assert triggered"), "illegal_access"),
    (MemoryError(), "host_oom"),
    (OSError(errno.ENOSPC, "No space left on device"), "storage_io"),
    (OSError(errno.EIO, "Input/output error"), "storage_io"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "storage_io"),
    (OSError(errno.ESTALE, "Stale file handle"), "storage_io"),
    (OSError(errno.EROFS, "Read-only file system"), "storage_io"),
    (FileNotFoundError(errno.ENOENT, "No such file"), None),
    (named("CorruptCheckpointError")("shard 1"), "checkpoint_corrupt"),
    (named("CheckpointWriteError")("shard 1"), "checkpoint_write"),
    (named("ConfigError", ValueError)("--steps"), "config_error"),
    (ValueError("x"), None),
    (KeyboardInterrupt(), None),
]


@pytest.mark.parametrize(("error", "category"), CATEGORIES, ids=lambda value: repr(value)[:40])
def test_an_exception_that_tells_its_cause_is_categorized(error: BaseException, category: str | None) -> None:
    """Only what the exception itself says becomes a cause, and a known cause is no echo of another rank."""
    assert exceptions.classify(error) == (category, False)


@pytest.mark.parametrize("text", COLLECTIVE_TEXTS, ids=lambda text: text[-30:])
def test_a_broken_collective_is_recognized_by_its_text(text: str) -> None:
    """What a peer of the failed rank sees is marked as a probable echo, though no frame of torch is in its traceback."""
    assert exceptions.classify(RuntimeError(text)) == (None, True)


@pytest.mark.parametrize("name", ["DistBackendError", "DistNetworkError", "DistStoreError"])
def test_a_broken_collective_is_recognized_by_its_class(name: str) -> None:
    """The classes that torch has for a broken connection count whatever their text."""
    assert exceptions.classify(named(name)("anything")) == (None, True)


def test_nvrxs_restart_is_an_echo() -> None:
    """The exception that NVRx injects into every other rank says nothing of this one."""
    base = named("RankShouldRestart", BaseException)
    assert exceptions.classify(type("RankShouldRestart", (base,), {})()) == (None, True)


def test_a_connection_of_the_users_own_is_no_collective() -> None:
    """A data loader whose storage hung up is this rank's own trouble."""
    assert exceptions.classify(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")) == (None, False)


def test_the_cause_behind_an_exception_counts() -> None:
    """A wrapper exception does not hide what it was raised from; an unrelated context that was suppressed does not count."""
    outer = RuntimeError("training failed")
    outer.__cause__ = RuntimeError(COLLECTIVE_TEXTS[0])
    assert exceptions.classify(outer) == (None, True)
    outer.__cause__ = MemoryError()
    assert exceptions.classify(outer) == ("host_oom", False)
    quiet = ValueError("x")
    quiet.__context__ = MemoryError()
    quiet.__suppress_context__ = True
    assert exceptions.classify(quiet) == (None, False)
    circular = ValueError("x")
    circular.__cause__ = RuntimeError("y")
    circular.__cause__.__cause__ = circular
    assert exceptions.classify(circular) == (None, False)


def run_in(path: Path, source: str, **names: Any) -> Any:
    """Runs source code that lies, for its frames, in the given file."""
    space = {"__name__": "x", **names}
    exec(compile(source, str(path), "exec"), space)  # noqa: S102 - only so can a frame lie in torch
    return space


def test_the_traceback_tells_a_collective_from_user_code_under_one() -> None:
    """An error out of torch.distributed is a collective's; one raised in the user's model inside an FSDP wrapper is not."""
    torch = Path("/venv/lib/python3.11/site-packages/torch")
    inside = run_in(torch / "distributed/distributed_c10d.py", "def all_reduce():\n    raise RuntimeError('odd')")
    wrapper = run_in(torch / "distributed/fsdp/wrap.py", "def forward(inner):\n    inner()")
    user = run_in(Path("/home/me/model.py"), "def layer():\n    raise RuntimeError('odd')")
    wrong = run_in(torch / "distributed/distributed_c10d.py", "def all_reduce():\n    raise TypeError('odd')")
    launcher = run_in(torch / "distributed/elastic/errors.py", "def main(inner):\n    inner()")

    def classified(call: Any, *args: Any) -> tuple[str | None, bool]:
        with pytest.raises(Exception, match="odd") as caught:
            call(*args)
        return exceptions.classify(caught.value)

    assert classified(inside["all_reduce"]) == (None, True)
    assert classified(wrapper["forward"], user["layer"]) == (None, False)
    assert classified(wrong["all_reduce"]) == (None, False)
    assert classified(launcher["main"], user["layer"]) == (None, False)


def test_a_plain_error_can_be_copied_and_keeps_the_text() -> None:
    """NVRx deep-copies exceptions: the stand-in survives that and pickling, and still says what happened."""
    error = TwoArguments("overflow", "layer 3")
    assert not exceptions.can_be_copied(error)
    stand_in = exceptions.plain(error)
    assert exceptions.can_be_copied(stand_in)
    for twin in (copy.deepcopy(stand_in), pickle.loads(pickle.dumps(stand_in))):  # noqa: S301 - our own
        assert str(twin).endswith("TwoArguments: overflow at layer 3")


def test_an_exception_that_cannot_even_be_printed_is_described() -> None:
    """A broken __str__ does not break the recording of the fault, and a novel is cut."""

    class Broken(Exception):  # noqa: N818 - as users name them
        def __str__(self) -> str:
            raise ValueError("no")

    assert exceptions.classify(Broken()) == (None, False)
    assert "cannot be read" in exceptions.message(Broken())
    assert len(exceptions.message(ValueError("x" * 10**6))) == 4_096


def test_the_traceback_tail_is_short_and_needs_no_source() -> None:
    """Innermost frame last, bounded, and without reading source files, which may lie on the storage that just broke."""

    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError(level)

    with pytest.raises(ValueError, match="0") as caught:
        deep(50)
    lines = exceptions.traceback_tail(caught.value).splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("deep (")
    assert lines[-1].endswith(f"{Path(__file__).name}:{caught.traceback[-1].lineno + 1})")


PEER = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
from headway import exceptions
rank, how, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=2))
tensor = torch.ones(2)
dist.all_reduce(tensor)
if rank == 1:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
    os._exit(0)
try:
    dist.all_reduce(tensor, async_op=True).wait() if how == "killed" else dist.all_reduce(tensor)
except RuntimeError as error:
    print(exceptions.classify(error), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_what_gloo_really_raises_is_an_echo(tmp_path: Path, how: str) -> None:
    """The peer of a rank that was killed, or that hangs beyond the time-out, reports a collective and no cause."""
    pytest.importorskip("torch", reason="needs torch")
    arguments = [sys.executable, "-W", "ignore", "-c", PEER]
    with (
        subprocess.Popen([*arguments, "1", how, str(tmp_path)], stdin=subprocess.PIPE) as other,
        subprocess.Popen([*arguments, "0", how, str(tmp_path)], stdout=subprocess.PIPE, text=True) as peer,
    ):
        told, _ = peer.communicate(timeout=120)
        other.kill()
    assert told.strip() == "(None, True)"
