"""The interval between checkpoints that wastes least, from what saves cost and how often the job fails.

Long intervals repeat much work after a failure, short ones stop training often. The best one follows from the *blocking* time of a save and
the mean time between failures of the whole job (Young 1974, Daly 2006: see rates). An asynchronous write goes on while training does: it
costs what it slows the steps beside it, where that is measured, and it must end before the next save begins. Intervals here are computing
time between two saves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.advice.model import Advice, Confidence, Number, Verdict, many, plain, seconds
from headway_exporter.advice.rates import daly_interval, rate_interval, wasted_share, young_interval

if TYPE_CHECKING:
    from headway_exporter.advice.observed import Observed

OVERLAP: Final = 0.8
"""A write may take this share of the time between two saves; the rest is reserve for a slow day of the storage."""
WORTH_SECONDS: Final = 36.0
"""Gaining less than this in an hour (1 %) is not worth a change: near its optimum the curve is flat."""
ASSUMPTIONS: Final = (
    "failures come independently and at a constant rate; tries of one incident count as one failure",
    "a failure throws training back to the last durable checkpoint, so a save's write time counts as part of the restart",
    "while a save is written, steps take as long as without: that was not measured",
)


@dataclass(frozen=True)
class Plan:
    """Costs in seconds, and what follows from them."""

    blocking: float
    """A save stops training for this long."""
    write: float
    """A save is durable after this long."""
    restart: float
    """From a failure to the first step after it."""
    step: float | None
    """Duration of a step."""
    contention: float | None = None
    """Extra step time while a save is in flight, as a ratio."""

    @property
    def drag(self) -> float:
        """What the steps beside a write take longer in all: of its time, steps that take 1 + r as long lose r / (1 + r)."""
        slower = max(0.0, self.contention or 0.0)
        return self.write * slower / (1 + slower)

    @property
    def cost(self) -> float:
        """What a save costs the training."""
        return self.blocking + self.drag

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Those that are left."""
        return ASSUMPTIONS if self.contention is None else ASSUMPTIONS[:-1]

    @property
    def shortest(self) -> float:
        """The shortest for a write to end."""
        return max(0.0, self.write / OVERLAP - self.blocking)

    def best(self, mtbf: float) -> float:
        """The interval that wastes least and is long enough for a write, in whole steps."""
        return self.whole(max(daly_interval(self.cost, mtbf), self.shortest))

    def whole(self, interval: float) -> float:
        """The interval, up to a whole number of steps."""
        return interval if not self.step else self.steps(interval) * self.step

    def steps(self, interval: float) -> int:
        """The interval in steps, at least one."""
        return max(1, math.ceil(round(interval / self.step, 6))) if self.step else 0

    def loss(self, interval: float, mtbf: float) -> float:
        """Seconds of an hour that go into saves, repeated steps and restarts."""
        return 3_600 * wasted_share(interval, self.cost, mtbf, self.restart + self.write)

    def shown(self, interval: float) -> str:
        """The interval in words."""
        return f"{seconds(interval)} ({many(self.steps(interval), 'step')})" if self.step else seconds(interval)


def checkpoint_interval(seen: Observed) -> Advice:
    """Whether to save more often or less."""
    saves = seen.saves
    if not saves.ended:
        return _unknown("no save has ended, so nobody knows what one costs", ())
    if saves.blocking_mean is None:
        return _unknown("how long a save stops training was not measured, so nobody knows what one costs", ())
    plan = Plan(saves.blocking_mean, saves.write or 0.0, seen.restart or 0.0, seen.step_seconds, saves.contention)
    current = _current(seen, plan)
    known = _known(seen, plan, current)
    if current is not None and plan.write > OVERLAP * (current + plan.blocking):
        return _too_short(seen, plan, current, known)
    if not seen.failures or not seen.watched:
        return _without_failures(seen, plan, known)
    return _with_failures(seen, plan, current, known)


def _current(seen: Observed, plan: Plan) -> float | None:
    if seen.saves.interval_steps and plan.step:
        return seen.saves.interval_steps * plan.step
    between = seen.saves.interval_seconds
    return None if between is None else max(0.0, between - plan.blocking)


def _known(seen: Observed, plan: Plan, current: float | None) -> tuple[Number, ...]:
    return (
        Number("interval in force", current, "seconds"),
        Number("steps in it", seen.saves.interval_steps, "steps"),
        Number("a step takes", plan.step, "seconds"),
        Number("a save stops training for", plan.blocking, "seconds"),
        Number("a save is written in", plan.write, "seconds"),
        Number("extra step time beside a save, as a ratio", plan.contention),
        Number("that is, of each save", None if plan.contention is None else plan.drag, "seconds"),
        Number("saves measured", seen.saves.ended),
        Number("from a failure to the first step", seen.restart, "seconds"),
        Number("shortest for a write to end", plan.shortest, "seconds"),
    )


def _with_failures(seen: Observed, plan: Plan, current: float | None, known: tuple[Number, ...]) -> Advice:
    mtbf = seen.watched / seen.failures
    low, high = rate_interval(seen.failures, seen.watched)
    best, least, most = (plan.best(one) for one in (mtbf, 1 / high, 1 / low))
    verdict, title, gain = _judge(plan, current, best, (least, most), mtbf)
    loss = None if current is None else plan.loss(current, mtbf)
    return Advice(
        topic="checkpoint_interval",
        verdict=verdict,
        title=title,
        text=f"{_why(plan, mtbf)} {gain}",
        numbers=(
            *known,
            Number("failures", seen.failures),
            Number("mean time between failures", mtbf, "seconds"),
            Number("95 % interval of that", f"{seconds(1 / high)} to {seconds(1 / low)}"),
            Number("optimum by Young (1974)", young_interval(plan.cost, mtbf), "seconds"),
            Number("optimum by Daly (2006)", daly_interval(plan.cost, mtbf), "seconds"),
            Number("advised interval", best, "seconds"),
            Number("steps in that", plan.steps(best) or None, "steps"),
            Number("advised at the ends of that", f"{seconds(least)} to {seconds(most)}"),
            Number("loss an hour, in force", loss, "seconds"),
            Number("loss an hour, advised", plan.loss(best, mtbf), "seconds"),
        ),
        confidence=_confidence(seen.failures),
        because=f"{many(seen.failures, 'failure')} in {seconds(seen.watched)}: one every {seconds(mtbf)}, "
        f"with 95 % certainty between {seconds(1 / high)} and {seconds(1 / low)}",
        settings=_settings(plan, best) if verdict != "keep" else (),
        assumptions=plan.assumptions,
    )


def _judge(
    plan: Plan, current: float | None, best: float, likely: tuple[float, float], mtbf: float
) -> tuple[Verdict, str, str]:
    """Verdict, title, and what a change would bring."""
    advised = f"{seconds(plan.loss(best, mtbf))} with {seconds(best)}"
    if current is None:
        return (
            "unknown",
            f"Checkpoint interval: {plan.shown(best)} would be best; none is known in force",
            f"Expected loss an hour: {advised}.",
        )
    losses = f"Expected loss an hour, restarts included: {seconds(plan.loss(current, mtbf))} with {seconds(current)}, {advised}."
    if plan.loss(current, mtbf) - plan.loss(best, mtbf) < WORTH_SECONDS:
        return "keep", f"Checkpoint interval: {plan.shown(current)} is fine", f"{losses} That is no reason to change."
    if likely[0] <= current <= likely[1]:
        why = f"{losses} But the one in force is inside what so few failures allow ({seconds(likely[0])} to {seconds(likely[1])})."
        return "keep", f"Checkpoint interval: {plan.shown(current)} may be as good as any", why
    return "change", f"Checkpoint interval: {plan.shown(current)} in force, {plan.shown(best)} advised", losses


def _why(plan: Plan, mtbf: float) -> str:
    optimum = daly_interval(plan.cost, mtbf)
    why = (
        f"A save stops training for {seconds(plan.blocking)}{_slows(plan)} and a failure comes every {seconds(mtbf)}: "
        f"least is wasted with {seconds(optimum)} between saves."
    )
    if plan.shortest > optimum:
        why += (
            f" But a write takes {seconds(plan.write)} and must end before the next begins, "
            f"so it cannot be less than {seconds(plan.shortest)}."
        )
    return why


def _slows(plan: Plan) -> str:
    if plan.contention is None or plan.drag <= 0:
        return ""
    return f", slows it by {seconds(plan.drag)} more (steps take {plain(100 * plan.contention)} % longer while it is written)"


def _too_short(seen: Observed, plan: Plan, current: float, known: tuple[Number, ...]) -> Advice:
    """Writes that do not end before the next save begins pile up, whatever the failures say; those that just do only lack a reserve.

    A reserve is a longer interval, and after each failure more is done again: where that costs more than it is worth, nothing is to be
    changed but the writing.
    """
    mtbf = seen.watched / seen.failures if seen.failures and seen.watched else math.inf
    best = plan.whole(plan.shortest) if math.isinf(mtbf) else plan.best(mtbf)
    share = plan.write / (current + plan.blocking)
    price = 0.0 if math.isinf(mtbf) else plan.loss(best, mtbf) - plan.loss(current, mtbf)
    keep = share <= 1 and price >= WORTH_SECONDS
    text = f"Writing a save takes {seconds(plan.write)}, {plain(100 * share)} % of the time until the next begins. "
    if keep:
        text += (
            f"Each still ends in time, and {seconds(best)} between saves, which leaves a reserve, would cost {seconds(price)} an hour "
            "more in repeated steps. Make writing faster rather than save less often."
        )
    else:
        text += (
            f"Above {plain(100 * OVERLAP)} % saves soon wait for each other, and checkpoints become durable late. "
            "Save less often, or make writing faster."
        )
    return Advice(
        topic="checkpoint_interval",
        verdict="keep" if keep else "change",
        title=f"Checkpoint interval: {plan.shown(current)} in force, "
        + ("with no reserve for a slow write" if keep else f"at least {plan.shown(best)} needed"),
        text=text,
        numbers=(
            *known,
            Number("write / time between saves", share),
            Number("failures", seen.failures),
            Number("advised interval", best, "seconds"),
            Number("steps in that", plan.steps(best) or None, "steps"),
            Number("loss an hour, in force", None if math.isinf(mtbf) else plan.loss(current, mtbf), "seconds"),
            Number("loss an hour, advised", None if math.isinf(mtbf) else plan.loss(best, mtbf), "seconds"),
        ),
        confidence="high" if seen.saves.ended >= 10 else "medium" if seen.saves.ended >= 3 else "low",
        because=f"{many(seen.saves.ended, 'save')} measured",
        settings=() if keep else _settings(plan, best),
        assumptions=ASSUMPTIONS[:2],
    )


def _without_failures(seen: Observed, plan: Plan, known: tuple[Number, ...]) -> Advice:
    """No failure bounds the rate from above only: the interval can be too short, never known to be too long."""
    if not seen.watched:
        return _unknown("no time was watched", known)
    _, high = rate_interval(0, seen.watched)
    least = plan.best(1 / high)
    return _unknown(
        f"no failure in {seconds(seen.watched)}, so what saving protects against is not known; "
        f"if failures are as frequent as that still allows (every {seconds(1 / high)}), {plan.shown(least)} would be best, else more",
        (*known, Number("failures", 0), Number("mean time between failures, at least", 1 / high, "seconds")),
    )


def _unknown(reason: str, known: tuple[Number, ...]) -> Advice:
    return Advice(
        topic="checkpoint_interval",
        verdict="unknown",
        title="Checkpoint interval: not enough data",
        text=f"{reason[0].upper()}{reason[1:]}.",
        numbers=known,
        confidence="none",
        because=reason.partition(",")[0],
    )


def _confidence(failures: int) -> Confidence:
    return "low" if failures < 3 else "medium" if failures < 10 else "high"


def _settings(plan: Plan, interval: float) -> tuple[tuple[str, str], ...]:
    if not plan.step:
        return ()
    return ((f"headway train --checkpoint.every {plan.steps(interval)}", "the reference trainer; in another, its own"),)
