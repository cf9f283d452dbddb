"""Advice as people read it in a terminal, and as JSON."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.advice.model import many, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway_exporter.advice.model import Advice, Number
    from headway_exporter.advice.observed import Observed

WORDS: Final = {"change": "CHANGE", "keep": "keep", "unknown": "unsure"}
NARROWEST: Final = 40
_INDENT: Final = " " * 8
_DOT: Final = "·"
_FIXED: Final = "\u00a0"
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|days|%)(?!\w))")
"""The blank between a number and its unit: no line ends there."""


def as_text(seen: Observed, advice: Sequence[Advice], width: int) -> str:
    """All of it, in lines of at most `width` columns (commands to copy are never broken)."""
    width = max(width, NARROWEST)
    assumed = dict.fromkeys(text for one in advice for text in one.assumptions)
    assumptions = [line for text in assumed for line in _wrapped(text, width, _INDENT, first="      - ")]
    blocks = [
        _wrapped(_heading(seen), width, ""),
        *(list(_block(one, width)) for one in advice),
        ["This assumes:", *assumptions] if assumptions else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def as_json(seen: Observed, advice: Sequence[Advice]) -> dict[str, Any]:
    """A JSON object: `observed` is what the run told, `advice` a list in order of urgency; durations are seconds."""
    return {
        "version": 1,
        "run": seen.run,
        "observed": plain_json(asdict(seen)),
        "advice": [plain_json(asdict(one)) for one in advice],
    }


def _heading(seen: Observed) -> str:
    parts = [
        f"{many(seen.ranks, 'rank')} in {many(seen.pods, 'pod')}",
        f"{seconds(seen.watched)} watched",
        many(seen.failures, "failure"),
    ]
    if seen.step_seconds is not None:
        parts.append(f"a step takes {seconds(seen.step_seconds)}")
    return f"Advice for {seen.run}: {', '.join(parts)}"


def _block(advice: Advice, width: int) -> Iterator[str]:
    yield from _wrapped(f"{WORDS[advice.verdict]:<8}{advice.title}", width, _INDENT, first="")
    yield from _wrapped(advice.text, width, _INDENT)
    yield from _labelled("from", _numbers(advice.known, width - len(_INDENT) - 8), width)
    yield from _labelled("sure", f"{advice.confidence}: {advice.because}", width)
    yield from _settings(advice.settings, width)


def _settings(settings: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """A line for each, to be copied; where it applies beside it or, where that is too wide, below it."""
    for number, (setting, where) in enumerate(settings):
        line = f"{_INDENT}{'' if number else 'set':<6}{setting}"
        if len(line) + len(where) + 4 <= width:
            yield f"{line}  # {where}"
        else:
            yield line
            yield from _wrapped(f"# {where}", width, f"{_INDENT}        ")


def _numbers(numbers: Sequence[Number], room: int) -> str:
    """A break comes between two, inside one only where it is longer than a line."""
    texts = [str(one) for one in numbers]
    return f"{_FIXED}{_DOT} ".join(one if len(one) > room else one.replace(" ", _FIXED) for one in texts)


def _labelled(label: str, text: str, width: int) -> list[str]:
    return _wrapped(text, width, f"{_INDENT}      ", first=f"{_INDENT}{label:<6}") if text else []


def _wrapped(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    lines = textwrap.wrap(
        _UNIT.sub(_FIXED, text),
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_FIXED, " ").removesuffix(f" {_DOT}") for line in lines]


def plain_json(value: Any) -> Any:
    """The value in types that JSON has; null for what is no finite number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: plain_json(one) for name, one in value.items()}
    return [plain_json(one) for one in value] if isinstance(value, (list, tuple)) else value
