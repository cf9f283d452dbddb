"""Alerts on Headway itself: silence must not look like health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration
from headway_alerts.model import Alert, Group
from headway_alerts.texts import MOST_NAMED, NUMBER, RUN, THIS_RUN, in_a_line, names_of, of_all_runs, value_of

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "alerts"
UNHEARD_SECONDS: Final = 600
"""How long a sidecar may wait for the first word of a trainer: images are pulled, nodes are checked."""

_UNHEARD: Final = f"""\
(
  pod:headway_trainer_silence:seconds{{{THIS_RUN}}} == Inf
  and
  pod:headway_trainer_silence:seconds{{{THIS_RUN}}} offset {duration(UNHEARD_SECONDS)}
)
or
(
  pod:headway_trainer_silence:seconds{{{THIS_RUN}}} < Inf
  and on (run, pod_index)
  pod:headway_ranks:max > 0
  unless on (run)
  run:headway_finished:max == 1
)"""


def group(config: Config) -> Group:
    """In the order of the design."""
    return Group("headway-pipeline", FILE, (_silent(config), _down(config), _unwatched(config)))


def _silent(config: Config) -> Alert:
    pods = names_of(f"topk({MOST_NAMED}, {in_a_line(_UNHEARD)})", "pod_index", "pod {{ $one.Labels.pod_index }}")
    return Alert(
        name="HeadwayTrainerSilent",
        severity="warning",
        # Either nothing ever came, for long, or processes live that say nothing any more.
        expr=f"count by (run) (\n{of_all_runs(_UNHEARD)}\n)",
        summary=f"Sidecars of run {RUN} that hear nothing from their trainer: {NUMBER}",
        description=(
            f"What Headway shows of run {RUN} is not what happens there: trainers write nothing into the folder that the sidecar reads "
            f"(at least in {pods}). Most often the two do not share it, the run's name differs, or the ranks hang outside of Python. "
            "Compare HEADWAY_DIR and HEADWAY_RUN of both."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )


def _down(config: Config) -> Alert:
    memory = duration(config.sidecar_memory_seconds)
    return Alert(
        name="HeadwaySidecarDown",
        severity="critical",
        # Pods of a run that finished, or that its operator ended, are not missed. What is remembered is what was so before they went.
        expr=f"""\
(
  last_over_time(run:headway_pods_expected:max[{memory}])
  or
  max_over_time(run:headway_pods:count[{memory}])
)
- on (run)
(
  run:headway_pods:count
  or
  0 * last_over_time(run:headway_pods:count[{memory}])
)
> 0
unless on (run)
last_over_time(run:headway_finished:max[{memory}]) == 1
unless on (run)
(
  last_over_time(run:headway_incidents_total:max{{outcome="cancelled"}}[{memory}]) > 0
  and on (run)
  last_over_time(run:headway_ranks:sum[{memory}]) == 0
)""",
        summary=f"Pods of run {RUN} that do not report: {NUMBER}",
        description=(
            f"Run {RUN} should have "
            + value_of(
                f"last_over_time(run:headway_pods_expected:max{{run=%q}}[{memory}]) "
                f"or max_over_time(run:headway_pods:count{{run=%q}}[{memory}])"
            )
            + " pods. Nobody would see a failure on those that are missing, and other alerts may be silent because of it. See whether the "
            "pods are gone or only their sidecars."
        ),
        wait_seconds=config.sidecar_down_seconds,
        keep_seconds=config.keep_firing_seconds,
    )


def _unwatched(config: Config) -> Alert:
    memory = duration(config.sidecar_memory_seconds)
    return Alert(
        name="HeadwayRunUnwatched",
        severity="critical",
        # HeadwaySidecarDown does not know of it for good: how many pods there should be is known from witnesses too.
        expr=f"""\
run:headway_pods:count
unless on (run)
run:headway_witnesses:count
unless on (run)
last_over_time(run:headway_finished:max[{memory}]) == 1""",
        summary=f"Nobody would be told if run {RUN} failed: {NUMBER} of its pods report, and the rules ask none of these",
        description=(
            f"What all pods of run {RUN} see, such as its steps, incidents and checkpoints, the rules read of a few of them only, its "
            "witnesses, and none of these reports: most alerts on this run cannot fire. See whether the witnesses are gone, or were never "
            "among the pods that this Prometheus scrapes; the rules' configuration says which pods are asked (witnesses)."
        ),
        wait_seconds=config.sidecar_down_seconds,
        keep_seconds=config.keep_firing_seconds,
    )
