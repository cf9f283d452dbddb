"""Many steps at once, where that gives the same answer as one by one: what lets a late sidecar catch up in no time, and a timely one rest.

Folding a step costs as much as reading forty. But nearly all steps of a run are nothing but progress: the loop goes on, no recovery is
open, nothing is replayed. Such runs are added up by columns. Where that does not hold for all of them, the earlier and the later half
are tried apart, down to a few steps, which are folded one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway_exporter.observations import Run, StepsSeen
    from headway_exporter.pod import Pod

FEW: Final = 8


def fold(pod: Pod, seen: StepsSeen) -> None:
    """Folds the steps into the pod."""
    if len(seen) > FEW and _plain(pod, seen):
        for run in sorted(seen.runs, key=lambda run: run.key):
            _add(pod, run)
        return
    halves = seen.halves() if len(seen) > FEW else []
    if len(halves) < 2:
        pod.fold(seen.steps())
        return
    for half in halves:
        fold(pod, half)


def _plain(pod: Pod, seen: StepsSeen) -> bool:
    """Whether all of it is progress of lives that are known, with nothing under way that a step could end."""
    quiet = pod.failures.quiet and not pod.checkpoints.load_open and pod.state == "productive"
    alone = len({run.slot for run in seen.runs}) == len(seen.runs)
    return quiet and alone and all(_plain_run(pod, run) for run in seen.runs)


def _plain_run(pod: Pod, run: Run) -> bool:
    slot, losses = pod.slots.get(run.slot), run.columns.losses
    if slot is None or slot.life != run.life:
        return False
    missing = losses.count(None)
    return missing in (0, len(losses)) and pod.ledger.slot(run.slot).takes(run.columns)


def _add(pod: Pod, run: Run) -> None:
    """As `Pod` does for each step; the runs come in the order of their last steps, so that the newest word stands."""
    slot, end, last = pod.slots[run.slot], run.mono, run.columns.steps[-1]
    pod.ledger.slot(run.slot).steps(run.columns)
    leads = pod.leads(run.slot)
    pod.steps.fold_run(run.slot, run.columns, leads=leads, saving_until=pod.checkpoints.saving_until)
    if leads:
        context = pod.losses_depend_on(slot)
        pod.replay_checks.progress(run.columns.steps, run.columns.losses, context, wall=pod.wall_of(end))
    pod.source_wall["trainer"] = pod.wall_of(end)
    slot.signs(end)
    slot.complete(last, end)
    if last > pod.mark:
        pod.mark = last
        pod.failures.without_progress = 0
    pod.last_trace = max(pod.last_trace, end)
