"""Exemplars: from a bucket of the recovery histogram one gets to the trace of the recovery that fell into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from incident_tale import Tale
from pod_story import WALL
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from sidecar_process import OPENMETRICS

from headway_exporter import records
from headway_exporter.collectors import families, restarts
from headway_exporter.distribution import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

    from headway_exporter.pod import Pod

NAME = "headway_recovery_seconds"


class OnePod(Collector):
    """A pod's metrics on their way to a scrape."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def collect(self) -> Iterable[Metric]:
        return families(restarts(self.pod), ("story", "0"))


def scrape(pod: Pod, accept: str) -> str:
    """What a client gets."""
    registry = CollectorRegistry()
    registry.register(OnePod(pod))
    encode, _ = choose_encoder(accept)
    return encode(registry).decode()


def exemplars(pod: Pod) -> dict[str, list[Any]]:
    """Of the recovery histogram, by what it measures: trace, value, time and the bucket's bound."""
    found: dict[str, list[Any]] = {"first_step": [], "high_water": []}
    for family in parse_openmetrics(scrape(pod, OPENMETRICS)):
        for sample in family.samples if family.name == NAME else ():
            if sample.exemplar is not None:
                one = sample.exemplar
                told = (one.labels["trace_id"], one.value, float(one.timestamp), sample.labels["le"])
                found[sample.labels["to"]].append(told)
    return found


def test_each_bucket_leads_to_the_newest_trace_in_it() -> None:
    """The ids are those of the records, and so those of the traces that are sent."""
    tale = Tale().tell(
        "fail 1, in_process 8, steps 9-12, commit 12, fail 1, wait 30, in_process 8, steps 9-14, commit 14"
    )
    first, second = (records.record(tale.pod, incident, 0.0) for incident in tale.incidents)
    found = exemplars(tale.pod)
    for to in found:
        assert {one[0] for one in found[to]} == {first["trace_id"], second["trace_id"]}
    for trace_id, value, wall, bound in found["first_step"]:
        [recovery] = next(one for one in (first, second) if one["trace_id"] == trace_id)["recoveries"]
        assert wall == pytest.approx(recovery["first_step_wall"], rel=0, abs=1e-5)
        assert value == pytest.approx(recovery["first_step_wall"] - recovery["opened_wall"], abs=1e-5)
        assert value <= float(bound)
        assert wall > WALL
    again = tale.tell("fail 0, in_process 14, steps 15-16, commit 16")
    third = records.record(again.pod, again.incidents[-1], 0.0)
    assert {one[0] for one in exemplars(again.pod)["first_step"]} == {second["trace_id"], third["trace_id"]}


def test_an_exemplar_of_a_closed_incident_is_its_own() -> None:
    """A mark may be regained when the next incident is already open: the time belongs to the one that lost it."""
    tale = Tale().tell("steps 11-40, commit 12, gone, wait 4000, orchestrator 12, steps 13-14, wait 100")
    tale.tell("fail 1, in_process 14, steps 15-41")
    first, second = (records.record(tale.pod, incident, 0.0) for incident in tale.incidents)
    lasted = {
        made["trace_id"]: pytest.approx(recovery["high_water_wall"] - recovery["opened_wall"], abs=1e-5)
        for made in (first, second)
        for recovery in made["recoveries"]
    }
    assert {one[0]: one[1] for one in exemplars(tale.pod)["high_water"]} == lasted


def test_the_classic_format_has_none() -> None:
    """It knows no exemplars: promtool and older scrapers must still read every line, with the same numbers."""
    tale = Tale().tell("fail 1, in_process 8, steps 9-12, commit 12")
    classic, modern = scrape(tale.pod, ""), scrape(tale.pod, OPENMETRICS)
    assert "trace_id" not in classic
    assert "trace_id" in modern
    numbers = [
        [(sample.labels, sample.value) for family in parsed if family.name == NAME for sample in family.samples]
        for parsed in (parse_text(classic), parse_openmetrics(modern))
    ]
    assert numbers[0] == numbers[1]


def test_a_distribution_keeps_one_exemplar_a_bucket() -> None:
    """Bounded, whatever is observed; and an observation without a trace leaves those that are there."""
    found = Distribution((1.0, 5.0))
    for number in range(1_000):
        found.observe_traced(number / 100, f"{number:032x}", float(number))
    found.observe(0.5)
    assert found.exemplars == {
        0: (f"{100:032x}", 1.0, 100.0),
        1: (f"{500:032x}", 5.0, 500.0),
        2: (f"{999:032x}", 9.99, 999.0),
    }
    assert found.cumulative() == [("1.0", 102), ("5.0", 502), ("+Inf", 1_001)]
