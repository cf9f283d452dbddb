"""Headway tells where the time of a training job went. This package is its part inside the trainer: a crash-safe recorder.

    recorder = headway.Recorder.from_env()
    with recorder.step(number) as step:
        step.loss = train_one_step()

Only the standard library is imported, and of Headway only what is asked for: the `headway` command passes through here, too.
Hooks for NVIDIA's resiliency extension are in `headway.nvrx`.
"""

import importlib
import typing

from headway._version import __version__

if typing.TYPE_CHECKING:
    from headway.recorder import Recorder
    from headway.steps import Step

__all__ = ["Recorder", "Step", "__version__"]

_HOMES = {"Recorder": "headway.recorder", "Step": "headway.steps"}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used.

    Raises:
        AttributeError: there is none of that name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
