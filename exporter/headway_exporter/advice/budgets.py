"""Restart budgets: how many restarts of each layer are to be expected, against how many it may make."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from headway_exporter.advice.model import Advice, Confidence, Number, Verdict, many, plain, seconds
from headway_exporter.advice.rates import most_events, rate_interval

if TYPE_CHECKING:
    from headway_exporter.advice.observed import Budget, Observed

MONTH_SECONDS: Final = 30 * 86_400.0
FARTHEST: Final = 100.0
"""Nothing is said of a future more than this many times as long as what was watched."""
NAMES: Final = {"in_process": "in-process", "launcher": "launcher", "orchestrator": "orchestrator"}
ASSUMPTIONS: Final = (
    "restarts come independently and at a constant rate: a failure that keeps coming back uses up any budget, and should",
)


def restart_budgets(seen: Observed) -> list[Advice]:
    """One for each layer that restarted something or tells its budget."""
    layers = [(layer, budget) for layer, budget in seen.budgets.items() if budget.restarts or budget.limit is not None]
    return [_advice(seen, layer, budget) for layer, budget in layers]


def _advice(seen: Observed, layer: str, budget: Budget) -> Advice:
    ahead, what = _horizon(seen, layer)
    known = (
        Number("restarts so far", budget.restarts),
        Number("budget", budget.limit, "restarts"),
        Number("left of it", budget.remaining, "restarts"),
        Number("watched", seen.watched, "seconds"),
        Number("time ahead", ahead, "seconds"),
    )
    if not seen.watched or ahead / seen.watched > FARTHEST:
        return _too_far(layer, budget, seen.watched, what, known)
    low, high = rate_interval(budget.restarts, seen.watched)
    expected = most_events(budget.restarts, ahead / seen.watched)
    whole = seen.finished or layer == "in_process" or budget.remaining is None
    available = budget.limit if whole else budget.remaining
    numbers = (
        *known,
        Number("restarts in a day", budget.restarts / seen.watched * 86_400),
        Number("95 % interval of that", f"{plain(low * 86_400)} to {plain(high * 86_400)}"),
        Number("restarts ahead, at most (95 %)", expected),
    )
    mean = budget.restarts / seen.watched * ahead
    text = (
        f"{many(budget.restarts, 'restart')} in {seconds(seen.watched)}. For {what} expect about {plain(mean)}, "
        f"with 95 % certainty no more than {plain(expected)}."
    )
    short = available is not None and expected > available
    sure = _confidence(budget.restarts, ahead / seen.watched)
    used = 0.0 if available is None or budget.limit is None else max(0.0, budget.limit - available)
    if layer == "in_process":
        text += " Every new process has this budget whole."
    return Advice(
        topic=f"restart_budget_{layer}",
        verdict=_verdict(available, sure, short=short),
        title=_title(layer, available, expected, "in the budget" if whole else "left", short),
        text=text,
        numbers=numbers,
        confidence=sure,
        because=f"{many(budget.restarts, 'restart')} seen in {seconds(seen.watched)}, to look {seconds(ahead)} ahead",
        settings=_settings(layer, math.ceil(used + expected)) if short and sure != "low" else (),
        assumptions=ASSUMPTIONS,
    )


def _verdict(available: float | None, sure: Confidence, *, short: bool) -> Verdict:
    """A shortage that only the ignorance of the rate makes is no reason to change anything."""
    if available is None or (short and sure == "low"):
        return "unknown"
    return "change" if short else "keep"


def _horizon(seen: Observed, layer: str) -> tuple[float, str]:
    """How far to look ahead, in seconds and in words."""
    outer = sum(budget.restarts for name, budget in seen.budgets.items() if name != "in_process")
    if layer == "in_process" and outer:  # each new process has this budget whole
        between = seen.watched / (outer + 1)
        return between, f"the time between two restarts from outside ({seconds(between)})"
    if seen.finished:
        return seen.watched, "another run as long"
    if seen.ahead is not None:
        return seen.ahead, f"the remaining steps ({seconds(seen.ahead)})"
    return MONTH_SECONDS, "30 days"


def _title(layer: str, available: float | None, expected: int, where: str, short: bool) -> str:
    name = f"Restart budget, {NAMES[layer]}"
    if available is None:
        return f"{name}: up to {plain(expected)} to be expected; none is known in force"
    if short:
        return f"{name}: {plain(available)} {where}, up to {plain(expected)} to be expected"
    return f"{name}: {plain(available)} {where}, no more than {plain(expected)} to be expected"


def _too_far(layer: str, budget: Budget, watched: float, what: str, known: tuple[Number, ...]) -> Advice:
    return Advice(
        topic=f"restart_budget_{layer}",
        verdict="unknown",
        title=f"Restart budget, {NAMES[layer]}: not enough data",
        text=f"{many(budget.restarts, 'restart')} in {seconds(watched)}: too short a time to say anything of {what}.",
        numbers=known,
        confidence="none",
        because=f"only {seconds(watched)} watched",
    )


def _confidence(restarts: int, ahead: float) -> Confidence:
    if restarts >= 10 and ahead <= 3:
        return "high"
    return "medium" if restarts >= 3 and ahead <= 10 else "low"


def _settings(layer: str, limit: int) -> tuple[tuple[str, str], ...]:
    if layer == "launcher":
        return ((f"ft_launcher --max-restarts {limit}", "all versions of NVRx"),)
    if layer == "in_process":
        return (
            (f"headway train --resilience.max-in-process-restarts {limit}", "the reference trainer"),
            (f"RetryController(max_iterations={limit})", "nvidia_resiliency_ext.inprocess.initialize, in your own"),
        )
    return ((f"backoffLimit: {limit}", "the Job in Kubernetes"),)
