"""Headway tells where the time of a training job went. This package is its part inside the trainer: a crash-safe recorder.

    recorder = headway.Recorder.from_env()
    with recorder.step(number) as step:
        step.loss = train_one_step()

Only the standard library is imported. Hooks for NVIDIA's resiliency extension are in `headway.nvrx`.
"""

from headway._version import __version__
from headway.recorder import Recorder
from headway.steps import Step

__all__ = ["Recorder", "Step", "__version__"]
