"""Recording rules on goodput: since a run began, and over windows that move on.

The formulas are the ledger's (`headway_exporter.ledger.Totals`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import duration, reset_window
from headway_alerts.model import Group, Recording
from headway_exporter.ledger import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway_alerts.config import Config

SHORT: Final = 300
"""Seconds over which rates are taken. Longer windows are averages of these: one series a run to read instead of one a pod and state."""
LONGEST_SHORT: Final = 3_600
"""Seconds. Longer windows average a rate of every `SHORT` seconds instead of every evaluation: three days have 864 of them, not 17,280."""
LONG_INTERVAL: Final = 60
"""Seconds between evaluations of the longer windows, which change slowly."""

_RUN: Final = ("run",)
_UNAVAILABLE: Final = "|".join(UNAVAILABLE)
_RESETS: Final = "pod:headway_rank_elapsed_seconds_total:resets"
_COUNTED: Final = "run:headway_counted_rank_seconds:sum"


def groups(config: Config, file: str) -> tuple[Group, ...]:
    """Rates, and goodputs over windows: what the alerts on objectives look at."""
    short = [seconds for seconds in windows(config) if seconds <= LONGEST_SHORT]
    long = [seconds for seconds in windows(config) if seconds > LONGEST_SHORT]
    return (
        Group("headway-goodput.rules", file, (*_rates(config), *_live(config, short))),
        Group("headway-goodput-sampled.rules", file, tuple(_sampled(config)), interval_seconds=SHORT),
        Group("headway-goodput-long.rules", file, tuple(_live(config, long)), interval_seconds=LONG_INTERVAL),
    )


def windows(config: Config) -> tuple[int, ...]:
    """Seconds of every window over which live goodput is recorded, shortest first."""
    asked = {seconds for one in config.objectives for w in one.windows for seconds in (w.long_seconds, w.short_seconds)}
    return tuple(sorted({SHORT, 3_600} | asked))


def totals(config: Config) -> tuple[Recording, ...]:
    """Goodputs since the run began, of times that the sidecars put together: what is pending counts as what it is already."""
    world = f"headway_world_size{{{config.witnesses}}}" if config.witnesses else "headway_world_size"
    productive = _sum('headway_rank_seconds_total{state="productive"}')
    return (
        Recording(_COUNTED, _RUN, _sum("headway_counted_rank_seconds")),
        Recording(
            "run:headway_training_goodput:ratio",
            _RUN,
            f"(\n{_indent(productive)}\n  -\n{_indent(_sum('headway_unregained_rank_seconds'))}\n)\n/ ({_COUNTED} > 0)",
        ),
        Recording(
            "run:headway_infrastructure_goodput:ratio",
            _RUN,
            f"1 -\n{_sum('headway_unavailable_rank_seconds')}\n/ ({_COUNTED} > 0)",
        ),
        # Time in which there was a run to fail, by the time of one of its ranks; absent before the first incident.
        Recording(
            "run:headway_mtbf:seconds",
            _RUN,
            f"""\
{_COUNTED}
/ on (run)
(max by (run) ({world}) > 0)
/ on (run)
(
  sum by (run) (run:headway_incidents_total:max)
  + on (run)
  run:headway_incident_open:max
  > 0
)""",
        ),
    )


def _sum(what: str) -> str:
    """A series of every pod, once, summed over the run."""
    return f"sum by (run) (\n  max by (run, pod_index) ({what})\n)"


def _rates(config: Config) -> Iterator[Recording]:
    """Rank-seconds a second. A pod whose counters were reset says nothing for the length of the window, rather than something wrong."""
    window = f"[{duration(SHORT)}]"

    def rate(name: str, *terms: str) -> Recording:
        lines = "\n  - on (run, pod_index)\n".join(f"  max by (run, pod_index) ({term})" for term in terms)
        expr = f"sum by (run) (\n{lines}\n  unless on (run, pod_index)\n  {_RESETS}\n)"
        return Recording(_rate(name), _RUN, expr)

    yield Recording(
        _RESETS,
        ("run", "pod_index"),
        f"max by (run, pod_index) (resets(headway_rank_elapsed_seconds_total[{duration(reset_window(SHORT))}]) > 0)",
    )
    yield rate("productive", f'rate(headway_rank_seconds_total{{state="productive"}}{window})')
    yield rate(
        "counted",
        f"rate(headway_rank_elapsed_seconds_total{window})",
        f'rate(headway_rank_seconds_total{{state="standby"}}{window})',
    )
    if _has_infrastructure(config):
        yield rate("unavailable", f"sum without (state) (rate({_states(_UNAVAILABLE)}{window}))")


def _sampled(config: Config) -> Iterator[Recording]:
    """The same rates, once in each of their windows: no time is left out, and none is read twenty times."""
    for name in ("productive", "counted", *(("unavailable",) if _has_infrastructure(config) else ())):
        yield Recording(f"{_rate(name)}_sampled", _RUN, _rate(name))


def _has_infrastructure(config: Config) -> bool:
    return any(one.kind == "infrastructure" for one in config.objectives)


def _live(config: Config, windows: list[int]) -> Iterator[Recording]:
    """Goodputs over windows of so many seconds: what became of the time in them."""
    for seconds in windows:
        yield Recording(
            f"run:headway_live_goodput:ratio_rate{duration(seconds)}",
            _RUN,
            f"clamp_max(\n  {_over('productive', seconds)}\n  / {_over('counted', seconds)},\n  1\n)",
        )
    if _has_infrastructure(config):
        for seconds in windows:
            yield Recording(
                f"run:headway_live_infrastructure_goodput:ratio_rate{duration(seconds)}",
                _RUN,
                f"clamp_min(\n  1 - {_over('unavailable', seconds)}\n  / {_over('counted', seconds)},\n  0\n)",
            )


def _over(name: str, seconds: int) -> str:
    if seconds == SHORT:
        return _rate(name)
    series = _rate(name) if seconds <= LONGEST_SHORT else f"{_rate(name)}_sampled"
    return f"sum_over_time({series}[{duration(seconds)}])"


def _rate(name: str) -> str:
    return f"run:headway_{name}_rank_seconds:rate{duration(SHORT)}"


def _states(states: str) -> str:
    return f'headway_rank_seconds_total{{state=~"{states}"}}'


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
