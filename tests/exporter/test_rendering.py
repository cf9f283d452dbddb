"""The rendered exposition against the library's own, byte for byte."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from headway_exporter.rendering import MOST_FORMATS, Rendering

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric as Family

PLAIN = ""
FORMATS = (
    PLAIN,
    "text/plain; version=0.0.4",
    "text/plain; version=1.0.0; escaping=allow-utf-8",
    "application/openmetrics-text; version=1.0.0",
    "application/openmetrics-text; version=1.0.0; escaping=underscores,text/plain;q=0.5",
    "application/openmetrics-text",
)


class Fixed(Collector):
    """Whatever the test says now."""

    def __init__(self) -> None:
        self.families: list[Family] = []

    def collect(self) -> Iterable[Family]:
        return self.families


def uncached(collector: Collector, accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(collector), content_type


def gauge(name: str, values: dict[str, float], text: str = "Help") -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["which"])
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def histogram(name: str, counts: list[float], exemplar: Exemplar | None = None) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, "Help", labels=["to"])
    buckets: list[Any] = [(str(number), count, exemplar) for number, count in enumerate(counts)]
    family.add_metric(["x"], [*buckets, ("+Inf", counts[-1], None)], sum(counts))
    return family


VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e300, math.inf, -math.inf, math.nan]), st.floats(), st.integers(0, 3)
)
LABELS = st.sampled_from(
    ["", "a", "b", "carriage\rreturn", 'x"} 1.0', 'quo"te', "back\\slash", "line\nend", "é", "\U0001f600"]
)
NAMES = st.sampled_from(["headway_one", "headway_two", "headway_three"])
EXEMPLARS = st.none() | st.builds(
    Exemplar,
    st.just({"trace_id": "ab"}) | st.just({"trace_id": "cd"}),
    st.sampled_from([0.5, 1.5]),
    st.none() | st.just(1e9),
)
FAMILIES = st.one_of(
    st.builds(gauge, NAMES, st.dictionaries(LABELS, VALUES, max_size=3), st.sampled_from(["Help", "Other help"])),
    st.builds(
        lambda name, value: CounterMetricFamily(name, "Help", value=value),
        NAMES,
        st.floats(0, 10),
    ),
    st.builds(histogram, NAMES, st.lists(st.integers(0, 2).map(float), min_size=1, max_size=3), EXEMPLARS),
)


@given(st.lists(st.tuples(st.lists(FAMILIES, max_size=4), st.sampled_from(FORMATS)), max_size=8))
def test_every_answer_is_the_librarys_own(scrapes: list[tuple[list[Family], str]]) -> None:
    """Values, labels, help, types, exemplars and formats may change from one scrape to the next, also within one name."""
    collector = Fixed()
    rendering = Rendering(collector)
    for families, accept in scrapes:
        collector.families = list({family.name: family for family in families}.values())
        assert rendering.exposition(accept) == uncached(collector, accept)
        assert rendering.exposition(accept) == uncached(collector, accept)  # now from what was kept


def test_a_zero_that_turns_negative_shows() -> None:
    """Equal numbers need not look alike."""
    collector = Fixed()
    rendering = Rendering(collector)
    for value, shown in ((0.0, b" 0.0\n"), (-0.0, b" -0.0\n"), (math.nan, b" NaN\n"), (math.nan, b" NaN\n")):
        collector.families = [gauge("headway_one", {"a": value})]
        assert shown in rendering.exposition(PLAIN)[0]


def test_openmetrics_ends_once() -> None:
    """A second `# EOF` would end the exposition in its middle, and Prometheus would refuse all of it."""
    collector = Fixed()
    collector.families = [gauge("headway_one", {"a": 1}), gauge("headway_two", {"a": 1})]
    body = Rendering(collector).exposition("application/openmetrics-text; version=1.0.0")[0]
    assert body.count(b"# EOF\n") == 1
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x.y", "\x00", "text/plain; version=,"])
def test_a_format_that_is_none_is_answered_in_the_plain_one(accept: str) -> None:
    """Whoever asks gets the metrics."""
    collector = Fixed()
    collector.families = [gauge("headway_one", {"a": 1})]
    try:
        expected = uncached(collector, accept)  # older versions of the library do not mind
    except (TypeError, ValueError):
        expected = uncached(collector, PLAIN)
    assert Rendering(collector).exposition(accept) == expected


def test_clients_with_ever_new_formats_cost_no_memory() -> None:
    """A version is free text: each new one may not be kept for good."""
    collector = Fixed()
    collector.families = [gauge("headway_one", {"a": 1})]
    rendering = Rendering(collector)
    for number in range(10 * MOST_FORMATS):
        rendering.exposition(f"application/openmetrics-text; version=1.{number}")
    assert 0 < len(rendering._kept) <= MOST_FORMATS  # older versions of the library know one only


def test_scrapes_at_one_time_get_whole_answers() -> None:
    """Two Prometheus servers scrape while values change."""
    registry = CollectorRegistry()
    changing = Gauge("headway_changing", "Help", ["which"], registry=registry)
    rendering = Rendering(registry)
    bodies: list[bytes] = []

    def scrape(accept: str) -> None:
        bodies.extend(rendering.exposition(accept)[0] for _ in range(100))

    threads = [threading.Thread(target=scrape, args=(accept,)) for accept in FORMATS]
    for thread in threads:
        thread.start()
    for number in range(1000):
        changing.labels(str(number % 3)).set(number)
    for thread in threads:
        thread.join()
    assert len(bodies) == 100 * len(FORMATS)
    assert all(body.count(b"# TYPE headway_changing gauge") == 1 for body in bodies)
