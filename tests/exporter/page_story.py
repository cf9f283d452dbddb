"""What the status page takes, of pods that are told a story; and how a document of the API is checked against its classes."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from headway_exporter import records, summary
from headway_exporter.page import model, snapshot, taking
from headway_exporter.report import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.page.model import Status
    from headway_exporter.page.others import Word
    from headway_exporter.pod import Pod


def taken(pod: Pod, **more: Any) -> taking.Taken:
    """As a sidecar of that pod would be looked at just now."""
    wall = pod.wall_of(pod.now)
    told: dict[str, Any] = {
        "figures": summary.figures(pod, pod.dropped, wall),
        "times": taking.times(pod),
        "records": tuple(
            parse.record(records.record(pod, one, wall, taking.MOST_RECORD_BYTES), pod.pod_index)
            for one in pod.failures.incidents
        ),
        "more": taking.more(pod),
        "folder": "/run/headway/story",
    }
    return taking.Taken(wall=wall, run=pod.run, pod_index=pod.pod_index, **(told | more))


def status(look: taking.Taken, words: Mapping[str, Word] | None = None) -> Status:
    """What is shown of it."""
    own = snapshot.own_pod(look)
    return snapshot.status(look, snapshot.whole_run(look, own, words or {}), own, words or {})


def departures(value: Any, kind: Any, place: str = "") -> list[str]:
    """Where a JSON document is not what the class says: fields that are missing, unknown, or of another type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        found = [departures(value, one, place) for one in arguments]
        return [] if [] in found else found[0]
    if origin is tuple:
        if not isinstance(value, list):
            return [f"{place}: no array"]
        return [wrong for at, one in enumerate(value) for wrong in departures(one, arguments[0], f"{place}[{at}]")]
    if isinstance(origin, type) and issubclass(origin, typing.Mapping):
        return [wrong for name, one in value.items() for wrong in departures(one, arguments[1], f"{place}.{name}")]
    if is_dataclass(kind) and not isinstance(value, dict):
        return [f"{place}: no object"]
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, {**vars(typing), **vars(model)})
        names = {one.name for one in fields(kind)}
        wrong = [f"{place}.{name}: missing or unknown" for name in names ^ set(value)]
        return wrong + [
            other for name in names & set(value) for other in departures(value[name], hints[name], f"{place}.{name}")
        ]
    accepted = (int, float) if kind is float else kind
    fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    return [] if fits else [f"{place}: {value!r} is no {kind}"]
