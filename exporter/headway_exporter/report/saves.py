"""What saving cost the run and what it brought."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway_exporter import saving
from headway_exporter.report import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_exporter.report.model import Run


@dataclass(frozen=True, slots=True)
class Saves:
    """The three ratios; None for what is not known."""

    requests: int
    committed: int
    efficiency: float | None
    """train / (train + blocked), of the time of all ranks."""
    durability: float | None
    """committed / requested."""
    contention: float | None
    """Extra step time while a save is in flight, of the pod that is slowed down most; negative: steps were even shorter."""


def saves(run: Run) -> Saves:
    """Of the whole run. Every pod hears of every save, so the one that heard most is counted."""
    parts = [pod.checkpoint for pod in run.pods]
    requests = max((one.requests or 0 for one in parts), default=0)
    outcomes = Counter[str]()
    for one in parts:
        outcomes |= Counter(dict(one.saves))
    return Saves(
        requests=requests,
        committed=outcomes["committed"],
        efficiency=saving.efficiency(run.rank_seconds),
        durability=saving.durability(outcomes["committed"], requests),
        contention=max((one.contention for one in parts if one.contention is not None), default=None),
    )


def sentences(found: Saves) -> Iterator[str]:
    """What is known, in words; nothing of a run that never saved. A loop may tell of commits only: then just efficiency is known."""
    if not found.requests and not found.committed:
        return
    if found.efficiency is not None:
        yield f"Checkpoint efficiency {units.share(found.efficiency)}: saves blocked training for the rest."
    if not found.requests:
        return
    committed, requests = units.whole(found.committed), units.plural(found.requests, "requested save")
    yield f"Durability {units.share(found.durability)}: {committed} of {requests} became durable."
    yield f"Contention: {_contention(found.contention)}."


def _contention(ratio: float | None) -> str:
    if ratio is None:
        return "not measured, for that too few steps were made while a save was in flight, or too few without one"
    if abs(ratio) < 0.01:
        return "none, steps take as long while a save is in flight"
    return f"steps take {units.share(abs(ratio))} {'longer' if ratio > 0 else 'less'} while a save is in flight"
