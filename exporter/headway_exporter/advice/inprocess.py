"""The soft and the hard time-out of NVRx's in-process restart, against the silences of ranks that were well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway_exporter.advice.model import Advice, Number, plain, seconds
from headway_exporter.advice.timeouts import FLOOR, TIGHT, Timeouts, fitting, how_sure

if TYPE_CHECKING:
    from headway_exporter.advice.observed import Observed


def in_process_timeouts(seen: Observed) -> list[Advice]:
    """One, where the trainer tells these time-outs."""
    soft, hard = (seen.settings.get(f"{kind}_timeout_seconds") for kind in ("soft", "hard"))
    if soft is None:
        return []
    fit = fitting(seen)
    if fit is None:
        return [_nothing_measured(soft, hard)]
    sure, facts = how_sure(seen)
    longest = max(seen.silences.values())
    faults = _faults(seen, soft, hard, longest, fit)
    verdict = "in force, " + _shown(fit.soft, fit.hard) + " advised" if faults else "fit"
    return [
        Advice(
            topic="in_process_timeouts",
            verdict="change" if faults else "keep",
            title=f"In-process time-outs: {_shown(soft, hard)} {verdict}",
            text=" ".join(faults)
            or f"They outlast the longest silence, {seconds(longest)}, and each leaves the one before it time to work.",
            numbers=(
                *_in_force(soft, hard),
                Number("longest silence", longest, "seconds"),
                Number("soft, advised", fit.soft, "seconds"),
                Number("hard, advised", fit.hard, "seconds"),
            ),
            confidence=sure,
            because=facts,
            settings=_settings(fit) if faults else (),
            assumptions=("the in-process wrapper is pinged where heartbeats are sent, as in the reference trainer",),
        )
    ]


def _faults(seen: Observed, soft: float, hard: float | None, longest: float, fit: Timeouts) -> list[str]:
    found = []
    if soft < TIGHT * longest:
        worse = "shorter" if soft <= longest else f"only {plain(soft / longest)} times that"
        found.append(
            f"The longest silence was {seconds(longest)}; the soft one is {worse}: it restarts ranks that are well."
        )
    elif soft < FLOOR / 2:
        found.append("The soft one is so short that the start of a checkpoint writer looks like a hang.")
    if hard is not None and hard <= soft:
        found.append("The hard one is not above the soft one: processes are killed before a restart is tried.")
    if fit.soft_wide:
        found.append(
            f"The longest silence was {seconds(longest)}: with {seconds(soft)} a hang costs up to "
            f"{plain(soft * seen.ranks / 3_600)} rank-hours before anybody acts."
        )
    return found


def _nothing_measured(soft: float, hard: float | None) -> Advice:
    return Advice(
        topic="in_process_timeouts",
        verdict="unknown",
        title="In-process time-outs: not enough data",
        text="No silence between heartbeats was recorded, so what they must outlast is not known.",
        numbers=_in_force(soft, hard),
        confidence="none",
        because="no heartbeat was recorded",
    )


def _in_force(soft: float, hard: float | None) -> tuple[Number, ...]:
    return Number("soft, in force", soft, "seconds"), Number("hard, in force", hard, "seconds")


def _shown(soft: float | None, hard: float | None) -> str:
    return ", ".join(f"{name} {seconds(one)}" for name, one in (("soft", soft), ("hard", hard)) if one is not None)


def _settings(fit: Timeouts) -> tuple[tuple[str, str], ...]:
    soft, hard = fit.soft or 0.0, fit.hard or 0.0
    return (
        (
            f"headway train --resilience.soft-timeout-seconds {soft:.0f} --resilience.hard-timeout-seconds {hard:.0f}",
            "the reference trainer",
        ),
        (
            f"Wrapper(soft_timeout=timedelta(seconds={soft:.0f}), hard_timeout=timedelta(seconds={hard:.0f}))",
            "nvidia_resiliency_ext.inprocess",
        ),
    )
