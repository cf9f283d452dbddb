"""Findings about what is installed, from versions that `probes_machine.packages` gives, and about how training is started."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headway.doctor import checks_timeouts
from headway.doctor.findings import Finding
from headway.doctor.launcher_options import heartbeat_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headway.doctor.findings import Role

    Version = tuple[int, ...]

OLDEST: Final = (0, 4, 1)
NEWEST: Final = (0, 7)
_NEEDED: Final[Mapping[Version, tuple[str, ...]]] = {(0, 4): ("numpy",), (0, 7): ("fastapi", "uvicorn")}
"""What a version of NVRx imports and does not declare."""
_EXTRA: Final = (
    "bcrypt", "jinja2", "nvidia-ml-py", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk", "prometheus-client",
    "psutil", "pyyaml", "requests",
)  # fmt: skip
_CONFIG_FILE: Final = re.compile(r"--(ft|fault-tol)[-_]cfg[-_]path(=.*)?")
_NO_MONITORS: Final = re.compile(r"torchrun|torch\.distributed\.(run|launch)")


@dataclass(frozen=True, slots=True)
class Trainer:
    """What is installed where, and how training is started."""

    role: Role
    python: tuple[int, int]
    versions: Mapping[str, str | None]
    gpus: int | None
    """None: not known, for the driver does not answer."""
    command: Sequence[str] | None = None
    """The launcher's; None: not known."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """In force, as the trainer journalled them."""
    silences: Mapping[str, float] = field(default_factory=dict)
    """Phase to the longest time between two heartbeats, seconds."""
    rethrow: str | None = None
    """TORCH_NCCL_RETHROW_CUDA_ERRORS."""

    @property
    def nvrx(self) -> Version | None:
        """Its version; None where it is not installed."""
        text = self.versions.get("nvidia-resiliency-ext")
        return None if text is None else numbers(text)


def numbers(version: str) -> Version:
    """`(0, 4, 1)` from `0.4.1+cuda`."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def all_checks(seen: Trainer) -> Iterator[Finding]:
    """All about versions."""
    yield _bindings(seen)
    yield _extra(seen)
    if seen.role == "sidecar":
        for name in ("python", "torch", "nvrx", "no-gpu", "heartbeats", "time-outs", "nccl"):
            yield Finding(name, "skip", "the trainer's business (--role trainer)")
        return
    yield _python(seen)
    yield _torch(seen)
    yield _nvrx(seen)
    for name, check in (("no-gpu", _no_gpu), ("heartbeats", _heartbeats), ("nccl", _nccl)):
        yield check(seen) if seen.nvrx else Finding(name, "skip", "NVRx is not installed")
    yield checks_timeouts.timeouts(seen.settings, seen.command, seen.silences)


def _bindings(seen: Trainer) -> Finding:
    old, true = seen.versions.get("pynvml"), seen.versions.get("nvidia-ml-py")
    if old and numbers(old) < (12,):
        what = f"pynvml {old} hides the module of nvidia-ml-py"
        do = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        return Finding("nvml-bindings", "warn", what, do)
    if true is None:
        return Finding("nvml-bindings", "skip", "nvidia-ml-py is not installed, and only the sidecar needs it")
    beside = f"; pynvml {old} beside it only warns of itself" if old else ""
    return Finding("nvml-bindings", "ok", f"nvidia-ml-py {true}{beside}")


def _extra(seen: Trainer) -> Finding:
    missing = [name for name in _EXTRA if not seen.versions.get(name)]
    if seen.role == "trainer" or (seen.role == "both" and "prometheus-client" in missing):
        return Finding("extra", "skip", "no sidecar runs from this installation, and the recorder needs nothing")
    if missing:
        do = "pip install 'headway[exporter]'"
        return Finding("extra", "fail", f"the sidecar needs {', '.join(missing)}, not installed here", do)
    return Finding("extra", "ok", "all that the sidecar needs is installed")


def _python(seen: Trainer) -> Finding:
    name = ".".join(map(str, seen.python))
    if seen.python >= (3, 13) and not seen.nvrx:
        return Finding("python", "warn", f"there are no wheels of NVRx for Python {name}", "use Python 3.10 to 3.12")
    return Finding("python", "ok", f"Python {name}")


def _torch(seen: Trainer) -> Finding:
    version = seen.versions.get("torch")
    if version is None:
        return Finding("torch", "skip", "torch is not installed here")
    if seen.gpus and "+cpu" in version:
        do = "install a CUDA build (pytorch.org/get-started)"
        return Finding("torch", "fail", f"torch {version} is built for CPUs, and there are GPUs ({seen.gpus})", do)
    return Finding("torch", "ok", f"torch {version}")


def _nvrx(seen: Trainer) -> Finding:
    found, name = seen.nvrx, f"NVRx {seen.versions.get('nvidia-resiliency-ext')}"
    if not found:
        return Finding(
            "nvrx", "skip", "nvidia-resiliency-ext is not installed: steps and faults are recorded without it"
        )
    missing = [one for one in _NEEDED.get(found[:2], ()) if not seen.versions.get(one)]
    if missing:
        what = f"{name} needs {' and '.join(missing)} and does not say so"
        return Finding("nvrx", "fail", what, f"pip install {' '.join(missing)}")
    if found < OLDEST or found[:2] > NEWEST:
        do = "use 0.4.1, 0.6.0 or 0.7.0, or try all layers by `headway demo` first"
        return Finding("nvrx", "warn", f"{name} is not tested with Headway", do)
    return Finding("nvrx", "ok", name)


def _no_gpu(seen: Trainer) -> Finding:
    if seen.gpus is None:
        return Finding("no-gpu", "skip", "the driver does not answer")
    if seen.gpus:
        return Finding("no-gpu", "ok", f"GPUs here: {seen.gpus}")
    do = "save by torch.save in an AsyncCallsQueue(persistent=True): TorchAsyncCheckpoint and FileSystemWriterAsync need CUDA"
    if (seen.nvrx or ()) >= (0, 6):
        do += "; hide LOCAL_RANK while inprocess.Wrapper is made, or its GPU health checks fail each restart"
    return Finding("no-gpu", "warn", "there is no GPU here; if training runs on CPU, parts of NVRx do not work", do)


def _heartbeats(seen: Trainer) -> Finding:
    in_force = seen.settings.get("heartbeat_rank_seconds")
    words = seen.command or ()
    if in_force is not None:
        return Finding("heartbeats", "ok", f"a rank that is silent for {in_force:g} s is killed")
    told = heartbeat_seconds(words)
    if told is not None:
        return Finding("heartbeats", "ok", f"the launcher is told a heartbeat time-out of {told:g} s")
    if any(_NO_MONITORS.fullmatch(word.rpartition("/")[2]) for word in words):
        do = "start the workers by ft_launcher --ft-rank-heartbeat-timeout 900"
        return Finding("heartbeats", "warn", "torchrun has no rank monitors: hangs are not noticed", do)
    if any(_CONFIG_FILE.fullmatch(word) for word in words):
        return Finding("heartbeats", "skip", "the launcher's time-outs are in a file, which is not read here")
    if (seen.nvrx or ()) >= (0, 6):
        known = "is told none" if words else "is not known here (write it after --)"
        what = f"heartbeat time-outs are off by default in this NVRx, and the launcher {known}: hangs are not noticed"
        do = "ft_launcher --ft-rank-heartbeat-timeout 900 --ft-initial-rank-heartbeat-timeout 1200"
        return Finding("heartbeats", "warn", what, do)
    return Finding("heartbeats", "ok", "NVRx' defaults: 60 min to the first heartbeat, 45 min between two")


def _nccl(seen: Trainer) -> Finding:
    if not seen.gpus:
        return Finding("nccl", "skip", "no GPU answers here")
    if seen.rethrow != "0":
        what = "TORCH_NCCL_RETHROW_CUDA_ERRORS is not 0: NCCL's errors kill the process before it can restart in place"
        return Finding("nccl", "warn", what, "export TORCH_NCCL_RETHROW_CUDA_ERRORS=0 where inprocess.Wrapper is used")
    return Finding("nccl", "ok", "TORCH_NCCL_RETHROW_CUDA_ERRORS=0")
