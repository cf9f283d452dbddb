"""An instrument that fails, hangs or has nothing to read costs its own metrics only, and says so."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from headway_exporter.health.instruments import AbsentError, Instrument
from headway_exporter.observations import GpuSeen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

UP = "headway_gpu_up"


class Scripted:
    """A probe whose answers are given beforehand: a number, an exception to raise, or an event to wait for."""

    name = "nvml"
    every_seconds = 0.01
    deadline_seconds = 0.2

    def __init__(self, *answers: float | Exception | threading.Event) -> None:
        self.answers = list(answers)

    def read(self) -> float:
        """The next answer; the last one again and again."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return 0.0
        return answer

    def samples(self, value: float) -> Iterable[Sample]:
        """The answer."""
        yield UP, (), value

    def lost(self, value: float) -> Iterable[Sample]:
        """It is down."""
        yield UP, (), 0.0 * value

    def observations(self, value: float) -> Iterable[Observation]:
        """One each."""
        yield GpuSeen("GPU-1", "xid", value, value, 79)


def values(instrument: Instrument[float]) -> dict[str, float]:
    """What a scrape would show, times left out."""
    return {
        name: float(value)
        for name, _, value in instrument.samples()
        if isinstance(value, (int, float)) and not name.endswith("_seconds")
    }


def test_an_answer_is_shown_and_told_once() -> None:
    """The newest answer is what a scrape shows; the fold hears of each answer one time."""
    instrument = Instrument(Scripted(1.0, 2.0))
    assert values(instrument) == {}
    instrument.read()
    instrument.read()
    assert values(instrument) == {UP: 2.0, "headway_collector_success": 1.0}
    assert [seen.mono for seen in instrument.observations() if isinstance(seen, GpuSeen)] == [1.0, 2.0]
    assert instrument.observations() == []


def test_a_failure_is_shown_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """After a failure the last good answer is not shown any more, and the log is not filled."""
    instrument = Instrument(Scripted(1.0, OSError("gone"), OSError("gone"), 3.0))
    for wanted in (1.0, 0.0, 0.0, 1.0):
        instrument.read()
        assert values(instrument)["headway_collector_success"] == wanted
    assert values(instrument)[UP] == 3.0
    assert [record.getMessage() for record in caplog.records] == [
        "nvml cannot be read (OSError: gone); its metrics are missing until it can",
        "nvml can be read again",
    ]


def test_what_is_absent_has_no_series(caplog: pytest.LogCaptureFixture) -> None:
    """A machine without the hardware is no machine with a fault: one line, no series."""
    with caplog.at_level(logging.INFO, "headway.exporter"):
        instrument = Instrument(Scripted(AbsentError("no driver")))
        instrument.read()
        instrument.read()
    assert values(instrument) == {}
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_hung_read_is_no_good_answer() -> None:
    """A driver that hangs: nobody waits for it, and after the deadline the scrape says that nothing is known."""
    hung = threading.Event()
    instrument = Instrument(Scripted(1.0, hung))
    instrument.start()
    try:
        for _ in range(3000):
            if values(instrument).get("headway_collector_success") == 0.0:
                break
            threading.Event().wait(0.01)
        assert values(instrument) == {UP: 0.0, "headway_collector_success": 0.0}
    finally:
        hung.set()
        instrument.stop()


def test_a_first_read_that_hangs_is_seen() -> None:
    """A driver that hangs from the start has never given an answer; the scrape must say so all the same."""
    hung = threading.Event()
    instrument = Instrument(Scripted(hung))
    instrument.start()
    try:
        for _ in range(3000):
            if values(instrument):
                break
            threading.Event().wait(0.01)
        assert values(instrument) == {"headway_collector_success": 0.0}
    finally:
        hung.set()
        instrument.stop()


def test_a_last_read_when_it_is_told_to_stop() -> None:
    """Who ends a pod tells of it while its sidecar ends: what is read then must not be lost, and a read that hangs not be waited for."""
    instrument = Instrument(Slow(1.0, 2.0), last_seconds=30.0)
    instrument.start()
    while not (found := instrument.observations()):
        threading.Event().wait(0.01)
    instrument.stop()
    found += instrument.observations()
    assert [seen.mono for seen in found if isinstance(seen, GpuSeen)] == [1.0, 2.0]
    hung = threading.Event()
    instrument = Instrument(Slow(1.0, hung), last_seconds=0.01)
    instrument.start()
    while not instrument.observations():
        threading.Event().wait(0.01)
    instrument.stop()
    assert not hung.is_set()
    hung.set()


@pytest.mark.parametrize("trouble", [OSError("closed"), AbsentError("closed")])
def test_a_read_that_is_left_behind_says_nothing(trouble: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """What it reads is closed under it when the sidecar ends; an end is not to look like a fault."""
    hung = threading.Event()
    instrument = Instrument(Failing(trouble, hung))
    with caplog.at_level(logging.INFO, "headway.exporter"):
        instrument.start()
        instrument.stop()
        hung.set()
        for thread in threading.enumerate():
            if thread.name == "headway-nvml":
                thread.join()
    assert caplog.records == []


class Failing(Scripted):
    """Its read waits for an event, and fails then."""

    def __init__(self, trouble: Exception, hung: threading.Event) -> None:
        super().__init__(0.0)
        self.trouble, self.hung = trouble, hung

    def read(self) -> float:
        """Never an answer."""
        self.hung.wait(30)
        raise self.trouble


class Slow(Scripted):
    """Read again only when it is told to stop."""

    every_seconds = 3600.0
