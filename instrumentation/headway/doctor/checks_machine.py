"""Findings about clocks and NVIDIA's driver, from facts of `probes_machine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway.doctor.findings import Finding

if TYPE_CHECKING:
    from headway.doctor.gather import Answer

_NVML: Final = {
    9: ("the kernel's driver is not loaded, or this container may not use it", "load it; mount /dev/nvidia*"),
    18: ("the library and the kernel's driver are of different versions", "restart the container, or the machine"),
}


def clock(answer: Answer) -> Finding:
    """Durations need one CLOCK_MONOTONIC, comparing pods a wall clock that is kept."""
    facts = answer.facts
    if facts is None:
        return Finding("clock", "skip", answer.problem)
    if facts["shifted"]:
        what = "this process is in a time namespace with a CLOCK_MONOTONIC of its own"
        return Finding("clock", "warn", what, "run trainer and sidecar in one time namespace")
    if facts["kept"] is False:
        do = "start chronyd (with rtcsync, or the kernel is not told) or systemd-timesyncd on the machine"
        return Finding("clock", "warn", "the kernel says that nothing keeps the wall clock right", do)
    if facts["kept"] is None:
        return Finding("clock", "skip", "the kernel does not tell whether the wall clock is kept right")
    return Finding("clock", "ok", "the wall clock is kept right")


def nvml(answer: Answer | None) -> Finding:
    """`answer` is None where GPUs are switched off."""
    if answer is None:
        return Finding("nvml", "skip", "HEADWAY_GPUS is off")
    if answer.hangs:
        do = "look for XIDs in the kernel's log; the GPU or the machine needs a reset. HEADWAY_GPUS=off leaves it alone"
        return Finding("nvml", "fail", f"the driver hangs: {answer.problem}", do)
    facts = answer.facts
    if facts is None:
        return Finding("nvml", "fail", f"the driver cannot be asked: {answer.problem}", "install it anew")
    if not facts["library"]:
        do = "where there are GPUs: NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility in this container"
        return Finding("nvml", "skip", "there is no NVIDIA driver here (libnvidia-ml.so.1)", do)
    if facts["code"]:
        what, do = _NVML.get(facts["code"], ("it does not answer", "look at nvidia-smi and the kernel's log"))
        return Finding("nvml", "fail", f"{what} (NVML code {facts['code']})", do)
    if not facts["gpus"]:
        return Finding("nvml", "warn", "the driver shows no GPU", "set NVIDIA_VISIBLE_DEVICES=all in this container")
    version = f", driver {facts['version']}" if facts["version"] else ""
    return Finding("nvml", "ok", f"GPUs that answer: {facts['gpus']}{version}")
