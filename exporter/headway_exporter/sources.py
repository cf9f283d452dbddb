"""The files of a journal folder as streams of observations; nothing in them is trusted."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

from headway import clock
from headway.events import MAX_LINE_BYTES
from headway.journal import JournalReader, Place
from headway.ring import RingFormatError, RingReader
from headway_exporter.held import packed
from headway_exporter.observations import EventSeen, Run, StepSeen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headway.events import Event
    from headway.ring import StepColumns
    from headway_exporter.observations import DeathSeen

    Found = EventSeen | StepSeen | DeathSeen | Run
    """What a source yields; a run is put together with others before it is an observation."""

FUTURE_SECONDS: Final = 1.0
"""A time further ahead than this is none."""
_LARGEST: Final = 1 << 63
_LIVES_REMEMBERED: Final = 64
_BACKWARDS_SECONDS: Final = 0.001
LEAST_RUN: Final = 4
_MOST_BYTES: Final = 2 * MAX_LINE_BYTES
_LEAST_BYTES: Final = 1 << 12
_BYTES_A_STEP: Final = 64
"""Of a journal's text, that may be read where a ring may give a step."""


class Source(Protocol):
    """A file that is followed."""

    def read(self, now: float, most: int) -> Sequence[Found]:
        """What is new, a bounded portion: at most twice `most` steps, or events of so few bytes; empty when the end is reached."""

    @property
    def at_end(self) -> bool:
        """The last `read` reached the end, as far as that could be told without another."""

    def counts(self) -> Counter[str]:
        """What was dropped so far, by reason."""

    def close(self) -> None:
        """Lets the file go."""


class JournalSource:
    """The events of a slot, or of the launcher (`slot` None)."""

    def __init__(self, path: Path, slot: int | None, saved: Mapping[str, Any] | None = None) -> None:
        """`saved`: what another one of this journal had read."""
        self._slot = slot
        self.clock_went_back = 0
        self._reader = JournalReader(path)
        self._dropped: Counter[str] = Counter()
        self._last_mono: OrderedDict[int, float] = OrderedDict()
        if saved is not None:
            place = None if saved["place"] is None else Place(*saved["place"])
            self._reader.resume(place, dict(saved["next_numbers"]))
            self._last_mono.update(saved["last_mono"])

    def read(self, now: float, most: int) -> list[EventSeen]:
        """See `Source`."""
        seen: list[EventSeen] = []
        events = self._portion(min(max(_BYTES_A_STEP * most, _LEAST_BYTES), _MOST_BYTES))
        latest = _latest(now)
        for event in events:
            if not _sane(event):
                self._dropped["malformed"] += 1
            elif not 0 <= event.mono <= latest:
                self._dropped["future"] += 1
            else:
                self._note_order(event)
                seen.append(packed(EventSeen(self._slot, event)))
        return seen

    def _portion(self, size: int) -> list[Event]:
        """So many bytes, or more than the longest line: one that goes on beyond the portion must not look like the end."""
        return self._reader.poll(size) or self._reader.poll(_MOST_BYTES)

    @property
    def at_end(self) -> bool:
        """See `Source`: only another look tells."""
        return False

    def saved(self) -> dict[str, Any]:
        """How far it was read, as JSON."""
        place = self._reader.place
        return {
            "place": None if place is None else [place.identity, place.offset, place.skipping],
            "next_numbers": list(self._reader.next_numbers.items()),
            "last_mono": list(self._last_mono.items()),
        }

    def counts(self) -> Counter[str]:
        """See `Source`."""
        return self._reader.dropped + self._dropped

    def close(self) -> None:
        """See `Source`."""
        self._reader.close()

    def _note_order(self, event: Event) -> None:
        last = self._last_mono.pop(event.life, event.mono)
        self.clock_went_back += event.mono < last - _BACKWARDS_SECONDS
        self._last_mono[event.life] = max(last, event.mono)
        if len(self._last_mono) > _LIVES_REMEMBERED:
            self._last_mono.popitem(last=False)


class RingSource:
    """The steps of one life."""

    def __init__(self, path: Path, slot: int, life: int, first: int = 0) -> None:
        """Opens the ring, to be read from the record numbered `first` on.

        Raises:
            RingFormatError: it is none, or another life's.
            OSError: it cannot be opened.
        """
        self.slot = slot
        self._life = life
        self._future = 0
        self._malformed = 0
        self._reader = RingReader.open(path, first)
        if self._reader.life != life:
            self._reader.close()
            raise RingFormatError(f"{path} holds another life's steps")

    def read(self, now: float, most: int) -> list[StepSeen | Run]:
        """See `Source`."""
        try:
            portions = self._reader.poll_columns(2 * most)
        except OSError:
            return []
        latest = round(_latest(now) * 1e9)
        return [seen for columns in portions for seen in self._seen(columns, latest)]

    def _seen(self, columns: StepColumns, latest: int) -> list[StepSeen | Run]:
        """Many steps whose ends rise are one run."""
        ends = columns.ends
        if len(columns) >= LEAST_RUN and ends[-1] <= latest and min(columns.durations) >= 0 and _rising(ends):
            return [Run(self.slot, self._life, columns)]
        past = [record for record in columns.records() if record.end_ns <= latest]
        good = [record for record in past if record.duration_ns >= 0]  # a negative one would make sums fall
        self._future += len(columns) - len(past)
        self._malformed += len(past) - len(good)
        return [StepSeen(self.slot, self._life, record) for record in good]

    @property
    def position(self) -> int:
        """Number of the record that comes next."""
        return self._reader.position

    @property
    def at_end(self) -> bool:
        """See `Source`."""
        return self._reader.at_end

    def counts(self) -> Counter[str]:
        """See `Source`."""
        return Counter(
            overwritten=self._reader.overwritten,
            torn_step=self._reader.torn,
            future=self._future,
            malformed=self._malformed,
        )

    def close(self) -> None:
        """See `Source`."""
        self._reader.close()


def _latest(now: float) -> float:
    """What is later was no time when it was read; asked after reading, for a look that began at `now` may take long."""
    return max(now, clock.monotonic()) + FUTURE_SECONDS


def _rising(numbers: list[int]) -> bool:
    return all(map(operator.le, numbers, numbers[1:]))


def _sane(event: Event) -> bool:
    """Whether all whole numbers fit the machine's: a longer one cannot be exported."""
    numbers = (value for value in event.fields.values() if isinstance(value, int))
    return all(-_LARGEST < value < _LARGEST for value in (event.n, event.life, *numbers))
