"""The JSON of the API: the model's objects, as they are."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any


def json_text(value: Any) -> bytes:
    """A document: NaN and infinity, which JSON does not have, are null."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def plain(value: Any) -> Any:
    """JSON's types."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value


@lru_cache(maxsize=64)
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))
