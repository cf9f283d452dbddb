"""What the demo says of its alerts: it must not pass when one paged, or when one that is expected did not come, stay away or tell."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from headway_trainer.demo import alerting
from headway_trainer.demo.alerting import Episode, History
from headway_trainer.demo.webhook import Notification, Webhook

RUN, QUIET = "broken", "undisturbed"


def series(state: str, *moments: float, alert: str = "HeadwayRecovered", **labels: str) -> dict[str, Any]:
    """One of Prometheus' `ALERTS`."""
    metric = {"alertname": alert, "alertstate": state, "severity": "info", "run": RUN, **labels}
    return {"metric": metric, "values": [[at, "1"] for at in moments]}


def told(*every: dict[str, Any], end: float = 200.0) -> list[tuple[float | None, float | None, float | None]]:
    """When each episode was pending, firing and over."""
    return [(one.pending, one.firing, one.ended) for one in alerting.episodes(History(every, 1.0, end))]


def test_an_alert_goes_from_pending_over_firing_to_resolved() -> None:
    """The two series of one alert are one episode, also where both have the moment of the change."""
    assert told(series("pending", 100, 101, 102), series("firing", 102, 103, 104)) == [(100, 102, 105)]
    assert told(series("firing", 102, 103), series("pending", 100, 101, 102)) == [(100, 102, 104)]


def test_what_fires_at_once_was_never_pending() -> None:
    """An alert without a wait."""
    assert told(series("firing", 100, 101)) == [(None, 100, 102)]


def test_what_never_fired_is_told_too() -> None:
    """A hang that was over in time, for example."""
    assert told(series("pending", 100, 101)) == [(100, None, 102)]


def test_what_is_still_up_has_no_end() -> None:
    """The last moment of the query is the present, whatever its phase against the steps."""
    assert told(series("firing", 100, 101), end=101.0) == [(None, 100, None)]
    assert told(series("firing", 100, 101), end=101.9) == [(None, 100, None)]
    assert told(series("firing", 100, 101), end=102.0) == [(None, 100, 102)]


def test_a_gap_parts_two_episodes() -> None:
    """And alerts of other runs, or with other labels, are other alerts, in the order of time."""
    assert told(series("firing", 100, 101, 105.002, 106)) == [(None, 100, 102), (None, 105.002, 107)]
    assert told(series("firing", 103), series("firing", 101, run=QUIET)) == [(None, 101, 102), (None, 103, 104)]
    assert told(series("firing", 103), series("pending", 103, objective="training")) == [
        (None, 103, 104),
        (103, None, 104),
    ]
    assert told() == []


def episode(alert: str, severity: str = "warning", run: str = RUN, **change: float | None) -> Episode:
    """One that fired and was resolved."""
    return Episode(alert, severity, run, **{"pending": None, "firing": 100.0, "ended": 110.0, **change})


def note(alert: str, receiver: str, status: str = "firing", run: str = RUN, started: str = "a") -> Notification:
    """One that the webhook received."""
    return Notification(101.0, receiver, status, alert, run, started, "")


EPISODES = [
    episode("HeadwayRecovered", "info"),
    episode("HeadwayRecurringEntity"),
    episode("HeadwayRestartBudgetLow"),
    episode("HeadwayTrainingStalled", "critical", pending=90.0, firing=None),
]
NOTES = [
    note("HeadwayRecovered", "channel"),
    note("HeadwayRecurringEntity", "ticket"),
    note("HeadwayRecurringEntity", "ticket", "resolved"),
    note("HeadwayRestartBudgetLow", "ticket"),
    note("HeadwayRestartBudgetLow", "ticket", "resolved"),
]


def problems(episodes: list[Episode] = EPISODES, notes: list[Notification] = NOTES) -> list[str]:
    """What the demo complains about."""
    return alerting.problems(episodes, notes, RUN, QUIET)


def test_what_should_be_is_no_problem() -> None:
    """Also with a ticket that a slow machine may add, a page that was only pending, and more recoveries."""
    assert problems() == []
    assert problems([*EPISODES, episode("HeadwayAsyncBacklog"), episode("HeadwayRecovered", "info")]) == []


@pytest.mark.parametrize("alert", sorted(alerting.EXPECTED))
def test_each_expected_alert_must_come_and_go(alert: str) -> None:
    """Its absence, its staying, and another run's are problems."""
    others = [one for one in EPISODES if one.alert != alert]
    own = next(one for one in EPISODES if one.alert == alert)
    assert problems(others) == [f"{alert} did not fire"]
    assert problems([*others, episode(alert, own.severity, firing=None, pending=1.0)]) == [f"{alert} did not fire"]
    assert problems([*others, episode(alert, own.severity, ended=None)]) == [f"{alert} was not resolved"]
    assert problems([*others, episode(alert, own.severity, run="another")]) == [f"{alert} did not fire"]


@pytest.mark.parametrize("at", range(len(NOTES)))
def test_each_message_must_arrive(at: int) -> None:
    """At the receiver that is meant, and for tickets their end too."""
    (problem,) = problems(notes=NOTES[:at] + NOTES[at + 1 :])
    one = NOTES[at]
    assert problem == f"{one.alert}: receiver {one.receiver} was not told that it is {one.status}"


def test_nobody_is_paged_and_the_quiet_run_is_quiet() -> None:
    """However it comes: by an alert that fires or by a message."""
    page = episode("HeadwayTrainingStalled", "critical")
    assert problems([*EPISODES, page]) == ["HeadwayTrainingStalled paged for the run 'broken'"]
    assert problems(notes=[*NOTES, note("Odd", "page")]) == ["Odd reached the pager"]
    assert problems([*EPISODES, episode("HeadwayCheckpointStale", run=QUIET)]) == [
        "HeadwayCheckpointStale fired for the undisturbed run"
    ]


def active(state: str, alert: str = "HeadwayRecovered") -> dict[str, Any]:
    """One of Prometheus' active alerts."""
    return {"labels": {"alertname": alert, "severity": "info", "run": RUN}, "state": state}


def test_changes_are_told_once() -> None:
    """What comes, what fires, what is over; nothing of what stays."""
    assert alerting.changes([], [active("pending")]) == ["alert HeadwayRecovered of broken: pending"]
    assert alerting.changes([active("pending")], [active("firing")]) == [
        "alert HeadwayRecovered of broken: firing (info)"
    ]
    assert alerting.changes([active("firing")], [active("firing")]) == []
    assert alerting.changes([active("firing")], []) == ["alert HeadwayRecovered of broken: resolved"]
    assert alerting.changes([active("pending")], []) == ["alert HeadwayRecovered of broken: withdrawn, it never fired"]


def test_a_message_is_read_and_its_repetitions_left_out() -> None:
    """Alertmanager sends all alerts of a run whenever one of them changes; an alert that comes again is news."""
    one = {"status": "firing", "labels": {"alertname": "A", "run": RUN}, "annotations": {}, "startsAt": "2026"}
    two = one | {"labels": {"alertname": "B"}, "annotations": {"summary": "s"}}
    over, again = one | {"status": "resolved"}, one | {"startsAt": "2027"}
    told: list[Notification] = []
    with Webhook(("127.0.0.1", 0), told.append) as receiver:
        for alerts in ([one], [one, two], [over, two], [again, two]):
            receiver.take({"receiver": "ticket", "alerts": alerts})
        assert receiver.notes() == told
    assert [(each.receiver, each.alert, each.run, each.status, each.started, each.summary) for each in told] == [
        ("ticket", "A", RUN, "firing", "2026", ""),
        ("ticket", "B", "", "firing", "2026", "s"),
        ("ticket", "A", RUN, "resolved", "2026", ""),
        ("ticket", "A", RUN, "firing", "2027", ""),
    ]


def test_tables_show_everything() -> None:
    """Nothing is cut off at the width of a common terminal; what is wrong, still up or never fired is marked."""
    out = io.StringIO()
    console = Console(file=out, width=110)
    odd = [
        episode("HeadwayCheckpointOverlapIncomplete"),
        episode("HeadwayRecurringFailure", "critical"),
        episode("HeadwayRecovered", "info", ended=None),
        episode("HeadwayRecovered", "info", run=QUIET),
    ]
    again = episode("HeadwayTrainingStalled", "critical", pending=95.0, firing=None)
    console.print(alerting.alerts_table([*EPISODES, *odd, again], RUN))
    console.print(alerting.notes_table(NOTES))
    text = out.getvalue()
    rows = [line.split() for line in text.splitlines() if "Headway" in line]
    assert [row[-1] for row in rows[:8]] == ["ok", "ok", "ok", "x2", "expected", "WRONG", "over", "WRONG"]
    assert rows[9][1:] == ["ticket", "firing", "HeadwayRecurringEntity", "broken"]
    assert "never fired x2" in text
    assert "…" not in text
