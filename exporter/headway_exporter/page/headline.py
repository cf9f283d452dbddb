"""How the run is, in a word and a sentence: what the postmortem would say of it now, and of what is going on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headway_exporter.report import units, words
from headway_exporter.report.accounts import PENDING, accounts
from headway_exporter.report.verdict import FRESH_SECONDS, fate_of, goodput, opening, position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headway_exporter.page.model import AtRisk, Checkpoint, Note, Queue
    from headway_exporter.report.model import Run

WAITING: Final = "waiting"


@dataclass(frozen=True, slots=True)
class Headline:
    """The top of the page."""

    level: str
    fate: str
    text: str
    facts: tuple[str, ...]


def headline(
    run: Run,
    outcomes: Mapping[str, int],
    checkpoint: Checkpoint,
    at_risk: AtRisk,
    queue: Queue,
    notes: Sequence[Note],
    stalled_seconds: float | None,
) -> Headline:
    """Of the run as far as it is known; `outcomes`: all incidents, of which `run` holds only the newest.

    `stalled_seconds`: how long no step was complete, where one should have been; else None.
    """
    fate = fate_of(run)
    begin = f"finished{position(run)}" if fate == "finished" else opening(run, fate)
    books = accounts(run)
    over = replace(books, rows=tuple(row for row in books.rows if row.name != PENDING))  # a step under way is no loss
    parts = [begin, _incidents(outcomes), goodput(run, over)]
    text = "; ".join(part for part in parts if part)
    trouble = tuple(_trouble(run, checkpoint, queue))
    facts = (*trouble, *([] if fate == "finished" else _facts(checkpoint, at_risk)))
    if stalled_seconds is not None:
        facts = (
            f"No step was complete for {units.duration(stalled_seconds)}, and nothing that is known of explains it.",
            *facts,
        )
    grave = stalled_seconds is not None or fate in ("abandoned", "silent")
    return Headline(_level(fate, run, trouble, notes, grave=grave), fate, f"{text[0].upper()}{text[1:]}.", facts)


def waiting(words: str, notes: Sequence[Note]) -> Headline:
    """Before there is a trainer; `words`: what to do about it."""
    level = next((level for level in ("bad", "attention") if any(note.level == level for note in notes)), "good")
    return Headline(level, WAITING, "No trainer yet.", (words,))


def _level(fate: str, run: Run, trouble: Iterable[str], notes: Sequence[Note], *, grave: bool) -> str:
    recurs = any(one.recurring for one in run.incidents if one.outcome == "open")
    if grave or recurs or any(note.level == "bad" for note in notes):
        return "bad"
    if fate in ("failing", "stopped") or any(trouble) or any(note.level != "info" for note in notes):
        return "attention"
    return "good"


def _incidents(outcomes: Mapping[str, int]) -> str:
    over = outcomes.get("recovered", 0) + outcomes.get("abandoned", 0)
    if not over:
        return "" if outcomes.get("open") else "no incident"
    return f"recovered {units.whole(outcomes.get('recovered', 0))} of {units.plural(over, 'incident')}"


def _trouble(run: Run, checkpoint: Checkpoint, queue: Queue) -> Iterator[str]:
    """What is wrong just now."""
    for incident in run.incidents:
        if incident.outcome == "open":
            for reason in incident.recurring:
                yield f"It keeps coming back: {words.REASON_WORDS.get(reason, reason)}."
    if queue.writer_up is False and queue.depth:
        yield f"The checkpoint writer is gone with {units.plural(queue.depth, 'save')} in its queue."
    if checkpoint.failed_since_commit > 1:
        yield f"{units.plural(checkpoint.failed_since_commit, 'save')} failed since a checkpoint last became durable."
    if checkpoint.overdue and not run.finished:
        yield "No checkpoint became durable for more than three intervals."
    silent = [pod.index for pod in run.pods if not pod.finished and run.read_wall - pod.written_wall > FRESH_SECONDS]
    if silent:
        named = ", ".join(silent[:8]) + (", …" if len(silent) > 8 else "")
        yield f"Nothing was heard lately of {units.plural(len(silent), 'pod')}: {named}."


def _facts(checkpoint: Checkpoint, at_risk: AtRisk) -> Iterator[str]:
    if at_risk.steps is None:
        return
    exposed = f", {units.duration(at_risk.exposure_seconds)}" if at_risk.exposure_seconds is not None else ""
    if checkpoint.durable_step is None:
        yield f"No checkpoint is durable yet: a failure now costs everything ({units.plural(at_risk.steps, 'step')}{exposed})."
    elif at_risk.steps:
        yield f"A failure now costs {units.plural(at_risk.steps, 'step')}{exposed}."
