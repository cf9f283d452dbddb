"""What the doctor says, and of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Status = Literal["ok", "warn", "fail", "skip"]
Role = Literal["trainer", "sidecar", "both"]

CHECKS: Final = {
    "environment": "`HEADWAY_*` variables: misspelt names, values that are ignored, a run name that is no file name",
    "directory": "the journal folder is there or can be made; the trainer can write in it, the sidecar can look into it",
    "directory-room": "room for two step rings and a journal of each rank",
    "directory-files": "files there get their blocks at once and can be mapped: what the step ring needs",
    "life-lock": "byte locks there are seen by other processes: how the sidecar learns of a death",
    "directory-kind": "it lies in memory or on a local disk, not in a network file system",
    "journals": "what lies there can be read, is of this run, and of this machine's clock",
    "state": "the state folder can be written, its files replaced in one go and forced to disk",
    "state-kind": "it outlives the container and the machine, and all pods see the same one",
    "state-clock": "its server's clock and this machine's agree",
    "clock": "CLOCK_MONOTONIC is the machine's own, and something keeps the wall clock right",
    "port": "the port is free, or a sidecar answers on it",
    "certificate": "with TLS: who scrapes can believe its certificate, and it is not about to expire",
    "sidecar": "it lets us in, its scrape can be parsed, and is of this run",
    "prometheus": "with `--prometheus URL`: our rules are loaded and evaluated, and this run is scraped",
    "alertmanager": "with `--alertmanager URL`: it has routes and inhibitions for our alerts; and Prometheus sends its alerts to one",
    "nvml": "NVIDIA's driver answers, and shows GPUs",
    "nvml-bindings": "no old `pynvml` package hides the module of `nvidia-ml-py`",
    "extra": "what the sidecar needs is installed (`headway[exporter]`)",
    "python": "there are wheels of NVRx for this Python",
    "torch": "torch is built for GPUs where there are some",
    "nvrx": "a version of NVRx that is tested, and what it needs without saying so",
    "no-gpu": "what of NVRx does not work where there is no GPU",
    "heartbeats": "hangs are noticed: heartbeat time-outs are off by default in NVRx 0.6 and later",
    "time-outs": "soft < hard < heartbeat and barrier, of what is in force, each well above the longest silence seen",
    "advice": "what `headway advise` would change, from the run's own longest silences",
    "nccl": "NCCL's errors leave the process alive for in-process restart",
}
"""Each check and what it makes sure of, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `what` is what was found, `do` what to do about it (empty where there is nothing to do or to know)."""

    check: str
    status: Status
    what: str
    do: str = ""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """As they are shown."""
    places = {name: number for number, name in enumerate(CHECKS)}
    return sorted(findings, key=lambda one: places[one.check])


def markdown_table() -> str:
    """For the README."""
    return "\n".join(["| check | what it checks |", "|---|---|", *(f"| `{n}` | {w} |" for n, w in CHECKS.items())])
