"""Incidents as a scraper and a reader of /status.json see them."""

from __future__ import annotations

from incident_tale import Tale
from pod_story import WALL
from test_pod import samples

from headway_exporter.collectors import incidents, ledger, restarts
from headway_exporter.labels import INCIDENT_OUTCOMES, LAYERS, REASONS, RECOVERY_PHASES
from headway_exporter.pod import Pod
from headway_exporter.status import status


def test_counters_are_there_before_the_first_incident() -> None:
    """A counter that appears with its first increment hides that increment from `increase()`. Causes are too many for that."""
    found = samples(incidents(Pod("run", "0"))) | samples(restarts(Pod("run", "0")))
    assert all(
        found["headway_incidents_total", one, word] == 0 for one in INCIDENT_OUTCOMES for word in ("true", "false")
    )
    assert not [key for key, value in found.items() if "_causes_" in key[0] and value is not None]
    assert all(
        found["headway_recovery_phase_seconds_total", layer, one] == 0 for layer in LAYERS for one in RECOVERY_PHASES
    )
    assert not any(("headway_incident_recurring", reason) in found for reason in REASONS)
    assert (found["headway_incident_open",], found["headway_incident_attempts",]) == (0, 0)


def test_an_incident_from_failure_to_verdict() -> None:
    """The attempt is under way until its first step, the incident until its verdict."""
    tale = Tale()
    opened = tale.now
    name = "headway_incident_attempt_started_timestamp_seconds"
    found = samples(incidents(tale.tell("fail 1").pod))
    assert (found["headway_incident_open",], found["headway_incident_attempts",]) == (1, 1)
    assert found["headway_incident_opened_timestamp_seconds",] == WALL + opened
    assert found[name, "in_process"] == WALL + opened
    found = samples(incidents(tale.tell("kill 1, launcher 8").pod))
    assert {key: value for key, value in found.items() if key[0] == name} == {(name, "launcher"): WALL + opened}
    found = samples(incidents(tale.tell("steps 9-12").pod))
    assert found["headway_incident_open",] == 1
    assert not [key for key in found if key[0] == name]
    found = samples(incidents(tale.tell("commit 12").pod))
    assert found["headway_incident_open",] == 0
    closed = {key[1]: value for key, value in found.items() if key[0] == "headway_incident_closed_timestamp_seconds"}
    assert closed == {"recovered": tale.pod.failures.incidents[-1].closed_wall}
    assert found["headway_incidents_total", "recovered", "false"] == 1
    assert found["headway_incident_causes_total", "launcher", "app_exception"] == 1
    assert ("headway_incident_opened_timestamp_seconds",) not in found


def test_who_makes_no_steps_says_since_when() -> None:
    """One series of those that wait, and none of the others: rules read it of thousands of pods."""
    name = "headway_waiting_since_timestamp_seconds"

    def waits(tale: Tale) -> dict[tuple[str, ...], float]:
        return {key: value for key, value in samples(ledger(tale.pod)).items() if key[0] == name}

    tale = Tale().tell("steps 9-12")
    assert waits(tale) == {}
    tale.tell("kill 1, wait 5")
    assert waits(tale) == {(name, tale.pod.state): tale.pod.state_since_wall}
    assert waits(tale.tell("launcher 8, steps 9-13")) == {}


def test_recurring_shows_its_reasons_until_the_verdict() -> None:
    """Each reason is a series of its own, and none outlives its incident."""
    tale = Tale().tell("fail 1, in_process 8, steps 9-9, fail 1")
    found = samples(incidents(tale.pod))
    reasons = {key[1] for key, value in found.items() if key[0] == "headway_incident_recurring" and value}
    assert reasons == {"same_fingerprint"}
    found = samples(incidents(tale.tell("in_process 8, steps 9-20, commit 20").pod))
    assert not any(value for key, value in found.items() if key[0] == "headway_incident_recurring")
    assert found["headway_incidents_total", "recovered", "true"] == 1


def test_a_repeat_offender_shows_though_every_incident_recovered() -> None:
    """It is a reason of its own that needs no open incident: a ticket, not a page."""
    rounds = ("fail 1, in_process 9, steps 10-11, commit 11", "fail 1, in_process 11, steps 12-13, commit 13")
    found = samples(incidents(Tale().tell(", ".join(rounds)).pod))
    assert found["headway_entity_incidents", "rank", "1"] == 2
    assert found["headway_incident_recurring", "same_entity"] == 1
    assert found["headway_incidents_total", "recovered", "false"] == 2


def test_status_tells_incidents() -> None:
    """What is known of an incident, with what it rests on and what else it may be."""
    document = status(Tale().tell("kill 1, launcher 8, steps 9-12, commit 12").pod, {})
    [incident] = document["incidents"]
    assert incident["closed_wall"] > incident["opened_wall"]
    del incident["opened_wall"], incident["closed_wall"]
    assert incident == {
        "state": "recovered",
        "attempts": 1,
        "escalated": False,
        "layer": "launcher",
        "recurring": [],
        "cause": "process_killed",
        "origin_rank": 1,
        "origin_pod_index": None,
        "origin_node": None,
        "decided_by": "alone",
        "ambiguous": False,
        "confidence": "likely",
        "alternatives": ["process_exited", "host_oom"],
        "evidence": ["process of rank 1 died (its lock was released)"],
        "high_water_step": 10,
        "durable_step": None,
        "loads": {"8": 1},
    }
