"""Prometheus' remote write, as much of it as it takes to hand over a fleet's past: a protocol-buffer message in a snappy frame.

The samples come to lie where scraped ones do, in the head of the database. Values that several pods share are encoded once.
"""

from __future__ import annotations

import struct
import urllib.error
import urllib.request
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_BYTES: Final = 4_000_000
"""Of a message; Prometheus keeps it in memory whole."""
_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


class Encoder:
    """Time series with values at the same times, milliseconds since 1970."""

    def __init__(self, times: Sequence[int]) -> None:
        self._times = [_tag(2, 0) + _varint(time) for time in times]
        self.samples = lru_cache(maxsize=None)(self._encoded)
        """By the values, which many series have."""

    def _encoded(self, values: tuple[float | None, ...]) -> bytes:
        return b"".join(
            _field(2, _tag(1, 1) + struct.pack("<d", value) + time)
            for value, time in zip(values, self._times, strict=True)
            if value is not None
        )


def series(*parts: bytes) -> bytes:
    """One of a message's time series, of encoded labels, in any order, and encoded samples."""
    return _field(1, b"".join(parts))


def labels(names_and_values: Iterable[tuple[str, str]]) -> bytes:
    """Encoded."""
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in names_and_values)


def write(address: str, encoded: Iterable[bytes]) -> int:
    """Hands over all series; returns how many there were.

    Raises:
        RuntimeError: Prometheus refuses them; the message has its words.
    """
    count = 0
    for message, held in _messages(encoded):
        request = urllib.request.Request(f"{address}/api/v1/write", _snappy(message), _HEADERS)  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=120):  # noqa: S310 - our own
                count += held
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"Prometheus refuses samples: {error.code} {error.read().decode()}") from error
    return count


def _messages(encoded: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    held: list[bytes] = []
    size = 0
    for one in encoded:
        held.append(one)
        size += len(one)
        if size > _MOST_BYTES:
            yield b"".join(held), len(held)
            held, size = [], 0
    if held:
        yield b"".join(held), len(held)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _tag(number: int, kind: int) -> bytes:
    return bytes((number << 3 | kind,))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _snappy(content: bytes) -> bytes:
    """A frame of one literal: snappy allows what is not compressed."""
    return _varint(len(content)) + bytes((63 << 2,)) + struct.pack("<I", len(content) - 1) + content
