"""The in-process layer around the training function, and one pulse for the two watchdogs above it.

Three layers can restart training, from the cheapest to the dearest: NVRx in process (seconds, the process lives on), `ft_launcher` (new
processes), the orchestrator (a new pod). Each works without the others. What an inner layer cannot mend it leaves to the next: a rank that
is gone for good would make the in-process layer go on with a smaller world, so here it gives up instead and the launcher restarts all.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway import Recorder
    from headway.nvrx.heartbeat import Heartbeat
    from headway_trainer.config import ResilienceConfig


class InProcessCall(Protocol):
    """What the training function uses of NVRx's CallWrapper."""

    @property
    def iteration(self) -> int:
        """In-process restarts so far."""

    def ping(self) -> None:
        """Tell the soft and hard time-outs that there was progress."""


class Pulse:
    """Tells every watchdog that is switched on that this rank still gets on."""

    def __init__(self, heartbeat: Heartbeat | None, call: InProcessCall | None) -> None:
        self._heartbeat = heartbeat
        self._call = call

    def beat(self) -> None:
        """Call it at least once a step, and inside everything that lasts longer."""
        self.beat_before_steps()
        if self._call is not None:
            self._call.ping()

    def beat_before_steps(self) -> None:
        """The launcher's monitor only: NVRx's in-process time-outs begin to count with the first ping."""
        if self._heartbeat is not None:
            self._heartbeat.beat()


def restart_in_process(
    train: Callable[[InProcessCall], Any], config: ResilienceConfig, recorder: Recorder, *, store_port: int
) -> Callable[[], Any]:
    """Wrap `train` so that NVRx calls it again after a fault that the process survives.

    Args:
        train: gets NVRx's call wrapper; every call must build its process group anew.
        config: the time-outs; see `ResilienceConfig`.
        recorder: is told what the layer does.
        store_port: TCP port on rank 0's host for the layer's own store.

    Returns:
        A function without arguments; its result is that of the last call.
    """
    from nvidia_resiliency_ext import inprocess

    from headway.nvrx import gloo  # needs NVRx, which this layer alone asks for
    from headway.nvrx import inprocess as hooks

    def function(call: inprocess.CallWrapper = None) -> Any:
        return train(call)

    # NVRx finds the parameter to fill by its annotation, which must be the class and not its name.
    function.__annotations__["call"] = inprocess.CallWrapper

    with _hidden_local_rank():
        wrapper = inprocess.Wrapper(
            **hooks.hooks(
                recorder,
                initialize=inprocess.initialize.RetryController(
                    max_iterations=config.max_in_process_restarts, min_world_size=int(os.environ["WORLD_SIZE"])
                ),
                # The rightmost runs first: wake the ranks that wait in a gloo collective, then tear down.
                abort=inprocess.Compose(inprocess.abort.AbortTorchDistributed(), gloo.AbortGloo()),
            ),
            store_kwargs={"port": store_port},
            **_intervals(config),
        )
    wrapped: Callable[[], Any] = wrapper(function)
    return wrapped


def _intervals(config: ResilienceConfig) -> dict[str, timedelta]:
    """NVRx wants soft < hard < barrier, and polls that are much shorter than what they watch."""
    poll = min(1.0, config.soft_timeout_seconds / 40)
    heartbeat_timeout = min(
        30.0, 0.75 * config.barrier_timeout_seconds
    )  # NVRx takes a busy rank for a dead one below ~10 s
    seconds = {
        "monitor_thread_interval": poll,
        "monitor_process_interval": poll,
        "progress_watchdog_interval": poll,
        "last_call_wait": poll,  # not below monitor_process_interval, or concurrent failures go unreported
        "heartbeat_interval": heartbeat_timeout / 10,
        "heartbeat_timeout": heartbeat_timeout,
        "soft_timeout": config.soft_timeout_seconds,
        "hard_timeout": config.hard_timeout_seconds,
        "barrier_timeout": config.barrier_timeout_seconds,
        "completion_timeout": config.barrier_timeout_seconds,
    }
    return {name: timedelta(seconds=value) for name, value in seconds.items()}


@contextlib.contextmanager
def _hidden_local_rank() -> Iterator[None]:
    """NVRx 0.6 and later add GPU and NVLink checks when LOCAL_RANK is set; without a GPU they fail every restart."""
    import torch

    if torch.cuda.is_available():
        yield
        return
    local_rank = os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if local_rank is not None:
            os.environ["LOCAL_RANK"] = local_rank
