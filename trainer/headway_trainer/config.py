"""What can be configured: one frozen dataclass a concern, one documented field an option.

The field `lr` of the section `optimizer` is the option `--optimizer.lr`, the YAML key `lr` below `optimizer`, and the
environment variable `HEADWAY_TRAIN_OPTIMIZER__LR`; its docstring is its help text (see `headway_trainer.arguments`).
Every section checks itself when it is made, so a configuration that exists is a sound one. Defaults suit a
demonstration on a few CPU cores; where production on GPUs needs other numbers, the docstring says which.

Needs neither torch nor NVRx.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headway_trainer.architecture import PRESETS, Architecture


class ConfigError(ValueError):
    """An option that cannot be used, as `ConfigError(option, what is wrong and what to do)`.

    It keeps the standard constructor: an exception that cannot be deep-copied would break NVRx's in-process restart.
    """

    def __str__(self) -> str:
        return ": ".join(str(part) for part in self.args)


@dataclass(frozen=True)
class ModelConfig:
    """Which decoder to train."""

    preset: str = "debug"
    """Shape of the decoder: debug (0.4 million weights, for CPUs), small (11 million), medium (0.3 billion),
    llama3-8b, or llama3-70b."""

    dim: int | None = None
    """Width of the residual stream; null takes the preset's."""

    layers: int | None = None
    """Number of decoder blocks; null takes the preset's."""

    heads: int | None = None
    """Query heads; null takes the preset's."""

    kv_heads: int | None = None
    """Key and value heads, a divisor of the query heads; null takes the preset's."""

    ffn_dim: int | None = None
    """Width of the feed-forward part; null takes the preset's."""

    vocabulary: int | None = None
    """Rows of the embedding, at least 256 because text is read as bytes; null takes the preset's."""

    rope_theta: float | None = None
    """Base of the rotary embedding's wavelengths; null takes the preset's."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError("--model.preset", f"must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        problem = self.architecture().problem()
        if problem is not None:
            name, text = problem
            raise ConfigError(_option("model", name), text)

    def architecture(self) -> Architecture:
        """The preset's shape with this section's changes."""
        changes = {name: value for name, value in asdict(self).items() if name != "preset" and value is not None}
        return replace(PRESETS[self.preset], **changes)


@dataclass(frozen=True)
class DataConfig:
    """Which text to train on, and how it is cut up."""

    paths: tuple[str, ...] = ()
    """Files and folders of text, read as bytes; empty takes the Python standard library's sources."""

    sequence_length: int = 64
    """Bytes of text in one sequence."""

    batch_size: int = 8
    """Sequences in one step of each rank; the global batch is this times the number of ranks."""

    held_out_fraction: float = 0.02
    """Share of the text, from 0 to 0.5, that is kept for evaluation and never trained on."""

    seed: int | None = None
    """Decides the order of the text; null takes --seed."""

    def __post_init__(self) -> None:
        _at_least(1, "data", sequence_length=self.sequence_length, batch_size=self.batch_size)
        if "" in self.paths:
            raise ConfigError("--data.paths", "must name files or folders, got an empty text")
        _between(0, 0.5, "data", held_out_fraction=self.held_out_fraction)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    lr: float = 3e-3
    """Highest learning rate, reached after the warm-up. For llama3-8b the published one is 3e-4."""

    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly from 0; then it falls along half a cosine until the last
    step."""

    min_lr_ratio: float = 0.1
    """Learning rate of the last step as a share of the highest, from 0 to 1."""

    weight_decay: float = 0.1
    """Decoupled decay of the matrices (norms do not decay)."""

    beta1: float = 0.9
    """Share of the old running mean of gradients kept in each step, from 0 to below 1."""

    beta2: float = 0.95
    """Share of the old running mean of squared gradients kept in each step, from 0 to below 1."""

    epsilon: float = 1e-8
    """Added to the root of the second mean before dividing by it."""

    clip_norm: float = 1.0
    """Largest L2 norm of all gradients together; 0 switches clipping off."""

    def __post_init__(self) -> None:
        _above_zero("optimizer", lr=self.lr, epsilon=self.epsilon)
        _at_least(
            0, "optimizer", warmup_steps=self.warmup_steps, weight_decay=self.weight_decay, clip_norm=self.clip_norm
        )
        _between(0, 1, "optimizer", min_lr_ratio=self.min_lr_ratio)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise ConfigError(_option("optimizer", name), f"must be from 0 to below 1, got {beta}")


@dataclass(frozen=True)
class EvaluationConfig:
    """The loss on held-out text."""

    every: int = 100
    """Steps between two evaluations; 0 switches them off."""

    batches: int = 8
    """Batches of held-out text in one evaluation, always the same ones, dealt out to the ranks."""

    def __post_init__(self) -> None:
        _at_least(0, "evaluation", every=self.every)
        _at_least(1, "evaluation", batches=self.batches)


@dataclass(frozen=True)
class CheckpointConfig:
    """When and where the state of training is saved."""

    mode: Literal["async", "sync", "off"] = "async"
    """async: a writer process saves while training goes on (NVRx); sync: training waits for each save; off: nothing
    is saved."""

    directory: str = ""
    """Folder of the checkpoints, shared by all nodes; empty takes `checkpoints` below --output."""

    every: int = 50
    """Steps between two checkpoints; the last step is saved in any case. In production choose some minutes' worth
    of steps."""

    keep: int = 3
    """Complete checkpoints kept; at least 2, so that a corrupt newest one has something to fall back to."""

    backlog: Literal["skip", "wait"] = "skip"
    """What happens to a save when two earlier ones are still being written. skip: it is left out, and training goes
    on; wait: training stands still until there is room, as loops do that finalize the last save before the next."""

    finish_timeout_seconds: float = 60.0
    """Seconds that training waits for saves still being written: at its end, and for each one with the backlog wait.
    Production: what writing one checkpoint takes, times two."""

    def __post_init__(self) -> None:
        _one_of(("async", "sync", "off"), "checkpoint", mode=self.mode)
        _one_of(("skip", "wait"), "checkpoint", backlog=self.backlog)
        _at_least(1, "checkpoint", every=self.every)
        _at_least(2, "checkpoint", keep=self.keep)
        _above_zero("checkpoint", finish_timeout_seconds=self.finish_timeout_seconds)


@dataclass(frozen=True)
class ParallelConfig:
    """Where and how the model is computed. The number of ranks is the launcher's business."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: one GPU for each rank if PyTorch finds any, else the CPU."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type for computing; auto is bfloat16 on GPUs and float32 on CPUs. Weights and gradient sums are float32 in
    any case."""

    reshard_after_forward: bool = True
    """Free a block's gathered weights between forward and backward pass: less memory, one more gather. Has no
    effect on one rank."""

    activation_checkpointing: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: less memory, about a
    third more work."""

    compile: bool = False
    """Compile each block with torch.compile: faster steps after a slow first one."""

    deterministic: Literal["auto", "on", "off"] = "auto"
    """Use deterministic kernels only, for bit-equal repetitions; auto is on for CPUs (free there) and off for GPUs
    (slower)."""

    threads_per_rank: int = 1
    """CPU threads of each rank's computations. Another number may change results in the last digit."""

    def __post_init__(self) -> None:
        _one_of(("auto", "cpu", "cuda"), "parallel", device=self.device)
        _one_of(("auto", "float32", "bfloat16"), "parallel", dtype=self.dtype)
        _one_of(("auto", "on", "off"), "parallel", deterministic=self.deterministic)
        _at_least(1, "parallel", threads_per_rank=self.threads_per_rank)


@dataclass(frozen=True)
class ResilienceConfig:
    """Which of NVRx's layers watch over training, and how patient they are."""

    in_process: bool = True
    """Restart the training function inside the living processes after an exception or an interruptible hang."""

    heartbeats: bool = True
    """Send heartbeats to the rank monitor of ft_launcher, which kills and restarts what hangs. No effect under
    another launcher."""

    max_in_process_restarts: int = 10
    """In-process restarts of one set of processes; then the failure is left to the launcher."""

    soft_timeout_seconds: float = 8.0
    """Seconds without a step after which an in-process restart is tried. More than a first step, evaluation or load
    takes. Production: 300."""

    hard_timeout_seconds: float = 14.0
    """Seconds without a step after which the hanging process is killed; above the soft time-out. Production: 600."""

    barrier_timeout_seconds: float = 20.0
    """Seconds that the ranks wait for each other during an in-process restart; above the hard time-out. Production:
    900."""

    collective_timeout_seconds: float = 30.0
    """Seconds after which a collective operation (all-gather and the like) fails. Production: 60 to 600."""

    def __post_init__(self) -> None:
        soft, hard, barrier = self.soft_timeout_seconds, self.hard_timeout_seconds, self.barrier_timeout_seconds
        _at_least(0, "resilience", max_in_process_restarts=self.max_in_process_restarts)
        _above_zero("resilience", soft_timeout_seconds=soft, collective_timeout_seconds=self.collective_timeout_seconds)
        _above_zero("resilience", hard_timeout_seconds=hard, barrier_timeout_seconds=barrier)
        if not soft < hard:
            raise ConfigError(
                "--resilience.hard-timeout-seconds", f"must be above the soft time-out ({soft:g} s), got {hard:g} s"
            )
        if not hard < barrier:
            raise ConfigError(
                "--resilience.barrier-timeout-seconds",
                f"must be above the hard time-out ({hard:g} s), got {barrier:g} s",
            )


@dataclass(frozen=True)
class FaultConfig:
    """Faults to inject, to see the recovery.

    Carried as text here; `headway_trainer.faults` gives it a meaning.
    """

    schedule: tuple[str, ...] = ()
    """Faults as kind@step[:rank=R][:repeat=N][:seconds=S][:code=C], for example sigkill@90:rank=1."""

    file: str | None = None
    """YAML file with a list of faults in the same form; they come on top of the schedule."""


@dataclass(frozen=True)
class SimulationConfig:
    """What a laptop lacks: the pace of a large model, and of a storage that many share."""

    step_seconds: float = 0.0
    """Least seconds of a step; what is left of them is slept, as a CPU waits for its GPU. 0: no pause."""

    write_bytes_per_second: float = 0.0
    """Most bytes a second at which each rank's shard is written; the rest of the time is slept between the pieces. 0:
    as fast as it goes."""

    def __post_init__(self) -> None:
        _at_least(0, "simulation", step_seconds=self.step_seconds, write_bytes_per_second=self.write_bytes_per_second)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    steps: int = 300
    """Optimizer steps of the whole run, those before a restart included."""

    seed: int = 0
    """Decides the first weights and, unless --data.seed says otherwise, the order of the text."""

    log_every: int = 10
    """Steps between two log lines; 0 switches them off."""

    output: str = "headway-output"
    """Folder for what the run leaves behind."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    resilience: ResilienceConfig = field(default_factory=ResilienceConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)

    def __post_init__(self) -> None:
        _at_least(1, "", steps=self.steps)
        _at_least(0, "", log_every=self.log_every)
        if not self.output:
            raise ConfigError("--output", "must name a folder, got an empty text")
        if self.evaluation.every and not self.data.held_out_fraction:
            raise ConfigError(
                "--data.held-out-fraction", "must be above 0 to evaluate; or switch that off with --evaluation.every 0"
            )
        if not self.checkpoint.directory:
            completed = replace(self.checkpoint, directory=str(Path(self.output, "checkpoints")))
            object.__setattr__(self, "checkpoint", completed)  # still being made, so nobody has seen it yet

    def fingerprint(self) -> str:
        """16 hex digits over everything here that decides the losses of a run.

        The text has a fingerprint of its own, and the world size is left out.

        Two runs with equal fingerprint, text and world size make equal steps; a checkpoint records it.
        """
        numeric = ("dtype", "compile", "activation_checkpointing", "threads_per_rank")
        decisive: dict[str, Any] = {
            "steps": self.steps,  # the cosine ends there
            "seed": self.seed,
            "architecture": asdict(self.model.architecture()),
            "data": {name: value for name, value in asdict(self.data).items() if name != "paths"},
            "optimizer": asdict(self.optimizer),
            "parallel": {name: getattr(self.parallel, name) for name in numeric},
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _option(section: str, name: str) -> str:
    return "--" + ".".join(part for part in (section, name.replace("_", "-")) if part)


def _at_least(minimum: int, section: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= minimum):
            raise ConfigError(_option(section, name), f"must be at least {minimum}, got {_shown(value)}")


def _above_zero(section: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(_option(section, name), f"must be above 0, got {_shown(value)}")


def _between(low: float, high: float, section: str, **values: float) -> None:
    for name, value in values.items():
        if not low <= value <= high:
            raise ConfigError(_option(section, name), f"must be from {low} to {high}, got {_shown(value)}")


def _one_of(choices: tuple[str, ...], section: str, **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise ConfigError(_option(section, name), f"must be one of {', '.join(choices)}, got {value!r}")


def _shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
