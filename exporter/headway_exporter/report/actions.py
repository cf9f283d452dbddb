"""What to do next: from what the records show to a sentence that can be acted on. Each rule is a function of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway_exporter.report import units
from headway_exporter.report.offenders import CHANCE, HARDWARE
from headway_exporter.report.recovering import recoveries
from headway_exporter.report.words import CAUSE_CLASS, CAUSE_WORDS, REASON_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway_exporter.report.accounts import Accounts
    from headway_exporter.report.model import Incident, Run
    from headway_exporter.report.offenders import Offender
    from headway_exporter.report.verdict import Verdict

MUCH: Final = 0.05
"""Share of all time from which a loss is worth a change."""
OFTEN: Final = 3
SHORT_SECONDS: Final = 3_600.0
"""In a shorter run the start always weighs much."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do, and why."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules look at."""

    run: Run
    books: Accounts
    verdict: Verdict
    offenders: tuple[Offender, ...]


def actions(findings: Findings) -> tuple[Action, ...]:
    """What to do, the most urgent first."""
    return tuple(action for rule in RULES for action in rule(findings))


def _fate(findings: Findings) -> Iterator[Action]:
    run = findings.run
    if findings.verdict.fate == "abandoned":
        step = (
            "from the start"
            if run.durable_step is None
            else f"from the checkpoint of step {units.whole(run.durable_step)}"
        )
        first = any(True for rule in _BEFORE_A_START for _ in rule(findings))
        yield Action(
            "Do what stands below, then start the job again" if first else "Start the job again",
            f"No process came back and nothing will change by itself. It would go on {step}.",
        )
    elif findings.verdict.fate == "silent":
        yield Action(
            "See whether the job is still there",
            "No sidecar has written anything lately: the pods are gone, or they cannot write to the state folder any more.",
        )


_AGAINST: Final = {
    "no_progress": "{attempts} attempts came no further than step {mark}: more of the same only burns time. Mend the cause first.",
    "no_durable_progress": "Look at the checkpoints: {attempts} attempts left {durable}, so each failure throws everything since then "
    "away.",
    "same_fingerprint": "A restart does not help against {cause} that comes back before any progress: mend the cause.",
    "same_checkpoint": "The checkpoint of step {loaded} was loaded {loads} times. Try an older one, or find out what stops the next save.",
    "from_scratch": "It was started from scratch {loads} times: find out what stops the first save.",
    "same_step": "It fails at the same step after each reload: suspect what is fixed there, the data batch first.",
}


def _unresolved(findings: Findings) -> Iterator[Action]:
    """Advice against each reason that an unfinished incident recurs for."""
    unresolved = [one for one in findings.run.incidents if one.recurring and one.outcome in ("open", "abandoned")]
    for reason in dict.fromkeys(reason for one in unresolved for reason in one.recurring):
        worst = max((one for one in unresolved if reason in one.recurring), key=lambda one: one.attempts)
        if reason in _AGAINST:
            yield Action(f"Recurring: {REASON_WORDS[reason]}", _against_reason(reason, worst))


def _recurred(findings: Findings) -> Iterator[Action]:
    """What recurred and recovered in the end."""
    incidents = [one for one in findings.run.incidents if one.recurring and one.outcome == "recovered"]
    if incidents:
        worst = max(incidents, key=lambda one: one.attempts)
        reasons = Counter(reason for one in incidents for reason in one.recurring)
        text = "; ".join(
            f"{REASON_WORDS[reason]} ({units.whole(times)})"
            for reason, times in reasons.most_common()
            if reason in REASON_WORDS
        )
        yield Action(
            f"{units.plural(len(incidents), 'incident')} recurred before the recovery held",
            f"{text[:1].upper()}{text[1:]}. The worst took {units.plural(worst.attempts, 'attempt')}: {CAUSE_WORDS[worst.lead.cause]}.",
        )


def _against_reason(reason: str, worst: Incident) -> str:
    loaded, loads = max(worst.lead.loads.items(), key=lambda item: item[1], default=(0, 0))
    from_scratch = reason == "same_checkpoint" and not loaded
    return _AGAINST["from_scratch" if from_scratch else reason].format(
        attempts=units.whole(worst.attempts),
        mark=units.whole(worst.lead.mark_step),
        durable="none at all"
        if worst.lead.durable_step is None
        else f"no newer one than that of step {units.whole(worst.lead.durable_step)}",
        cause=CAUSE_WORDS[worst.lead.cause],
        loaded=units.whole(loaded),
        loads=units.whole(loads),
    )


def _drain(findings: Findings) -> Iterator[Action]:
    """The smallest part that explains its incidents: the GPU rather than its node, and these rather than the rank that ran there."""
    told: set[str] = set()
    for kind in ("gpu", "node", "rank"):
        for one in findings.offenders:
            if one.kind == kind and one.notable and not one.incidents <= told:
                told |= one.incidents
                yield _against(one)


_AGAINST_ENTITY: Final = {CHANCE: ", more than chance explains", HARDWARE: ", hardware faults among them"}


def _against(one: Offender) -> Action:
    began = f"{units.plural(one.count, 'incident')} began there ({_causes(one.causes)})"
    if one.kind == "rank":
        return Action(
            f"Look at rank {one.name}",
            f"{began}, and no node or GPU is known to have them in common: suspect its share of data and of the model.",
        )
    name = one.name if one.kind == "gpu" else f"node {one.name}"
    return Action(
        f"Drain {name}",
        f"{began}{_AGAINST_ENTITY[one.marked]}. Take it out of service and test it before it is used again.",
    )


def _hardware(findings: Findings) -> Iterator[Action]:
    """GPUs that failed once; those that did so again are drained already."""
    drained = {one.name for one in findings.offenders if one.kind == "gpu" and one.notable}
    failed: dict[str, list[Incident]] = {}
    for one in findings.run.incidents:
        gpu = one.lead.origin.gpu_uuid
        if gpu and gpu not in drained and CAUSE_CLASS[one.lead.cause] == "gpu" and not one.lead.ambiguous:
            failed.setdefault(gpu, []).append(one)
    for gpu, incidents in list(failed.items())[-OFTEN:]:
        newest = incidents[-1].lead
        began = f"{units.plural(len(incidents), 'incident')} began there ({CAUSE_WORDS[newest.cause]})"
        node = f" on node {newest.origin.node}" if newest.origin.node else ""
        seen = next((item.text for item in newest.evidence if item.kind == "gpu"), "")
        yield Action(
            f"Test {gpu}{node} before it is used again",
            f"{began}. {seen}" if seen else f"{began}. It may happen again.",
        )


def _causes(causes: tuple[str, ...]) -> str:
    return ", ".join(CAUSE_WORDS[one] for one in causes)


def _rejected(findings: Findings) -> Iterator[Action]:
    rejected = Counter(step for one in recoveries(findings.run.incidents) for step in one.rejected_steps)
    for step, times in sorted(rejected.items())[:OFTEN]:
        yield Action(
            f"The checkpoint of step {units.whole(step)} does not load",
            f"It was passed over {units.plural(times, 'time')} and an older one was taken. Delete it, and see what was wrong "
            "with the storage when it was written.",
        )


def _diverged(findings: Findings) -> Iterator[Action]:
    found = [one for one in recoveries(findings.run.incidents) if one.replay_check == "diverged"]
    if found:
        steps = ", ".join(
            sorted({units.whole(one.loaded_step) for one in found if one.loaded_step is not None})[:OFTEN]
        )
        yield Action(
            "Do not trust the restored weights yet",
            f"After {units.plural(len(found), 'restore')} the losses of replayed steps were not what they had been"
            + (f" (checkpoint of step {steps})" if steps else "")
            + ": something is missing in the checkpoint (optimizer, data order, random state), or a GPU computes wrongly.",
        )


def _same_step(findings: Findings) -> Iterator[Action]:
    steps = [one for one in findings.offenders if one.kind == "step" and one.notable]
    if any("same_step" in one.recurring for one in findings.run.incidents):
        return
    for one in steps[:1]:
        yield Action(
            f"Look at what happens at step {units.whole(int(one.name))}",
            f"{one.count} failures hit it or the step beside it ({_causes(one.causes)}): the data batch, an evaluation or a save that "
            "falls on it.",
        )


def _saves(findings: Findings) -> Iterator[Action]:
    saves = Counter[str]()
    for pod in findings.run.pods:
        saves |= Counter(dict(pod.checkpoint.saves))  # every pod hears of every save
    failed, ended = (
        saves["failed"],
        sum(saves.values()),
    )  # an aborted one fell victim to a failure, which has its own line
    if failed >= OFTEN or (ended >= OFTEN and failed > ended / 5):
        yield Action(
            "Find out why saves fail",
            f"{units.whole(failed)} of {units.whole(ended)} saves failed: free space, quota and the storage's own log.",
        )


def _largest_loss(findings: Findings) -> Iterator[Action]:
    for row in findings.books.losses[:2]:
        text = _AGAINST_LOSS.get(row.name)
        short = row.name == "init" and (findings.run.duration_seconds or 0.0) < SHORT_SECONDS
        if text and row.share >= MUCH and not short:
            yield Action(
                f"{units.share(row.share)} of the time went into {row.name.replace('_', ' ')}: {row.meaning}",
                text,
            )


_AGAINST_LOSS: Final = {
    "replay": "Each failure throws training back to the last durable checkpoint. Whether saving more often would help, or cost more than "
    "it gains, is weighed under Settings below, as by headway advise.",
    "checkpoint_save": "Saves block training: save asynchronously, less often, or to faster storage.",
    "checkpoint_load": "Loads take long: keep a copy of the newest checkpoint nearer to the ranks.",
    "data_wait": "The input does not keep up: more loader workers, prefetching, or faster storage.",
    "detect": "Failures were noticed late. How short time-outs can be without ending ranks that are well stands under Settings below, "
    "as in headway advise.",
    "restart": "Restarts take long: let inner layers recover (in process before the launcher before the orchestrator), keep processes and "
    "caches warm.",
    "down": "There was no process at all: keep spare nodes, and look at how long the orchestrator takes to place a pod.",
    "init": "Start-up takes long: cache the container image, compiled kernels and the data index.",
    "eval": "Evaluate less often, or beside the training.",
    "unregained": "A failure undid these steps and they have not been done again yet.",
}


def _hangs(findings: Findings) -> Iterator[Action]:
    hangs = [one for one in findings.run.incidents if CAUSE_CLASS[one.lead.cause] == "hang"]
    limits = ("heartbeat_rank_seconds", "hard_timeout_seconds")
    if hangs and not any(findings.run.settings.get(name) for name in limits):
        yield Action(
            "Set a heartbeat time-out",
            f"{units.plural(len(hangs), 'incident')} began as a hang, and neither a heartbeat time-out of the launcher is known nor a "
            "hard one of in-process restart: without them, a hang that Python cannot interrupt lasts for ever.",
        )


def _nothing_known(findings: Findings) -> Iterator[Action]:
    unknown = sum(1 for one in findings.run.incidents if one.lead.cause == "unknown")
    if unknown >= OFTEN and unknown * 2 >= len(findings.run.incidents):
        yield Action(
            "Let Headway see more",
            f"The cause of {units.whole(unknown)} of {units.plural(len(findings.run.incidents), 'incident')} is unknown: start the "
            "launcher through headway run, and wrap the training function in recorder.capture().",
        )


_BEFORE_A_START: Final = (_unresolved, _diverged, _drain, _hardware)
"""What would make the next start fail as the last one did, or go on from what is not to be trusted."""

RULES: Final[tuple[Callable[[Findings], Iterator[Action]], ...]] = (
    _fate,
    _unresolved,
    _recurred,
    _diverged,
    _drain,
    _hardware,
    _rejected,
    _same_step,
    _saves,
    _hangs,
    _largest_loss,
    _nothing_known,
)
"""In the order of urgency."""
