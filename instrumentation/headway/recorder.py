"""The recorder: what a trainer calls to leave a journal that outlives it.

    recorder = headway.Recorder.from_env()
    with recorder.step(n) as s:
        ...
        s.loss = loss

Nothing here raises into training, waits for anybody, or stops working when the disk does: what cannot be recorded is
counted in `dropped`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headway import exceptions, process, sampler
from headway.environment import Identity
from headway.events import plain
from headway.session import Session
from headway.singleton import ProcessWide
from headway.steps import Phase, Phases, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType

_log = logging.getLogger("headway")

_LIFE_BITS: Final = 62
_MAX_RECORDS: Final = 1_000
_MAX_PHASE_GAPS: Final = 32
_LONGEST_SETTING: Final = 200
_RECORDED: Final = "_headway_recorded"

_Method = TypeVar("_Method", bound="Callable[..., None]")


def _never_raises(method: _Method) -> _Method:
    """Turns an exception of a recording method into one more in `dropped`; injected BaseExceptions pass."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - recording never raises into training
            self._count_dropped()

    return guarded  # type: ignore[return-value]


class Recorder:
    """Records one process's life. Use `Recorder.from_env()`: a process has one recorder, because it has one life lock.

    Safe to call from hooks on other threads and from signal handlers; steps and phases belong to the thread that
    trains. In a forked child it is disabled: the life is the parent's.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        settings: Mapping[str, float | str] | None = None,
        backend: str | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Opens the files; on any trouble the recorder is disabled, with one warning. Use `from_env`."""
        self.identity = identity
        self.life = int.from_bytes(os.urandom(8), "little") >> (64 - _LIFE_BITS)
        self.enabled = False
        self.incarnation: str | None = None
        self._dropped = 0
        self._step = Step(self._abandon_step, self._count_dropped)
        self._phases = Phases(self._step, self._write_phase)
        self._phase_gaps: dict[str, float] = {}
        self._late_settings: dict[str, float] = {}
        self._queue: dict[str, Any] = {}
        self._previous_handlers: dict[int, Any] = {}
        self._session: Session | None = None
        self._broken = False
        self._forked = False
        self._previous_excepthook = sys.excepthook
        self._sampler: sampler.Sampler | None = None
        for warning in identity.warnings:
            _log.warning("%s", warning)
        if not _singleton.claim(self):
            _log.warning("a second recorder records nothing: a process has one life, use Recorder.from_env()")
            return
        try:
            self._session = Session.open(identity, self.life)
            told = {
                "settings": {str(name): _setting(value) for name, value in (settings or {}).items()},
                "backend": backend,
                "checkpoint_dir": _absolute(checkpoint_dir),
            }
            self._begin(self._session, told, os.environ if environ is None else environ)
        except Exception as error:  # noqa: BLE001 - a broken journal folder must not keep anybody from training
            _log.warning("headway records nothing in this process, training goes on: %s", error)
            self._release()
            self._broken = True
            self._step.record_into(None, self._drop_step)

    @classmethod
    def from_env(
        cls,
        *,
        settings: Mapping[str, float | str] | None = None,
        backend: str | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Recorder:
        """The process's recorder; made at the first call and after `close()`, else the one there is. Never raises.

        Call it in the code that trains and not at import: a spawned child that imports the module again is no rank.

        Args:
            settings: what is in force, name to number or short text, for the `process_started` event (see `headway.events`).
            backend: the collectives' backend, nccl or gloo.
            checkpoint_dir: folder of the checkpoints; the sidecar watches its free space where it sees the same folder.
            environ: environment variables, by default the process's own (see `headway.environment`).
        """
        recorder = _singleton.get(
            lambda: cls(
                Identity.from_env(environ),
                settings=settings,
                backend=backend,
                checkpoint_dir=checkpoint_dir,
                environ=environ,
            )
        )
        recorder._warn_of_fork()
        return recorder

    @property
    def dropped(self) -> int:
        """Events and steps that could not be recorded so far."""
        return self._dropped + (self._session.journal.dropped if self._session is not None else 0)

    @property
    def last_step(self) -> int | None:
        """The step that this process completed last."""
        return self._step.last

    @property
    def current_phase(self) -> str:
        """The innermost open phase, `step` in a step, else `init` before the incarnation's first step and `other` after it."""
        return self._phases.current() or ("init" if self._step.number < 0 else "other")

    def step(self, number: int) -> Step:
        """A context manager that records step `number`: the count of completed steps after it, so the first is 1."""
        step = self._step
        step.number = number
        return step

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context manager for a named interval: one of `events.PHASES`, or a name of one's own.

        Inside a step, `data_wait` and `checkpoint_save` are added up in the step's record and write no event.
        """
        return Phase(self._phases, name)

    @_never_raises
    def train_entered(
        self, *, incarnation: str, rank: int, world_size: int, iteration: int = 0, mode: str = "active"
    ) -> None:
        """The training function begins, with a working process group; ends what an interrupted iteration left open."""
        self._phases.end_all()
        self._step.reset()
        self._step.number = -1  # no step of this incarnation yet
        self.incarnation = incarnation
        counts = {"attempt": self.identity.attempt, "cycle": self.identity.cycle, "iteration": iteration}
        settings = self._late_settings or None
        self._write("train_entered", rank=rank, world_size=world_size, mode=mode, settings=settings, **counts)

    @_never_raises
    def setting(self, name: str, value: float) -> None:
        """What is in force and became known only now (see `from_env`); it goes out with the next `train_entered`."""
        if math.isfinite(value):
            self._late_settings[name] = value

    @_never_raises
    def checkpoint(
        self,
        stage: str,
        *,
        step: int,
        bytes: int | None = None,  # noqa: A002 - the event's field
        seconds: float | None = None,
        verified: bool | None = None,
        reason: str | None = None,
    ) -> None:
        """A checkpoint reached a stage (`events.CHECKPOINT_STAGES`)."""
        reason = None if reason is None else exceptions.cut(str(reason))
        self._write(
            "checkpoint", stage=stage, step=step, bytes=bytes, seconds=seconds, verified=verified, reason=reason
        )

    @_never_raises
    def queue(
        self,
        *,
        depth: int,
        oldest_wall: float | None,
        writer_alive: bool | None,
        writer_pid: int | None,
        writer_exit_code: int | None = None,
    ) -> None:
        """State of the asynchronous checkpoint queue; written when it changed. Samples take the memory of `writer_pid`."""
        state = {
            "depth": depth,
            "oldest_wall": oldest_wall,
            "writer_alive": writer_alive,
            "writer_pid": writer_pid,
            "writer_exit_code": writer_exit_code,
        }
        if state != self._queue:
            self._queue = state
            self._write("queue", **state)

    @_never_raises
    def fault_caught(self, error: BaseException) -> None:
        """An exception reached the edge of the training function; written once for each exception object."""
        if _RECORDED in vars(error):
            return
        vars(error)[_RECORDED] = True  # its class may forbid to set attributes, as a frozen dataclass does
        category, collective = exceptions.classify(error)
        self._write(
            "fault_caught",
            type=exceptions.qualified_name(error),
            message=exceptions.message(error),
            traceback=exceptions.traceback_tail(error),
            category=category,
            collective=collective,
            step=self.last_step,
        )

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Records what ends the body with an exception, and raises it again.

        NVRx copies exceptions, and a rank dies of one that cannot be copied: that is raised as a `PlainError` with its
        text.
        """
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, SystemExit) and not error.code):
                self.fault_caught(error)
            if not isinstance(error, Exception) or exceptions.can_be_copied(error):
                raise
            stand_in = exceptions.plain(error)
            vars(stand_in)[_RECORDED] = True
            raise stand_in from error

    @_never_raises
    def interruption(self, records: Sequence[tuple[int, str]], *, iteration: int) -> None:
        """NVRx's records `(initial rank, kind)` of an in-process restart."""
        cut = [{"rank": rank, "kind": kind} for rank, kind in records[:_MAX_RECORDS]]
        self._write("interruption", records=cut, iteration=iteration)

    @_never_raises
    def aborted(self, *, iteration: int) -> None:
        """The process group was torn down in process."""
        self._write("aborted", iteration=iteration)

    @_never_raises
    def nccl_trace(self, *, path: str, bytes: int, writer: str, iteration: int) -> None:  # noqa: A002 - the event's field
        """A trace of NCCL's flight recorder was kept in a file."""
        self._write("nccl_trace", path=path, bytes=bytes, writer=writer, iteration=iteration)

    @_never_raises
    def finalized(self, *, iteration: int) -> None:
        """The in-process clean-up of one iteration ended."""
        self._write("finalized", iteration=iteration)

    @_never_raises
    def ranks_reassigned(
        self,
        *,
        iteration: int,
        initial_rank: int,
        rank: int | None,
        world_size: int,
        mode: str,
        terminated: Sequence[int],
    ) -> None:
        """NVRx gave out ranks for an iteration; `terminated` are the initial ranks that are gone for good."""
        self._write(
            "ranks_reassigned",
            iteration=iteration,
            initial_rank=initial_rank,
            rank=rank,
            world_size=world_size,
            mode=mode,
            terminated=list(terminated)[:_MAX_RECORDS],
        )

    @_never_raises
    def operator_rollback(self, step: int) -> None:
        """A deliberate return to an earlier step: `step` completed ones remain."""
        self._write("operator_rollback", step=step)

    @_never_raises
    def phase_gap(self, phase: str, seconds: float) -> None:
        """Keeps the longest silence between heartbeats in a phase; it goes out with the next `sample`."""
        known = self._phase_gaps.get(phase)
        if math.isfinite(seconds) and (known is not None or len(self._phase_gaps) < _MAX_PHASE_GAPS):
            self._phase_gaps[phase] = max(seconds, known or 0.0)

    @_never_raises
    def watch_signals(self, *signums: int) -> None:
        """Writes a `signal` event when one is delivered, then calls the handler that you have installed before.

        A signal without a Python handler is left alone: Python runs handlers only between bytecodes, so a rank that waits in a
        collective would no longer die of a SIGTERM. `headway run` records the signals that reach the pod.

        Only the main thread may call it, as Python demands; anywhere else it changes nothing and counts a drop.
        """
        for signum in signums:
            previous = signal.getsignal(signum)
            if not callable(previous) or signum in self._previous_handlers:
                continue
            self._previous_handlers[signum] = previous
            signal.signal(signum, self._on_signal)

    @_never_raises
    def train_finished(self, step: int) -> None:
        """This rank completed the run; `step` is its last step."""
        self._write("train_finished", step=step)

    @_never_raises
    def close(self) -> None:
        """Ends the life in order. The recorder does nothing afterwards; `from_env` would begin a new life."""
        self._write("process_exited", dropped=self.dropped, phase_gaps=dict(self._phase_gaps) or None)
        self._release()
        _singleton.forget(self)

    def _begin(self, session: Session, told: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """`told`: fields of `process_started` that the trainer gave."""
        identity = self.identity
        if session.ring is None:
            self._count_dropped()
        self._warn_of_neighbour(session.lock.neighbour())
        self._step.record_into(session.ring, self._drop_step)
        self.enabled = True
        atexit.register(self.close)
        self._previous_excepthook, sys.excepthook = sys.excepthook, self._on_uncaught
        self._write(
            "process_started",
            pid=os.getpid(),
            rank=identity.rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            cycle=identity.cycle,
            iteration=0,
            node=identity.node,
            gpu_uuid=process.gpu_uuid(environ, identity.slot),
            versions=process.versions(),
            pods_expected=identity.pods,
            life_lock=session.lock.held,
            ring=session.ring is not None,
            restart_budget=identity.restart_budget,
            **told,
        )
        self._start_sampler(sampler.interval_seconds(identity.sample_seconds))

    def _warn_of_neighbour(self, pid: int | None) -> None:
        """Two at once in one slot look like one that is started again and again."""
        if pid is None:
            return
        who = f"process {pid}" if pid else "another process"
        _log.warning(
            "%s also records as slot %d of run %s in %s, so both will look like failures of one: give each job a HEADWAY_RUN of its own, "
            "and each of its processes a LOCAL_RANK (multiprocessing sets none)",
            who,
            self.identity.slot,
            self.identity.run,
            self.identity.directory,
        )

    def _warn_of_fork(self) -> None:
        if self._forked:
            self._forked = False  # once
            _log.warning(
                "headway records nothing in this process: its parent made a recorder before it forked. Make it in the code that trains."
            )

    def _start_sampler(self, interval_seconds: float) -> None:
        if interval_seconds > 0:
            self._sampler = sampler.Sampler(self._sample, interval_seconds)
            self._sampler.start()

    @_never_raises
    def _sample(self) -> None:
        if not self.enabled:
            return
        fields = sampler.reading(self._queue.get("writer_pid"))
        fields |= {"step": self.last_step, "phase_gaps": dict(self._phase_gaps), "dropped": self.dropped}
        self._write("sample", **fields)
        if self._session is not None and self._session.ring is not None:
            self._session.ring.publish_index()

    def _write(self, kind: str, **fields: Any) -> None:
        if self.enabled and self._session is not None:
            self._session.journal.write(kind, fields, self.incarnation)
        elif self._broken:
            self._count_dropped()

    def _write_phase(self, name: str, edge: str, seconds: float | None) -> None:
        self._write("phase", name=name, edge=edge, seconds=seconds)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ValueError):  # a real-time signal has no name
            self._write("signal", signal=signum, name=signal.Signals(signum).name)
        self._previous_handlers[signum](signum, frame)

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception that ends the process without having passed `capture()` is its last word all the same.

        Only that of the main thread ends it: multiprocessing's own threads call the hook too and go on.
        """
        if threading.current_thread() is threading.main_thread() and not isinstance(error, KeyboardInterrupt):
            self.fault_caught(error)
        self._previous_excepthook(kind, error, trace)

    def _abandon_step(self) -> None:
        self._phases.end_all(in_step=True)

    def _drop_step(self, *_: object) -> None:
        self._dropped += 1

    def _count_dropped(self) -> None:
        self._dropped += 1

    def _release(self) -> None:
        """Stops recording and closes everything."""
        self.enabled = False
        self._step.record_into(None, None)
        atexit.unregister(self.close)
        if sys.excepthook == self._on_uncaught:
            sys.excepthook = self._previous_excepthook
        if self._sampler is not None:
            self._sampler.stop()
        if self._session is not None:
            self._session.close()

    def _disown(self) -> None:
        """In a forked child: the files and the life are the parent's. Closes nothing, and touches no lock of a thread."""
        self._forked = self.enabled
        self.enabled = False
        self._step.record_into(None, None)
        self._sampler = None
        atexit.unregister(self.close)
        if self._session is not None:
            self._session.lock.forget()


def _setting(value: object) -> object:
    """As a journal can hold it: what is neither number nor text must not cost the start of the process."""
    try:
        return value if isinstance(value, (int, float, str)) else plain(value)
    except TypeError:
        return str(value)[:_LONGEST_SETTING]


def _absolute(folder: str | os.PathLike[str] | None) -> str | None:
    """The folder's full name; None when there is none to be told."""
    try:
        return None if folder is None else str(Path(folder).absolute())
    except (OSError, TypeError):  # the working directory is gone, or it is no name
        return None


_singleton: ProcessWide[Recorder] = ProcessWide(Recorder._disown)
