"""Names of incidents and of their traces: the same on every pod, without a word between them."""

from __future__ import annotations

import hashlib


def incident_id(run: str, incarnation: str | None, pod_index: str, opened_wall: float) -> str:
    """16 hex digits: of the run and the incarnation that failed, which all pods know alike.

    Before there was an incarnation (a failure in the first start-up) only this pod and this moment can name it.
    """
    what = (
        ["incarnation", run, incarnation] if incarnation is not None else ["pod", run, pod_index, f"{opened_wall:.6f}"]
    )
    return hashlib.sha256("\0".join(what).encode("utf-8", "replace")).hexdigest()[:16]


def trace_id(run: str, incident: str) -> str:
    """32 hex digits, not all zero: the id of the incident's trace, as W3C trace context and OpenTelemetry want it."""
    return hashlib.sha256(f"{run}\0{incident}".encode("utf-8", "replace")).hexdigest()[:32]
