"""The ledger's summary: everything that readers of the state folder need of a pod besides its records.

It is `/status.json` (`headway_exporter.status`) and beside it what only a report, not a glance, wants.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headway_exporter import records, saving
from headway_exporter.labels import LAYERS
from headway_exporter.observations import NANOSECONDS
from headway_exporter.status import plain, status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headway_exporter.distribution import Distribution
    from headway_exporter.history import History
    from headway_exporter.pod import Pod


def summary(pod: Pod, dropped: Mapping[str, int], wall: float) -> dict[str, Any]:
    """A JSON object without NaN; what is not known is null. Times are seconds since 1970, durations seconds.

    Args:
        pod: what is known.
        dropped: what could not be used, by reason, wherever it was noticed.
        wall: when this is, seconds since 1970.
    """
    known = pod.failures
    return figures(pod, dropped, wall) | {
        "history": history(pod),  # long, and plain already
        "open": None if known.open is None else plain(records.record(pod, known.open, wall)),
    }


def figures(pod: Pod, dropped: Mapping[str, int], wall: float) -> dict[str, Any]:
    """The same without what takes time to tell: the history, and the incident that is open.

    Args:
        pod: what is known.
        dropped: what could not be used, by reason, wherever it was noticed.
        wall: when this is, seconds since 1970.
    """
    known, glance = pod.failures, status(pod, dropped)
    more = {
        "written_wall": wall,
        **_run(pod),
        "checkpoint": glance["checkpoint"] | _checkpoint(pod),
        "steps": _steps(pod),
        "baseline_step_seconds": pod.steps.baseline_seconds,
        "tokens": pod.steps.tokens,
        "lost_rank_seconds": pod.ledger.totals(pod.now_ns).lost / NANOSECONDS,
        "recovery_seconds": {
            "first_step": distribution(known.first_step),
            "high_water": distribution(known.high_water),
        },
        "recovery_phases": [[layer, phase, seconds] for (layer, phase), seconds in sorted(known.phases.items())],
        "restart_causes": [[layer, cause, count] for (layer, cause), count in sorted(known.causes.items())],
        "replay_checks": dict(pod.replay_checks.results),
    }
    return {**glance, **plain(more)}


MOST_STRETCHES_TOLD: Final = 6_400
"""Of all slots together: who has more than sixteen tells of each in less detail, since a picture has no room for it."""


def distribution(known: Distribution) -> dict[str, Any]:
    """A histogram; `counts` by bucket, one more than there are `bounds`."""
    return {"bounds": list(known.bounds), "counts": known.counts, "sum": known.total}


def history(pod: Pod) -> dict[str, Any]:
    """What each slot's time went to; see `stretches`."""
    books = {number: slot.history for number, slot in pod.ledger.slots.items()}
    return stretches(books, {number: slot.rank for number, slot in pod.slots.items()}, pod.wall_of)


def stretches(
    books: Mapping[int, History], ranks: Mapping[int, int | None], wall_of: Callable[[float], float]
) -> dict[str, Any]:
    """Rank-seconds by state in stretches of time; stretch n of each slot begins n widths after `begin_wall`.

    Args:
        books: the histories by slot.
        ranks: the slots' ranks; a slot that is not in it has its own number.
        wall_of: seconds since 1970 of a moment on the monotonic clock.
    """
    books = {number: one for number, one in books.items() if one.stretches}
    width = max((one.width for one in books.values()), default=NANOSECONDS)
    wide = {number: one.wider(width) for number, one in books.items()}
    while sum(map(len, wide.values())) > MOST_STRETCHES_TOLD:
        width *= 2
        wide = {number: one.wider(width) for number, one in books.items()}
    first = min((min(found) for found in wide.values()), default=0)
    return {
        "begin_wall": wall_of(first * width / NANOSECONDS),
        "width_seconds": width / NANOSECONDS,
        "slots": {
            str(number): {
                "rank": ranks.get(number, number),
                "buckets": [
                    [at - first, {state: amount / NANOSECONDS for state, amount in states.items()}]
                    for at, states in sorted(found.items())
                ],
            }
            for number, found in sorted(wide.items())
        },
    }


def _run(pod: Pod) -> dict[str, Any]:
    info = pod.info
    layers = [layer for layer in LAYERS if layer in info.budget_limit or layer in info.budget_remaining]
    return {
        "started_wall": info.started_wall,
        "node": info.node,
        "world_size": info.world_size,
        "pods_expected": info.pods_expected,
        "backend": info.backend,
        "versions": dict(info.versions),
        "settings": info.circumstances.settings,
        "budget": {
            layer: {"limit": info.budget_limit.get(layer), "remaining": info.budget_remaining.get(layer)}
            for layer in layers
        },
        "phase_gap_seconds": dict(info.phase_gaps),
        "thresholds": asdict(pod.failures.limits),
    }


def _checkpoint(pod: Pod) -> dict[str, Any]:
    known = pod.checkpoints
    booked = pod.ledger.booked((*saving.TRAINING, "checkpoint_save"))
    configured = known.configured_interval
    return {
        "interval_steps": known.observed_interval_steps if configured is None else configured,
        "interval_seconds": known.interval_seconds,
        "last_write_seconds": known.last_write_seconds,
        "bytes": known.last_bytes,
        "efficiency": saving.efficiency(booked),
        "durability": saving.durability(known.outcomes["committed"], known.requests),
        "contention": pod.steps.contention.ratio,
        "blocking_seconds": distribution(known.blocking),
        "write_seconds": distribution(known.writing),
        "load_seconds": distribution(known.loading),
    }


def _steps(pod: Pod) -> dict[str, int]:
    """Of the rank that has most."""
    books = pod.ledger.slots.values()
    return {
        "productive": max((slot.productive_steps for slot in books), default=0),
        "replay": max((slot.replayed_steps for slot in books), default=0),
        "lost": max((slot.lost_steps for slot in books), default=0),
    }
