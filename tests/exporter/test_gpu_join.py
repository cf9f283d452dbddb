"""A failure whose origin's GPU told of a fault says so, and a healthy GPU is not blamed: stories, told to a pod."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_story import GpuStory, gpu_texts, uuid

from headway_exporter import traces

# The origin's own GPU.


def test_xid_79_before_a_death() -> None:
    """A GPU that fell off the bus and took its process with it is the cause, and the record names GPU, number and remedy."""
    story = GpuStory()
    story.xid(1, 20.5, 79)
    story.die(1, 21.0)
    story.exit(1, 22.0, -6)
    story.echo(0, 21.5)
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")
    assert "process_killed" in story.diagnosis.alternatives
    story.again(25.0)
    assert story.pod.failures.causes == {("launcher", "gpu_fell_off_bus"): 1}
    assert story.pod.failures.rank_failures == {1: 1}
    record = story.record()
    assert record["origin"]["gpu_uuid"] == uuid(1)
    [sign] = [sign for sign in record["evidence"] if sign["kind"] == "gpu"]
    assert (sign["rank"], sign["slot"]) == (1, 1)
    assert f"XID 79 on {uuid(1)}: GPU has fallen off the bus" in sign["text"]
    assert "power it off and on" in sign["text"]


def test_an_xid_long_before_the_time_out_that_tells_of_it() -> None:
    """A hang is noticed many minutes after its cause: what came since the rank was last well counts, and names the rank."""
    story = GpuStory(4)
    story.xid(2, 20.5, 79)
    for slot in story.ranks:
        story.event(None, "heartbeat_missed", 920.0, local_rank=slot, waited_seconds=900.0)
        story.die(slot, 921.0)
    assert story.answer == ("gpu_fell_off_bus", 2, "confirmed")
    assert story.diagnosis.alternatives[0] == "heartbeat_timeout"


def test_xid_31_with_an_exception() -> None:
    """The driver's page fault says what a CUDA exception without a class of its own was: the program, not the hardware."""
    story = GpuStory()
    story.xid(0, 20.4, 31)
    story.caught(0, 20.5, "RuntimeError", message="CUDA error: unknown error")
    story.echo(1, 20.6)
    assert story.answer == ("illegal_access", 0, "confirmed")
    assert story.diagnosis.alternatives == ("app_exception",)
    assert story.diagnosis.fingerprint is not None
    assert "RuntimeError" in story.diagnosis.fingerprint[1]  # so that the same bug is known again


def test_xid_31_with_an_exception_that_says_the_same() -> None:
    """Two that agree change nothing but the evidence."""
    story = GpuStory()
    story.caught(0, 20.5, "RuntimeError", category="illegal_access")
    story.xid(0, 20.6, 31)
    assert story.answer == ("illegal_access", 0, "confirmed")
    assert story.diagnosis.alternatives == ()
    assert len(gpu_texts(story.record())) == 1


@pytest.mark.parametrize("told", [20.3, 28.0])
def test_a_gpu_that_is_gone_without_an_xid(told: float) -> None:
    """That the driver does not answer for it any more is enough, before the death or when the next poll finds it; but no proof."""
    story = GpuStory()
    if told < 21:
        story.gpu(1, told, "lost", text="GPU is lost")
    story.die(1, 21.0)
    if told > 21:
        story.gpu(1, told, "lost", text="GPU is lost")
    assert story.answer == ("gpu_fell_off_bus", 1, "likely")
    assert "does not answer" in gpu_texts(story.record())[0]


def test_a_gpu_that_stays_gone_explains_every_failure_after() -> None:
    """Restarts onto a GPU that is gone fail for the same reason, however long ago it went."""
    story = GpuStory()
    story.gpu(1, 20.5, "lost")
    story.die(1, 21.0)
    story.begin(200.0, cycle=1)
    story.die(1, 220.0)
    one = story.pod.failures.recoveries[-1].current
    assert (one.diagnosis.cause, one.diagnosis.origin) == ("gpu_fell_off_bus", 1)


def test_a_gpu_that_came_back_is_not_blamed_for_what_comes_later() -> None:
    """Once it answers again, a later failure has another reason."""
    story = GpuStory()
    story.gpu(1, 20.5, "lost")
    story.die(1, 21.0)
    story.gpu(1, 150.0, "back")
    story.begin(200.0, cycle=1)
    story.caught(1, 220.0)
    one = story.pod.failures.recoveries[-1].current
    assert (one.diagnosis.cause, one.diagnosis.origin) == ("app_exception", 1)


@pytest.mark.parametrize(
    ("kind", "number", "code", "cause", "confidence"),
    [
        ("xid", 48, -9, "gpu_memory", "confirmed"),
        ("xid", 94, -6, "gpu_memory", "confirmed"),
        ("xid", 167, -9, "pcie", "confirmed"),
        ("xid", 119, -9, "gpu_driver", "likely"),
        ("xid", 74, -6, "nvlink", "likely"),
        ("xid", 74, -9, "process_killed", "confirmed"),
        ("ecc", 0, -9, "gpu_memory", "likely"),
        ("remap", 0, 1, "gpu_memory", "likely"),
        ("nvlink", 0, -6, "process_killed", "confirmed"),
        ("xid", 63, -9, "process_killed", "confirmed"),
        ("xid", 4242, -9, "process_killed", "confirmed"),
        ("xid", 13, -6, "illegal_access", "likely"),
        ("xid", 13, -9, "process_killed", "confirmed"),
    ],
)
def test_what_a_happening_makes_of_an_end(kind: Any, number: int, code: int, cause: str, confidence: str) -> None:
    """An end without a word may be explained by the GPU, as surely as its kind of report is; but not each end by each report."""
    story = GpuStory()
    story.gpu(1, 20.5, kind, number)
    story.die(1, 21.0)
    story.exit(1, 21.5, code)
    assert story.answer == (cause, 1, confidence)
    assert len(gpu_texts(story.record())) == 1  # told in any case


@pytest.mark.parametrize("kind", ["nvlink", "xid"])
def test_errors_of_the_links_explain_a_collective_that_broke(kind: Any) -> None:
    """On one GPU, with nothing else told, they are the likely cause, and name the rank."""
    story = GpuStory()
    story.gpu(1, 20.5, kind, 74)
    story.echo(0, 21.0)
    story.echo(1, 21.0)
    assert story.answer == ("nvlink", 1, "likely")


@pytest.mark.parametrize("kind", ["nvlink", "xid"])
def test_errors_of_the_links_do_not_explain_an_exception_of_the_program(kind: Any) -> None:
    """Links retry and trainings survive it: beside an exception of its own it is an alternative."""
    story = GpuStory()
    story.gpu(0, 20.5, kind, 74)
    story.caught(0, 21.0)
    assert story.answer == ("app_exception", 0, "confirmed")
    assert story.diagnosis.alternatives == ("nvlink",)


@pytest.mark.parametrize("category", ["storage_io", "checkpoint_corrupt", "config_error"])
def test_what_a_gpu_has_no_part_in(category: str) -> None:
    """A full disk stays a full disk, even when the GPU has its own trouble at the same time."""
    story = GpuStory()
    story.xid(0, 20.5, 94)
    story.caught(0, 21.0, category=category)
    assert story.answer == (category, 0, "confirmed")
    assert story.diagnosis.alternatives == ("gpu_memory",)


def test_a_number_that_is_not_a_number_on_a_gpu_with_a_memory_fault() -> None:
    """It may be the fault's work, so hardware comes first, but nobody knows."""
    story = GpuStory()
    story.gpu(0, 20.5, "ecc")
    story.caught(0, 21.0, category="numeric_nan")
    assert story.answer == ("gpu_memory", 0, "likely")
    assert story.diagnosis.alternatives == ("numeric_nan",)


def test_the_operators_stop_stays_one() -> None:
    """A job that was told to end ended for that, whatever its GPUs report while it is torn down."""
    story = GpuStory()
    story.event(None, "signal", 20.2, signal=15, name="SIGTERM")
    for slot in story.ranks:
        story.xid(slot, 20.4, 45)
        story.die(slot, 20.5)
    assert story.answer == ("preempted", None, "confirmed")
    assert gpu_texts(story.record()) == []


# Not the origin's GPU, not in time, or an echo.


def test_xid_45_on_every_rank_after_a_kill() -> None:
    """What each killed process leaves behind blames nothing, and is not even told."""
    story = GpuStory(4)
    story.die(1, 21.0)
    story.xid(1, 20.9, 45)  # the kernel clears away before it tells of the death
    for slot in (0, 2, 3):
        story.die(slot, 22.0)
    for slot in story.ranks:
        story.xid(slot, 22.5, 45)
    story.exit(1, 23.0, -9)
    assert story.answer == ("process_killed", 1, "confirmed")
    assert story.diagnosis.alternatives == ("host_oom",)
    assert gpu_texts(story.record()) == []
    assert sum(story.pod.gpus.xids.values()) == 5  # counted all the same


def test_xid_45_alone() -> None:
    """On one GPU, with nothing that explains it, it is told and allows for the driver."""
    story = GpuStory()
    story.xid(1, 20.5, 45)
    story.echo(0, 40.0)
    story.echo(1, 40.0)
    assert story.answer == ("collective_timeout", None, "unknown")
    assert story.diagnosis.alternatives == ("gpu_driver",)
    assert gpu_texts(story.record())[0].startswith("XID 45")


def test_xid_45_just_before_the_death_is_seen() -> None:
    """The kernel clears away a process before it tells of its death: that is no sign of anything else."""
    story = GpuStory()
    story.xid(1, 20.5, 45)
    story.die(1, 22.0)
    assert story.answer == ("process_killed", 1, "likely")
    assert gpu_texts(story.record()) == []


@pytest.mark.parametrize("also", [(0, 45), (1, 63)])
def test_xid_45_that_is_not_alone(also: tuple[int, int]) -> None:
    """On another GPU too, or beside another report of its own GPU, it tells nothing."""
    story = GpuStory()
    story.xid(1, 20.5, 45)
    story.xid(also[0], 20.6, also[1])
    story.echo(0, 40.0)
    story.echo(1, 40.0)
    assert story.diagnosis.alternatives == ()
    assert not [text for text in gpu_texts(story.record()) if "XID 45" in text]


def test_xid_45_beside_the_error_that_it_echoes() -> None:
    """With another XID on its GPU it is left out."""
    story = GpuStory()
    story.xid(1, 20.5, 94)
    story.xid(1, 20.6, 45)
    story.die(1, 21.0)
    assert story.answer == ("gpu_memory", 1, "confirmed")
    assert [text[:6] for text in gpu_texts(story.record())] == ["XID 94"]


@pytest.mark.parametrize("at", [15.0, 20.4, 21.4])
def test_a_memory_error_on_another_ranks_gpu(at: float) -> None:
    """The failure began elsewhere, with an exception of its own: the other GPU has no part in it."""
    story = GpuStory()
    if at < 21:
        story.gpu(1, at, "ecc")
    story.caught(0, 21.0)
    if at > 21:
        story.gpu(1, at, "ecc")
    story.echo(1, 22.0)
    assert story.answer == ("app_exception", 0, "confirmed")
    assert story.diagnosis.alternatives == ()


def test_a_death_of_its_own_on_another_gpu() -> None:
    """A kill on rank 0 is rank 0's, though rank 1's GPU has a fault."""
    story = GpuStory()
    story.xid(1, 20.5, 94)
    story.die(0, 21.0)
    story.exit(0, 21.5, -9)
    assert story.answer == ("process_killed", 0, "confirmed")


def test_the_first_to_die_was_only_cleared_away() -> None:
    """A rank that its collectives' watchdog aborted, while another's GPU has a fault, is not where it began."""
    story = GpuStory()
    story.xid(1, 20.5, 79)
    story.die(0, 40.0)
    story.exit(0, 40.5, -6)
    story.die(1, 41.0)
    story.exit(1, 41.5, -9)
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")


def test_one_gpu_among_links_that_report() -> None:
    """When a GPU dies, the links of all others tell of it: the dead one is the origin."""
    story = GpuStory(4)
    for slot in story.ranks:
        story.xid(slot, 20.5, 74)
    story.xid(2, 20.6, 79)
    for slot in story.ranks:
        story.echo(slot, 30.0)
    assert story.answer == ("gpu_fell_off_bus", 2, "confirmed")


def test_links_of_all_gpus_name_no_rank() -> None:
    """A fault of the switch shows on all GPUs: no rank is blamed, and the links are a possible cause."""
    story = GpuStory(4)
    for slot in story.ranks:
        story.xid(slot, 20.5, 74)
    for slot in story.ranks:
        story.echo(slot, 30.0)
    assert story.answer == ("collective_timeout", None, "unknown")
    assert story.diagnosis.alternatives == ("nvlink",)


def test_a_fault_long_before_the_last_step() -> None:
    """A rank that went on for minutes after it did not fail of it."""
    story = GpuStory()
    story.xid(1, 20.5, 94)
    story.steps(21.0, 0, 1, first=11, last=110)
    story.die(1, 121.5)
    assert story.answer[0] == "process_killed"
    assert gpu_texts(story.record()) == []


def test_a_fault_after_training_went_on_is_not_the_former_failures() -> None:
    """An exception stays one when half a minute later, with steps in between, its GPU falls off the bus; the next failure is that."""
    story = GpuStory()
    story.caught(1, 21.0)
    end = story.again(22.0, launcher=False, steps=10)
    story.xid(1, end + 0.5, 79)
    assert story.answer == ("app_exception", 1, "confirmed")
    story.die(1, end + 1.0)
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")
    first, second = story.pod.failures.recoveries
    assert (first.diagnosis.cause, second.diagnosis.cause) == ("app_exception", "gpu_fell_off_bus")
    [trace] = [traces.trace(story.record())]
    told = {span.span_id: [event.name for event in span.events] for span in trace.spans if span.name == "try"}
    assert list(told.values()) == [["exception"], ["headway.gpu", "headway.death"]]


def test_a_fault_before_a_restart_is_not_the_next_failures() -> None:
    """What explained a failure does not explain the next one, which has its own reason."""
    story = GpuStory()
    story.xid(1, 20.5, 94)
    story.die(1, 21.0)
    end = story.again(24.0)
    story.caught(1, end + 0.5)
    assert story.answer == ("app_exception", 1, "confirmed")


@pytest.mark.parametrize(
    ("slot", "cause"), [(1, "gpu_driver"), (0, "heartbeat_timeout")], ids=["its own", "another rank's"]
)
def test_a_driver_that_hangs_explains_its_own_ranks_silence(slot: int, cause: str) -> None:
    """The rank waits for a GPU at which the driver hangs until its heartbeats are missed; a hang at another rank's GPU explains nothing."""
    story = GpuStory()
    story.gpu(slot, 20.5, "hung", told=30.0)
    story.event(None, "heartbeat_missed", 80.0, local_rank=1, waited_seconds=60.0)
    story.die(1, 81.0)
    assert story.answer[0] == cause


# The names of GPUs.


@pytest.mark.parametrize(
    "name", [f"MIG-{uuid(1)}/3/0", "MIG-11111111-2222-3333-4444-555555555555", uuid(1)[:12], uuid(1)]
)
def test_ranks_on_a_part_of_a_gpu_or_with_its_short_name(name: str) -> None:
    """MIG devices belong to their GPU, in both forms of their names; CUDA allows to cut a UUID."""
    story = GpuStory(names={1: name})
    story.gpu(1, 20.5, "xid", 79, parts=("MIG-11111111-2222-3333-4444-555555555555",))
    story.die(1, 21.0)
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")


@pytest.mark.parametrize("name", ["", "GPU-", "MIG-", uuid(3), "GPU-0000000"])
def test_ranks_whose_gpu_is_not_known_or_another(name: str) -> None:
    """Nothing is joined by a name that says nothing, or that fits two GPUs."""
    story = GpuStory(names={1: name})
    story.xid(1, 20.5, 79)
    story.die(1, 21.0)
    assert story.answer[0] == "process_killed"
