"""Pieces that several dashboards share."""

from __future__ import annotations

from typing import Final

from headway_alerts.links import AFTER_SECONDS, BEFORE_SECONDS
from headway_dashboards.model import Query, Variable
from headway_dashboards.words import STATES

DATASOURCE: Final = Variable("datasource", "Data source")
RUN: Final = Variable("run", "Run", "label_values(run:headway_ranks:sum, run)")
PODS: Final = Variable("pod", "Pod", 'label_values(pod:headway_ranks:max{run="$run"}, pod_index)', several=True)

OF_RUN: Final = 'run="$run"'
OF_PODS: Final = 'run="$run",pod_index=~"$pod"'


def state_number(matchers: str, *labels: str) -> str:
    """What the worst of the pods with these labels does, as a number of `words.STATES`.

    Zeros are dropped before anything is joined: of the pods each has one state, and a dozen that it is not in.
    """
    return _worst("max by (run, pod_index, state) (headway_state{%s} == 1)", matchers, labels)


def run_state_number(matchers: str) -> str:
    """The same of each run, from what is recorded: at most a minute old, and cheap for thousands of pods."""
    return _worst("run:headway_state:max{%s}", matchers, ("run",))


def _worst(states: str, matchers: str, labels: tuple[str, ...]) -> str:
    lines = "\n  or\n".join(
        f"  {number} * {states}" % f'{matchers},state="{value.text}"' for number, value in STATES.items()
    )
    return f"max by ({', '.join(labels)}) (\n{lines}\n)"


def incident_number(matchers: str) -> str:
    """Of each run: 0 no incident, 1 one is open, 2 it is recurring."""
    return f"""\
run:headway_incident_open:max{{{matchers}}}
+ on (run)
run:headway_incident_recurring:max{{{matchers}}}"""


def total(name: str, matchers: str, *labels: str, by: tuple[str, ...] | None = None) -> str:
    """A metric of every pod, once, added up over the pods; `labels` are its own that stay, or those of `by`."""
    inner = ", ".join(("run", "pod_index", *labels))
    outer = ", ".join(labels if by is None else by)
    return f"sum by ({outer}) (\n  max by ({inner}) ({name}{{{matchers}}})\n)"


def in_window(series: str, *labels: str) -> str:
    """How often it was counted in the window shown, by these labels. What is new in it counted from 0, and so did what began anew.

    Not by the labels that Prometheus adds: a pod that was replaced counts on at another address, and nothing of that is news.
    """
    by = f"max by ({', '.join(labels)})"
    now, before = f"{by} ({series})", f"{by} ({series} offset $__range)"
    return f"(\n  {now}\n  -\n  ({before} or 0 * {now})\n) >= 0\nor\n{now}"


def recovery_phases(matchers: str) -> str:
    """Seconds of each phase of the recoveries in the window shown, of the pod with most of it."""
    labels = ("run", "pod_index", "layer", "phase")
    counted = in_window(f"headway_recovery_phase_seconds_total{{{matchers}}}", *labels)
    return f"sort_desc(\nmax by (phase) (\nsum by (run, pod_index, phase) (\n{counted}\n)\n)\n> 0)"


def quantile(share: float, histogram: str, matchers: str, window: str) -> str:
    """That share of the observations in the window took at most this long. Pods that see the same one count it once each."""
    return (
        f"histogram_quantile(\n  {share:g},\n  sum by (le) (\n    max by (run, pod_index, le) "
        f"(increase({histogram}_bucket{{{matchers}}}[{window}]))\n  )\n)"
    )


def spoken(seconds: float) -> str:
    """A time as the legend has it: 90 is 1.5 min."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def share_within(bound: float, histogram: str, matchers: str, window: str) -> str:
    """Of the observations in the window the share that was at most one of the histogram's bounds, by the pod that saw most of them."""
    below = f'max(increase({histogram}_bucket{{{matchers},le="{bound}"}}[{window}]))'
    return f"{below}\n/\n(max(increase({histogram}_count{{{matchers}}}[{window}])) > 0)"


STATE_BY_POD: Final = (Query(state_number(OF_PODS, "pod_index"), "pod {{pod_index}}"),)
STEPS: Final = (
    Query(f"run:headway_high_water_step:max{{{OF_RUN}}}", "highest step ever"),
    Query(f"run:headway_step:max{{{OF_RUN}}}", "step"),
    Query(f"run:headway_checkpoint_durable_step:max{{{OF_RUN}}}", "durable checkpoint"),
)


def alerts(matchers: str) -> str:
    """Those of ours that fire."""
    return f'ALERTS{{alertname=~"Headway.*",alertstate="firing",{matchers}}}'


def alert_table(matchers: str) -> tuple[Query, ...]:
    """Of each alert that fires, in milliseconds since 1970: since when, and a window around that."""
    since = f'ALERTS_FOR_STATE{{alertname=~"Headway.*",severity!="info",{matchers}}}'
    firing = f"(\n  {since}\n  and ignoring (alertstate)\n  {alerts(matchers)}\n)"
    times = (f"{firing}", f"({firing} - {BEFORE_SECONDS})", f"({firing} + {AFTER_SECONDS})")
    return tuple(Query(f"{time} * 1000", form="table") for time in times)
