"""The training function: what one incarnation does from meeting its peers to the last checkpoint.

It reads as a story (`train`), and it may be entered many times in one process: NVRx calls it again after every fault that the process
survives. Whatever must outlive an incarnation (the open corpus, the writer process, the fault markers) is in `Resources`; everything
else is built anew, so that no state of a broken incarnation leaks into the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headway.nvrx.gloo import gloo_sockets
from headway_trainer import group as groups
from headway_trainer import optim, parallel
from headway_trainer.arguments import WRONG_USAGE
from headway_trainer.checkpoint import CheckpointMismatchError, candidates, load_newest
from headway_trainer.evaluate import evaluate
from headway_trainer.model import token_loss
from headway_trainer.resilience import InProcessCall, Pulse
from headway_trainer.saving import Saver

if TYPE_CHECKING:
    from torch import nn

    from headway import Recorder
    from headway.nvrx.checkpointing import AsyncCheckpointer
    from headway.nvrx.heartbeat import Heartbeat
    from headway_trainer.config import TrainConfig
    from headway_trainer.data import Corpus
    from headway_trainer.faults import FaultInjector
    from headway_trainer.group import Group

logger = logging.getLogger(__name__)


class NonFiniteLossError(FloatingPointError):
    """The loss of this rank's batch is NaN or infinite; going on would spoil the weights."""


@dataclass
class Resources:
    """What lives as long as the process.

    Attributes:
        recorder: where everything is told.
        corpus: the text.
        injector: the fault schedule.
        checkpointer: the asynchronous writer; None when saves are synchronous or off.
        device: where this rank computes.
    """

    recorder: Recorder
    corpus: Corpus
    injector: FaultInjector
    checkpointer: AsyncCheckpointer | None
    device: torch.device


@dataclass
class _Trainee:
    """What the steps change."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    completed: int = 0


def train(config: TrainConfig, resources: Resources, call: InProcessCall | None = None) -> None:
    """Train from the newest good checkpoint to the last step.

    Args:
        config: of the whole run.
        resources: of this process.
        call: NVRx's in-process layer, when it is on.
    """
    recorder = resources.recorder
    with recorder.capture(), _heartbeat(config, recorder) as heartbeat:
        pulse = Pulse(heartbeat, call)
        group = _meet(config, resources, iteration=call.iteration if call else 0)
        with recorder.phase("init"):
            trainee = _build(config, group)
            pulse.beat_before_steps()
        with recorder.phase("checkpoint_load"):
            trainee.completed = _resume_or_exit(config, resources, group, trainee)
            pulse.beat_before_steps()
        facts = _facts(config, resources.corpus)
        rate = config.simulation.write_bytes_per_second
        saver = Saver(config.checkpoint, group, recorder, resources.injector, resources.checkpointer, facts, rate)
        loss = _run_steps(config, resources, group, trainee, saver, pulse)
        saver.finish(pulse.beat)
        _write_result(config, group, trainee, loss)
        recorder.train_finished(trainee.completed)
    groups.leave()


def _meet(config: TrainConfig, resources: Resources, *, iteration: int) -> Group:
    recorder = resources.recorder
    with recorder.phase("rendezvous"):
        group = groups.join(
            resources.device, iteration=iteration, timeout_seconds=config.resilience.collective_timeout_seconds
        )
    if resources.checkpointer is not None:
        resources.checkpointer.abandon("its incarnation ended")
    recorder.train_entered(
        incarnation=group.incarnation, rank=group.rank, world_size=group.world_size, iteration=iteration
    )
    return group


def _build(config: TrainConfig, group: Group) -> _Trainee:
    with gloo_sockets():
        mesh = parallel.build_mesh(group.device)
    architecture = config.model.architecture()
    model = parallel.build_model(architecture, config.parallel, seed=config.seed, device=group.device, mesh=mesh)
    return _Trainee(model, optim.build_optimizer(model, config.optimizer))


def _resume_or_exit(config: TrainConfig, resources: Resources, group: Group, trainee: _Trainee) -> int:
    """Like `_resume`; a checkpoint of another model ends the process, for no restart in it could help."""
    try:
        return _resume(config, resources, group, trainee)
    except CheckpointMismatchError as error:
        resources.recorder.fault_caught(error)
        if group.rank == 0:
            print(f"headway train: --checkpoint.directory: {error}", file=sys.stderr)
        raise SystemExit(WRONG_USAGE) from None


def _resume(config: TrainConfig, resources: Resources, group: Group, trainee: _Trainee) -> int:
    """Load the newest checkpoint that every rank finds good; returns its completed steps, 0 for none."""
    if config.checkpoint.mode == "off":
        return 0
    recorder, started = resources.recorder, time.monotonic()
    rejected: list[int] = []
    sizes: list[int] = []

    def reject(folder: Path, step: int, reason: str) -> None:
        rejected.append(step)
        recorder.checkpoint("rejected", step=step, reason=reason)
        logger.warning("checkpoint %s is not used: %s", folder, reason)

    completed = load_newest(
        Path(config.checkpoint.directory),
        trainee.model,
        trainee.optimizer,
        rank=group.rank,
        world_size=group.world_size,
        all_ok=group.all_agree,
        on_rejected=reject,
        share_names=group.rank_zeros,
        on_loaded=sizes.append,
    )
    seconds = time.monotonic() - started
    recorder.checkpoint("loaded", step=completed, bytes=sum(sizes), seconds=seconds, verified=True)
    if group.rank == 0:
        if rejected and not completed:
            logger.warning("no checkpoint in %s is good: all work starts again", config.checkpoint.directory)
        logger.info("starting after step %d%s", completed, "" if completed else " (from scratch)")
        _warn_of_changes(config, resources.corpus, completed)
        _append_history(config, {"resumed_after": completed, "rejected": rejected, "incarnation": group.incarnation})
    return completed


def _warn_of_changes(config: TrainConfig, corpus: Corpus, completed: int) -> None:
    """Another text or another configuration gives other losses than the run that wrote the checkpoint would have had."""
    now = _facts(config, corpus)
    for saved in candidates(Path(config.checkpoint.directory)):
        if saved.manifest.step == completed:
            changed = [name for name, value in now.items() if saved.manifest.extra.get(name) != value]
            if changed:
                logger.warning("the checkpoint was written with another %s; losses will differ", " and ".join(changed))
            return


def _run_steps(
    config: TrainConfig, resources: Resources, group: Group, trainee: _Trainee, saver: Saver, pulse: Pulse
) -> float:
    """All the steps that are left; returns the last loss, NaN if there was nothing to do."""
    recorder, injector = resources.recorder, resources.injector
    loss = math.nan
    log = _Progress(config, group)
    for number in range(trainee.completed + 1, config.steps + 1):
        injector.before_step(number)
        with recorder.step(number) as record:
            loss = _step(config, resources, group, trainee, saver, number)
            record.loss = loss
            record.tokens = config.data.batch_size * config.data.sequence_length
        trainee.completed = number
        pulse.beat()
        log.step(number, loss)
        if saver.due(number, config.steps):
            saver.save(number, trainee.model, trainee.optimizer, pulse.beat)
        if config.evaluation.every and number % config.evaluation.every == 0:
            _evaluate(config, resources, group, trainee, pulse, number)
    return loss


def _step(
    config: TrainConfig, resources: Resources, group: Group, trainee: _Trainee, saver: Saver, number: int
) -> float:
    """One optimizer step; returns the loss over the global batch, in nats per token."""
    injector, started = resources.injector, time.monotonic()
    with resources.recorder.phase("data_wait"):
        time.sleep(injector.data_stall_seconds(number))
        batch = resources.corpus.batch(number, group.rank, group.world_size).to(group.device)
    time.sleep(injector.slow_step_seconds(number))
    with parallel.autocast(trainee.model, config.parallel, group.device):
        loss = token_loss(trainee.model(batch.tokens), batch.labels)
    own_loss = math.nan if injector.poison_loss(number) else float(loss.detach())
    if not math.isfinite(own_loss):
        # Before the backward pass: gradients are summed there, and then every rank would look like the culprit.
        raise NonFiniteLossError(f"the loss of step {number} on rank {group.rank} is {own_loss}")
    torch.autograd.backward(loss)
    optim.set_lr(trainee.optimizer, optim.lr_at(number, config.optimizer, config.steps))
    optim.clip_gradients(trainee.model.parameters(), config.optimizer.clip_norm)
    trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)
    time.sleep(max(0.0, started + config.simulation.step_seconds - time.monotonic()))
    total, *ballots = group.total([own_loss, *saver.ballot()])
    saver.count(ballots)
    return total / group.world_size


def _evaluate(
    config: TrainConfig, resources: Resources, group: Group, trainee: _Trainee, pulse: Pulse, number: int
) -> None:
    with resources.recorder.phase("eval"):
        loss = evaluate(
            trainee.model,
            resources.corpus,
            batches=config.evaluation.batches,
            device=group.device,
            rank=group.rank,
            world_size=group.world_size,
            forward=parallel.autocast(trainee.model, config.parallel, group.device),
            after_batch=pulse.beat,
        )
    if group.rank == 0:
        logger.info("step %d: held-out loss %.4f", number, loss)


class _Progress:
    """A line every so many steps, from rank 0."""

    def __init__(self, config: TrainConfig, group: Group) -> None:
        self._every = config.log_every if group.rank == 0 else 0
        self._config = config
        self._since: tuple[float, int | None] = (time.monotonic(), None)

    def step(self, number: int, loss: float) -> None:
        if not self._every or (number % self._every and number != self._config.steps):
            return
        now, (before, last) = time.monotonic(), self._since
        self._since = (now, number)
        rate = f", {(number - last) / (now - before):.1f} steps/s" if last is not None else ""
        lr = optim.lr_at(number, self._config.optimizer, self._config.steps)
        logger.info("step %d/%d: loss %.4f, lr %.2e%s", number, self._config.steps, loss, lr, rate)


def weights_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over this rank's part of all weights and optimizer state: equal means bit-equal."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        state = optimizer.state[parameter]
        for key, tensor in [("weight", parameter), *sorted(state.items())]:
            digest.update(f"{name}/{key}".encode())
            digest.update(parallel.local(tensor).detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_result(config: TrainConfig, group: Group, trainee: _Trainee, loss: float) -> None:
    """`result-<rank>.json` in the output folder: what two runs of one seed must have in common."""
    result = {
        "steps": trainee.completed,
        "world_size": group.world_size,
        "loss": loss if math.isfinite(loss) else None,
        "weights_sha256": weights_digest(trainee.model, trainee.optimizer),
    }
    path = Path(config.output) / f"result-{group.rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def _append_history(config: TrainConfig, entry: dict[str, Any]) -> None:
    """A line in `history.jsonl` of the output folder: where each incarnation started. It outlives every journal."""
    path = Path(config.output) / "history.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"wall": time.time(), **entry}) + "\n")


def _facts(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What the manifest says of the run that wrote it."""
    return {"config": config.fingerprint(), "text": corpus.fingerprint, "total_steps": config.steps}


def _heartbeat(config: TrainConfig, recorder: Recorder) -> contextlib.AbstractContextManager[Heartbeat | None]:
    """A connected heartbeat to `ft_launcher`'s monitor, or None: switched off, or another launcher."""
    if not config.resilience.heartbeats or "FT_RANK_MONITOR_IPC_SOCKET" not in os.environ:
        return contextlib.nullcontext()
    from headway.nvrx.heartbeat import Heartbeat  # needs NVRx, which this layer alone asks for

    return Heartbeat(recorder)
