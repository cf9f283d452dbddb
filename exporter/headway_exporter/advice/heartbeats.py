"""Heartbeat time-outs of the launcher's rank monitor, from the longest silences of ranks that were well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_exporter.advice.model import Advice, Number, Verdict, plain, seconds
from headway_exporter.advice.timeouts import FLOOR, HEARTBEAT_RATIO, MARGIN, TIGHT, WIDE, Timeouts, fitting, how_sure

if TYPE_CHECKING:
    from headway_exporter.advice.observed import Observed

_OPTIONS: Final = {"rank": "rank-heartbeat-timeout", "initial": "initial-rank-heartbeat-timeout"}
_NAMES: Final = {"rank": "Heartbeat time-out", "initial": "Time-out of the first heartbeat"}
_OFF: Final = "without the option NVRx 0.6 and later have none, and a hang then lasts until somebody looks"
_INITIAL: Final = (
    "It runs from a rank's connection to its first heartbeat. Headway's Heartbeat sends one at once; other code sends the first after "
    "start-up, which this must then outlast."
)


def heartbeat_timeouts(seen: Observed) -> list[Advice]:
    """One for the time-out between heartbeats, one for that before the first."""
    fit = fitting(seen)
    if fit is None:
        return [_nothing_measured(seen)]
    phase, longest = max(seen.silences.items(), key=lambda item: item[1])
    rank = seen.settings.get("heartbeat_rank_seconds")
    initial = seen.settings.get("heartbeat_initial_seconds")
    return [
        _advice(seen, "rank", rank, fit.heartbeat, *_judge_rank(seen, rank, phase, longest, fit)),
        _advice(seen, "initial", initial, fit.initial, *_judge_initial(initial, fit)),
    ]


def launcher_options(kind: str, value: float, nvrx_version: str) -> tuple[tuple[str, str], ...]:
    """The option of `ft_launcher` in both spellings, that of the version in use first."""
    option = _OPTIONS[kind]
    new = (f"ft_launcher --ft-{option} {value:.0f}", "NVRx 0.6 and later")
    old = (f"ft_launcher --ft-param-{option.replace('-', '_')} {value:.0f}", "NVRx 0.4")
    return (old, new) if nvrx_version.startswith(("0.4.", "0.5.")) else (new, old)


def _advice(
    seen: Observed, kind: str, in_force: float | None, advised: float, verdict: Verdict, title: str, text: str
) -> Advice:
    longest = max(seen.silences.values())
    sure, facts = how_sure(seen)
    return Advice(
        topic=f"heartbeat_{kind}",
        verdict=verdict,
        title=f"{_NAMES[kind]}: {title}",
        text=text,
        numbers=(
            Number("in force", in_force, "seconds"),
            Number("advised", advised, "seconds"),
            Number("longest silence", longest, "seconds"),
            Number("in force / longest silence", _ratio(in_force, longest)),
            *(Number(f"longest in {name}", value, "seconds") for name, value in _longest_first(seen)),
        ),
        confidence=sure,
        because=facts,
        settings=launcher_options(kind, advised, seen.nvrx_version) if verdict == "change" else (),
        assumptions=(
            (
                f"a time-out should be {plain(MARGIN)} times the longest silence, at least {seconds(FLOOR)}, and "
                f"{plain(HEARTBEAT_RATIO)} times the hard time-out of in-process restart"
            ),
            "no silence that was measured was itself a hang",
        ),
    )


def _judge_rank(
    seen: Observed, in_force: float | None, phase: str, longest: float, fit: Timeouts
) -> tuple[Verdict, str, str]:
    """Verdict, title and text."""
    dictates = f"The longest silence was {seconds(longest)}, in {phase}."
    advised = seconds(fit.heartbeat)
    if in_force is None:
        return "change", f"none known in force, {advised} advised", f"{dictates} No time-out is known in force: {_OFF}."
    change = f"{seconds(in_force)} in force, {advised} advised"
    if fault := _too_short(in_force, longest, fit):
        return "change", change, f"{dictates} The time-out in force is {fault}."
    if in_force <= WIDE * fit.heartbeat:
        times = "" if longest <= 0 else f" is {plain(in_force / longest)} times that and"
        return "keep", f"{seconds(in_force)} is fine", f"{dictates} The time-out in force{times} leaves a good margin."
    cost = (
        f"{dictates} With {seconds(in_force)} a hang costs up to {plain(in_force * seen.ranks / 3_600)} rank-hours before "
        f"anybody acts, with {advised} up to {plain(fit.heartbeat * seen.ranks / 3_600)}."
    )
    if how_sure(seen)[0] == "low":  # one too long costs time, one too short kills what is well
        return "keep", f"{seconds(in_force)} is long, but too little was seen to shorten it", cost
    return "change", change, cost


def _too_short(in_force: float, longest: float, fit: Timeouts) -> str:
    """What is wrong with it; empty when nothing is."""
    if in_force <= longest:
        return "shorter: it kills ranks that are well"
    if in_force < TIGHT * longest:
        return (
            f"only {plain(in_force / longest)} times that: the next silence may be longer and kill a rank that is well"
        )
    if fit.hard is not None and in_force <= fit.hard:
        return (
            f"not above the time-outs of in-process restart (hard: {seconds(fit.hard)}): it kills the rank first, which costs a "
            "launcher restart where one in the process might have done"
        )
    return "so short that a busy machine looks like a hang" if in_force < FLOOR else ""


def _judge_initial(in_force: float | None, fit: Timeouts) -> tuple[Verdict, str, str]:
    """Verdict, title and text."""
    if in_force is None:
        title = f"none known in force, {seconds(fit.initial)} advised"
        return "change", title, f"No time-out is known in force: {_OFF}. {_INITIAL}"
    if in_force < FLOOR:
        title = f"{seconds(in_force)} in force, {seconds(fit.initial)} advised"
        return "change", title, f"It is so short that a busy machine looks like a hang. {_INITIAL}"
    return "keep", f"{seconds(in_force)} is fine", _INITIAL


def _nothing_measured(seen: Observed) -> Advice:
    known = [seen.settings.get(f"heartbeat_{kind}_seconds") for kind in ("rank", "initial")]
    off = "" if any(known) else f" No time-out is known in force either: {_OFF}."
    return Advice(
        topic="heartbeat_rank",
        verdict="unknown",
        title="Heartbeat time-outs: not enough data",
        text=f"No silence between heartbeats was recorded; headway.nvrx.heartbeat.Heartbeat in the training loop records them.{off}",
        numbers=(Number("in force", known[0], "seconds"), Number("in force, first heartbeat", known[1], "seconds")),
        confidence="none",
        because="no heartbeat was recorded",
    )


def _longest_first(seen: Observed) -> list[tuple[str, float]]:
    return sorted(seen.silences.items(), key=lambda item: (-item[1], item[0]))


def _ratio(value: float | None, longest: float) -> float | None:
    return None if value is None or longest <= 0 else value / longest
