"""The rendered exposition against the library's own, byte for byte."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from headway_exporter.distribution import Distribution
from headway_exporter.rendering import MOST_FORMATS, Rendering
from headway_exporter.schema import Metric

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric as Family

    from headway_exporter.collectors import Sample

PLAIN = ""
FORMATS = (
    PLAIN,
    "text/plain; version=0.0.4",
    "text/plain; version=1.0.0; escaping=allow-utf-8",
    "application/openmetrics-text; version=1.0.0",
    "application/openmetrics-text; version=1.0.0; escaping=underscores,text/plain;q=0.5",
    "application/openmetrics-text",
)
CATALOGUE = {
    metric.name: metric
    for metric in (
        Metric("headway_one", "gauge", 'Help with "quotes", a back\\slash and\na line', {"which": None}),
        Metric("headway_two_total", "counter", "Help", {"which": None, "other": None}),
        Metric("headway_three", "histogram", "Help", {"to": None}, buckets=(0.5, 1.5)),
        Metric("headway_four", "gauge", "Without labels of its own"),
    )
}
COMMON = ("a run", "0")


class Fixed:
    """Shows whatever the test says now."""

    common = COMMON

    def __init__(self, *samples: Sample) -> None:
        self.samples = list(samples)

    def shown(self, _client: str = "", /) -> list[Sample]:
        return self.samples


class Families(Collector):
    """The same as the library's own families, made here from what is known of the catalogue."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        for metric in CATALOGUE.values():
            values = [(own, value) for name, own, value in self._samples if name == metric.name and value is not None]
            if values:
                yield the_librarys(metric, values)


def the_librarys(metric: Metric, values: list[tuple[tuple[str, ...], float | Distribution]]) -> Family:
    labels = ["run", "pod_index", *metric.labels]
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=labels)
    for own, value in values:
        if isinstance(value, Distribution):
            buckets = [
                (bound, count, Exemplar({"trace_id": given[0]}, given[1], given[2]))
                if (given := value.exemplars.get(number))
                else (bound, count)
                for number, (bound, count) in enumerate(value.cumulative())
            ]
            histogram.add_metric([*COMMON, *own], buckets, value.total)
        else:
            plain.add_metric([*COMMON, *own], value)
    return histogram if metric.type == "histogram" else plain


def uncached(samples: list[Sample], accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(Families(samples)), content_type


def rendering_of(source: Fixed) -> Rendering:
    return Rendering(source, CATALOGUE)


def distribution(values: list[float], traced: list[float]) -> Distribution:
    made = Distribution((0.5, 1.5))
    for value in values:
        made.observe(value)
    for number, value in enumerate(traced):
        made.observe_traced(value, f"{number:032x}", 1e9)
    return made


VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e300, math.inf, -math.inf, math.nan]), st.floats(), st.integers(0, 3)
)
LABELS = st.sampled_from(
    ["", "a", "b", "carriage\rreturn", 'x"} 1.0', 'quo"te', "back\\slash", "line\nend", "é", "\U0001f600"]
)
MEASURED = st.lists(st.floats(0, 3), max_size=3)


def samples_of(
    name: str, labels: int, values: st.SearchStrategy[float | Distribution]
) -> st.SearchStrategy[list[Sample]]:
    """Some series of one metric, some of which have no value now."""
    own = st.tuples(*[LABELS] * labels)
    return st.dictionaries(own, st.none() | values, max_size=3).map(
        lambda found: [(name, labels, value) for labels, value in found.items()]
    )


SAMPLES = st.tuples(
    samples_of("headway_four", 0, VALUES),
    samples_of("headway_three", 1, st.builds(distribution, MEASURED, st.just([]) | MEASURED)),
    samples_of("headway_two_total", 2, st.floats(0, 10) | st.integers(0, 3)),
    samples_of("headway_one", 1, VALUES),
).map(lambda found: [sample for samples in found for sample in samples])


@given(st.lists(st.tuples(SAMPLES, st.sampled_from(FORMATS)), max_size=8))
def test_every_answer_is_the_librarys_own(scrapes: list[tuple[list[Sample], str]]) -> None:
    """Values, labels, exemplars and formats may change from one scrape to the next, and series come and go."""
    source = Fixed()
    rendering = rendering_of(source)
    for samples, accept in scrapes:
        source.samples = samples
        assert rendering.exposition(accept) == uncached(samples, accept)
        assert rendering.exposition(accept) == uncached(samples, accept)  # now from what was kept


@given(st.lists(st.tuples(VALUES, st.floats(0, 3), st.booleans()), min_size=2, max_size=6), st.sampled_from(FORMATS))
def test_numbers_that_change_alone_change_their_lines_alone(
    scrapes: list[tuple[float, float, bool]], accept: str
) -> None:
    """The usual scrape: the same series with other numbers, of histograms too, whose exemplars come in between."""
    growing = Distribution((0.5, 1.5))
    source = Fixed()
    rendering = rendering_of(source)
    for value, measured, traced in scrapes:
        if traced:
            growing.observe_traced(measured, "ab" * 16, 1e9)
        else:
            growing.observe(measured)
        source.samples = [("headway_one", ("a",), value), ("headway_three", ("x",), growing.copy())]
        assert rendering.exposition(accept) == uncached(source.samples, accept)


def test_samples_of_no_metric_are_left_out() -> None:
    """What the catalogue does not know has neither type nor help."""
    source = Fixed(("headway_other", (), 1.0), ("headway_four", (), 2.0))
    assert rendering_of(source).exposition(PLAIN) == uncached(source.samples[1:], PLAIN)


def test_a_zero_that_turns_negative_shows() -> None:
    """Equal numbers need not look alike."""
    source = Fixed()
    rendering = rendering_of(source)
    for value, shown in ((0.0, b" 0.0\n"), (-0.0, b" -0.0\n"), (math.nan, b" NaN\n"), (math.nan, b" NaN\n")):
        source.samples = [("headway_one", ("a",), value)]
        assert shown in rendering.exposition(PLAIN)[0]


def test_openmetrics_ends_once() -> None:
    """A second `# EOF` would end the exposition in its middle, and Prometheus would refuse all of it."""
    source = Fixed(("headway_one", ("a",), 1), ("headway_four", (), 1))
    body = rendering_of(source).exposition("application/openmetrics-text; version=1.0.0")[0]
    assert body.count(b"# EOF\n") == 1
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x.y", "\x00", "text/plain; version=,"])
def test_a_format_that_is_none_is_answered_in_the_plain_one(accept: str) -> None:
    """Whoever asks gets the metrics."""
    source = Fixed(("headway_one", ("a",), 1))
    try:
        expected = uncached(source.samples, accept)  # older versions of the library do not mind
    except (TypeError, ValueError):
        expected = uncached(source.samples, PLAIN)
    assert rendering_of(source).exposition(accept) == expected


def test_clients_with_ever_new_formats_cost_no_memory() -> None:
    """A version is free text: each new one may not be kept for good."""
    rendering = rendering_of(Fixed(("headway_one", ("a",), 1)))
    for number in range(10 * MOST_FORMATS):
        rendering.exposition(f"application/openmetrics-text; version=1.{number}")
    assert 0 < len(rendering._kept) <= MOST_FORMATS  # older versions of the library know one only


def test_scrapes_at_one_time_get_whole_answers() -> None:
    """Two Prometheus servers scrape while values change."""
    source = Fixed(("headway_one", ("a",), 0))
    rendering = rendering_of(source)
    bodies: list[bytes] = []

    def scrape(accept: str) -> None:
        bodies.extend(rendering.exposition(accept)[0] for _ in range(100))

    threads = [threading.Thread(target=scrape, args=(accept,)) for accept in FORMATS]
    for thread in threads:
        thread.start()
    for number in range(1000):
        source.samples = [("headway_one", (str(which),), number) for which in range(number % 3 + 1)]
    for thread in threads:
        thread.join()
    assert len(bodies) == 100 * len(FORMATS)
    for body in bodies:
        lines = [line for line in body.splitlines() if not line.startswith(b"#")]
        assert body.count(b"# TYPE headway_one gauge") == 1
        assert len({line.rpartition(b" ")[2] for line in lines}) == 1  # all of one moment
