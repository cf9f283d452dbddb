"""What advice needs to know of a run, gathered from all its pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headway_exporter.report.model import Distribution, Incident, Pod, Run

LAYERS = ("in_process", "launcher", "orchestrator")


@dataclass(frozen=True)
class Saves:
    """Checkpoints, each number that of the slowest pod; seconds."""

    ended: int = 0
    blocking_mean: float | None = None
    """Mean time that a save stopped training."""
    write_mean: float | None = None
    write_last: float | None = None
    interval_steps: float | None = None
    interval_seconds: float | None = None
    """Between the last two requests."""
    contention: float | None = None
    """Extra step time while a save is in flight, as a ratio."""

    @property
    def write(self) -> float | None:
        """What to expect of a write: the mean or the last one, whichever is longer."""
        return max((one for one in (self.write_mean, self.write_last) if one is not None), default=None)


@dataclass(frozen=True)
class Budget:
    """Restarts of a layer: made, allowed, left; None where nobody tells."""

    restarts: int = 0
    limit: float | None = None
    remaining: float | None = None


@dataclass(frozen=True)
class Observed:
    """A run's data as advice sees them. Times in seconds, None and empty for what is not known."""

    run: str = ""
    pods: int = 0
    ranks: int = 1
    """Of the whole job."""
    watched: float = 0.0
    """Time that the job ran under observation, restarts included."""
    finished: bool = False
    failures: int = 0
    """Incidents, without those that the operator caused; tries of the same incident are not independent failures."""
    restart: float | None = None
    """Mean time from a failure to the first step after it."""
    step_seconds: float | None = None
    """Median duration of a step."""
    step: int | None = None
    total_steps: int | None = None
    silences: Mapping[str, float] = field(default_factory=dict)
    """Longest silence between heartbeats by phase."""
    settings: Mapping[str, float] = field(default_factory=dict)
    saves: Saves = field(default_factory=Saves)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    """By layer."""
    nvrx_version: str = ""

    @property
    def starts(self) -> int:
        """How often training was entered."""
        return 1 + sum(one.restarts for one in self.budgets.values())

    @property
    def ahead(self) -> float | None:
        """Time that the remaining steps will take at the pace so far; None when the run is over or their number is not known."""
        if self.finished or self.total_steps is None or not self.step or self.total_steps <= self.step:
            return None
        return (self.total_steps - self.step) * self.watched / self.step


def observe(run: Run) -> Observed:
    """Gathers it. What every pod sees alike is taken from the one that saw most of it."""
    pods = run.pods
    settings = {name: value for name, value in run.settings.items() if isinstance(value, (int, float))}
    sizes = [pod.world_size for pod in pods if pod.world_size]
    ranks = max(sizes, default=0) or run.world_size or sum(len(pod.history.slots) for pod in pods if pod.history) or 1
    return Observed(
        run=run.name,
        pods=len(pods),
        ranks=ranks,
        watched=_watched(run, ranks),
        finished=run.finished,
        failures=sum(one.outcome != "cancelled" for one in run.incidents),
        restart=_restart(run.incidents),
        step_seconds=_largest(pods, lambda pod: pod.baseline_step_seconds),
        step=run.high_water_step,
        total_steps=run.total_steps,
        silences=_silences(pods),
        settings=settings,
        saves=_saves(pods, settings),
        budgets={layer: _budget(pods, layer) for layer in LAYERS},
        nvrx_version=run.versions.get("nvrx", ""),
    )


def _watched(run: Run, ranks: int) -> float:
    """From the ranks' own clocks: the sidecar may have stood by for days before and after the job."""
    own = [pod.elapsed_rank_seconds / len(pod.history.slots) for pod in run.pods if pod.history and pod.history.slots]
    total = sum(pod.elapsed_rank_seconds for pod in run.pods)
    longest = max(own) if own else total / ranks
    whole = run.duration_seconds
    return longest if not whole else min(longest, whole) if longest else whole


def _restart(incidents: Iterable[Incident]) -> float | None:
    recoveries = [one for incident in incidents for one in incident.lead.recoveries]
    times = [
        to_first_step + (one.tries[0].phases.get("detect", 0.0) if one.tries else 0.0)
        for one in recoveries
        if (to_first_step := one.seconds_to_first_step) is not None
    ]
    return fmean(times) if times else None


def _silences(pods: Iterable[Pod]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pod in pods:
        for phase, silence in pod.phase_gap_seconds.items():
            found[phase] = max(found.get(phase, 0.0), silence)
    return found


def _saves(pods: Iterable[Pod], settings: Mapping[str, float]) -> Saves:
    parts = [pod.checkpoint for pod in pods]
    steps = settings.get("checkpoint_interval_steps") or _largest(parts, lambda one: one.interval_steps)
    gaps = [one.interval_seconds for one in parts if one.interval_seconds]
    return Saves(
        ended=max((sum(one.saves.values()) for one in parts), default=0),
        blocking_mean=_largest(parts, lambda one: _mean(one.blocking_seconds)),
        write_mean=_largest(parts, lambda one: _mean(one.write_seconds)),
        write_last=_largest(parts, lambda one: one.last_write_seconds),
        interval_steps=steps,
        interval_seconds=median(gaps) if gaps else None,
        contention=_largest(parts, lambda one: one.contention),
    )


def _mean(distribution: Distribution) -> float | None:
    return distribution.sum / distribution.count if distribution.count else None


def _budget(pods: Iterable[Pod], layer: str) -> Budget:
    told = [pod.budget[layer] for pod in pods if layer in pod.budget]
    return Budget(
        restarts=max((pod.restarts.get(layer, 0) for pod in pods), default=0),
        limit=_largest(told, lambda one: one.limit),
        remaining=min((one.remaining for one in told if one.remaining is not None), default=None),
    )


def _largest(parts: Iterable[object], value: Callable[..., float | None]) -> float | None:
    return max((found for part in parts if (found := value(part)) is not None), default=None)
