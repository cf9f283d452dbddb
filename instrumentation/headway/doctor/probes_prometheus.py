"""Facts about a Prometheus and an Alertmanager: which of our rules and routes they have, and whether the run is scraped."""

from __future__ import annotations

import json
import re
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
        facts = _read(_asked(url, "rules"), _asked(url, "query", query=counted))
        return {**facts, "alertmanagers": len(_asked(url, "alertmanagers")["activeAlertmanagers"])}
    except _NOT_ONE:
        return {"problem": "it does not answer as a Prometheus does"}
    except OSError as error:
        return {"problem": str(getattr(error, "reason", error))}


def alertmanager(url: str) -> dict[str, Any]:
    """Whether its routes and its inhibitions name alerts of ours; `problem` where it cannot be asked."""
    try:
        return _routed(_got(f"{url.rstrip('/')}/api/v2/status")["config"]["original"])
    except _NOT_ONE:
        return {"problem": "it does not answer as an Alertmanager does"}
    except OSError as error:
        return {"problem": str(getattr(error, "reason", error))}


def _routed(config: str) -> dict[str, Any]:
    """From its configuration, which it writes anew as YAML: each section begins at the left."""
    sections = dict(re.findall(r"^(\w+):\n?((?:[ \-].*\n?|\n)*)", config, re.MULTILINE))
    route = sections.get("route", "")
    default = re.match(r"\s+receiver: *(\S+)", route)
    return {
        "routes": "Headway" in route,
        "inhibits": "Headway" in sections.get("inhibit_rules", ""),
        "default": "" if default is None else default[1].strip("'\""),
    }


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
    return _got(f"{url.rstrip('/')}/api/v1/{path}{query}")["data"]


def _got(address: str) -> Any:
    """The JSON that is answered.

    Raises:
        OSError: it does not answer, or with an error.
        ValueError: the answer is no JSON.
    """
    with urllib.request.urlopen(address, timeout=_CALL_SECONDS) as answer:  # noqa: S310 - its scheme was checked
        return json.loads(answer.read(_MOST_BYTES))
