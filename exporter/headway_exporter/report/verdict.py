"""The verdict: what became of the run, in a sentence for somebody who was just woken up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from headway_exporter.report import fields, units
from headway_exporter.report.words import CAUSE_CLASS, CAUSE_WORDS

if TYPE_CHECKING:
    from headway_exporter.report.accounts import Accounts
    from headway_exporter.report.model import Incident, Run

FRESH_SECONDS: Final = 120.0
"""A sidecar writes every few seconds; one that did not for so long is gone, or cannot write."""

MOST_NODE: Final = 64
"""Characters of a node's name in a sentence: journals may tell any, and it must not drown what is said."""

Fate = Literal["finished", "running", "failing", "silent", "stopped", "abandoned"]
Level = Literal["good", "attention", "bad"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the run."""

    fate: Fate
    level: Level
    headline: str
    facts: tuple[str, ...]
    """A few sentences more, the most important first."""
    recovered: int
    closed: int
    """Incidents that are over and that nobody cancelled."""
    recurring: int
    still_open: int


def verdict(run: Run, books: Accounts) -> Verdict:
    """The verdict as of when the folder was read."""
    outcomes = Counter(one.outcome for one in run.incidents)
    fate = fate_of(run)
    recurring = [one for one in run.incidents if one.recurring]
    closed = outcomes["recovered"] + outcomes["abandoned"]
    parts = [part for part in (opening(run, fate), _incidents(run, fate), goodput(run, books)) if part]
    headline = "; ".join(
        parts or [f"{fate}{position(run)}"]
    )  # finished, no incident with a verdict, and no time is known
    return Verdict(
        fate=fate,
        level=_level(fate, run),
        headline=headline[0].upper() + headline[1:] + ".",
        facts=tuple(_facts(run, fate, recurring)),
        recovered=outcomes["recovered"],
        closed=closed,
        recurring=len(recurring),
        still_open=outcomes["open"],
    )


def fate_of(run: Run) -> Fate:
    """Finished, or what the last incident and the age of the newest word tell."""
    if run.finished:
        return "finished"
    last = run.incidents[-1].outcome if run.incidents else ""
    silent = run.read_wall - (run.last_wall or 0.0)
    if silent <= FRESH_SECONDS and not (last in ("cancelled", "abandoned") and not _trains(run)):
        return "failing" if last == "open" else "running"
    if last == "cancelled":
        return "stopped"
    return "abandoned" if last == "abandoned" or silent > run.abandoned_seconds else "silent"


def _trains(run: Run) -> bool:
    return any(pod.state not in (None, "down", "detect", "restart", "standby") for pod in run.pods)


def _level(fate: Fate, run: Run) -> Level:
    open_now = [one for one in run.incidents if one.outcome == "open"]
    if fate in ("abandoned", "silent") or (fate != "finished" and any(one.recurring for one in open_now)):
        return "bad"
    unproved = any(one.outcome in ("open", "abandoned") or one.recurring for one in run.incidents)
    if fate in ("failing", "stopped") or unproved or run.problems or _left_to_do(run):
        return "attention"
    return "good"


def _left_to_do(run: Run) -> list[str]:
    """What incidents that are over showed and that is not."""
    recoveries = [recovery for one in run.incidents for recovery in one.lead.recoveries]
    found = {
        "a checkpoint did not load": any(one.rejected_steps for one in recoveries),
        "restored weights did not give the losses that they gave before": any(
            one.replay_check == "diverged" for one in recoveries
        ),
        "a GPU or a link of one failed": any(CAUSE_CLASS[one.lead.cause] == "gpu" for one in run.incidents),
    }
    return [words for words, so in found.items() if so]


def opening(run: Run, fate: Fate) -> str:
    """Where the run stands, unless it simply finished."""
    at = position(run)
    if fate == "finished":
        return "" if run.incidents else f"finished without an incident{at}"
    if fate == "running":
        return f"running{at}"
    if fate == "failing":
        return _failing(run, at)
    if fate == "stopped":
        return f"stopped by its operator{at}"
    gone = units.duration(run.read_wall - run.last_wall) if run.last_wall is not None else "long"
    words = f"abandoned{at}" if fate == "abandoned" else f"silent for {gone}{at}"
    last = run.incidents[-1] if run.incidents else None
    return words if last is None or last.outcome not in ("open", "abandoned") else f"{words} after: {_what(last)}"


def _failing(run: Run, at: str) -> str:
    last = run.incidents[-1]
    return f"recurring{at}: {_what(last)}" if last.recurring else f"recovering{at} from: {_what(last)}"


def _what(incident: Incident) -> str:
    """Its cause, where it began, and how often it was tried."""
    what = f"{CAUSE_WORDS[incident.lead.cause]}{_where(incident)}"
    if incident.attempts < 2:
        return what
    gained = " without progress" if incident.recurring else ""
    return f"{what}, {units.plural(incident.attempts, 'attempt')}{gained} since {units.utc_words(incident.opened_wall)}"


def position(run: Run) -> str:
    """Which step it is at: ` at step 120 of 300`."""
    step = run.step if run.step is not None else run.high_water_step
    if step is None:
        return ""
    return f" at step {units.whole(step)}" + (f" of {units.whole(run.total_steps)}" if run.total_steps else "")


def _where(incident: Incident) -> str:
    origin, doubt = incident.lead.origin, " perhaps" if incident.lead.ambiguous else ""
    if origin.rank is not None:
        node = f" ({fields.text(origin.node, MOST_NODE)})" if origin.node else ""
        return f"{doubt} on rank {origin.rank}{node}"
    return f"{doubt} on pod {origin.pod_index}" if origin.pod_index is not None else ""


def _incidents(run: Run, fate: Fate) -> str:
    if not run.incidents:
        return "" if fate == "finished" else "no incident"
    over = [one for one in run.incidents if one.outcome in ("recovered", "abandoned")]
    if not over:
        return ""
    recovered = sum(1 for one in over if one.outcome == "recovered")
    return f"recovered {units.whole(recovered)} of {units.plural(len(over), 'incident')}"


def goodput(run: Run, books: Accounts) -> str:
    """What its time was good for, and what the largest loss was."""
    if books.training_goodput is None:
        return "where its time went is not known: no ledger could be read" if not run.pods else ""
    kind = "GPU" if run.on_gpus else "rank"
    text = f"{units.share(books.training_goodput)} of {kind} time made progress"
    if not books.losses:
        return text
    worst = books.losses[0]
    return f"{text}; the largest loss was {worst.title}, {units.share(worst.share)}"


def _facts(run: Run, fate: Fate, recurring: list[Incident]) -> list[str]:
    facts = []
    if fate == "finished" and run.incidents:
        facts.append(f"The run finished{position(run)}.")
    if left := _left_to_do(run):
        facts.append(f"Left to be looked at: {'; '.join(left)}.")
    if recurring:
        some = units.plural(len(recurring), "incident was", "incidents were")
        facts.append(f"{some} recurring: failures came again before anything was gained.")
    still_open = sum(1 for one in run.incidents if one.outcome == "open")
    if still_open and fate != "failing":
        facts.append(
            f"{units.plural(still_open, 'incident')} had no verdict: no checkpoint proved the recovery, or nobody came back."
        )
    if run.durable_step is not None and fate != "finished":
        facts.append(f"The newest durable checkpoint is that of step {units.whole(run.durable_step)}.")
    if fate in ("silent", "abandoned") and run.last_wall is not None:
        facts.append(f"The last word of any pod is of {units.utc_words(run.last_wall)}.")
    if run.problems:
        facts.append(f"Not all could be read: see what is missing ({units.whole(len(run.problems))}).")
    return facts
