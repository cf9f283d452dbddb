"""Incident records that are to be written to the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway_exporter.pod import Pod


def due(pod: Pod) -> list[dict[str, Any]]:  # noqa: ARG001
    """Records that differ from what was last written."""
    return []


def written(pod: Pod, record: dict[str, Any]) -> None:
    """The record is on disk."""
