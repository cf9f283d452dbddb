"""Where the time of all ranks went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway_exporter.labels import STATES
from headway_exporter.report.model import UNAVAILABLE
from headway_exporter.report.words import STATE_WORDS

if TYPE_CHECKING:
    from headway_exporter.report.model import Run

UNREGAINED = "unregained"
PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Row:
    """One use of time."""

    name: str
    """A state, `unregained` (a part of the productive time) or `pending`."""
    meaning: str
    seconds: float
    share: float
    """Of the time that goodput is measured against."""
    available: bool
    """The job was able to train, by infrastructure goodput."""

    @property
    def title(self) -> str:
        """Its name, for people; time that is not over is named after what it is so far."""
        return self.meaning if self.name == PENDING else self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Accounts:
    """The books of the whole run; the rows add up to `elapsed`."""

    elapsed: float
    """Rank-seconds without reserves."""
    standby: float
    training_goodput: float | None
    infrastructure_goodput: float | None
    rows: tuple[Row, ...]
    """Progress first, then the losses, the largest first."""

    @property
    def losses(self) -> tuple[Row, ...]:
        """All but the progress."""
        return self.rows[1:]

    @property
    def between(self) -> tuple[Row, ...]:
        """What lies between the two goodputs: the job was able to train and made no lasting progress."""
        return tuple(row for row in self.losses if row.available)


def accounts(run: Run) -> Accounts:
    """The books of the run."""
    states = run.rank_seconds
    elapsed = run.elapsed_rank_seconds
    unregained = sum(pod.unregained_rank_seconds for pod in run.pods)
    progress = max(states.get("productive", 0.0) - unregained, 0.0)
    found = [
        (name, STATE_WORDS[name], states.get(name, 0.0)) for name in STATES if name not in ("productive", "standby")
    ]
    found.append((UNREGAINED, "new steps that a failure undid, not yet done again", unregained))
    open_states = {pod.state for pod in run.pods if pod.pending_rank_seconds > 0 and pod.state is not None}
    so_far = f", so far as {', '.join(sorted(open_states)).replace('_', ' ')}" if open_states else ""
    found.append((PENDING, f"not over yet{so_far}", max(elapsed - progress - sum(row[2] for row in found), 0.0)))
    losses = sorted((row for row in found if row[2] > 0), key=lambda row: -row[2])
    bad = {*UNAVAILABLE, PENDING} if open_states and open_states <= set(UNAVAILABLE) else set(UNAVAILABLE)
    rows = [("productive", "new steps that are still in the weights", progress), *losses]
    return Accounts(
        elapsed=elapsed,
        standby=states.get("standby", 0.0),
        training_goodput=run.training_goodput,
        infrastructure_goodput=run.infrastructure_goodput,
        rows=tuple(
            Row(name, meaning, seconds, seconds / elapsed if elapsed else 0.0, name not in bad)
            for name, meaning, seconds in rows
        ),
    )
