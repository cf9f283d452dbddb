"""The step that is being recorded, and the phases that are open: state of the training thread, without any I/O of its own."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Final

from headway import clock
from headway.ring_format import HEAD, HEADER_BYTES, RECORD_BYTES, TAIL

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeAlias

    from headway.ring import RingWriter

    Append: TypeAlias = Callable[[int, int, int, int, int, float | None, int | None], None]

IN_RECORD: Final = ("data_wait", "checkpoint_save")
"""Phases that, inside a step, go into its record and write no event: so nothing is counted twice."""

_LONGEST_NAME: Final = 64

# Bound here once: a look-up less for each call in `Step.__exit__`.
_monotonic_ns = clock.monotonic_ns
_crc32 = zlib.crc32
_pack_tail = TAIL.pack_into
_TAIL_AT: Final = HEAD.size


class Step:
    """The step that is being recorded: one reused object, so that recording a step allocates nothing.

    `with recorder.step(n) as s:` records the step when the body ends, and nothing when it raises. Inside, set `s.loss`
    (a Python float: a CUDA tensor would synchronise) and `s.tokens` (those that this rank trained on). Steps do not nest,
    and belong to the thread that trains.
    """

    __slots__ = (
        "_abandoned",
        "_append",
        "_blocked_ns",
        "_count_dropped",
        "_data_wait_ns",
        "_ring",
        "_unusual",
        "last",
        "loss",
        "number",
        "start_ns",
        "tokens",
    )

    def __init__(self, abandoned: Callable[[], None], count_dropped: Callable[[], None]) -> None:
        self._abandoned = abandoned
        self._count_dropped = count_dropped
        self._append: Append | None = None
        self._ring: RingWriter | None = None
        self._unusual = True
        self.tokens: int | None = None
        self._data_wait_ns = 0
        self._blocked_ns = 0
        self.number = -1
        self.last: int | None = None
        self.start_ns = 0
        self.loss: float | None = None

    def record_into(self, ring: RingWriter | None, append: Append | None) -> None:
        """From now on writes to the ring, or calls `append` when there is none (and neither: records nothing)."""
        self._append = append if ring is None else ring.append
        self._ring = ring if ring is not None and ring.mapped is not None else None
        self._unusual = True  # until the first `reset`, which knows whether there is a ring

    def add_data_wait(self, duration_ns: int) -> None:
        """Time in this step that training waited for data."""
        self._data_wait_ns += duration_ns
        self._unusual = True

    def add_blocked(self, duration_ns: int) -> None:
        """Time in this step that a save of a checkpoint kept training from going on."""
        self._blocked_ns += duration_ns
        self._unusual = True

    @property
    def open(self) -> bool:
        """Whether training is inside a step."""
        return self.start_ns != 0

    def reset(self) -> None:
        """Forgets a step that was interrupted, and what was said of it."""
        self.start_ns = 0
        self._unusual = self._ring is None
        self.tokens = None
        self._data_wait_ns = 0
        self._blocked_ns = 0

    def __enter__(self) -> Step:
        self.loss = None
        self.start_ns = _monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _monotonic_ns()
        if kind is not None:
            self._abandoned()
            self.reset()
            return
        loss = self.loss
        tokens = self.tokens
        number = self.last = self.number
        start_ns = self.start_ns
        self.start_ns = 0
        try:
            if loss is None or tokens is not None or self._unusual:
                data_wait_ns, blocked_ns, append = self._data_wait_ns, self._blocked_ns, self._append
                self.reset()
                if append is not None:
                    append(number, start_ns, end_ns, data_wait_ns, blocked_ns, loss, tokens)
                return
            # What `RingWriter.append` does, for the usual step. See there why the number and the place are taken right
            # before the bytes are stored.
            ring: RingWriter = self._ring  # type: ignore[assignment]  # without one every step is unusual
            sequence = ring.sequence
            scratch = ring.scratch
            _pack_tail(scratch, _TAIL_AT, sequence, number, start_ns, end_ns, loss)
            ring.words[0] = _crc32(ring.tail, ring.usual_crc)
            at = ring.at
            end = at + RECORD_BYTES
            ring.sequence = sequence + 1
            ring.at = end if end < ring.end else HEADER_BYTES
            ring.mapped[at:end] = scratch  # type: ignore[index]  # only a mapped ring gets here
        except Exception:  # noqa: BLE001 - whatever it is, training goes on
            self._append_bare(start_ns, end_ns)

    def _append_bare(self, start_ns: int, end_ns: int) -> None:
        """Second try, without loss and tokens, which may be no numbers, and by its number as a whole one: the step counts all the same."""
        self._count_dropped()
        if self._append is not None:
            with contextlib.suppress(Exception):
                self._append(int(self.number), start_ns, end_ns, 0, 0, None, None)


class Phase:
    """One open phase; made by `recorder.phase(name)`."""

    __slots__ = ("_phases", "in_record", "in_step", "inner_ns", "name", "start_ns")

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self.name = name[:_LONGEST_NAME] if isinstance(name, str) else type(name).__name__  # type: ignore[redundant-expr]  # never raises
        self.start_ns = 0
        self.in_step = False
        self.in_record = False
        self.inner_ns = 0

    def __enter__(self) -> None:
        try:
            self._phases.begin(self)
        except BaseException:  # injected by another thread: no `__exit__` will follow
            self._phases.end(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._phases.end(self)


class Phases:
    """The stack of open phases.

    `write(name, edge, seconds)` writes a phase's event. Ending a phase ends those that were opened in it and not
    ended, which is how the stack recovers from an exception that hit between two of its own lines.
    """

    def __init__(self, step: Step, write: Callable[[str, str, float | None], None]) -> None:
        self._step = step
        self._write = write
        self._open: list[Phase] = []

    def current(self) -> str | None:
        """Name of the innermost open interval, `step` for a step; None when nothing is open."""
        innermost = self._open[-1] if self._open else None
        if self._step.open and (innermost is None or not innermost.in_step):
            return "step"
        return None if innermost is None else innermost.name

    def begin(self, phase: Phase) -> None:
        """Opens it."""
        outer = self._open[-1] if self._open else None
        phase.in_step = self._step.open
        in_event_of_step = outer is not None and outer.in_step and not outer.in_record
        phase.in_record = phase.in_step and phase.name in IN_RECORD and not in_event_of_step
        phase.start_ns = _monotonic_ns()
        self._open.append(phase)
        if not phase.in_record:
            self._write(phase.name, "begin", None)

    def end(self, phase: Phase) -> None:
        """Closes it and whatever was left open in it; does nothing when it is not open any more."""
        if phase in self._open:
            end_ns = _monotonic_ns()
            with contextlib.suppress(IndexError):  # phases of several threads: another one emptied the stack meanwhile
                while self._close_innermost(end_ns) is not phase:
                    pass

    def end_all(self, *, in_step: bool = False) -> None:
        """Closes all of them, or the innermost ones that were opened inside a step."""
        end_ns = _monotonic_ns()
        while self._open and (self._open[-1].in_step or not in_step):
            self._close_innermost(end_ns)

    def _close_innermost(self, end_ns: int) -> Phase:
        phase = self._open.pop()
        duration_ns = end_ns - phase.start_ns
        if not phase.in_record:
            self._write(phase.name, "end", duration_ns / 1e9)
            return phase
        if not self._step.open:
            return phase  # its step was interrupted, and leaves no record
        own_ns = duration_ns - phase.inner_ns
        if phase.name == "data_wait":
            self._step.add_data_wait(own_ns)
        else:
            self._step.add_blocked(own_ns)
        if self._open and self._open[-1].in_record:
            self._open[-1].inner_ns += duration_ns
        return phase
