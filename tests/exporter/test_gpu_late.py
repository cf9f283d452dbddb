"""What comes to light late, is seen by one of several pods, or comes again; how much is kept of it, and what people read of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

from gpu_story import GpuStory, gpu_texts, uuid
from report_story import write_records

from headway_exporter.gpus import MOST_KEPT
from headway_exporter.health.xids import XidClass, load
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import VerdictSeen
from headway_exporter.origins import resolve
from headway_exporter.pod import Pod
from headway_exporter.recoveries import MOST_GPU
from headway_exporter.report import parse
from headway_exporter.report.load import load as load_runs
from headway_exporter.report.markdown import markdown
from headway_exporter.report.merge import incidents
from headway_exporter.report.page import html
from headway_exporter.report.report import report
from headway_exporter.state_files import RECORDS, pod_folder

if TYPE_CHECKING:
    from pathlib import Path


# A program's fault that comes again.


def faults(story: GpuStory, *slots: int, hours: float = 1.0, number: int = 31) -> None:
    """A page fault on each of these GPUs in turn, each of them with an exception and a restart."""
    at = 21.0
    for slot in slots:
        for nth in range(5):  # one fault is reported several times
            story.xid(slot, at + nth / 10, number)
        story.caught(slot, at + 1, "RuntimeError", category="illegal_access")
        story.again(at + 2, launcher=False)
        at += hours * 3600


def test_a_programs_fault_twice_on_one_gpu() -> None:
    """It hints at the GPU: less sure, the GPU's memory as an alternative, and the text says so."""
    story = GpuStory()
    faults(story, 1)
    assert story.answer == ("illegal_access", 1, "confirmed")
    story = GpuStory()
    story.xid(1, 20.5, 13)
    story.xid(1, 21.0, 31)  # one fault, told twice
    story.caught(1, 21.5, "RuntimeError", category="illegal_access")
    assert story.answer == ("illegal_access", 1, "confirmed")
    assert len(gpu_texts(story.record())) == 2
    assert "again" not in str(gpu_texts(story.record()))
    story = GpuStory()
    faults(story, 1, 1)
    assert story.answer == ("illegal_access", 1, "likely")
    assert story.diagnosis.alternatives == ("gpu_memory",)
    assert "suspect the GPU" in story.pod.failures.recoveries[-1].current.gpu[0].text


def test_a_programs_fault_on_different_gpus() -> None:
    """It hints at the program, also when one of them had it twice."""
    story = GpuStory()
    faults(story, 1, 0, 1)
    assert story.answer == ("illegal_access", 1, "confirmed")
    assert story.diagnosis.alternatives == ()
    assert "suspect the program" in story.pod.failures.recoveries[-1].current.gpu[0].text


def test_a_programs_fault_again_after_days() -> None:
    """What was more than a day ago hints at nothing; 13 and 31 are the same sort of fault."""
    story = GpuStory()
    faults(story, 1, 1, hours=25)
    assert story.answer == ("illegal_access", 1, "confirmed")
    story = GpuStory()
    faults(story, 1, hours=1, number=13)
    story.xid(1, 5000.0, 31)
    story.caught(1, 5001.0, "RuntimeError", category="illegal_access")
    assert story.answer == ("illegal_access", 1, "likely")


def test_incidents_on_one_gpu_name_it() -> None:
    """Several incidents that began on a GPU name it by its UUID."""
    story = GpuStory(4)
    at = 20.0
    for _ in range(2):
        story.xid(3, at + 0.5, 94)
        story.die(3, at + 1.0)
        at = story.again(at + 5.0, load=10, steps=12)
        story.event(0, "checkpoint", at, stage="committed", step=22)
        story.event(0, "operator_rollback", at, step=10)
    found = {(one.kind, one.name): count for one, count in story.pod.failures.repeat_offenders(at).items()}
    assert found["gpu", uuid(3)] == 2


# Late.


def test_late_evidence_revises_the_record_of_an_incident_that_is_open() -> None:
    """The try was counted as it was; its cause changes in what is told."""
    story = GpuStory()
    story.die(1, 21.0)
    end = story.again(30.0)
    assert story.answer[0] == "process_killed"
    story.xid(1, 20.9, 79, told=end + 1)  # the driver hung while it told
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")
    assert story.pod.failures.causes == {("launcher", "process_killed"): 1}
    assert story.record()["cause"] == "gpu_fell_off_bus"


def test_late_evidence_revises_the_record_of_a_closed_incident() -> None:
    """A further revision of the record is written, once, with the evidence and the better cause; outcomes are not counted again."""
    story = GpuStory()
    story.die(1, 21.0)
    end = story.again(22.0, steps=3)
    story.event(0, "checkpoint", end, stage="committed", step=13)
    [before] = story.written()
    assert (before["outcome"], before["cause"], before["revision"]) == ("recovered", "process_killed", 0)
    counted = dict(story.pod.failures.outcomes), dict(story.pod.failures.incident_causes)
    story.gpu(1, 21.2, "lost", told=end + 5)
    [after] = story.written()
    assert (after["cause"], after["confidence"], after["revision"]) == ("gpu_fell_off_bus", "likely", 1)
    assert after["id"] == before["id"]
    assert len(gpu_texts(after)) == 1
    assert story.written() == []
    assert (dict(story.pod.failures.outcomes), dict(story.pod.failures.incident_causes)) == counted


def test_late_evidence_that_explains_nothing_is_told_too() -> None:
    """A remapped row changes no cause, but the record has it, in a further revision."""
    story = GpuStory()
    story.die(1, 21.0)
    end = story.again(22.0, steps=3)
    story.event(0, "checkpoint", end, stage="committed", step=13)
    [before] = story.written()
    assert story.written() == []
    story.xid(1, 20.9, 63, told=end + 5)
    [after] = story.written()
    assert (after["cause"], after["revision"]) == (before["cause"], 1)
    assert gpu_texts(after)[0].startswith("XID 63")


def test_late_evidence_about_an_incident_that_was_at_rest() -> None:
    """However long ago it closed, and whatever came since: what is learnt of it is written."""
    story = GpuStory()
    story.die(1, 21.0)
    end = story.again(22.0, steps=3)
    story.event(0, "checkpoint", end, stage="committed", step=13)
    story.caught(0, end + 1)
    assert len(story.written()) == 1
    story.pod.advance(end + 700)
    assert story.written() + story.written() == []  # a second look finds that there was nothing new at the first
    assert story.pod.failures.incidents[0].at_rest
    story.gpu(1, 21.2, "lost", told=end + 701)
    [after] = story.written()
    assert (after["cause"], after["revision"]) == ("gpu_fell_off_bus", 1)


def test_late_evidence_is_given_to_the_failure_that_it_belongs_to() -> None:
    """An earlier failure gets what came before its restart, though another failure has begun since."""
    story = GpuStory()
    story.die(1, 21.0)
    end = story.again(30.0)
    story.caught(1, end + 1.0)
    story.xid(1, 20.9, 79, told=end + 2)
    first, second = story.pod.failures.recoveries
    assert first.diagnosis.cause == "gpu_fell_off_bus"
    assert second.diagnosis.cause == "app_exception"


def test_what_comes_long_after_changes_nothing() -> None:
    """Minutes after the last sign, with no step in between, a fault is not the reason any more."""
    story = GpuStory()
    story.die(1, 21.0)
    story.xid(1, 90.0, 79)
    assert story.answer[0] == "process_killed"


def test_a_reset_in_the_clean_up_is_no_reason_for_an_exception() -> None:
    """An exception that came well before the report keeps its cause; the report is an alternative."""
    story = GpuStory()
    story.caught(1, 21.0)
    story.xid(1, 50.0, 79)
    assert story.answer == ("app_exception", 1, "confirmed")
    assert story.diagnosis.alternatives == ("gpu_fell_off_bus",)


# Several pods.


def two_pods() -> list[GpuStory]:
    """Two pods of two ranks each."""
    return [GpuStory(pod=number, pods=2) for number in range(2)]


def settle(pods: list[GpuStory], at: float) -> None:
    """They tell each other what they know, and all take the verdict."""
    claims = [one for story in pods for one in story.pod.claims()]
    assert len(claims) == len(pods)
    verdict = resolve(claims, {story.pod.pod_index for story in pods})
    for story in pods:
        story.pod.fold([VerdictSeen(claims[0].incident, verdict, at)])
        story.pod.advance(at)


def hang_everywhere(pods: list[GpuStory], at: float) -> None:
    """All ranks of all pods are killed by their monitors."""
    for story in pods:
        for slot in story.ranks:
            story.event(None, "heartbeat_missed", at, local_rank=slot, waited_seconds=900.0)
            story.die(slot, at + 1)


def test_a_gpu_that_hung_all_pods() -> None:
    """Every pod learns of the one GPU, though only its own pod could see it."""
    pods = two_pods()
    pods[1].xid(0, 20.5, 79)
    hang_everywhere(pods, 920.0)
    settle(pods, 960.0)
    for story in pods:
        assert story.answer == ("gpu_fell_off_bus", 2, "confirmed")
        origin = story.record()["origin"]
        assert (origin["pod_index"], origin["gpu_uuid"]) == ("1", uuid(2))


def test_a_record_of_a_rank_whose_gpu_failed() -> None:
    """NVRx only knows that the rank raised something: its GPU knows why."""
    pods = two_pods()
    pods[1].xid(0, 20.5, 94)
    pods[1].caught(0, 21.0, "RuntimeError")
    for story in pods:
        story.event(0, "interruption", 22.0, records=[{"rank": 2, "kind": "EXCEPTION"}])
    settle(pods, 60.0)
    for story in pods:
        assert story.answer == ("gpu_memory", 2, "confirmed")


def test_late_evidence_after_the_verdict() -> None:
    """It revises the record of the pod that saw it, whose word counts in reports, and leaves the others' as it was settled."""
    pods = two_pods()
    pods[1].die(0, 21.0)
    pods[1].exit(0, 21.5, -9)
    pods[0].echo(0, 22.0)
    settle(pods, 55.0)
    assert [story.answer for story in pods] == [("process_killed", 2, "confirmed")] * 2
    pods[1].gpu(0, 20.8, "lost", told=70.0)
    assert pods[0].answer == ("process_killed", 2, "confirmed")
    assert pods[1].answer == ("gpu_fell_off_bus", 2, "likely")
    assert pods[1].diagnosis.alternatives[0] == "process_killed"
    merged = incidents(parse.record(story.record(), story.pod.pod_index) for story in pods)
    assert [one.lead.cause for one in merged] == ["gpu_fell_off_bus"]


def test_late_evidence_about_a_rank_that_is_not_the_origin() -> None:
    """A verdict on another rank stands."""
    pods = two_pods()
    pods[0].caught(0, 21.0)
    for slot in pods[1].ranks:
        pods[1].echo(slot, 22.0)
    settle(pods, 55.0)
    pods[1].gpu(0, 21.5, "ecc", told=70.0)
    assert [story.answer for story in pods] == [("app_exception", 0, "confirmed")] * 2


# What people read.


def test_what_reports_tell(tmp_path: Path) -> None:
    """The report shows what the driver said as evidence, in both forms, and says which GPU to test, and on which node."""
    story = GpuStory()
    story.xid(1, 20.5, 79)
    story.die(1, 21.0)
    end = story.again(25.0)
    story.event(0, "checkpoint", end, stage="committed", step=12)
    folder = pod_folder(tmp_path, "story", "0")
    folder.mkdir(parents=True)
    write_records(folder / RECORDS, story.written())
    found = report(load_runs(tmp_path / "story", story.pod.wall_of(end)))
    assert [action.title for action in found.actions if uuid(1) in action.title] == [
        f"Test {uuid(1)} before it is used again"
    ]
    words = f"XID 79 on {uuid(1)}: GPU has fallen off the bus"
    assert any(words in action.text for action in found.actions)
    for text in (html(found), markdown(found).replace("\\", "")):
        assert words in text


# Bounds, memory, configuration.


def test_thousands_of_echoes_leave_room_for_the_one_fault() -> None:
    """11,760 reports of 45 neither push out an earlier fault nor fill the record, and are counted exactly."""
    story = GpuStory(8)
    story.xid(5, 20.5, 79)
    for nth in range(11_760):
        story.xid(nth % 8, 20.6 + nth / 1000, 45)
    story.die(5, 33.0)
    assert story.answer == ("gpu_fell_off_bus", 5, "confirmed")
    assert len(story.pod.gpus.recent) <= MOST_KEPT
    assert sum(count for (_, number), count in story.pod.gpus.xids.items() if number == 45) == 11_760
    for nth in range(20_000):
        story.xid(nth % 8, 34.0 + nth / 1000, 100 + nth % 50)
    assert len(story.pod.gpus.recent) <= MOST_KEPT
    assert len(story.pod.failures.recoveries[-1].current.gpu) <= MOST_GPU * len(get_args(XidClass))
    assert len(json.dumps(story.record())) < 1 << 18


def test_what_was_seen_outlives_the_sidecar() -> None:
    """A fault before the sidecar's restart explains a death after it, and the table is that of the new start."""
    story = GpuStory()
    story.xid(1, 20.5, 79)
    saved = json.loads(json.dumps(encoder().encode(story.pod)))
    pod = Pod("story", "0")
    recall(pod, saved)
    story.pod = pod
    story.die(1, 21.0)
    assert story.answer == ("gpu_fell_off_bus", 1, "confirmed")
    again = Pod("story", "0")
    recall(again, json.loads(json.dumps(encoder().encode(pod))))
    assert again.failures.recoveries[-1].diagnosis == story.diagnosis


def test_a_table_of_ones_own(tmp_path: Any) -> None:
    """What the table says decides: XID 79 may be declared harmless, and any number a fault."""
    path = tmp_path / "mine.json"
    rows = [
        {"number": 79, "class": "informational"},
        {"number": 63, "class": "hardware", "cause": "gpu_memory"},
    ]
    path.write_text(json.dumps({"v": 1, "xids": rows}), encoding="utf-8")
    story = GpuStory(xids=load(path))
    story.xid(1, 20.5, 79)
    story.die(1, 21.0)
    assert story.answer[0] == "process_killed"
    story.xid(1, 21.1, 63)
    assert story.answer == ("gpu_memory", 1, "confirmed")
