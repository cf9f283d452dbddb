"""The trainer's container by its processes' samples: memory, and the kernel's word on who was killed for lack of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_folder import RUN, finish, launcher, trainer
from pod_story import Story
from sidecar_process import sidecar

from headway import process, sampler
from headway.events import Event
from headway.journal import JournalWriter
from headway_exporter import memory
from headway_exporter.health import cgroups
from headway_exporter.pod import Pod
from headway_exporter.state_files import LEDGER, read_ledger

if TYPE_CHECKING:
    from pathlib import Path

KILLS = "headway_host_oom_kills_total"
V1_MEMBERSHIP = "4:memory:/kubepods/pod1\n0::/\n"


def shown(pod: Pod) -> dict[tuple[str, ...], Any]:
    """What there is to show of the container."""
    return {(name, *labels): value for name, labels, value in cgroups.samples(pod) if value is not None}


def test_cache_is_no_memory_in_use() -> None:
    """A large save fills the container with pages that the kernel takes back when it needs them: no reason for an alarm."""
    story = Story()
    end = story.running()
    told = {"cgroup_used_bytes": 99, "cgroup_limit_bytes": 100, "cgroup_cache_bytes": 60}
    story.event(0, "sample", end, rss_bytes=10, open_files=7, **told)
    story.event(1, "sample", end, rss_bytes=5, open_files=9, **told)
    assert shown(story.pod) == {
        (KILLS,): 0,
        ("headway_host_memory_used_bytes", "container"): 39,
        ("headway_host_memory_limit_bytes", "container"): 100,
        ("headway_host_trainer_memory_bytes",): 15,
        ("headway_host_open_files",): 9,
    }


def test_an_older_recorders_samples_are_used_too() -> None:
    """Without a word on the cache, and without a limit."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, cgroup_used_bytes=99)
    assert shown(story.pod) == {(KILLS,): 0, ("headway_host_memory_used_bytes", "container"): 99}


def test_the_dead_use_nothing() -> None:
    """What a process said before its death is not shown as if it were so now; nor is the former container's limit the new one's."""
    story = Story()
    end = story.running(slots=(0,))
    story.event(0, "sample", end, rss_bytes=10, open_files=7, cgroup_used_bytes=1, cgroup_limit_bytes=2)
    story.die(0, end + 1)
    assert shown(story.pod) == {(KILLS,): 0}
    story.start(end + 20, 0, attempt=1)
    assert shown(story.pod) == {(KILLS,): 0}


@pytest.mark.parametrize(
    ("before", "after", "kills"), [(3, 5, 2), (3, 3, 0), (3, 0, 0), (None, 4, 0), (4, None, 0), (0, 1, 1)]
)
def test_kills_are_counted_as_they_happen(before: int | None, after: int | None, kills: int) -> None:
    """What a counter had before anybody looked is not ours, and a counter that begins anew takes nothing back."""
    story = Story()
    end = story.running()
    for at, counter in enumerate((before, after)):
        story.event(0, "sample", end + at, **({} if counter is None else {"oom_kills": counter}))
    assert shown(story.pod)[KILLS,] == kills


def test_a_kill_is_counted_once_however_many_ranks_see_it() -> None:
    """Eight ranks read the same counter, some before and some after the kill."""
    story = Story()
    end = story.running()
    for at, (slot, counter) in enumerate([(0, 0), (1, 1), (0, 1), (1, 1), (1, 2), (0, 2), (1, 2)]):
        story.event(slot, "sample", end + at, oom_kills=counter)
    assert shown(story.pod)[KILLS,] == 2


def test_ranks_in_control_groups_of_their_own() -> None:
    """Slurm gives each task its own: that the counters differ is no kill, however often they are read in turn."""
    story = Story()
    end = story.running()
    for at, (slot, counter) in enumerate([(0, 0), (1, 5), (0, 0), (1, 5), (0, 0), (1, 6), (0, 0)]):
        story.event(slot, "sample", end + at, oom_kills=counter)
    assert shown(story.pod)[KILLS,] == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 64)), max_size=40))
def test_kills_only_rise(looks: list[tuple[int, int]]) -> None:
    """Whatever samples say: a count never steps back, and a kill that is announced by nobody's rise is none."""
    container, before = cgroups.Container(), 0
    for number, (slot, counter) in enumerate(looks):
        container.sample(slot, Event("sample", 0, 0.0, float(number), 1, None, {"oom_kills": counter}))
        assert container.kills >= before
        before = container.kills
    firsts = dict(reversed(looks))
    if all(counter == firsts[slot] for slot, counter in looks):
        assert container.kills == 0


def test_a_rise_between_incarnations_is_beyond_doubt() -> None:
    """Nobody told an exit code; the counter that the next process finds is the kernel's own word."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=0)
    story.die(1, end + 1.5)
    again(story, end + 4, kills=1)
    (found,) = story.pod.failures.recoveries
    assert (found.diagnosis.cause, found.diagnosis.confidence, found.diagnosis.origin) == ("host_oom", "confirmed", 1)


def test_kills_outlive_the_sidecar_and_the_pod() -> None:
    """They are counted for good: a counter must not step back."""
    story = Story()
    end = story.running()
    for at, counter in enumerate((0, 2)):
        story.event(0, "sample", end + at, oom_kills=counter)
    again = Pod("story", "0")
    memory.recall(again, memory.encoder().encode(story.pod))
    again.came_back()
    assert shown(again)[KILLS,] == 2


def test_a_rise_that_is_seen_before_the_death_explains_it() -> None:
    """The kernel counts its kill first and then takes seconds to free the memory; a rank that lives samples in between."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=0)
    story.event(0, "sample", end + 1, oom_kills=1)
    story.die(1, end + 4)
    story.event(None, "worker_exited", end + 4.1, local_rank=1, pid=story.pid(1), exit_code=-9)
    again(story, end + 8, kills=1)
    assert causes(story) == ["host_oom"]


def test_a_rise_long_before_a_death_does_not_explain_it() -> None:
    """A data worker was killed and the run went on; what kills a rank minutes later is something else."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=0)
    story.event(0, "sample", end + 1, oom_kills=1)
    story.steps(end + 1, 0, 1, first=11, last=40)
    story.die(1, end + 31)
    story.event(None, "worker_exited", end + 31.1, local_rank=1, pid=story.pid(1), exit_code=-9)
    again(story, end + 35, kills=1)
    assert causes(story) == ["process_killed"]


def test_one_kill_explains_one_death() -> None:
    """What the next process dies of, soon after, is not the kill that was the end of the one before."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=0)
    story.event(0, "sample", end + 1, oom_kills=1)
    story.die(1, end + 1.5)
    story.event(None, "worker_exited", end + 1.6, local_rank=1, pid=story.pid(1), exit_code=-9)
    now = again(story, end + 4, kills=1)
    story.die(1, now + 0.5)
    story.event(None, "worker_exited", now + 0.6, local_rank=1, pid=story.pid(1), exit_code=-9)
    again(story, now + 2, kills=1, cycle=2)
    assert causes(story) == ["host_oom", "process_killed"]


def test_an_exception_is_not_the_kernels() -> None:
    """A rank that raised because its data worker was killed was not killed itself."""
    story = Story()
    end = story.running()
    story.event(0, "sample", end, oom_kills=0)
    story.event(0, "sample", end + 1, oom_kills=1)
    story.caught(1, end + 1.5, "RuntimeError")
    again(story, end + 4, kills=1)
    assert causes(story) == ["app_exception"]


def again(story: Story, at: float, *, kills: int, cycle: int = 1) -> float:
    """The launcher starts all ranks again, which look at the counter and train; returns when."""
    story.start(at, 0, 1, cycle=cycle)
    story.event(0, "sample", at + 0.1, oom_kills=kills)
    story.enter(at + 1, 0, 1, incarnation=f"again-{cycle}", load=10)
    return story.steps(at + 1, 0, 1, first=11, last=12)


def causes(story: Story) -> list[str]:
    """Of all recoveries."""
    return [cause for _, cause, _, _ in story.recoveries]


@pytest.mark.parametrize("version", [1, 2])
def test_the_kernels_files_become_a_cause(tmp_path: Path, version: int) -> None:
    """From a control group's files, by the recorder's own reading of them, through journals and a real sidecar, to the metrics."""
    (tmp_path / RUN).mkdir()
    say = launcher(tmp_path)
    say("launcher_started", pid=1)
    container(tmp_path, version, kills=0)
    first = rank(tmp_path, 11, cycle=0)
    first.write("sample", looked(tmp_path, version))
    first.write("train_entered", {"rank": 0, "world_size": 1})
    say("worker_exited", local_rank=0, pid=11, exit_code=-9)
    container(tmp_path, version, kills=1)
    second = rank(tmp_path, 12, cycle=1)
    second.write("sample", looked(tmp_path, version))
    second.write("train_entered", {"rank": 0, "world_size": 1})
    with sidecar(tmp_path, "--state-dir", str(tmp_path / "state")) as exporter:
        exporter.until(lambda _: exporter.value(KILLS) == 1, "the kill")
        ledger = read_ledger(tmp_path / "state" / RUN / "0" / LEDGER, RUN, "0")
        incident = ledger.body["summary"]["open"]
        assert (incident["cause"], incident["confidence"]) == ("host_oom", "confirmed")
        assert "lack of memory (1 so far)" in incident["evidence"][-1]["text"]
        assert exporter.value("headway_host_memory_used_bytes", scope="container") == 300
        assert exporter.value("headway_host_memory_limit_bytes", scope="container") == 2000


def container(folder: Path, version: int, kills: int) -> None:
    """The files of a container's control group."""
    stat = "anon 300\ninactive_file 200\nactive_file 0\n"
    files = {
        1: {
            "memory/memory.usage_in_bytes": "500",
            "memory/memory.limit_in_bytes": "2000",
            "memory/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
            "memory/memory.stat": stat + "total_inactive_file 200\n",
        },
        2: {
            "memory.current": "500",
            "memory.max": "2000",
            "memory.events": f"low 0\noom {kills}\noom_kill {kills}\noom_group_kill 0\n",
            "memory.stat": stat,
        },
    }[version]
    for name, content in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "membership").write_text({1: V1_MEMBERSHIP, 2: "0::/\n"}[version])


def looked(folder: Path, version: int) -> dict[str, Any]:
    """A sample's fields, as the recorder finds them."""
    fields = sampler.reading(None, lambda: process.container_memory(folder / "cgroup", folder / "membership"))
    assert fields["cgroup_used_bytes"] == 500, version
    return fields


def rank(folder: Path, life: int, cycle: int) -> JournalWriter:
    """A process without a life lock, so that only the launcher tells of its end."""
    writer = JournalWriter(folder / RUN / "slot-0.jsonl", life)
    told = {"pid": life, "rank": 0, "world_size": 1, "cycle": cycle, "life_lock": False}
    writer.write("process_started", told)
    return writer


def test_a_real_trainers_samples_are_shown(tmp_path: Path) -> None:
    """Whatever control groups this machine has, resident memory and open files of a living rank come through."""
    (tmp_path / RUN).mkdir()
    with sidecar(tmp_path) as exporter:
        one = trainer(tmp_path, 0, "enter=a", "steps=1-2", "ready", "wait", ranks=1)
        exporter.until(lambda _: exporter.value("headway_host_open_files"), "a sample")
        assert (exporter.value("headway_host_trainer_memory_bytes") or 0) > 1_000_000
        finish(one, kill=True)
        exporter.until(lambda _: exporter.value("headway_host_open_files") is None, "its death")


def test_throughput_is_bytes_over_seconds() -> None:
    """All ranks' bytes are booked with the slowest rank's seconds, once for each save and each load that ended."""
    story = Story()
    end = story.running()
    for slot in (0, 1):
        story.event(slot, "checkpoint", end, stage="requested", step=10)
        story.event(slot, "checkpoint", end + 1, stage="written", step=10, seconds=1.0 + slot, bytes=100)
    known = story.pod.checkpoints
    assert known.written_bytes == 0
    for slot in (0, 1):
        story.event(slot, "checkpoint", end + 2, stage="committed", step=10)
    assert (known.written_bytes, known.writing.total) == (200, 2.0)
    story.die(1, end + 3)
    story.start(end + 5, 0, 1, cycle=1)
    story.enter(end + 6, 0, 1, incarnation="second")
    for slot in (0, 1):
        story.event(slot, "checkpoint", end + 7, stage="loaded", step=10, seconds=2.0 + slot, bytes=70)
    before = known.loading.total
    story.steps(end + 8, 0, 1, first=11, last=11)
    assert (known.read_bytes, known.loading.total - before) == (140, 3.0)
