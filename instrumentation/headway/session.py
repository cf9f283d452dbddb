"""The files of one life: the journal, the step ring and the life lock, opened together and closed together."""

from __future__ import annotations

import contextlib
import errno
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.environment import run_name_problem
from headway.files import make_run_folder
from headway.journal import JournalWriter
from headway.lifelock import LifeLock, lock_name
from headway.ring import RingWriter

if TYPE_CHECKING:
    from pathlib import Path

    from headway.environment import Identity

_log = logging.getLogger("headway")


@dataclass(frozen=True)
class Session:
    """What a recorder writes to. `ring` is None when there was no room for it: then only events are recorded."""

    journal: JournalWriter
    lock: LifeLock
    ring: RingWriter | None

    @classmethod
    def open(cls, identity: Identity, life: int) -> Session:
        """Opens the files in the run's folder, the lock first: whoever reads of this life can wait for its end.

        Raises:
            OSError: the folder cannot be made or is not ours; the message is for people.
            ValueError: the run's name is no file name.
        """
        problem = run_name_problem(identity.run)
        if problem is not None:
            raise ValueError(problem)
        folder = make_run_folder(identity.directory, identity.run, shared_place=identity.shared_place)
        lock = LifeLock(folder / lock_name(identity.slot), life)
        ring = _open_ring(folder, identity.slot, life)
        return cls(JournalWriter(folder / journal_name(identity.slot), life), lock, ring)

    def close(self) -> None:
        """Closes them; the lock last, since that tells a sidecar that the life is over."""
        for part in (self.ring, self.journal, self.lock):
            if part is not None:
                with contextlib.suppress(Exception):
                    part.close()


def journal_name(slot: int) -> str:
    """File name of a slot's journal."""
    return f"slot-{slot}.jsonl"


def _open_ring(folder: Path, slot: int, life: int) -> RingWriter | None:
    try:
        return RingWriter.create(folder, slot, life)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = f"{folder} has no room for 4 MB more" if full else f"the step ring cannot be made ({error})"
        _log.warning("headway records no steps in this process, only events: %s. Training goes on.", why)
        return None
