"""Findings about time-outs: each layer must have its turn before the next one, and all must outlast a rank that is well.

NVRx refuses soft >= hard and hard >= barrier itself (`inprocess.Wrapper`); what it cannot see is the launcher's heartbeat time-out, and how
long ranks really are silent.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from headway.doctor.findings import Finding
from headway.doctor.launcher_options import heartbeat_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TIGHT: Final = 1.5
"""A time-out below this many times the longest silence is too short: the longest one is still to come."""
_CHAINS: Final = (("soft", "hard", "heartbeat"), ("hard", "barrier"))
_SETTINGS: Final = {
    "soft": "soft_timeout_seconds",
    "hard": "hard_timeout_seconds",
    "heartbeat": "heartbeat_rank_seconds",
    "barrier": "barrier_timeout_seconds",
    "completion": "completion_timeout_seconds",
}


def timeouts(
    settings: Mapping[str, Any], command: Sequence[str] | None, silences: Mapping[str, float] | None = None
) -> Finding:
    """One finding on all of them.

    Args:
        settings: in force, as the trainer journalled them; seconds.
        command: the launcher's, whose heartbeat time-out counts where the trainer has not told it.
        silences: phase to the longest time between two heartbeats, seconds.
    """
    known = {name: float(settings[key]) for name, key in _SETTINGS.items() if _is_number(settings.get(key))}
    told = heartbeat_seconds(command or ())
    if told is not None:
        known.setdefault("heartbeat", told)
    phase, longest = max((silences or {}).items(), key=lambda item: item[1], default=("", 0.0))
    if len(known) < 2 and not (known and longest):
        do = "Recorder.from_env(settings={'soft_timeout_seconds': …, 'hard_timeout_seconds': …}), where inprocess.Wrapper is used"
        return Finding("time-outs", "skip", "the trainer has not told two time-outs yet", do)
    troubles = [*_out_of_order(known), *_outlasted(known, phase, longest)]
    if troubles:
        return Finding("time-outs", "warn", "; ".join(what for what, _ in troubles), troubles[0][1])
    silent = f"; longest silence {longest:.3g} s ({phase})" if longest else ""
    return Finding("time-outs", "ok", ", ".join(f"{name} {value:g} s" for name, value in known.items()) + silent)


def _out_of_order(known: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for chain in _CHAINS:
        for first, second in pairwise([name for name in chain if name in known]):
            if known[first] >= known[second]:
                what = f"{second} ({known[second]:g} s) is not above {first} ({known[first]:g} s): the wrong layer restarts first"
                yield what, "soft < hard < barrier of inprocess.Wrapper, and hard < heartbeat of the launcher"


def _outlasted(known: Mapping[str, float], phase: str, longest: float) -> Iterator[tuple[str, str]]:
    short = [name for name, value in known.items() if value < TIGHT * longest]
    if short:
        shown = ", ".join(f"{name} {known[name]:g} s" for name in short)
        what = (
            f"a rank that was well was silent for {longest:.3g} s ({phase}), and these are too short for that: {shown}"
        )
        yield (
            what,
            f"have at least {TIGHT:g} times the longest silence; `headway advise` tells values that fit together",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
