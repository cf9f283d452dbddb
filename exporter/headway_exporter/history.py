"""What a rank did when: its rank-seconds by state in each stretch of time, for a picture of the run in bounded memory.

A stretch begins at a multiple of its width on CLOCK_MONOTONIC. The width is a second at first and doubles whenever the run has become
too long, so that the histories of several slots fit together. An interval is divided evenly among the stretches that it
touches, to the nanosecond: what all of them hold is what the books hold.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.packing import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway_exporter.packing import Saved

FIRST_WIDTH: Final = 1_000_000_000
MOST_STRETCHES: Final = 400
RECENT_WIDTH: Final = 16 * FIRST_WIDTH
"""A power of two times the first one: the stretches of a long run's history are whole numbers of these."""
RECENT_STRETCHES: Final = 225
"""An hour."""


class History:
    """The history of one slot; all times are integer nanoseconds."""

    __slots__ = ("_first", "_last", "_packed", "_saved", "_words", "stretches", "width")

    def __init__(self) -> None:
        self.width = FIRST_WIDTH
        self.stretches: dict[int, dict[str, int]] = {}
        """By number (its begin over the width): nanoseconds by state."""
        self._first = self._last = 0
        self._saved: list[int | str] = []
        """The stretches out of an older version's ledger: number, how many states, then each with its nanoseconds, and so on."""
        self._packed: Saved = ""
        """The same on their way into a ledger and back, with the states' numbers in `_words` in place of their names."""
        self._words: list[str] = []

    def for_saving(self) -> dict[str, Any]:
        """As `codec` asks: all stretches in one list, which takes a tenth of the memory of one object for each."""
        words: dict[str, int] = {}
        saved: list[int] = []
        for number, states in self.stretches.items():
            saved += (number, len(states))
            for state, amount in states.items():
                saved += (words.setdefault(state, len(words)), amount)
        return {"stretches": {}, "_packed": packed(saved), "_words": list(words)}

    def after_loading(self) -> None:
        """As `codec` asks; older versions saved lists with the states' names among the numbers, or the stretches themselves.

        Raises:
            TypeError, ValueError, IndexError: what was saved are no stretches.
        """
        words, saved = self._words, [*self._saved, *unpacked(self._packed)]
        self._words, self._saved, self._packed = [], [], ""
        at = 0
        while at < len(saved):
            number, end = int(saved[at]), at + 2 + 2 * int(saved[at + 1])
            if not at + 2 <= end <= len(saved):
                raise ValueError("a history that breaks off")
            self.stretches[number] = {
                _word(saved[place], words): int(saved[place + 1]) for place in range(at + 2, end, 2)
            }
            at = end

    def add(self, state: str, begin: int, end: int, amount: int) -> None:
        """Time of an interval, as much of it as is booked for `state`."""
        if amount <= 0:
            return
        self._reach(begin, end)
        width = self.width
        number = begin // width
        if end <= (number + 1) * width:
            self._put(number, state, amount)
            return
        done, length = 0, end - begin
        while done < amount:
            number += 1
            upto = amount * (min(number * width, end) - begin) // length
            if upto > done:
                self._put(number - 1, state, upto - done)
            done = upto

    def add_run(self, state: str, begins: Sequence[int], ends: Sequence[int], amounts: Sequence[int]) -> None:
        """As `add` for each of many intervals, one after the other in time."""
        self._reach(begins[0], ends[-1])
        at = 0
        while at < len(ends):
            number = begins[at] // self.width
            after = bisect_right(ends, (number + 1) * self.width, at)
            if after > at:
                self._put(number, state, sum(amounts[at:after]))
            else:  # it goes on in the next stretch
                self.add(state, begins[at], ends[at], amounts[at])
                after = at + 1
            at = after

    def copy(self) -> History:
        """One that does not change any more."""
        found = History()
        found.width = self.width
        found.stretches = {number: states.copy() for number, states in self.stretches.items()}
        return found

    def wider(self, width: int) -> dict[int, dict[str, int]]:
        """The stretches put together to ones of this width, which is a power of two times its own."""
        found: dict[int, dict[str, int]] = {}
        factor = width // self.width
        for number, states in self.stretches.items():
            target = found.setdefault(number // factor, {})
            for state, amount in states.items():
                target[state] = target.get(state, 0) + amount
        return found

    def _put(self, number: int, state: str, amount: int) -> None:
        if amount:
            states = self.stretches.get(number)
            if states is None:
                states = self.stretches[number] = {}
            states[state] = states.get(state, 0) + amount

    def _reach(self, begin: int, end: int) -> None:
        """Makes room for an interval."""
        first, last = begin // self.width, end // self.width
        if self._first <= first and last <= self._last:
            return
        if self.stretches:
            first, last = min(first, self._first), max(last, self._last)
        while last - first >= MOST_STRETCHES:
            self.stretches = self.wider(2 * self.width)
            self.width, first, last = 2 * self.width, first // 2, last // 2
        self._first, self._last = first, last


class Recent(History):
    """The last hour of one slot, for whoever looks on: stretches that do not widen, of which the oldest are forgotten.

    It is not saved: after a restart of the sidecar the history, in its less detail, tells what was before.
    """

    __slots__ = ("_floor",)

    def __init__(self) -> None:
        super().__init__()
        self.width = RECENT_WIDTH
        self._floor = 0
        """Number of the oldest stretch that is kept."""

    def add(self, state: str, begin: int, end: int, amount: int) -> None:
        """As in a history; what lies before the hour is left out, however long it was."""
        if amount <= 0:
            return
        self._reach(begin, end)
        edge = self._floor * self.width
        if begin < edge < end:
            amount, begin = amount * (end - edge) // (end - begin), edge
        super().add(state, begin, end, amount)

    def _put(self, number: int, state: str, amount: int) -> None:
        if number >= self._floor:
            super()._put(number, state, amount)

    def _reach(self, begin: int, end: int) -> None:  # noqa: ARG002 - the base class's signature
        """Forgets what is older than an hour."""
        floor = end // self.width - RECENT_STRETCHES + 1
        if floor > self._floor:
            self._floor = floor
            for number in [one for one in self.stretches if one < floor]:
                del self.stretches[number]


def _word(saved: int | str, words: Sequence[str]) -> str:
    return words[saved] if isinstance(saved, int) else saved
