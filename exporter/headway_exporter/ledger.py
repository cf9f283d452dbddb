"""The ledger of a pod: the books of its slots (`headway_exporter.books`), summed up, and the two goodputs by their formulas.

Times are integer nanoseconds. Nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.books import SlotLedger
from headway_exporter.labels import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable


UNAVAILABLE: Final = ("init", "detect", "restart", "down")
"""States in which the infrastructure keeps a rank from training."""


@dataclass(frozen=True)
class Totals:
    """The books at one moment; nanoseconds unless the name says steps."""

    states: dict[str, int]
    elapsed: int
    pending: int
    pending_standby: int
    """The part of `pending` that a rank in reserve spends."""
    pending_unavailable: int
    """The part of `pending` that nobody trains in, whatever becomes of it."""
    unregained: int
    lost: int

    @property
    def counted(self) -> int:
        """Elapsed time without standby: the denominator of both goodputs."""
        return self.elapsed - self.states["standby"] - self.pending_standby

    @property
    def unavailable(self) -> int:
        """Time in which the infrastructure kept ranks from training, with what is open."""
        return sum(self.states[state] for state in UNAVAILABLE) + self.pending_unavailable

    @property
    def training_goodput(self) -> float | None:
        """(productive - unregained) / (elapsed - standby); None before there is any time."""
        return self._ratio(self.states["productive"] - self.unregained)

    @property
    def infrastructure_goodput(self) -> float | None:
        """1 - (init + detect + restart + down) / (elapsed - standby); None before there is any time.

        What is open counts with it where it is one of these already: a restart that never ends is no less bad than one that did.
        """
        return self._ratio(self.counted - self.unavailable)

    def _ratio(self, good: int) -> float | None:
        return good / self.counted if self.counted > 0 else None


class Ledger:
    """The books of a pod: one `SlotLedger` a slot."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotLedger] = {}

    def slot(self, number: int) -> SlotLedger:
        """The books of this slot, opened when they are first asked for."""
        books = self.slots.get(number)
        if books is None:
            books = self.slots[number] = SlotLedger()
        return books

    def failed(self, at: int) -> None:
        """Evidence of a failure: it stops every rank of the pod."""
        for slot in self.slots.values():
            slot.failed(at)

    @property
    def mark(self) -> int:
        """Highest step that any local rank ever completed."""
        return max((slot.mark for slot in self.slots.values()), default=0)

    @property
    def tip(self) -> int | None:
        """Last step in the weights of the local rank that is furthest."""
        return max((slot.tip for slot in self.slots.values() if slot.tip is not None), default=None)

    def totals(self, now: int) -> Totals:
        """The sums over all slots at `now`."""
        slots = self.slots.values()
        open_in = [(slot.in_reserve, slot.open_by_state(now)) for slot in slots]
        return Totals(
            states={state: sum([slot.states[state] for slot in slots]) for state in STATES},
            elapsed=sum(slot.elapsed(now) for slot in slots),
            pending=sum(sum(by_state.values()) for _, by_state in open_in),
            pending_standby=sum(sum(by_state.values()) for in_reserve, by_state in open_in if in_reserve),
            pending_unavailable=sum(
                by_state.get(state, 0) for in_reserve, by_state in open_in if not in_reserve for state in UNAVAILABLE
            ),
            unregained=sum(slot.unregained for slot in slots),
            lost=sum(slot.lost for slot in slots),
        )

    def booked(self, states: Iterable[str]) -> dict[str, int]:
        """Nanoseconds that are booked for each of these states, over all slots."""
        return {state: sum(slot.states[state] for slot in self.slots.values()) for state in states}

    def so_far(self, states: Iterable[str], now: int) -> dict[str, int]:
        """As `booked`, with what is open now and would be booked as that."""
        return {state: amount + self._pending(state, now) for state, amount in self.booked(states).items()}

    def _pending(self, state: str, now: int) -> int:
        return sum(slot.open_by_state(now).get(state, 0) for slot in self.slots.values())
