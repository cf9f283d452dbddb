"""The exposition's text, metric by metric: what did not change since the last scrape is not rendered again.

prometheus_client takes some 20 microseconds a series, nearly all of them for names and labels, which hardly ever change. So each metric
goes through the library's own encoder by itself, and its lines are kept beside what they were made of: label values and numbers. A metric
with the same ones is answered from there; one where only numbers changed gets them written anew behind what its lines begin with, and the
library's objects are not even made. The answer is the library's to the byte: an exposition is its families, one after the other, and in
OpenMetrics a last line.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from operator import is_
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headway_exporter.collectors import family, grouped
from headway_exporter.distribution import Distribution
from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric as Family

    from headway_exporter.collectors import Sample
    from headway_exporter.schema import Metric

    Encoder = Callable[[Collector], bytes]

MOST_FORMATS: Final = 4
"""Formats whose text is kept: a client may ask for any version, and two Prometheus servers never ask for more than two."""


class Source(Protocol):
    """What there is to show."""

    @property
    def common(self) -> tuple[str, ...]:
        """Values of the labels that every series has; always the same."""

    def shown(self, client: str = "", /) -> Iterable[Sample]:
        """All samples of now, for the client of this address."""


@dataclass(slots=True)
class _Rendered:
    """Bytes of a metric and all they depend on."""

    samples: list[Sample]
    labels: list[tuple[str, ...]]
    exemplars: list[dict[int, tuple[str, float, float]]]
    numbers: array[float]
    """Compared bit by bit: NaN equals NaN, and 0.0 is not -0.0."""
    text: bytes
    head: bytes
    """Help and type."""
    beginnings: list[bytes] | None
    """The lines up to their values; None: they hold more than that (an exemplar)."""


class _One(Collector):
    """Hands one family, or none, to the encoder."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """As prometheus_client wants it."""
        return self._families


class Rendering:
    """Renders what a source shows in the format that a client asks for; safe to call from several threads.

    Keeps the last text of each metric for each of the last `MOST_FORMATS` formats asked for.
    """

    def __init__(self, source: Source, catalogue: Mapping[str, Metric] = METRICS) -> None:
        """`catalogue`: the metrics by name, in the order in which they are shown; a sample of another one is left out."""
        self._source = source
        self._catalogue = catalogue
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[str, _Rendered]] = OrderedDict()

    def exposition(self, accept: str, client: str = "") -> tuple[bytes, str]:
        """`(body, content type)` for an Accept header and the address that asks; whatever is no format is answered in the plain one."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version in it that is no number
            encode, content_type = choose_encoder("")
        found = grouped(self._source.shown(client))
        with self._lock:
            body = b"".join(self._parts(found, encode, self._of_format(content_type)))
        return body, content_type

    def _of_format(self, content_type: str) -> dict[str, _Rendered]:
        kept = self._kept.setdefault(content_type, {})
        self._kept.move_to_end(content_type)
        if len(self._kept) > MOST_FORMATS:
            self._kept.popitem(last=False)
        return kept

    def _parts(self, found: Mapping[str, list[Sample]], encode: Encoder, kept: dict[str, _Rendered]) -> Iterator[bytes]:
        end = encode(_One())  # what follows the last family, once
        for name, metric in self._catalogue.items():
            series = found.get(name)
            if series is None:
                kept.pop(name, None)
                continue
            known = kept[name] = self._now(kept.get(name), metric, series, encode, end)
            yield known.text
        yield end

    def _now(
        self, known: _Rendered | None, metric: Metric, series: list[Sample], encode: Encoder, end: bytes
    ) -> _Rendered:
        """The metric as it is now, with as little rendering as that takes."""
        if known is not None and len(known.samples) == len(series) and all(map(is_, known.samples, series)):
            return known  # what was persisted is shown again and again
        labels, exemplars = [own for _, own, _ in series], _exemplars(metric, series)
        values = _values(metric, series)
        if known is None or known.labels != labels or known.exemplars != exemplars or len(known.numbers) != len(values):
            return _rendered(metric, self._source.common, series, encode, end)
        known.samples = series
        if known.numbers.tobytes() == values.tobytes():
            return known
        if known.beginnings is None:
            return _rendered(metric, self._source.common, series, encode, end)
        known.numbers = values
        known.text = known.head + b"".join(map(bytes.__add__, known.beginnings, map(_text, values)))
        return known


def _values(metric: Metric, series: list[Sample]) -> array[float]:
    """The numbers in the order of their lines."""
    if metric.type != "histogram":
        return array("d", [value for _, _, value in series])  # type: ignore[misc]
    numbers = array("d")
    for _, _, value in series:
        if isinstance(value, Distribution):
            counts = list(accumulate(value.counts))
            numbers.extend([*counts, counts[-1], value.total])
    return numbers


def _exemplars(metric: Metric, series: list[Sample]) -> list[dict[int, tuple[str, float, float]]]:
    """Of each histogram; nothing else has any."""
    if metric.type != "histogram":
        return []
    return [value.exemplars.copy() for _, _, value in series if isinstance(value, Distribution)]


def _rendered(metric: Metric, common: tuple[str, ...], series: list[Sample], encode: Encoder, end: bytes) -> _Rendered:
    """The metric rendered by the library."""
    text = encode(_One(family(metric, common, series)))
    if not text.endswith(end):
        raise ValueError(f"prometheus_client ended the family {metric.name} with {text[-20:]!r} instead of {end!r}")
    text = text[: len(text) - len(end)]
    lines = [line + b"\n" for line in text.split(b"\n")[:-1]]
    first = next((at for at, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
    values, exemplars = _values(metric, series), _exemplars(metric, series)
    beginnings = None if any(exemplars) else _beginnings(lines[first:], values)
    labels = [own for _, own, _ in series]
    return _Rendered(series, labels, exemplars, values, text, b"".join(lines[:first]), beginnings)


def _beginnings(lines: list[bytes], values: array[float]) -> list[bytes] | None:
    """What precedes the value in each line; None unless each line is one value's and ends with it."""
    ends = [_text(value) for value in values]
    if len(lines) != len(ends) or not all(line.endswith(b" " + end) for line, end in zip(lines, ends, strict=True)):
        return None
    return [line[: len(line) - len(end)] for line, end in zip(lines, ends, strict=True)]


def _text(value: float) -> bytes:
    """The value as the library writes it, and the line's end."""
    return f"{floatToGoString(value)}\n".encode()  # type: ignore[no-untyped-call]
