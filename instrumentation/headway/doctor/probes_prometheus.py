"""Facts about a Prometheus: which of our rules it has, and whether it scrapes the run."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any, Final

_CALL_SECONDS: Final = 3.0
_MOST_BYTES: Final = 32 << 20
_OURS: Final = "headway-"
_NOT_ONE: Final = (ValueError, LookupError, TypeError, AttributeError)
"""What comes of reading the answer of something else."""


def prometheus(url: str, run: str) -> dict[str, Any]:
    """Number of our rules, those that fail, and how many sidecars of the run are scraped; `problem` where it cannot be asked."""
    counted = f"count(headway_build_info{{run={json.dumps(run)}}})"
    try:
        return _read(_asked(url, "rules"), _asked(url, "query", query=counted))
    except _NOT_ONE:
        return {"problem": "it does not answer as a Prometheus does"}
    except OSError as error:
        return {"problem": str(getattr(error, "reason", error))}


def _read(told: Any, counted: Any) -> dict[str, Any]:
    found = counted["result"]
    rules = [rule for group in told["groups"] if group["name"].startswith(_OURS) for rule in group["rules"]]
    return {
        "rules": len(rules),
        "failing": [rule["name"] for rule in rules if rule["health"] == "err"],
        "sidecars": int(float(found[0]["value"][1])) if found else 0,
    }


def _asked(url: str, path: str, **parameters: str) -> Any:
    """The `data` of an answer of its HTTP interface.

    Raises:
        OSError: it does not answer, or with an error.
        ValueError: the answer is no JSON.
        KeyError: it is not that of a Prometheus.
    """
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    address = f"{url.rstrip('/')}/api/v1/{path}{query}"
    with urllib.request.urlopen(address, timeout=_CALL_SECONDS) as answer:  # noqa: S310 - its scheme was checked
        return json.loads(answer.read(_MOST_BYTES))["data"]
