"""Who this process is, from environment variables: `HEADWAY_*` first, then what launchers and schedulers set.

| what | variables, the first that is set wins |
|---|---|
| directory | HEADWAY_DIR, else /dev/shm/headway-UID, else TMP/headway-UID |
| state directory | HEADWAY_STATE_DIR |
| run | HEADWAY_RUN, name in HOSTNAME of an indexed Kubernetes job, SLURM_JOB_ID, TORCHELASTIC_RUN_ID, `default` |
| pod index | HEADWAY_POD_INDEX, JOB_COMPLETION_INDEX, SLURM_NODEID, GROUP_RANK, number in HOSTNAME, HOSTNAME |
| pods | HEADWAY_PODS, SLURM_NNODES, SLURM_JOB_NUM_NODES, GROUP_WORLD_SIZE |
| slot | HEADWAY_SLOT, LOCAL_RANK, SLURM_LOCALID, 0 |
| rank, world size | RANK and WORLD_SIZE, SLURM_PROCID and SLURM_NTASKS, slot and 1 |
| local world size | LOCAL_WORLD_SIZE, SLURM_NTASKS_PER_NODE |
| attempt | HEADWAY_ATTEMPT, SLURM_RESTART_COUNT, 0 |
| sample seconds | HEADWAY_SAMPLE_SECONDS |
| cycle, restart budget | TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS |
| node | HEADWAY_NODE, NODE_NAME, SLURMD_NODENAME, host name |
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_INDEXED_HOST: Final = re.compile(r"(?P<name>.+)-(?P<index>\d{1,5})")
_MAX_SLOT: Final = 4_096
_MAX_NUMBER: Final = 2**31 - 1


@dataclass(frozen=True)
class Identity:
    """Where this process belongs. `warnings` are for people: what was ignored, and why."""

    directory: Path
    """The pod's own folder (HEADWAY_DIR); each run has a sub-folder in it."""
    run: str
    pod_index: str
    slot: int = 0
    rank: int = 0
    world_size: int = 1
    local_world_size: int | None = None
    pods: int | None = None
    attempt: int = 0
    cycle: int = 0
    node: str = ""
    restart_budget: int | None = None
    state_directory: Path | None = None
    sample_seconds: float | None = None
    """Asked for between two samples; None: nothing was."""
    shared_place: bool = False
    """`directory` is the default one, which lies where every user may write: it must be checked to be ours."""
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def folder(self) -> Path:
        """Where this run's files lie."""
        return self.directory / self.run

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Identity:
        """The identity that the variables give; never raises, a bad value is ignored with a warning."""
        env = _Variables(os.environ if environ is None else environ)
        host = env.text("HOSTNAME") or socket.gethostname()
        indexed = _indexed_host(env, host)
        slot = env.number("HEADWAY_SLOT", "LOCAL_RANK", "SLURM_LOCALID", largest=_MAX_SLOT) or 0
        directory = env.text("HEADWAY_DIR")
        state = env.text("HEADWAY_STATE_DIR")
        rank, world_size = _rank_and_world_size(env, slot)
        return cls(
            directory=_absolute(directory) if directory else default_directory(),
            shared_place=not directory,
            state_directory=Path(state) if state else None,
            run=_run(env, indexed),
            pod_index=_pod_index(env, indexed, host),
            pods=env.number("HEADWAY_PODS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "GROUP_WORLD_SIZE", least=1),
            slot=slot,
            rank=rank,
            world_size=world_size,
            local_world_size=env.number("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", least=1),
            attempt=env.number("HEADWAY_ATTEMPT", "SLURM_RESTART_COUNT") or 0,
            cycle=env.number("TORCHELASTIC_RESTART_COUNT") or 0,
            restart_budget=env.number("TORCHELASTIC_MAX_RESTARTS"),
            node=env.text("HEADWAY_NODE", "NODE_NAME", "SLURMD_NODENAME") or host,
            sample_seconds=env.seconds("HEADWAY_SAMPLE_SECONDS"),
            warnings=tuple(env.warnings),
        )


def default_directory() -> Path:
    """`headway-UID` in shared memory, else in the folder for temporary files."""
    memory = Path("/dev/shm")  # noqa: S108 - Recorder checks that the folder in it is a real one and the user's own
    if os.access(memory, os.W_OK):
        root = memory
    else:
        try:
            root = Path(tempfile.gettempdir())
        except FileNotFoundError:  # no folder for temporary files is writable; the recorder will say so of this one
            root = memory
    return root / f"headway-{os.getuid()}"


def _absolute(directory: str) -> Path:
    """The folder whatever the process's working directory becomes later: files are opened by name again and again."""
    try:
        return Path(directory).absolute()
    except OSError:  # the working directory is gone
        return Path(directory)


def run_name_problem(run: str) -> str | None:
    """Why the name cannot be a run's folder, None when it can."""
    if _RUN_NAME.fullmatch(run):
        return None
    return (
        f"the run name {run[:200]!r} is no safe file name: set HEADWAY_RUN to letters, digits, '.', '_' and '-', "
        "at most 128, a letter or digit first"
    )


class _Variables:
    """Look-ups in the environment that collect a warning for each value they had to ignore."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.warnings: list[str] = []

    def text(self, *names: str) -> str | None:
        """The first of the variables that is set and not empty."""
        return next((value for name in names if (value := self._environ.get(name, "").strip())), None)

    def number(self, *names: str, least: int = 0, largest: int = _MAX_NUMBER) -> int | None:
        """The first of the variables that holds a whole number from `least` to `largest`."""
        for name in names:
            text = self.text(name)
            if text is None:
                continue
            if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= largest:
                return int(text)
            self.warnings.append(f"{name}={text[:100]!r} is ignored: not a whole number from {least} to {largest}")
        return None

    def seconds(self, name: str) -> float | None:
        """What the variable holds, if that is a number of seconds, 0 included."""
        text = self.text(name)
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            if math.isfinite(seconds := float(text)) and seconds >= 0:
                return seconds
        self.warnings.append(f"{name}={text[:100]!r} is ignored: not a number of seconds")
        return None


def _indexed_host(env: _Variables, host: str) -> tuple[str, int] | None:
    """`(job, index)` from the host name of an indexed Kubernetes job's pod."""
    match = _INDEXED_HOST.fullmatch(host)
    if match is None or not (env.text("KUBERNETES_SERVICE_HOST") or env.text("JOB_COMPLETION_INDEX")):
        return None
    return match["name"], int(match["index"])


def _run(env: _Variables, indexed: tuple[str, int] | None) -> str:
    elastic = env.text("TORCHELASTIC_RUN_ID")
    named = env.text("HEADWAY_RUN") or (indexed and indexed[0]) or env.text("SLURM_JOB_ID")
    if named is None and elastic != "none":  # "none" is torchrun's own default
        named = elastic
    return named or "default"


def _pod_index(env: _Variables, indexed: tuple[str, int] | None, host: str) -> str:
    given = env.text("HEADWAY_POD_INDEX")
    if given is not None:
        return given
    number = env.number("JOB_COMPLETION_INDEX", "SLURM_NODEID", "GROUP_RANK")
    if number is None and indexed is not None:
        number = indexed[1]
    return host if number is None else str(number)


def _rank_and_world_size(env: _Variables, slot: int) -> tuple[int, int]:
    """From torchelastic or from Slurm, never one half of each."""
    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        rank = env.number(rank_name)
        size = env.number(size_name, least=1)
        if rank is not None and size is not None:
            return rank, size
    return slot, 1
