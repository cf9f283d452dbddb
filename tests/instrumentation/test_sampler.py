from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Recorder, frames, process, sampler
from headway.environment import Identity
from headway.journal import JournalReader
from headway.process import ContainerMemory

if TYPE_CHECKING:
    from pathlib import Path


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


V1 = {
    "memory/kubepods/pod1/memory.usage_in_bytes": "500\n",
    "memory/kubepods/pod1/memory.limit_in_bytes": "2000\n",
    "memory/kubepods/pod1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory/kubepods/pod1/memory.stat": "cache 400\ninactive_file 1\ntotal_inactive_file 150\n",
    "memory/memory.usage_in_bytes": "9000\n",
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
}
V2 = {
    "pod1/box/memory.current": "500\n",
    "pod1/box/memory.max": "2000\n",
    "pod1/box/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n",
    "pod1/box/memory.stat": "anon 100\nfile 400\ninactive_anon 7\ninactive_file 150\nactive_file 250\n",
    "pod1/memory.current": "700\n",
    "pod1/memory.max": "4000\n",
    "pod1/memory.events": "oom_kill 5\n",
}


@pytest.mark.parametrize(
    ("files", "membership", "wanted"),
    [
        (V2, "0::/pod1/box\n", ContainerMemory(2000, 500, 3, 150)),
        ({**V2, "pod1/box/memory.max": "max\n"}, "0::/pod1/box\n", ContainerMemory(4000, 700, 5)),
        (
            {**V2, "pod1/box/memory.max": "max", "pod1/memory.max": "max"},
            "0::/pod1/box\n",
            ContainerMemory(None, 500, 3, 150),
        ),
        (V2, "0::/pod1/box/gone\n", ContainerMemory(2000, 500, 3, 150)),
        (
            {"memory.current": "500", "memory.max": "2000", "memory.events": "oom_kill 0"},
            "0::/\n",
            ContainerMemory(2000, 500, 0),
        ),
        (
            {"memory.current": "500", "memory.max": "2000"},
            "0::/host/only/path\n",
            ContainerMemory(2000, 500, None),
        ),
        (V1, "7:cpu:/x\n4:memory:/kubepods/pod1\n0::/\n", ContainerMemory(2000, 500, 3, 150)),
        (V1, "4:hugetlb,memory:/elsewhere\n", ContainerMemory(None, 9000, None)),
        (V2, "0::/../pod1/./box\n", ContainerMemory(2000, 500, 3, 150)),
        ({}, "0::/pod1\n", ContainerMemory()),
        (V2, "rubbish\n\n::\n", ContainerMemory()),
        ({"memory.current": "-1", "memory.max": "x"}, "0::/\n", ContainerMemory()),
        (
            {
                **V1,
                "memory/kubepods/pod1/box/memory.usage_in_bytes": "300",
                "memory/kubepods/pod1/box/memory.limit_in_bytes": "9223372036854771712",
                "memory/kubepods/pod1/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
            },
            "4:memory:/kubepods/pod1/box\n",
            ContainerMemory(2000, 500, 7, 150),  # v1 counts in the killed process's own group alone
        ),
        ({"memory.current": "500", "memory.max": "9" * 5_000}, "0::/\n", ContainerMemory(None, 500)),
        ({"memory.current": "5\0", "memory.max": "7"}, "0::/\n", ContainerMemory()),
        ({"memory.current": "5", "memory.max": "7"}, "0::/a\0b\n", ContainerMemory(7, 5)),
    ],
)
def test_container_memory_under_both_cgroup_versions(
    tmp_path: Path, files: dict[str, str], membership: str, wanted: ContainerMemory
) -> None:
    """The limit that binds, with the use and the OOM kills of the same group, inside and outside of a namespace."""
    (tmp_path / "membership").write_text(membership)
    assert process.container_memory(tree(tmp_path / "cgroup", files), tmp_path / "membership") == wanted


LINES = st.lists(
    st.builds(
        "{} {}".format,
        st.sampled_from(["oom", "oom_kill", "oom_kill_disable", "inactive_file", "total_inactive_file", ""]),
        st.integers(-1, 1 << 70).map(str) | st.sampled_from(["max", "1e9", "", "0x10"]) | st.text(max_size=5),
    ),
    max_size=6,
).map("\n".join)
NUMBERS = st.integers(-5, 1 << 70).map("{}\n".format) | st.just("max\n") | st.text(max_size=30)


@given(NUMBERS, NUMBERS, LINES, LINES)
def test_whatever_the_files_of_a_group_say(used: str, most: str, kills: str, statistics: str) -> None:
    """Nothing of it raises, what is told is a number of 64 bits, and without a use there is no group."""
    for parse in (process.parse_v1, process.parse_v2):
        found = parse(used, most, kills, statistics)
        told = [] if found is None else [found.limit_bytes, found.used_bytes, found.oom_kills, found.cache_bytes]
        assert all(number is None or 0 <= number < 10**20 for number in told)
        assert (found is None) == (
            not (used.strip().isascii() and used.strip().isdecimal() and len(used.strip()) <= 20)
        )


GROUPS = st.builds(
    ContainerMemory, st.none() | st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9), st.none()
)


@given(st.lists(GROUPS, max_size=5))
def test_the_group_that_binds(groups: list[ContainerMemory]) -> None:
    """The innermost limit, with that group's use; no limit, the process's own group; no kill of the groups up to there is missed."""
    found = process.binding(groups)
    limited = next((number for number, group in enumerate(groups) if group.limit_bytes is not None), None)
    chosen = groups[limited or 0] if groups else ContainerMemory()
    assert (found.limit_bytes, found.used_bytes) == (chosen.limit_bytes, chosen.used_bytes)
    counts = [group.oom_kills or 0 for group in groups[: (limited or 0) + 1]]
    assert (found.oom_kills or 0) == max(counts, default=0)


@pytest.mark.parametrize("what", ["pipe", "endless", "huge", "folder", "loop"])
def test_a_group_whose_files_are_none(tmp_path: Path, what: str) -> None:
    """A sample neither waits for ever nor fills the memory, and the group's other files are still used."""
    root = tree(tmp_path / "cgroup", {"memory.current": "500", "memory.max": "2000"})
    (tmp_path / "membership").write_text("0::/\n")
    events = root / "memory.events"
    if what == "pipe":
        os.mkfifo(events)
    elif what == "endless":
        events.symlink_to("/dev/zero")
    elif what == "huge":
        with events.open("w") as file:
            file.write("oom_kill 4\n")
            file.truncate(1 << 40)
    elif what == "folder":
        events.mkdir()
    else:
        events.symlink_to(events.name)
    wanted = ContainerMemory(2000, 500, 4 if what == "huge" else None)
    assert process.container_memory(root, tmp_path / "membership") == wanted


def test_a_group_that_goes_while_it_is_read(tmp_path: Path) -> None:
    """Files come and go between two of their reads: what is told is either whole or nothing, and never an error."""
    membership = tmp_path / "membership"
    membership.write_text("0::/box\n")
    root, stop = tmp_path / "cgroup", threading.Event()
    tree(root, {"memory.current": "900", "memory.max": "9000"})

    def come_and_go() -> None:
        while not stop.is_set():
            tree(root, {"box/memory.max": "2000", "box/memory.current": "500"})
            (root / "box/memory.current").unlink()
            (root / "box/memory.max").unlink()
            (root / "box").rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        found = [process.container_memory(root, membership) for _ in range(3_000)]
    finally:
        stop.set()
        thread.join()
    assert {(one.used_bytes, one.limit_bytes) for one in found} <= {(500, 2000), (900, 9000)}


def test_memory_of_this_process_and_of_another() -> None:
    """Resident memory is read for any living process and is unknown for a dead one."""
    own = process.resident_bytes()
    assert own is not None
    assert own > 1_000_000
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert (process.resident_bytes(child.pid) or 0) > 0
        child.communicate(b"\n")
    assert process.resident_bytes(child.pid) is None


def test_open_files_are_counted(tmp_path: Path) -> None:
    """One more file is one more."""
    before = process.open_files()
    assert before is not None
    with (tmp_path / "x").open("w"):
        assert process.open_files() == before + 1
    assert process.open_files(tmp_path) is None


GPUS = {
    "0000:1b:00.0/information": "Model: \t\t H200\nIRQ:   \t\t 24\nGPU UUID: \t GPU-aaaa\nBus Type: \t PCIe\n",
    "0000:43:00.0/information": "Model: \t\t H200\nGPU UUID: \t GPU-bbbb\n",
}


@pytest.mark.parametrize(
    ("visible", "slot", "wanted"),
    [
        (None, 0, "GPU-aaaa"),
        (None, 1, "GPU-bbbb"),
        (None, 2, None),
        ("1,0", 0, "GPU-bbbb"),
        ("GPU-cccc, GPU-dddd", 1, "GPU-dddd"),
        ("MIG-eeee", 0, "MIG-eeee"),
        ("0", 1, None),
        ("-1", 0, None),
    ],
)
def test_the_gpu_of_a_rank_is_named_without_a_driver_library(
    tmp_path: Path, visible: str | None, slot: int, wanted: str | None
) -> None:
    """Ranks are joined to GPUs by UUID, as CUDA_VISIBLE_DEVICES deals them out; without GPUs there is none."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert process.gpu_uuid(environ, slot, tree(tmp_path / "gpus", GPUS)) == wanted
    assert process.gpu_uuid({}, slot, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, 5.0), ("0.5", 0.5), ("0", 0.0), ("-1", 5.0), ("nan", 5.0), ("inf", 5.0), ("often", 5.0), ("1e-9", 0.02)],
)
def test_the_interval_is_sane_whatever_is_set(text: str | None, seconds: float) -> None:
    """A bad value never stops sampling or makes it spin; 0 turns it off."""
    environ = {} if text is None else {"HEADWAY_SAMPLE_SECONDS": text}
    assert sampler.interval_seconds(Identity.from_env(environ).sample_seconds) == seconds


def samples(folder: Path, wanted: int) -> list[dict[str, Any]]:
    """Fields of the first samples, as soon as there are enough."""
    reader = JournalReader(folder / "slot-0.jsonl")
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while len(found) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        found += [dict(event.fields) for event in reader.poll() if event.kind == "sample"]
    reader.close()
    return found


def start(folder: Path) -> Recorder:
    return Recorder.from_env(
        environ={"HEADWAY_DIR": str(folder), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0.02"}
    )


def test_samples_tell_where_the_process_is(tmp_path: Path) -> None:
    """Memory, files, the writer's memory, the last step and the main thread's place come again and again until the end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        recorder = start(tmp_path)
        with recorder.step(7):
            pass
        recorder.phase_gap("eval", 1.5)
        recorder.queue(depth=1, oldest_wall=None, writer_alive=True, writer_pid=writer.pid)
        *_, last = samples(tmp_path / "run", 4)
        writer.communicate(b"\n")
    assert last["rss_bytes"] > 0
    assert last["writer_rss_bytes"] > 0
    assert last["open_files"] > 0
    assert last["step"] == 7
    assert last["phase_gaps"] == {"eval": 1.5}
    assert last["dropped"] == 0
    assert last["at"].startswith("samples (")
    assert last["collective"] is False
    recorder.close()
    before = (tmp_path / "run" / "slot-0.jsonl").stat().st_size
    for thread in threading.enumerate():
        if thread.name == "headway-sampler":
            thread.join(10)
    assert (tmp_path / "run" / "slot-0.jsonl").stat().st_size == before
    assert "headway-sampler" not in {thread.name for thread in threading.enumerate()}


def test_a_main_thread_in_a_collective_is_seen() -> None:
    """A rank that waits in torch.distributed is told from one that hangs in its own code, though the stack is deep."""
    stop = threading.Event()
    code = compile(
        "def all_reduce(wait):\n    wait()", "/v/site-packages/torch/distributed/distributed_c10d.py", "exec"
    )
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - only so can a frame lie in another file
    found: list[dict[str, Any]] = []

    def look() -> None:
        found.append(sampler.main_thread())
        stop.set()

    threading.Timer(0.05, look).start()
    space["all_reduce"](stop.wait)
    stop.clear()
    threading.Timer(0.05, look).start()
    stop.wait()
    assert [sample["collective"] for sample in found] == [True, False]


def test_our_own_frames_are_not_where_the_user_is() -> None:
    """A wrapper of ours that waits on the user's behalf is skipped when looking for the innermost frame."""
    code = compile("import sys\ndef wrapper():\n    return sys._getframe()", process.__file__, "exec")
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - only so can a frame lie in another file
    places = list(frames.outside_headway(frames.stack(space["wrapper"]())))
    assert places[0][0].co_name == "test_our_own_frames_are_not_where_the_user_is"


def test_the_sampler_does_not_keep_a_process_alive(tmp_path: Path) -> None:
    """A program that ends while samples are taken, ends."""
    code = "from headway import Recorder; Recorder.from_env()"
    environ = os.environ | {"HEADWAY_DIR": str(tmp_path), "HEADWAY_RUN": "run", "HEADWAY_SAMPLE_SECONDS": "0.02"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, check=False, timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interval_beyond_what_a_thread_can_wait() -> None:
    """A very long one is as good as none, and must not end the thread with a traceback."""
    seconds = sampler.interval_seconds(1e300)
    assert seconds <= threading.TIMEOUT_MAX
