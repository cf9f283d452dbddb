"""Records of incidents: what is in them, when they are written, and what must never get into them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from incident_tale import Tale
from pod_story import WALL, Story
from state_story import RUNS, TRACEBACK, Run
from test_accounting_properties import in_order, new_pod, sequences

from headway_exporter import losses, records
from headway_exporter.incident_ids import trace_id
from headway_exporter.incidents import CLOSED
from headway_exporter.labels import CAUSES, INCIDENT_OUTCOMES, LAYERS, REASONS, RECOVERY_PHASES
from headway_exporter.observations import NANOSECONDS
from headway_exporter.report.json_document import json_text
from headway_exporter.report.load import load
from headway_exporter.report.markdown import markdown
from headway_exporter.report.page import html
from headway_exporter.report.report import report
from headway_exporter.state_files import RECORDS, append_record, pod_folder
from headway_exporter.traces import sentence

if TYPE_CHECKING:
    from pathlib import Path

    from headway_exporter.observations import Observation
    from headway_exporter.pod import Pod

ALL = ("v kind run pod_index id revision written_wall outcome state recurring opened_wall closed_wall layer escalated attempts cause "
       "confidence alternatives origin decided_by decided_revision claimed_by ambiguous mark_step durable_step loads world_size "
       "pods_expected node versions settings evidence steps_lost recoveries "
       "recoveries_left_out lost_rank_seconds trace_id")  # fmt: skip
EVIDENCE = "kind wall slot rank text exit_code signature traceback path bytes"
RECOVERY = ("opened_wall layer cause confidence origin_rank attempts tip_step mark_step loaded_step rejected_steps steps_lost "
            "first_step_wall high_water_wall replay_check tries")  # fmt: skip
TRY = "opened_wall layer cause confidence origin_rank alternatives restarted_wall loaded_step phases"


def names(text: str) -> set[str]:
    return set(text.split())


def write_all(pod: Pod) -> list[dict[str, Any]]:
    """Everything that is due, written."""
    found = records.due(pod)
    for record in found:
        records.written(pod, record)
    return found


def newest(run: Run) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in run.records}


def check_form(record: dict[str, Any]) -> None:
    """Every name of the format, of its type, and nothing that JSON does not have."""
    assert record.keys() == names(ALL)
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text) == record
    assert len(text) <= records.MOST_BYTES
    assert record["outcome"] in (*INCIDENT_OUTCOMES, "open")
    assert (record["outcome"] == "open") == (record["closed_wall"] is None)
    assert set(record["recurring"]) <= set(REASONS)
    assert record["layer"] in (None, *LAYERS)
    assert record["cause"] in CAUSES
    assert record["origin"].keys() == names("rank pod_index node gpu_uuid")
    assert record["lost_rank_seconds"].keys() == set(losses.STATES)
    assert record["trace_id"] == trace_id(record["run"], record["id"])
    for item in record["evidence"]:
        assert item.keys() == names(EVIDENCE)
    for recovery in record["recoveries"]:
        assert recovery.keys() == names(RECOVERY)
        for one in recovery["tries"]:
            assert one.keys() == names(TRY)
            assert one["phases"].keys() <= set(RECOVERY_PHASES)


@pytest.mark.parametrize("name", RUNS)
def test_every_record_has_the_format(name: str) -> None:
    """Readers of other versions and of other pods rely on each name."""
    for run in RUNS[name]():
        for record in run.records:
            check_form(record)
        if run.pod.failures.open is not None:
            check_form(records.record(run.pod, run.pod.failures.open, WALL))


def test_a_record_tells_the_whole_story() -> None:
    """Who reads it a year later has no journal any more: times, places, causes and what was in force are all in it.

    By hand: both ranks train 1 s steps from 10 on; the exception comes at 33, is the evidence for what is open since the last step.
    """
    (run,) = RUNS["recovered"]()
    first, second = newest(run).values()
    assert (first["cause"], first["origin"]) == (
        "app_exception",
        {"rank": 1, "pod_index": "0", "node": "n1", "gpu_uuid": None},
    )
    sign = first["evidence"][0]
    opened = sign["wall"]
    assert (sign["kind"], sign["rank"], sign["traceback"]) == ("exception", 1, TRACEBACK)
    assert first["opened_wall"] == opened
    recovery = first["recoveries"][0]
    assert recovery["steps_lost"] == 9
    assert recovery["loaded_step"] == 10
    assert (
        recovery["tries"][0]["restarted_wall"] == opened + 1.1
    )  # the next act is a second later, and enters 0.1 s after that
    assert recovery["first_step_wall"] == opened + 3  # one second after that act begins the first step
    assert recovery["high_water_wall"] == opened + 13  # 9 steps, and two acts in between
    assert recovery["replay_check"] == "valid"
    assert first["settings"] | {"restart_budget": 6} == first["settings"]
    assert first["settings"]["config_fingerprint"] == "0123456789abcdef"
    assert first["versions"]["nvrx"] == "0.4.1"
    assert (second["cause"], second["layer"], second["settings"]) == ("process_killed", "launcher", first["settings"])


def test_losses_are_those_until_the_mark_is_regained() -> None:
    """By hand, two ranks: 1 s open before the sign; 1.1 s to the restart; 0.9 s to the first step; six steps again."""
    tale = Tale().tell("steps 11-16, fail 1, in_process 10, steps 11-20, commit 20")
    incident = tale.incidents[0]
    lost = {state: amount / NANOSECONDS for state, amount in incident.lost.items() if amount}
    assert lost == pytest.approx({"detect": 2 * 1.0, "restart": 2 * 1.1, "init": 2 * 0.9, "replay": 2 * 6.0})
    tale.tell("steps 21-30, wait 50, finish")
    assert {state: amount / NANOSECONDS for state, amount in incident.lost.items() if amount} == pytest.approx(lost)


@pytest.mark.parametrize("name", RUNS)
def test_all_that_is_lost_belongs_to_one_incident(name: str) -> None:
    """No second is blamed on two incidents, and none on nobody: they add up to what the books lost (but for the first start)."""
    for run in RUNS[name]():
        pod = run.pod
        last = pod.failures.unsettled  # with nobody alive: what goes on after the verdict is not the incident's
        until = pod.now if last is None or last.closed is None else last.closed
        total = pod.ledger.so_far(losses.STATES, round(until * NANOSECONDS))
        total["init"] -= 9 * NANOSECONDS * len(pod.slots)  # the first start, 1 to 10
        found = dict.fromkeys(losses.STATES, 0)
        for incident in pod.failures.incidents:
            lost = incident.lost if incident.state in CLOSED else losses.so_far(pod, incident, pod.now_ns)
            found = {state: amount + lost[state] for state, amount in found.items()}
        assert {state: found[state] / 1e9 for state in losses.STATES} == pytest.approx(
            {state: total[state] / 1e9 for state in losses.STATES}
        )


@pytest.mark.parametrize("name", ["recovered", "escalated", "diverged", "many"])
def test_the_phases_of_all_tries_are_those_of_the_metric(name: str) -> None:
    """The report's bars and the dashboard's must not tell two stories."""
    for run in RUNS[name]():
        told = [
            sum(one["phases"].values())
            for record in newest(run).values()
            for recovery in record["recoveries"]
            for one in recovery["tries"]
        ]
        assert sum(told) == pytest.approx(sum(run.pod.failures.phases.values()))


# When they are written.


def test_late_news_is_a_further_revision() -> None:
    """A record made at the verdict is not the last word: here the mark is regained after it."""
    run = Run().tell("commit 10, steps 11-19, gone, wait 4000, orchestrator 10, steps 11-15")
    first = run.records[-1]
    again = run.tell("steps 16-25").records[-1]
    assert (again["id"], again["revision"]) == (first["id"], first["revision"] + 1)
    assert first["recoveries"][0]["high_water_wall"] is None
    assert again["recoveries"][0]["high_water_wall"] > again["closed_wall"]
    assert again["lost_rank_seconds"]["replay"] > first["lost_rank_seconds"]["replay"]


def test_who_comes_back_after_all_is_told() -> None:
    """The verdict stands, and the record of an abandoned run still says how it was taken up again."""
    run = Run().tell("commit 10, steps 11-15, gone, wait 4000, orchestrator 10, steps 11-20")
    outcomes = [(record["outcome"], record["recoveries"][0]["layer"]) for record in run.records]
    assert outcomes[0] == ("abandoned", None)
    assert outcomes[-1] == ("abandoned", "orchestrator")
    assert run.records[-1]["recoveries"][0]["first_step_wall"] is not None


def test_the_launchers_late_line_is_told() -> None:
    """Its pipe is slower than the kernel: the signal is known when the next process runs already."""
    run = Run().tell("commit 10, steps 11-15, kill 1, launcher 10, steps 11-20, commit 20")
    old = 1000 + run.lives[1] - 1
    causes = run.pod.failures.causes.copy()
    run.event(None, "worker_exited", run.now, local_rank=1, pid=old, exit_code=-11)
    run.write_due()
    assert [record["revision"] for record in run.records] == [0, 1]
    assert [record["confidence"] for record in run.records] == ["likely", "confirmed"]
    assert run.records[-1]["evidence"][-1]["exit_code"] == -11
    assert run.pod.failures.causes == causes  # counted once, when it was decided
    assert len(run.pod.failures.incidents) == 1


@pytest.mark.parametrize(
    ("then", "lives_since"),
    [
        ("fail 0", 1),  # another incident has opened
        ("kill 0, launcher 20, steps 21-30", 2),  # and its launcher has restarted all again
        ("fail 0, in_process 20, fail 0, in_process 20, kill 1, launcher 20", 2),
    ],
)
def test_the_launchers_line_finds_its_failure_when_others_came_since(then: str, lives_since: int) -> None:
    """A slow pipe, quick failures: the line belongs to the failure that ended its process, and counts once."""
    run = Run().tell(f"commit 10, steps 11-15, kill 1, launcher 10, steps 11-20, commit 20, steps 21-22, {then}")
    first, *_, last = run.pod.failures.incidents
    told = len(last.current.evidence)
    old = 1000 + run.lives[1] - lives_since
    for _ in range(2):
        run.event(None, "worker_exited", run.now, local_rank=1, pid=old, exit_code=-11)
    run.write_due()
    assert [item.exit_code for item in first.recoveries[0].evidence if item.kind == "exit"] == [-11]
    assert len(last.current.evidence) == told
    revised = newest(run)[first.id]
    assert (revised["revision"], revised["confidence"], revised["recoveries"][0]["confidence"]) == (
        1,
        "confirmed",
        "confirmed",
    )
    assert all(item.kind != "exit" for recovery in last.recoveries for item in recovery.evidence)


def test_a_record_stays_due_until_it_is_written() -> None:
    """The state folder may be full: nothing is forgotten, and nothing is counted as written that was not."""
    tale = Tale().tell("steps 11-16, fail 1, in_process 10, steps 11-20, commit 20")
    (first,), (again,) = records.due(tale.pod), records.due(tale.pod)
    assert first == again
    records.written(tale.pod, first)
    assert records.due(tale.pod) == []


def test_nothing_is_written_again_while_nothing_happens() -> None:
    """An abandoned run that stays abandoned, a finished one that is looked at for days: a record each, once."""
    for name in ("abandoned", "cancelled", "recovered"):
        for run in RUNS[name]():
            for hours in range(1, 50):
                run.pod.set_clock(run.now + 3600 * hours, WALL + run.now + 3600 * hours)
                run.pod.advance(run.now + 3600 * hours)
                assert records.due(run.pod) == []


def test_what_is_long_over_is_not_looked_at_again() -> None:
    """Hundreds of incidents of months ago must not cost anything each second; a mark that is still to be regained is waited for."""
    run = Run().tell("commit 10, steps 11-30, gone, wait 4000, orchestrator 10, steps 11-12, fail 1, in_process 12")
    first = run.pod.failures.incidents[0]
    run.tell("wait 700")
    assert not first.at_rest
    run.tell("steps 13-30, wait 1, wait 1")
    assert first.at_rest
    assert run.records[-1]["recoveries"][0]["high_water_wall"] is not None
    assert [one.at_rest for one in run.pod.failures.incidents] == [True, False]


def test_a_stepped_clock_changes_no_record() -> None:
    """A wall clock that is set right an hour later must not move what is past, nor write it again."""
    (run,) = RUNS["recovered"]()
    run.pod.set_clock(run.now, WALL + run.now + 3600)
    run.pod.advance(run.now)
    assert records.due(run.pod) == []
    made = records.record(run.pod, run.pod.failures.incidents[0], 0.0)
    kept = newest(run)[made["id"]]
    assert {name: made[name] for name in made.keys() - {"revision", "written_wall"}} == {
        name: kept[name] for name in kept.keys() - {"revision", "written_wall"}
    }


def with_the_clock_set(hours: float) -> dict[str, Any]:
    """The record of an incident of two failures, during which the wall clock is set after each of them."""
    story = Story()
    at = story.running(steps=10)
    for number in (1, 2):
        story.die(0, at + 1.0)
        story.caught(1, at + 1.5)
        story.set_clock(at + 2.0, hours)
        story.start(at + 5.0, 0, 1, cycle=number)
        story.enter(at + 6.0, 0, 1, incarnation=f"again{number}", load=5)
        at = story.steps(at + 10.0, 0, 1, first=6, last=12)
    story.set_clock(at, hours)
    story.event(0, "checkpoint", at + 1.0, stage="committed", step=12, verified=True)
    (record,) = records.due(story.pod)
    return record


def times(value: Any, name: str = "record") -> list[tuple[str, float | None]]:
    """All times in a record but that of its writing, with their places."""
    if isinstance(value, list):
        return [found for number, one in enumerate(value) for found in times(one, f"{name}[{number}]")]
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in times(one, f"{name}.{key}")]
    return [(name, value)] if name.endswith("wall") and not name.endswith("written_wall") else []


@pytest.mark.parametrize("days", [300, -300])
def test_a_clock_that_is_set_during_an_incident_makes_none_last_a_year(days: int) -> None:
    """How long things took is told by a clock that nobody sets; whoever subtracts two times of a record must get just that."""
    plain, changed = times(with_the_clock_set(0)), times(with_the_clock_set(24 * days))
    assert len(plain) > 15
    for (name, wanted), (same, found) in zip(plain, changed, strict=True):
        assert (same, found) == (name, None if wanted is None else pytest.approx(wanted, abs=1e-3))


@settings(max_examples=80, deadline=None)
@given(sequences)
def test_every_verdict_is_written_and_then_there_is_peace(sequence: list[Observation]) -> None:
    """Whatever happens: revisions count up one by one, the last one is what is known, and silence writes nothing."""
    pod = new_pod()
    kept: dict[str, list[dict[str, Any]]] = {}
    for seen in in_order(sequence):
        pod.fold([seen])
        pod.advance(seen.mono)
        for record in write_all(pod):
            check_form(record)
            kept.setdefault(record["id"], []).append(record)
    closed = [incident for incident in pod.failures.incidents if incident.state in CLOSED]
    assert {incident.id for incident in closed} == set(kept)
    assert len(kept) == len(closed)
    for found in kept.values():
        assert [record["revision"] for record in found] == list(range(len(found)))
    pod.advance(1e6)
    write_all(pod)
    pod.advance(2e6)
    assert records.due(pod) == []


@settings(max_examples=80, deadline=None)
@given(sequences)
def test_no_incident_lost_what_the_books_did_not(sequence: list[Observation]) -> None:
    """For any sequence: the losses of all incidents together stay within the books'."""
    pod = new_pod()
    pod.fold(in_order(sequence))
    pod.advance(400.0)
    total = pod.ledger.so_far(losses.STATES, pod.now_ns)
    for state in losses.STATES:
        assert sum(incident.lost.get(state, 0) for incident in pod.failures.incidents) <= total[state]


# What names it, and what was in force.


def test_all_pods_name_an_incident_alike() -> None:
    """They meet in one folder without a word between them."""
    pods = RUNS["three_pods"]()
    assert len({pod.pod.failures.incidents[0].id for pod in pods}) == 1
    assert pods[0].records[0]["origin"]["pod_index"] is None  # an echo cannot tell
    assert pods[1].records[0]["origin"] == {"rank": 2, "pod_index": "1", "node": "n1", "gpu_uuid": None}


def test_two_incidents_of_one_incarnation_have_names_of_their_own() -> None:
    """A loop that swallows its exceptions never enters training anew, and still fails twice."""
    story = Story()
    end = story.running(steps=10)
    for mark in (10, 20):
        story.caught(0, end)
        story.caught(1, end)
        end = story.steps(end + 1, 0, 1, first=mark + 1, last=mark + 10)
        story.event(0, "checkpoint", end, stage="committed", step=mark + 10)
    one, other = story.pod.failures.incidents
    assert (one.incarnation, other.incarnation) == ("first", "first")
    assert one.id != other.id


def test_the_configuration_is_that_of_its_time() -> None:
    """A time-out that somebody raised afterwards must not be shown as the one that fired."""
    story = Story()
    end = story.running(steps=10, settings={"heartbeat_rank_seconds": 8.0, "mode": "a"}, node="n1")
    story.die(1, end)
    story.start(end + 1, 0, 1, cycle=1, settings={"heartbeat_rank_seconds": 20.0, "mode": "b"}, node="n2")
    record = records.record(story.pod, story.pod.failures.incidents[0], 0.0)
    assert (record["settings"], record["node"]) == ({"heartbeat_rank_seconds": 8.0, "mode": "a"}, "n1")


# What must never get into them.

HUGE = 10**4000


def hostile(story: Story) -> None:
    """A journal that says as much as it can, in the characters that take most room."""
    text = "\U0001f4a9\x00" * 4000
    table = {f"{number}{text}": text for number in range(200)}
    story.event(None, "launcher_started", 0.0)
    story.start(
        1.0,
        0,
        1,
        settings=table | {"nan": math.nan, "inf": math.inf, "huge": HUGE},
        versions=table,
        node=text,
        gpu_uuid=text,
    )
    story.enter(2.0, 0, 1, incarnation=text)
    at = story.steps(3.0, 0, 1, first=1, last=10)
    for number in range(12):
        for slot in (0, 1):
            for _ in range(30):
                story.caught(slot, at, text, message=text, traceback=f"{number} {slot} {text}")
        story.event(None, "worker_exited", at, local_rank=1, pid=HUGE, exit_code=HUGE)
        story.enter(at + 1, 0, 1, incarnation=f"{number}{text}", rank=HUGE, world_size=HUGE)
        for rejected in range(40):
            story.event(0, "checkpoint", at + 1, stage="rejected", step=HUGE + rejected)
        story.event(0, "checkpoint", at + 1, stage="loaded", step=HUGE + number)
        at = story.steps(at + 2, 0, 1, first=number + 2, last=number + 3) if number % 10 == 0 else at + 2
    story.event(0, "train_finished", at, step=HUGE)


def test_a_record_is_small_and_plain_whatever_the_journals_held() -> None:
    """One incident with thousands of signs, in texts of emoji and zeros and numbers of thousands of digits."""
    story = Story()
    hostile(story)
    assert not story.pod.dropped["malformed"]
    incidents = list(story.pod.failures.incidents)
    whole = records._record(story.pod, incidents[0], 0.0, records._DETAILS[0])
    assert len(json.dumps(whole)) > records.MOST_BYTES  # else this proves nothing
    for incident in incidents:
        record = records.record(story.pod, incident, math.nan)
        check_form(record)
        assert len(record["evidence"]) >= 8
        assert record["evidence"][0]["text"]
    assert sum(len(text) for text in incidents[0].tracebacks) <= 8 * 2000


def test_tracebacks_are_kept_once_and_not_for_ever() -> None:
    """Eight ranks that fail alike tell one traceback; a loop of failures does not fill the memory."""
    story = Story()
    end = story.running(steps=10)
    for slot in (0, 1):
        story.caught(slot, end, traceback="a.py:1 in f\nboom\n")
    for number in range(20):
        story.caught(0, end, traceback=f"b.py:{number} in g\nboom\n")
    told = [item["traceback"] for item in records.record(story.pod, story.pod.failures.incidents[0], 0.0)["evidence"]]
    assert told[:2] == ["a.py:1 in f\nboom\n", ""]
    assert len([text for text in told if text]) == 8


def test_nothing_is_known_to_be_lost_before_training_goes_on() -> None:
    """Not told as 0: how far back the restart will go is not known yet."""
    tale = Tale().tell("steps 11-14, fail 1")
    assert records.record(tale.pod, tale.incidents[0], WALL)["steps_lost"] is None
    tale.tell("in_process 14, steps 15-16")
    assert records.record(tale.pod, tale.incidents[0], WALL)["steps_lost"] == 0


def test_a_crash_loop_loses_no_steps_from_its_sum(tmp_path: Path) -> None:
    """Twenty failures, 4 steps each: a record keeps eight of the recoveries, and what all of them lost; every reader tells of 80."""
    tale = Tale()
    for _ in range(20):
        tale.tell("steps 11-14, fail 1, in_process 10")
    tale.tell("steps 11-15, commit 15")
    (made,) = write_all(tale.pod)
    assert (made["steps_lost"], len(made["recoveries"]), made["recoveries_left_out"]) == (80, 8, 12)
    assert "80 steps lost" in sentence(made)
    folder = pod_folder(tmp_path, "story", "0")
    folder.mkdir(parents=True)
    append_record(folder / RECORDS, made)
    found = report(load(tmp_path / "story", WALL))
    assert found.run.incidents[0].steps_lost == 80
    assert "12 recoveries are in none of these numbers" in html(found)
    assert "12 recoveries are in none of these numbers" in markdown(found)
    assert json.loads(json_text(found))["recovery"]["left_out"] == 12
    table = subprocess.run(
        [sys.executable, "-m", "headway", "incidents", str(tmp_path)],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert " 80 " in table.stdout.splitlines()[1]
