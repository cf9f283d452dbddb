"""The configuration's own rules: each section refuses what cannot work, and says which option to change."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest

from headway_trainer import config as c
from headway_trainer.cli import settings_in_force


@pytest.mark.parametrize(
    ("section", "bad", "option"),
    [
        (c.TrainConfig, {"steps": 0}, "--steps"),
        (c.TrainConfig, {"log_every": -1}, "--log-every"),
        (c.TrainConfig, {"output": ""}, "--output"),
        (c.ModelConfig, {"preset": "gpt-5"}, "--model.preset"),
        (c.ModelConfig, {"heads": 3}, "--model.heads"),
        (c.ModelConfig, {"kv_heads": 3}, "--model.kv-heads"),
        (c.ModelConfig, {"dim": 12, "heads": 4}, "--model.heads"),
        (c.ModelConfig, {"layers": 0}, "--model.layers"),
        (c.ModelConfig, {"vocabulary": 255}, "--model.vocabulary"),
        (c.ModelConfig, {"rope_theta": math.nan}, "--model.rope-theta"),
        (c.DataConfig, {"paths": ("",)}, "--data.paths"),
        (c.DataConfig, {"sequence_length": 0}, "--data.sequence-length"),
        (c.DataConfig, {"batch_size": -8}, "--data.batch-size"),
        (c.DataConfig, {"held_out_fraction": 0.51}, "--data.held-out-fraction"),
        (c.DataConfig, {"held_out_fraction": math.nan}, "--data.held-out-fraction"),
        (c.OptimizerConfig, {"lr": 0.0}, "--optimizer.lr"),
        (c.OptimizerConfig, {"lr": math.inf}, "--optimizer.lr"),
        (c.OptimizerConfig, {"warmup_steps": -1}, "--optimizer.warmup-steps"),
        (c.OptimizerConfig, {"min_lr_ratio": 1.5}, "--optimizer.min-lr-ratio"),
        (c.OptimizerConfig, {"weight_decay": -0.1}, "--optimizer.weight-decay"),
        (c.OptimizerConfig, {"beta1": 1.0}, "--optimizer.beta1"),
        (c.OptimizerConfig, {"beta2": -0.1}, "--optimizer.beta2"),
        (c.OptimizerConfig, {"epsilon": 0.0}, "--optimizer.epsilon"),
        (c.OptimizerConfig, {"clip_norm": math.nan}, "--optimizer.clip-norm"),
        (c.EvaluationConfig, {"every": -1}, "--evaluation.every"),
        (c.EvaluationConfig, {"batches": 0}, "--evaluation.batches"),
        (c.CheckpointConfig, {"mode": "fast"}, "--checkpoint.mode"),
        (c.CheckpointConfig, {"backlog": "drop"}, "--checkpoint.backlog"),
        (c.CheckpointConfig, {"every": 0}, "--checkpoint.every"),
        (c.CheckpointConfig, {"keep": 1}, "--checkpoint.keep"),
        (c.CheckpointConfig, {"finish_timeout_seconds": 0.0}, "--checkpoint.finish-timeout-seconds"),
        (c.ParallelConfig, {"device": "tpu"}, "--parallel.device"),
        (c.ParallelConfig, {"dtype": "int8"}, "--parallel.dtype"),
        (c.ParallelConfig, {"deterministic": "maybe"}, "--parallel.deterministic"),
        (c.ParallelConfig, {"threads_per_rank": 0}, "--parallel.threads-per-rank"),
        (c.ResilienceConfig, {"max_in_process_restarts": -1}, "--resilience.max-in-process-restarts"),
        (c.ResilienceConfig, {"soft_timeout_seconds": 0.0}, "--resilience.soft-timeout-seconds"),
        (c.ResilienceConfig, {"soft_timeout_seconds": 14.0}, "--resilience.hard-timeout-seconds"),
        (c.ResilienceConfig, {"hard_timeout_seconds": 20.0}, "--resilience.barrier-timeout-seconds"),
        (c.ResilienceConfig, {"collective_timeout_seconds": -1.0}, "--resilience.collective-timeout-seconds"),
        (c.SimulationConfig, {"step_seconds": -0.1}, "--simulation.step-seconds"),
        (c.SimulationConfig, {"write_bytes_per_second": math.inf}, "--simulation.write-bytes-per-second"),
    ],
)
def test_a_bad_value_names_its_option(section: Any, bad: dict[str, object], option: str) -> None:
    """Whoever makes a section, by hand or by the command line, learns which option is wrong."""
    with pytest.raises(c.ConfigError) as raised:
        section(**bad)
    assert str(raised.value).startswith(f"{option}: must ")


def test_evaluation_needs_held_out_text() -> None:
    """Evaluating on text that training has seen would say nothing, so the combination is refused at once."""
    with pytest.raises(c.ConfigError, match=r"--evaluation\.every 0"):
        c.TrainConfig(data=c.DataConfig(held_out_fraction=0.0))
    c.TrainConfig(data=c.DataConfig(held_out_fraction=0.0), evaluation=c.EvaluationConfig(every=0))


def test_checkpoints_go_below_the_output_folder_unless_told_otherwise() -> None:
    """One `--output` moves the whole run; a directory of one's own stays."""
    assert c.TrainConfig(output="here").checkpoint.directory == "here/checkpoints"
    assert c.TrainConfig(checkpoint=c.CheckpointConfig(directory="there")).checkpoint.directory == "there"


def test_overrides_change_the_preset() -> None:
    """A preset is a starting point: single numbers of it can be replaced."""
    assert c.ModelConfig(preset="small", layers=2).architecture().layers == 2
    assert c.ModelConfig(preset="small", layers=2).architecture().dim == c.ModelConfig("small").architecture().dim


def test_the_fingerprint_follows_what_decides_the_losses() -> None:
    """A checkpoint of other mathematics must not look the same; one with another log interval must not look different."""
    base = c.TrainConfig()
    same = [
        dataclasses.replace(base, log_every=1, output="elsewhere"),
        dataclasses.replace(base, data=c.DataConfig(paths=("moved/text",))),
        dataclasses.replace(base, resilience=c.ResilienceConfig(in_process=False)),
        dataclasses.replace(base, model=c.ModelConfig(dim=base.model.architecture().dim)),
    ]
    other = [
        dataclasses.replace(base, seed=1),
        dataclasses.replace(base, steps=base.steps + 1),
        dataclasses.replace(base, data=c.DataConfig(batch_size=9)),
        dataclasses.replace(base, optimizer=c.OptimizerConfig(lr=1e-4)),
        dataclasses.replace(base, model=c.ModelConfig(layers=1)),
        dataclasses.replace(base, parallel=c.ParallelConfig(dtype="bfloat16")),
    ]
    assert {config.fingerprint() for config in same} == {base.fingerprint()}
    assert len({config.fingerprint() for config in [base, *other]}) == len(other) + 1


def test_the_journal_is_told_of_what_decides_the_losses() -> None:
    """Else a run that goes on with another learning rate looks as if its checkpoint had been bad."""
    one = c.TrainConfig()
    other = dataclasses.replace(one, seed=one.seed + 1)
    told = settings_in_force(one)
    assert told["config_fingerprint"] == one.fingerprint() != settings_in_force(other)["config_fingerprint"]
    assert all(isinstance(value, (int, float, str)) for value in told.values())


def test_the_error_survives_copies() -> None:
    """NVRx deep-copies the exception that ended a training function; one that cannot be copied kills the rank."""
    error = c.ConfigError("--steps", "must be at least 1, got 0")
    for copied in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert str(copied) == "--steps: must be at least 1, got 0"
