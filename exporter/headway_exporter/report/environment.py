"""What every page of ours has in common: one look, one palette, one way to write a number, and texts that cannot become HTML."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from headway_exporter.report import fields, units, words
from headway_exporter.report.bars import recovery_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway_exporter.report.model import Incident, Setting

LEVEL_WORDS: Final = {"good": "fine", "attention": "look at it", "bad": "act now"}
LEVEL_SIGNS: Final = {"good": "\u2713", "attention": "!", "bad": "\u2717"}


def environment(*packages: str, gpus: bool) -> Environment:
    """Templates of the report, and of more `packages`, which come first; `gpus`: a rank's time is a GPU's."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(one, "templates") for one in (*packages, "headway_exporter.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "cause_words": words.CAUSE_WORDS.__getitem__,
        "duration": together(units.duration),
        "plain": plain,
        "plural": units.plural,
        "rank_time": together(partial(units.rank_time, gpus=gpus)),
        "setting": setting,
        "share": together(units.share),
        "unbroken": unbroken,
        "utc": units.utc_words,
        "utc_short": lambda wall: units.utc(wall)[:16].replace("T", " "),
        "whole": units.whole,
        "words": lambda name: name.replace("_", " "),
    }
    found.globals |= {
        "level_words": LEVEL_WORDS,
        "level_signs": LEVEL_SIGNS,
        "fate_words": words.FATE_WORDS,
        "layer_words": words.LAYER_WORDS,
        "reason_words": words.REASON_WORDS,
        "decision_words": words.DECISION_WORDS,
        "class_words": words.CLASSES,
        "cause_names": words.CAUSE_WORDS,
        "layer_and_cause": words.layer_and_cause,
        "origin": origin_words,
        "phase_bar": recovery_bar,
        "since": since,
    }
    return found


def together(function: Callable[..., str]) -> Callable[..., str]:
    """The same, with spaces at which no line is broken."""
    return lambda *arguments: function(*arguments).replace(" ", "\u00a0")


def unbroken(text: str) -> str:
    """A sentence in which no line is broken between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def plain(value: object) -> str:
    """A text of another module, without what could disturb the page."""
    return fields.text(value if isinstance(value, str) else str(value), 4_000)


def setting(value: Setting) -> str:
    """A setting as it was written."""
    return value if isinstance(value, str) else f"{value:g}"


def origin_words(incident: Incident) -> str:
    """Where it began: `rank 1, node-0`; `perhaps rank 1, node-0` where the evidence allows another place."""
    at = incident.lead.origin
    pod = "unknown" if at.pod_index is None else f"pod {at.pod_index}"
    where = pod if at.rank is None else f"rank {at.rank}"
    doubt = "perhaps " if incident.lead.ambiguous and where != "unknown" else ""
    return doubt + (f"{where}, {at.node}" if at.node else where)


def since(begin: float, wall: float) -> str:
    """When something was seen: `+1.2 s`."""
    return f"+{units.duration(wall - begin)}" if wall >= begin else f"-{units.duration(begin - wall)}"
