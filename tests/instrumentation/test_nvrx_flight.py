"""Traces of NCCL's flight recorder outlive the incarnation that they explain, and are found only where they are its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.journal import JournalReader

pytest.importorskip("nvidia_resiliency_ext")
import torch
from nvidia_resiliency_ext.inprocess.compose import Compose

from headway.environment import Identity
from headway.nvrx import inprocess
from headway.nvrx.flight import FOLDER, MOST_KEPT, FlightTraces, Trace
from headway.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "nccl_trace_rank_"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A rank's recorder, in its incarnation."""
    made = Recorder(Identity(tmp_path / "journal", "r", "0"))
    made.train_entered(incarnation="cafe", rank=2, world_size=4)
    yield made
    made.close()


def traces(folder: Path, *, dump: Any = lambda: b"ours", **environ: str) -> FlightTraces:
    """With the template that torch is told, and with what stands for NCCL's memory."""
    folder.mkdir(exist_ok=True)
    return FlightTraces({"TORCH_FR_DUMP_TEMP_FILE": str(folder / PREFIX), **environ}, lambda: dump)


def keep(made: FlightTraces, incarnation: str = "cafe", iteration: int = 0) -> list[Trace]:
    return made.keep(incarnation, 2, 1, iteration)


def test_the_watchdogs_file_is_moved_to_its_incarnation(tmp_path: Path) -> None:
    """Torch writes to one name again and again: what is moved away is not overwritten by the next time-out."""
    made = traces(tmp_path / "t")
    for incarnation in ("a", "b"):
        (tmp_path / "t" / f"{PREFIX}2").write_bytes(incarnation.encode() * 5)
        (found,) = keep(made, incarnation)
        assert (found.bytes, found.writer) == (5, "torch")
        assert found.path == tmp_path / "t" / FOLDER / incarnation / f"{PREFIX}2"
    assert [path.read_bytes() for path in sorted((tmp_path / "t" / FOLDER).rglob(f"{PREFIX}2"))] == [b"aaaaa", b"bbbbb"]


def test_a_file_of_another_time_is_left_alone(tmp_path: Path) -> None:
    """A trace of last week's run under the same name explains nothing of this abort; nor does a link to somebody's file."""
    made = traces(tmp_path / "t")
    old = tmp_path / "t" / f"{PREFIX}2"
    old.write_bytes(b"old")
    os.utime(old, (1e9, 1e9))
    (tmp_path / "t" / f"{PREFIX}3").write_bytes(b"another rank's")
    (found,) = keep(made)
    assert (found.writer, found.path.name, found.path.read_bytes()) == ("headway", f"{PREFIX}1", b"ours")
    old.unlink()
    (tmp_path / "secret").write_bytes(b"secret")
    old.symlink_to(tmp_path / "secret")
    assert [one.writer for one in keep(made, "b")] == ["headway"]
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_what_nvrx_wrote_is_kept(tmp_path: Path) -> None:
    """NVRx's own traces are named by its iteration, which begins anew in each process: they too would be overwritten."""
    made = traces(tmp_path / "t", NVRX_FR_TRACE_PATH=str(tmp_path / "nvrx"))
    (tmp_path / "nvrx" / "iter_3").mkdir(parents=True)
    (tmp_path / "nvrx" / "iter_3" / "_dump_1.json").write_text("{}")
    (found,) = keep(made, iteration=3)
    assert found == Trace(tmp_path / "nvrx" / FOLDER / "cafe" / "_dump_1.json", 2, "nvrx")
    assert found.path.is_file()


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "many"}, False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, True),
        ({"TORCH_FR_BUFFER_SIZE": "1"}, True),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "PLACE/x_"}, True),
    ],
)
def test_one_is_written_only_where_traces_are_asked_for(tmp_path: Path, environ: dict[str, str], asked: bool) -> None:
    """Newer torch versions remember collectives by default: that alone is no wish for a file at each restart."""
    given = {name: text.replace("PLACE", str(tmp_path)) for name, text in environ.items()}
    found = keep(FlightTraces({"XDG_CACHE_HOME": str(tmp_path), **given}, lambda: lambda: b"ours"))
    assert [one.path.read_bytes() for one in found] == ([b"ours"] if asked else [])
    assert bool(list(tmp_path.rglob(FOLDER))) == asked


def test_old_traces_make_room(tmp_path: Path) -> None:
    """A job that restarts a thousand times does not fill the disk with traces, and files of others beside them stay."""
    made = traces(tmp_path / "t")
    beside = tmp_path / "t" / f"{PREFIX}7"
    beside.write_bytes(b"another's")
    for number in range(3 * MOST_KEPT):
        (found,) = keep(made, f"i{number}")
        os.utime(found.path, (1e9 + number, 1e9 + number))
    left = sorted(path.parent.name for path in (tmp_path / "t" / FOLDER).rglob(f"{PREFIX}1"))
    assert left == sorted(f"i{number}" for number in range(2 * MOST_KEPT, 3 * MOST_KEPT))
    assert len(list((tmp_path / "t" / FOLDER).iterdir())) == MOST_KEPT
    assert beside.read_bytes() == b"another's"


def test_an_incarnations_name_stays_in_its_folder(tmp_path: Path) -> None:
    """An id with a path in it must not lead elsewhere."""
    (found,) = keep(traces(tmp_path / "t"), "../../../etc/x")
    assert found.path.parent.parent == tmp_path / "t" / FOLDER


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """In /tmp anybody can make the folder first, or a link in its place: nothing is written through it."""
    made = traces(tmp_path / "t")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t" / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="no folder of this user"):
        keep(made)
    assert list((tmp_path / "elsewhere").iterdir()) == []


class State:
    """The part of NVRx's state that the hook reads."""

    iteration, initial_rank, rank, active_rank = 4, 2, 1, None


def events(recorder: Recorder, kind: str) -> list[dict[str, Any]]:
    reader = JournalReader(recorder.identity.folder / f"slot-{recorder.identity.slot}.jsonl")
    try:
        return [dict(event.fields) for event in reader.poll() if event.kind == kind]
    finally:
        reader.close()


def test_the_hook_tells_of_what_it_kept(tmp_path: Path, recorder: Recorder) -> None:
    """Path and size are in the journal, after the abort is; a trace that cannot be kept costs nothing else."""
    hook = inprocess._Aborted(recorder, traces(tmp_path / "t"))
    hook(State())
    (told,) = events(recorder, "nccl_trace")
    assert told["path"].endswith(f"{FOLDER}/cafe/{PREFIX}1")
    assert (told["bytes"], told["writer"], told["iteration"]) == (4, "headway", 4)

    def broken() -> bytes:
        raise RuntimeError("no trace today")

    before = inprocess.errors
    inprocess._Aborted(recorder, traces(tmp_path / "t", dump=broken))(State())
    assert inprocess.errors == before + 1
    assert len(events(recorder, "aborted")) == 2
    assert len(events(recorder, "nccl_trace")) == 1


def test_on_cpu_nothing_is_looked_for(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NCCL a file in the template's place is not ours, and nothing is written, whatever the environment asks for."""
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / PREFIX))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    (tmp_path / f"{PREFIX}2").write_bytes(b"x")
    hooks = inprocess.hooks(recorder, abort=inprocess._Finalized(recorder))
    assert isinstance(hooks["abort"], Compose)
    assert keep(FlightTraces.of_this_process()) == []
    assert not (tmp_path / FOLDER).exists()


GLOO = """
import os, sys, torch, torch.distributed as dist
from headway.nvrx.flight import FlightTraces
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dump = lambda: bytes(torch._C._distributed_c10d._dump_fr_trace(True, False, False))
dist.destroy_process_group()
print(FlightTraces(os.environ, lambda: dump).keep("cafe", 0, 0, 0)[0].path)
"""


def test_a_trace_that_torch_made(tmp_path: Path) -> None:
    """The file holds what torch's own analyser reads: its flight recorder also watches gloo, which needs no GPU."""
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch has no flight recorder for gloo")
    environ = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / PREFIX)}
    done = subprocess.run(
        [sys.executable, "-c", GLOO], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    content = pickle.loads(Path(done.stdout.strip()).read_bytes())  # noqa: S301 - torch's own format
    assert {"version", "pg_config"} <= set(content)


@pytest.mark.gpu
def test_nccls_own_trace(tmp_path: Path) -> None:
    """On a GPU the trace of a real NCCL group names the collective that ran, after the group was aborted."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    program = GLOO.replace('"gloo"', '"nccl"').replace("torch.ones(3)", "torch.ones(3, device='cuda')")
    program = program.replace(
        "dist.destroy_process_group()",
        "dist.distributed_c10d._get_default_group()._get_backend(torch.device('cuda')).abort()",
    )
    program = program.replace("FlightTraces(os.environ, lambda: dump)", "FlightTraces.of_this_process()")
    environ = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
    environ |= {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / PREFIX)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    content = pickle.loads(Path(done.stdout.splitlines()[-1]).read_bytes())  # noqa: S301 - torch's own format
    assert any("all_reduce" in entry["profiling_name"] for entry in content["entries"])
