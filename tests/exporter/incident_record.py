"""A record of `incidents.jsonl` for the tests: rank 1 raised, its restart in the process failed again, the launcher's succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

T = 1_700_000_000.0
"""When it opened, seconds since 1970."""


def record(**changes: Any) -> dict[str, Any]:
    """The record, with other values where they are given."""
    return {
        "v": 1,
        "kind": "incident",
        "run": "demo",
        "pod_index": "0",
        "id": "9f86d081884c7d65",
        "revision": 0,
        "written_wall": T + 31.0,
        "outcome": "recovered",
        "state": "recovered",
        "recurring": [],
        "opened_wall": T,
        "closed_wall": T + 30.0,
        "layer": "launcher",
        "escalated": True,
        "attempts": 1,
        "cause": "app_exception",
        "confidence": "confirmed",
        "alternatives": ["host_oom"],
        "origin": {"rank": 1, "pod_index": "0", "node": "n1", "gpu_uuid": None},
        "decided_by": "alone",
        "decided_revision": 0,
        "ambiguous": False,
        "mark_step": 119,
        "durable_step": 100,
        "loads": {"100": 1},
        "world_size": 2,
        "pods_expected": 1,
        "node": "n1",
        "versions": {"torch": "2.13.0"},
        "settings": {"heartbeat_rank_seconds": 8.0},
        "evidence": [
            sign(
                "exception",
                T,
                "rank 1: ValueError: loss: 7",
                slot=1,
                rank=1,
                signature="ValueError: loss: #",
                traceback="File train.py, line 7\nValueError: loss: 7",
            ),
            sign("death", T + 4.0, "process of rank 1 died (its lock was released)", slot=1, rank=1),
            sign("exit", T + 4.125, "rank 1: SIGKILL", slot=1, rank=1, exit_code=-9),
        ],
        "recoveries": [recovery()],
        "lost_rank_seconds": {
            "detect": 2.5,
            "restart": 11.0,
            "down": 0.0,
            "init": 0.0,
            "checkpoint_load": 0.25,
            "replay": 8.0,
        },
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    } | changes


def sign(kind: str, wall: float, text: str, **more: Any) -> dict[str, Any]:
    """One sign."""
    return {
        "kind": kind,
        "wall": wall,
        "slot": None,
        "rank": None,
        "text": text,
        "exit_code": None,
        "signature": "",
        "traceback": "",
    } | more


def recovery(**changes: Any) -> dict[str, Any]:
    """Two tries: the first lasts 4 s, the second 10 s more; then 6 s until the mark is regained."""
    return {
        "opened_wall": T,
        "layer": "launcher",
        "cause": "app_exception",
        "confidence": "confirmed",
        "origin_rank": 1,
        "attempts": 2,
        "tip_step": 119,
        "mark_step": 119,
        "loaded_step": 100,
        "rejected_steps": [110],
        "steps_lost": 19,
        "first_step_wall": T + 14.0,
        "high_water_wall": T + 20.0,
        "replay_check": "valid",
        "tries": [
            one_try(T, "in_process", {"detect": 1.5, "teardown": 0.5, "init": 3.5}, loaded_step=None),
            one_try(
                T + 4.0,
                "launcher",
                {
                    "detect": 0.0,
                    "teardown": 1.0,
                    "respawn": 5.0,
                    "rendezvous": 1.0,
                    "init": 1.5,
                    "load": 0.25,
                    "first_step": 1.25,
                    "catch_up": 6.0,
                },
                cause="process_killed",
            ),
        ],
    } | changes


def one_try(opened: float, layer: str, phases: Mapping[str, float | None], **changes: Any) -> dict[str, Any]:
    """One try."""
    return {
        "opened_wall": opened,
        "layer": layer,
        "cause": "app_exception",
        "confidence": "confirmed",
        "origin_rank": 1,
        "alternatives": [],
        "restarted_wall": opened + 1.0,
        "loaded_step": 100,
        "phases": phases,
    } | changes
