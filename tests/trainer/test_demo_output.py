"""What the demo left when it was run last: `make demo` is the longest test that there is, and more can be asked of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from headway.journal import JournalReader
from headway_trainer.demo import alerting, cli, plan

OUTPUT: Final = Path(__file__).parents[2] / "demo-output"
ALERTS: Final = OUTPUT / cli.ALERTS / "alerts.json"
JOURNALS: Final = OUTPUT / "broken" / "journal" / "broken"


def test_the_alerts_were_what_they_must_be() -> None:
    """Recoveries are notes, what keeps coming back is a ticket, nothing pages, and the undisturbed run is told of to nobody."""
    if not ALERTS.is_file():
        pytest.skip("make demo has not been run with Prometheus and Alertmanager")
    outcome = json.loads(ALERTS.read_text())
    assert outcome["problems"] == []
    fired = [one for one in outcome["episodes"] if one["firing"] is not None]
    assert alerting.EXPECTED.keys() <= {one["alert"] for one in fired}
    assert {one["run"] for one in fired} == {"broken"}
    assert "critical" not in {one["severity"] for one in fired}
    assert {one["receiver"] for one in outcome["notifications"]} == {"channel", "ticket"}


@pytest.mark.parametrize("slot", range(plan.RANKS))
def test_waiting_for_the_last_saves_is_saving(slot: int) -> None:
    """A run that has made its last step and waits for the disk is not stalled: its state says what it waits for."""
    path = JOURNALS / f"slot-{slot}.jsonl"
    if not path.is_file():
        pytest.skip("make demo has not been run")
    events = JournalReader(path).poll()
    end = next(at for at, event in enumerate(events) if event.kind == "train_finished")
    phases = [event.fields for event in events[:end] if event.kind == "phase"]
    assert (phases[-1]["name"], phases[-1]["edge"]) == ("checkpoint_save", "end")
