"""Hooks for `nvidia_resiliency_ext.inprocess.Wrapper`: what an in-process restart did, in the journal.

    from headway.nvrx.inprocess import hooks

    @inprocess.Wrapper(**hooks(recorder, abort=Compose(AbortTorchDistributed(), AbortGloo())), soft_timeout=…)
    def train(call: inprocess.CallWrapper = None):
        with recorder.capture():
            ...

What NVRx (0.4.1, 0.6.0, 0.7.0) calls, in order: rank_assignment, initialize, health_check, *the function*; on a fault abort (on a
thread of its own), finalize, health_check, rank_assignment with the records of who was interrupted, initialize, health_check,
*the function*; at the end completion; when it gives up terminate.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.inprocess import Wrapper
from nvidia_resiliency_ext.inprocess.abort import Abort
from nvidia_resiliency_ext.inprocess.compose import Compose
from nvidia_resiliency_ext.inprocess.finalize import Finalize
from nvidia_resiliency_ext.inprocess.rank_assignment import RankAssignment
from nvidia_resiliency_ext.inprocess.state import Mode
from nvidia_resiliency_ext.inprocess.terminate import Terminate

from headway.nvrx.flight import FlightTraces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headway.recorder import Recorder

_log = logging.getLogger("headway")

errors = 0
"""How often a hook of ours failed in this process; the first failure is logged with its traceback."""


def hooks(
    recorder: Recorder,
    *,
    initialize: Any = None,
    abort: Any = None,
    finalize: Any = None,
    health_check: Any = None,
    rank_assignment: Any = None,
    completion: Any = None,
    terminate: Any = None,
) -> dict[str, Any]:
    """The hook arguments for `inprocess.Wrapper`: the ones given, and ours around them.

    `abort` and `rank_assignment` left out are NVRx's defaults. Ours run after the user's (the group *is* torn down when `aborted`
    is written) and never raise into NVRx: a failure is counted in `errors` and logged once.

    Events: `ranks_reassigned` before every iteration, `interruption` with NVRx's records once they are known, `aborted`,
    `nccl_trace` for each trace of NCCL's flight recorder that was kept (see `flight`), `finalized`, `fault_caught` for an exception
    that `recorder.capture()` did not see.

    Let exceptions leave the function through `recorder.capture()`: NVRx deep-copies the exception before it calls `finalize` and
    `terminate` (`State.freeze()`), and one that cannot be copied, for example with a two-argument `__init__`, kills the rank instead of
    restarting it. `capture()` re-raises such an exception as a plain one that keeps the text.
    """
    chosen = {
        "initialize": initialize,
        "health_check": health_check,
        "completion": completion,
        "abort": Compose(_Aborted(recorder, FlightTraces.of_this_process()), abort or _default("abort")),
        "finalize": _after(_Finalized(recorder), finalize),
        "terminate": _after(_Terminated(recorder), terminate),
        "rank_assignment": _Reassignment(recorder, rank_assignment or _default("rank_assignment")),
    }
    return {name: hook for name, hook in chosen.items() if hook is not None}


def _default(argument: str) -> Any:
    return inspect.signature(Wrapper.__init__).parameters[argument].default


def _after(ours: Any, users: Any) -> Any:
    return ours if users is None else Compose(ours, users)  # the rightmost runs first


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Keeps an error of ours away from NVRx, for which an exception in a hook is the end of the process."""

    @functools.wraps(hook)
    def guarded(*args: Any, **kwargs: Any) -> None:
        global errors
        try:
            hook(*args, **kwargs)
        except Exception:  # noqa: BLE001 - see above
            errors += 1
            if errors == 1:
                _log.exception("a Headway hook failed; the restart goes on, its record is incomplete")

    return guarded


class _Aborted(Abort):  # type: ignore[misc]
    def __init__(self, recorder: Recorder, traces: FlightTraces) -> None:
        self._recorder = recorder
        self._traces = traces

    def __call__(self, state: Any) -> Any:
        self._record(state)
        self._keep_traces(state)
        return state

    @_guarded
    def _record(self, state: Any) -> None:
        self._recorder.aborted(iteration=state.iteration)

    @_guarded
    def _keep_traces(self, state: Any) -> None:
        rank = state.rank if state.active_rank is None else state.active_rank
        incarnation = self._recorder.incarnation or f"life-{self._recorder.life}-{state.iteration}"
        for kept in self._traces.keep(incarnation, state.initial_rank, rank, state.iteration):
            self._recorder.nccl_trace(
                path=str(kept.path), bytes=kept.bytes, writer=kept.writer, iteration=state.iteration
            )


class _Finalized(Finalize):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, state: Any) -> Any:
        self._record(state)
        return state

    @_guarded
    def _record(self, state: Any) -> None:
        if state.fn_exception is not None:  # on a peer: the collective that broke, not the cause
            self._recorder.fault_caught(state.fn_exception)
        self._recorder.finalized(iteration=state.iteration)


class _Terminated(Terminate):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, state: Any) -> Any:
        self._record(state)
        return state

    @_guarded
    def _record(self, state: Any) -> None:
        self._recorder.ranks_reassigned(
            iteration=state.iteration,
            initial_rank=state.initial_rank,
            rank=None,
            world_size=state.world_size,
            mode="terminated",
            terminated=[state.initial_rank],
        )


class _Reassignment(RankAssignment):  # type: ignore[misc]
    """Around the user's assignment: before it the store still tells who was interrupted, after it the new ranks are known."""

    def __init__(self, recorder: Recorder, inner: Any) -> None:
        self._recorder = recorder
        self._inner = inner
        self._gone: set[int] = set()

    def __call__(self, ctx: Any) -> Any:
        restart = ctx.state.mode != Mode.INITIALIZED
        if restart:
            self._record_interruption(ctx)
        reassigned = self._inner(ctx)
        self._record_ranks(reassigned.state, restart)
        return reassigned

    @_guarded
    def _record_interruption(self, ctx: Any) -> None:
        records = [(record.rank, record.interruption.name) for record in ctx.store.get_interruption_records()]
        terminated = set(ctx.terminated_ranks)
        initial = _initial_ranks(ctx.store, {rank for rank, _ in records} | terminated)
        self._gone |= {initial[rank] for rank in terminated}
        if records:
            self._recorder.interruption(
                [(initial[rank], kind) for rank, kind in records], iteration=ctx.state.iteration
            )

    @_guarded
    def _record_ranks(self, state: Any, restart: bool) -> None:
        """NVRx counts the iteration up only after the assignment, except before the first."""
        self._recorder.ranks_reassigned(
            iteration=state.iteration + restart,
            initial_rank=state.initial_rank,
            rank=state.rank if state.active_rank is None else state.active_rank,
            world_size=state.world_size if state.active_world_size is None else state.active_world_size,
            mode=state.mode.name.lower(),
            terminated=sorted(self._gone),
        )


def _initial_ranks(store: Any, ranks: Collection[int]) -> dict[int, int]:
    """Rank at the start of the job of each wrapper rank of the iteration that just ended; wrapper ranks move when one is lost.

    Asks only for keys that exist, since waiting for a missing one takes the store's whole time-out. One is missing if its rank died
    before the iteration began; its wrapper rank then stands in, which is right until a rank has been lost for good.
    """
    known = {rank: store.INITIAL_RANK.format(rank=rank) for rank in ranks}
    return {rank: int(store.get(key)) if store.check([key]) else rank for rank, key in known.items()}
