"""The exposition's text, family by family: what did not change since the last scrape is not rendered again.

prometheus_client takes some 20 microseconds a series, nearly all of them for names and labels, which hardly ever change. So each family
goes through the library's own encoder by itself, and its lines are kept beside the samples they were made of. A family with the same
values is answered from there; one where only values changed gets them written anew behind what its lines begin with. The answer is
the library's to the byte: an exposition is its families, one after the other, and in OpenMetrics a last line.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.samples import Sample

    Encoder = Callable[[Collector], bytes]

MOST_FORMATS: Final = 4
"""Formats whose families are kept: a client may ask for any version, and two Prometheus servers never ask for more than two."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Bytes of a family and all they depend on."""

    heading: tuple[str, str, str, str]
    numbers: bytes
    """The values bit by bit: NaN equals NaN, and 0.0 is not -0.0."""
    samples: list[Sample]
    text: bytes
    head: bytes = b""
    """Help and type, when there are `beginnings`."""
    beginnings: tuple[bytes, ...] | None = None
    """The samples' lines up to their values; None: they hold more than that (an exemplar, a timestamp)."""


class _One(Collector):
    """Hands one family, or none, to the encoder."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """As prometheus_client wants it."""
        return self._families


class Rendering:
    """Renders a collector's families in the format that a client asks for; safe to call from several threads.

    Keeps the last text of each family for each of the last `MOST_FORMATS` formats asked for.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[str, _Rendered]] = OrderedDict()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """`(body, content type)` for an Accept header; whatever is no format is answered in the plain one."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version in it that is no number
            encode, content_type = choose_encoder("")
        families = list(self._collector.collect())
        with self._lock:
            kept = self._of_format(content_type)
            body = b"".join(self._parts(families, encode, kept))
        return body, content_type

    def _of_format(self, content_type: str) -> dict[str, _Rendered]:
        kept = self._kept.setdefault(content_type, {})
        self._kept.move_to_end(content_type)
        if len(self._kept) > MOST_FORMATS:
            self._kept.popitem(last=False)
        return kept

    @staticmethod
    def _parts(families: list[Family], encode: Encoder, kept: dict[str, _Rendered]) -> Iterator[bytes]:
        end = encode(_One())  # what follows the last family, once
        for gone in kept.keys() - {family.name for family in families}:
            del kept[gone]
        for family in families:
            known = kept[family.name] = _now(kept.get(family.name), family, encode, end)
            yield known.text
        yield end


def _now(known: _Rendered | None, family: Family, encode: Encoder, end: bytes) -> _Rendered:
    """The family as it is now, with as little rendering as that takes."""
    if known is None or known.heading != _heading(family) or not _alike(known.samples, family.samples):
        return _rendered(family, encode, end)
    numbers = _numbers(family)
    if known.numbers == numbers:
        return known
    if known.beginnings is None:
        return _rendered(family, encode, end)
    values = (_text(sample) for sample in family.samples)
    lines = map(bytes.__add__, known.beginnings, values)
    return replace(known, numbers=numbers, samples=family.samples, text=known.head + b"".join(lines))


def _rendered(family: Family, encode: Encoder, end: bytes) -> _Rendered:
    text = encode(_One(family))
    if not text.endswith(end):
        raise ValueError(f"prometheus_client ended the family {family.name} with {text[-20:]!r} instead of {end!r}")
    text = text[: len(text) - len(end)]
    rendered = _Rendered(_heading(family), _numbers(family), family.samples, text)
    lines = [line + b"\n" for line in text.split(b"\n")[:-1]]
    first = next((at for at, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
    beginnings = _beginnings(lines[first:], family.samples)
    return replace(rendered, head=b"".join(lines[:first]), beginnings=beginnings)


def _beginnings(lines: list[bytes], samples: list[Sample]) -> tuple[bytes, ...] | None:
    """What precedes the value in each line; None unless each line is one sample's and ends with its value."""
    values = [_text(sample) for sample in samples]
    plain = all(sample.timestamp is None and sample.exemplar is None for sample in samples)
    if not plain or len(lines) != len(values):
        return None
    if not all(line.endswith(b" " + value) for line, value in zip(lines, values, strict=True)):
        return None
    return tuple(line[: len(line) - len(value)] for line, value in zip(lines, values, strict=True))


def _text(sample: Sample) -> bytes:
    """The value as the library writes it, and the line's end."""
    return f"{floatToGoString(sample.value)}\n".encode()  # type: ignore[no-untyped-call]


def _heading(family: Family) -> tuple[str, str, str, str]:
    return family.name, family.documentation, family.type, family.unit


def _numbers(family: Family) -> bytes:
    return array("d", [sample.value for sample in family.samples]).tobytes()


def _alike(before: list[Sample], now: list[Sample]) -> bool:
    """Whether all but the values is equal."""
    return len(before) == len(now) and all(
        one.labels == other.labels
        and one.name == other.name
        and one.timestamp == other.timestamp
        and one.exemplar == other.exemplar
        for one, other in zip(before, now, strict=True)
    )
