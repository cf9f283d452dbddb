"""How the run is, in a word and a sentence: what the postmortem would say of it now, and of what is going on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.report import units, words
from headway_exporter.report.accounts import accounts
from headway_exporter.report.verdict import fate_of, goodput, opening, position

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
) -> Headline:
    """Of the run as far as it is known; `outcomes`: all incidents, of which `run` holds only the newest."""
    if all(pod.state is None for pod in run.pods):
        return Headline(_level(WAITING, run, (), notes), WAITING, "No trainer yet.", ())
    fate = fate_of(run)
    begin = f"finished{position(run)}" if fate == "finished" else opening(run, fate)
    parts = [begin, _incidents(outcomes), goodput(run, accounts(run))]
    text = "; ".join(part for part in parts if part)
    trouble = tuple(_trouble(run, checkpoint, queue))
    facts = (*trouble, *([] if fate == "finished" else _facts(checkpoint, at_risk)))
    return Headline(_level(fate, run, trouble, notes), fate, f"{text[0].upper()}{text[1:]}.", facts)


def _level(fate: str, run: Run, trouble: Iterable[str], notes: Sequence[Note]) -> str:
    open_now = [one for one in run.incidents if one.outcome == "open"]
    if fate in ("abandoned", "silent") or any(one.recurring for one in open_now):
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
    silent = [pod.index for pod in run.pods if not pod.finished and run.read_wall - pod.written_wall > _SILENT_SECONDS]
    if silent:
        named = ", ".join(silent[:8]) + (", …" if len(silent) > 8 else "")
        yield f"Nothing was heard lately of {units.plural(len(silent), 'pod')}: {named}."


_SILENT_SECONDS: Final = 120.0


def _facts(checkpoint: Checkpoint, at_risk: AtRisk) -> Iterator[str]:
    if at_risk.steps is None:
        return
    exposed = f", {units.duration(at_risk.exposure_seconds)}" if at_risk.exposure_seconds is not None else ""
    if checkpoint.durable_step is None:
        yield f"No checkpoint is durable yet: a failure now costs everything ({units.plural(at_risk.steps, 'step')}{exposed})."
    elif at_risk.steps:
        yield f"A failure now costs {units.plural(at_risk.steps, 'step')}{exposed}."
