"""What whoever looks on should know of what is shown: what is missing, what is empty, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_exporter.page.model import Note
from headway_exporter.report import fields, units

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway_exporter.page.taking import Taken

SILENT_SECONDS: Final = 60.0
"""A trainer tells something every five seconds, whatever it does."""
LATE_SECONDS: Final = 600.0
"""By then a trainer should have begun: as the alert HeadwayTrainerSilent has it."""

DROPPED: Final = {
    "other_run": "journals of another run lie in the folder: give trainer and sidecar the same HEADWAY_RUN",
    "bad_ring": "files of steps that are none: is the folder on a disk that fails, or written by somebody else?",
    "unreadable": "files or folders that cannot be opened: the sidecar's user must be able to read what the trainer's writes",
    "version": "events of a newer format: the sidecar must be at least as new as the recorder",
    "unknown_kind": "events of kinds that this version does not know: the sidecar must be at least as new as the recorder",
    "malformed": "events that make no sense; the log shows the first of them",
    "limit": "more slots, names or files than a pod has: who else writes into the folder?",
    "future": "events of a time that has not come yet: set the clock, or see who else writes into the folder",
    "state_corrupt": "a damaged file in the state folder was set aside",
    "state_foreign": "a file of another pod lay in this one's place in the state folder and was set aside: two pods may have one index",
    "state_newer": "a file of a newer version lay in the state folder and was set aside",
    "writer": "the trainer could not record them: is the journal folder full?",
    "gap": "events are missing from the journal: is the journal folder full?",
    "torn": "lines of the journal are broken off, as when a process is killed while it writes",
    "torn_step": "step records that were never complete, as when a process is killed while it writes",
    "too_long": "lines of the journal are too long to be events",
    "overwritten": "steps were overwritten before they were read: the sidecar came late, or has too little processor time",
    "ring_gone": "files of steps were gone before they were read: the sidecar came late",
}
"""By reason of `headway_events_dropped_total`, the gravest first."""
_GRAVE: Final = frozenset(list(DROPPED)[:10])
"""Somebody has to do something."""


def notes(taken: Taken) -> tuple[Note, ...]:
    """All of them, the gravest first."""
    found = [*_state(taken), *_trainer(taken), *_dropped(taken), *_instruments(taken)]
    order = ("bad", "attention", "info")
    return tuple(sorted(found, key=lambda note: order.index(note.level)))


def no_trainer(taken: Taken) -> str:
    """What to do when there is none yet."""
    return (
        f"None has written to {fields.text(taken.folder)} yet. It appears here with its first event: start it with the same "
        f"HEADWAY_DIR as this sidecar, and HEADWAY_RUN={fields.text(taken.run)}."
    )


def _trainer(taken: Taken) -> Iterator[Note]:
    if taken.figures.get("finished"):
        yield Note("info", "The run is complete: what is shown stays as it is until the pod ends.")
        return
    heard = taken.more.source_wall.get("trainer")
    if heard is None and taken.watched_seconds > LATE_SECONDS:
        ago = units.duration(taken.watched_seconds)
        yield Note("attention", f"No trainer has told anything in the {ago} that this sidecar has been here.")
    if heard is not None and taken.wall - heard > SILENT_SECONDS:
        ago = units.duration(taken.wall - heard)
        yield Note("attention", f"The trainer has told nothing for {ago}: step, loss and queue are of then.")


def _dropped(taken: Taken) -> Iterator[Note]:
    dropped: Mapping[str, int] = fields.counts(taken.figures.get("dropped"))
    for reason, words in DROPPED.items():
        if dropped.get(reason):
            count = units.whole(dropped[reason])
            yield Note("attention" if reason in _GRAVE else "info", f"Not in the numbers ({reason}, {count}): {words}.")


def _state(taken: Taken) -> Iterator[Note]:
    if taken.state_trouble is not None:
        yield Note("bad", f"State folder: {fields.text(taken.state_trouble)}.")
    elif not taken.state_dir:
        yield Note(
            "info",
            "Only this pod is shown, and its history ends with it: a state folder that all pods share (--state-dir) brings "
            "the others and outlives the pod.",
        )


def _instruments(taken: Taken) -> Iterator[Note]:
    worked = {labels[0]: value for name, labels, value in taken.measured if name == "headway_collector_success"}
    for name, value in worked.items():
        if not value:
            yield Note(
                "attention", f"{_NAMES.get(name, name)} cannot be read: what comes from there is missing, not old."
            )
    up = {labels[:2]: value for name, labels, value in taken.measured if name == "headway_gpu_up"}
    silent = sorted(fields.text(labels[0], 20) for labels, value in up.items() if not value)
    if silent:
        yield Note(
            "attention", f"{'GPU' if len(silent) == 1 else 'GPUs'} {', '.join(silent[:16])} of this machine: no answer."
        )
    if up:
        return
    if "nvml" not in taken.instruments:
        yield Note("info", "GPUs are not asked about: the sidecar was told --gpus off.")
    elif "nvml" not in worked:
        yield Note("info", "No GPU is shown: there is no NVIDIA driver here, or this container may not see it.")


_NAMES: Final = {
    "nvml": "The GPUs' driver",
    "host": "The host's memory and processor",
    "nics": "The network cards",
    "kubernetes": "The Kubernetes API",
    "storage_checkpoints": "The volume of the checkpoints",
    "storage_state": "The volume of the state folder",
    "storage_journal": "The volume of the journals",
}
