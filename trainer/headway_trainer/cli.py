"""`headway train` and `python -m headway_trainer`: one rank of a training run."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway_trainer.arguments import exit_with, parse_args, variables_without_effect
from headway_trainer.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway import Recorder
    from headway.nvrx.checkpointing import AsyncCheckpointer
    from headway_trainer.config import TrainConfig
    from headway_trainer.loop import Resources

IN_PROCESS_STORE_PORT_OFFSET: Final = 2
"""Ports as in NVRx's examples: MASTER_PORT is the launcher's, + 2 the in-process layer's."""

_log = logging.getLogger(__name__)

PYNVML_WARNING: Final = "The pynvml package is deprecated"


def main(argv: Sequence[str] | None = None) -> int:
    """Train until the last step; returns the exit code."""
    config = parse_args(argv)
    _quieten()
    from headway_trainer.group import ensure_rank_variables  # torch takes seconds, a bad option must not

    ensure_rank_variables()
    _log_with_rank()
    if os.environ["RANK"] == "0":
        for line in variables_without_effect(os.environ):
            _log.warning(line)
    try:
        resources = _open(config)
    except ConfigError as error:
        exit_with(error)
    _train(config, resources)
    return 0


def _open(config: TrainConfig) -> Resources:
    from headway import Recorder
    from headway_trainer import parallel
    from headway_trainer.data import Corpus
    from headway_trainer.faults import FaultInjector, check_schedule, load_schedule
    from headway_trainer.loop import Resources

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    schedule = load_schedule(config.faults.schedule, config.faults.file)
    check_schedule(schedule, world_size)
    _make_folders(config)
    device = parallel.choose_device(config.parallel, local_rank=int(os.environ["LOCAL_RANK"]))
    parallel.setup_determinism(config.parallel, device)
    corpus = Corpus.open(config.data, seed=config.seed)
    settings = settings_in_force(config) | {"text_fingerprint": corpus.fingerprint}
    markers, checkpoints = Path(config.output) / "faults", Path(config.checkpoint.directory)
    saves = config.checkpoint.mode != "off"
    recorder = Recorder.from_env(
        settings=settings, backend=parallel.backend_for(device), checkpoint_dir=checkpoints if saves else None
    )
    injector = FaultInjector(schedule, markers, rank, world_size, checkpoint_dir=checkpoints)
    return Resources(recorder, corpus, injector, _checkpointer(config, recorder), device)


def _make_folders(config: TrainConfig) -> None:
    """Before anything that restarts: a folder that cannot be written to stays so however often the run begins again."""
    folders = {"--output": config.output}
    if config.checkpoint.mode != "off":
        folders["--checkpoint.directory"] = config.checkpoint.directory
    for option, folder in folders.items():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(option, f"cannot be used as a folder: {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(option, f"cannot be written to: {folder}")


def settings_in_force(config: TrainConfig) -> dict[str, float | str]:
    """What the journal keeps of the configuration (see `process_started` in `headway.events`)."""
    resilience = config.resilience
    settings: dict[str, float | str] = {
        "config_fingerprint": config.fingerprint(),
        "total_steps": config.steps,
        "collective_timeout_seconds": resilience.collective_timeout_seconds,
    }
    if config.checkpoint.mode != "off":
        settings["checkpoint_interval_steps"] = config.checkpoint.every
    if resilience.in_process:
        settings["in_process_restart_budget"] = resilience.max_in_process_restarts
        settings["soft_timeout_seconds"] = resilience.soft_timeout_seconds
        settings["hard_timeout_seconds"] = resilience.hard_timeout_seconds
        settings["barrier_timeout_seconds"] = settings["completion_timeout_seconds"] = (
            resilience.barrier_timeout_seconds
        )
    return settings


def _checkpointer(config: TrainConfig, recorder: Recorder) -> AsyncCheckpointer | None:
    if config.checkpoint.mode != "async":
        return None
    from headway.nvrx.checkpointing import AsyncCheckpointer, async_queue  # needs NVRx

    return AsyncCheckpointer(recorder, async_queue)


def _train(config: TrainConfig, resources: Resources) -> None:
    from headway_trainer.loop import train
    from headway_trainer.resilience import restart_in_process

    run: Callable[[], object] = partial(train, config, resources)
    if config.resilience.in_process:
        port = int(os.environ["MASTER_PORT"]) + IN_PROCESS_STORE_PORT_OFFSET
        run = restart_in_process(
            partial(train, config, resources), config.resilience, resources.recorder, store_port=port
        )
    run()
    if resources.checkpointer is not None:
        resources.checkpointer.close(deadline_seconds=config.checkpoint.finish_timeout_seconds)
    resources.recorder.close()


def _quieten() -> None:
    """Keep two known floods off the terminal, here and in the writer process, before torch is imported."""
    # The in-process layer polls its store several times a second, and torch's C++ part would write two lines for each.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "error")
    # NVRx 0.4.1 installs the old pynvml package beside the new one of the same module name, and torch complains.
    warnings.filterwarnings("ignore", PYNVML_WARNING, FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{PYNVML_WARNING}:FutureWarning")


def _log_with_rank() -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s rank {os.environ['RANK']} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
