"""Every number that a verdict or a diagnosis depends on, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of verdicts and diagnoses; the defaults suit runs from minutes to months.

    Raises:
        ValueError: a limit is not a positive number, a count no whole one, or one not below another that it must be below.
    """

    no_progress_attempts: int = 3
    """Attempts without a step that was never completed before, from which an incident is recurring."""

    no_durable_progress_attempts: int = 3
    """Attempts without a newly durable checkpoint, from which an incident is recurring."""

    same_fingerprint_failures: int = 2
    """Failures with one fingerprint and no new mark between them, from which an incident is recurring."""

    same_checkpoint_loads: int = 3
    """Loads of one checkpoint within an incident, from which it is recurring; from scratch is a checkpoint."""

    same_step_reloads: int = 2
    """Reloads between failures at the same step, from which an incident is recurring."""

    same_step_tolerance_steps: int = 1
    """Steps by which failures may lie apart and still be at the same step: ranks notice a step sooner or later."""

    same_entity_incidents: int = 2
    """Incidents that began on one rank, node or GPU, from which it is named."""

    same_entity_window_seconds: float = 86_400.0
    """Time in which these incidents opened."""

    same_entity_shown: int = 8
    """Entities that are named at once, those with the most incidents first: it bounds the series."""

    abandoned_seconds: float = 3_600.0
    """Time without any process or trace of one after which an open incident is given up."""

    stop_seconds: float = 120.0
    """A failure this long after the launcher was told to end is still its end."""

    heartbeat_delay_seconds: float = 2.0
    """A monitor's line comes through a pipe, its kill through the kernel: within this time the kill may be seen first."""

    timeout_share: float = 0.9
    """Share of a time-out that a silence must last to be put down to it: the last sign of progress may be younger than the last step."""

    sample_silence_seconds: float = 12.0
    """Samples come every 5 s: a process that missed two does not run Python any more."""

    hang_silence_seconds: float = 60.0
    """Time without a step after which a death without samples is put down to a hang, when no heartbeat time-out is known."""

    oom_before_seconds: float = 15.0
    """The kernel counts an out-of-memory kill before it has freed the process's memory, which takes seconds: a rise of the count so long
    before a death explains it."""

    verdict_after_seconds: float = 30.0
    """Time that the pods have to tell what they know of a failure before the lowest of them settles where it began."""

    verdict_timeout_seconds: float = 120.0
    """Time after which a pod that saw no verdict decides alone."""

    pod_silent_seconds: float = 30.0
    """Time without a sign of life after which a pod is taken for lost; its sidecar gives one six times as often."""

    pod_live_seconds: float = 15.0
    """A pod that gave a sign of life within this time lives, between the two nobody knows yet. Well below `verdict_after_seconds`: a sign
    from before the failure says nothing."""

    gpu_before_seconds: float = 60.0
    """What happened to a rank's GPU so long before the rank was last known to be well may still explain its failure."""

    gpu_after_seconds: float = 60.0
    """What happened to a rank's GPU so long after the last sign of a failure may still explain it, as long as no step was made again."""

    gpu_repeat_window_seconds: float = 86_400.0
    """Time in which a program's fault (XID 13, 31) that comes again on the same GPU hints at the GPU, and on others at the program."""

    def __post_init__(self) -> None:
        for one in fields(self):
            problem = _problem(one.name, getattr(self, one.name))
            if problem:
                raise ValueError(f"{one.name} must be {problem}, not {getattr(self, one.name)}")
        for low, high in _RISING:
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(f"{low} ({getattr(self, low):g}) must be below {high} ({getattr(self, high):g})")


_RISING: Final = (
    ("pod_live_seconds", "pod_silent_seconds"),
    ("pod_live_seconds", "verdict_after_seconds"),
    ("verdict_after_seconds", "verdict_timeout_seconds"),
)
"""The first of each two must be below the other."""
NAMES: Final = tuple(one.name for one in fields(Thresholds))
_COUNTS: Final = frozenset(one.name for one in fields(Thresholds) if isinstance(one.default, int))
_UNITS: Final = {"shown": "entities", "share": "of 1"}
"""Where the last word of the name is not the unit."""


def unit(name: str) -> str:
    """What the threshold is counted in: seconds, steps, attempts and so on."""
    last = name.rpartition("_")[2]
    return _UNITS.get(last, last)


def pair(text: str) -> tuple[str, float]:
    """A threshold as people write it: `NAME=VALUE`.

    Raises:
        ValueError: no such name, or a value that it cannot have; the message lists the names.
    """
    name, _, written = (part.strip() for part in text.partition("="))
    if name not in NAMES:
        raise ValueError(f"{text[:80]!r} is no NAME=VALUE with one of the names {', '.join(NAMES)}")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    problem = _problem(name, value)
    if problem:
        raise ValueError(f"{text[:80]!r}: {name} must be {problem} ({unit(name)}); the names are {', '.join(NAMES)}")
    return name, int(value) if name in _COUNTS else value


def pairs(text: str) -> dict[str, float]:
    """Several of them with commas between, as in an environment variable.

    Raises:
        ValueError: as `pair`.
    """
    return dict(pair(one) for one in text.split(",") if one.strip())


def told(source: Mapping[str, Any]) -> Thresholds:
    """Those that a summary tells; the default for what is missing in it or makes no sense."""
    found = {name: source[name] for name in NAMES if type(source.get(name)) in (int, float)}
    sensible: dict[str, Any] = {name: value for name, value in found.items() if not _problem(name, value)}
    try:
        return Thresholds(**sensible)
    except ValueError:
        return DEFAULT


def _problem(name: str, value: float) -> str:
    """What a threshold must be and this value is not; empty where all is well."""
    if not 0 < value < math.inf:
        return "a number above 0"
    if name in _COUNTS and value != int(value):
        return "a whole number"
    return "at most 1" if name == "timeout_share" and value > 1 else ""


DEFAULT = Thresholds()
