"""`/status.json` in a few lines for a terminal. What a sidecar answers is believed no more than a journal: of any kind, and escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway_exporter.report import fields
from headway_exporter.report.units import UNKNOWN, duration, plural, share
from headway_exporter.report.words import STATE_WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping


def lines(status: Mapping[str, Any], wall: float) -> list[str]:
    """What somebody wants to know first; `wall`: now, seconds since 1970."""
    saved, queue = fields.mapping(status.get("checkpoint")), fields.mapping(status.get("queue"))
    ranks = list(fields.objects(status.get("ranks")))
    rows = {
        "run": f"{fields.text(status.get('run'), 128)}, pod {fields.text(status.get('pod_index'), 128)}",
        "state": _state(status, wall),
        "step": _step(status),
        "goodput": f"{share(fields.number(status.get('training_goodput')))} training, "
        f"{share(fields.number(status.get('infrastructure_goodput')))} infrastructure",
        "checkpoint": _checkpoint(saved, wall) + f"; {plural(fields.count(queue.get('depth')), 'save')} under way",
        "ranks": f"{sum(rank.get('alive') is True for rank in ranks)} of {len(ranks)} alive",
        "restarts": ", ".join(
            f"{many} {layer}" for layer, many in fields.counts(status.get("restarts")).items() if many
        )
        or "none",
        "incident": _incident(list(fields.objects(status.get("incidents"))), wall),
    }
    return [f"{name:<11} {words}" for name, words in rows.items()]


def _state(status: Mapping[str, Any], wall: float) -> str:
    if status.get("finished") is True:
        return "finished"
    state = fields.text(status.get("state"))
    return (
        f"{STATE_WORDS.get(state, state)}, for {_ago(status.get('state_since_wall'), wall)}"
        if state
        else "no trainer yet"
    )


def _step(status: Mapping[str, Any]) -> str:
    step, highest = status.get("step"), status.get("high_water_step")
    if fields.whole(step) is None and not fields.whole(highest):
        return "none yet"
    return f"{_whole(step)} of {_whole(status.get('total_steps'))}, highest {_whole(highest)}"


def _checkpoint(saved: Mapping[str, Any], wall: float) -> str:
    if fields.whole(saved.get("durable_step")) is None:
        return "none is durable"
    return f"step {_whole(saved.get('durable_step'))}, durable for {_ago(saved.get('committed_wall'), wall)}"


def _incident(found: list[Mapping[str, Any]], wall: float) -> str:
    if not found:
        return "none"
    last = found[-1]
    again = ", recurring" if fields.items(last.get("recurring")) else ""
    rank = "" if fields.whole(last.get("origin_rank")) is None else f" on rank {_whole(last.get('origin_rank'))}"
    cause = fields.text(last.get("cause")) or "cause not known yet"
    return f"{fields.text(last.get('state'))}{again}: {cause}{rank}, {_ago(last.get('opened_wall'), wall)} ago"


def _ago(value: Any, wall: float) -> str:
    then = fields.wall(value)
    return UNKNOWN if then is None else duration(max(wall - then, 0.0))


def _whole(value: Any) -> str:
    found = fields.whole(value)
    return UNKNOWN if found is None else f"{found:,}"
