"""Alerts on the hardware and the host under a run."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from headway_alerts.model import Alert, Group, Recording
from headway_alerts.texts import MOST_NAMED, NUMBER, PERCENT, RUN, THIS_RUN, in_a_line, names_of, of_all_runs

if TYPE_CHECKING:
    from headway_alerts.config import Config

FILE: Final = "health"
LOOK_SECONDS: Final = 60
_WINDOW: Final = "[15m]"
_MOST_LINKS: Final = "run:headway_gpu_nvlinks_active:max"

# Conditions, which both the expression and the message ask for: a GPU that is counted is named.
_FAULTY: Final = f"""\
headway_gpu_xid_last_timestamp_seconds{{{THIS_RUN},class="hardware"}} > time() - 900
or
headway_gpu_recovery_action{{{THIS_RUN}}} > 0"""
"""Not a counter's increase: a GPU's first XID of a number begins a series, and what begins does not increase."""
_BAD_MEMORY: Final = f"""\
sum without (counter) (
  increase(headway_gpu_ecc_errors_total{{{THIS_RUN},type="uncorrected"}}{_WINDOW})
) > 0
or
headway_gpu_row_remap_failed{{{THIS_RUN}}} == 1"""
_GONE: Final = f"headway_gpu_up{{{THIS_RUN}}} == 0"
_HELD_BACK: Final = (
    f'headway_gpu_throttle_active{{{THIS_RUN},reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"}} == 1'
)
_BAD_LINKS: Final = f"""\
headway_gpu_nvlinks_active{{{THIS_RUN}}}
< on (run, modelName) group_left ()
max_over_time({_MOST_LINKS}[6h])
or
increase(headway_gpu_nvlink_errors_total{{{THIS_RUN},kind!="replay"}}{_WINDOW}) > 0
or
headway_gpu_xid_last_timestamp_seconds{{{THIS_RUN},class="fabric"}} > time() - 900"""
"""A packet sent again has arrived. Not every generation of GPUs counts what it reports as an XID."""


def groups(config: Config) -> tuple[Group, ...]:
    """GPUs first. They are many and rarely fail: a look a minute will do."""
    most_links = Recording(_MOST_LINKS, ("run", "modelName"), "max by (run, modelName) (headway_gpu_nvlinks_active)")
    return (Group("headway-health.rules", FILE, (most_links,), LOOK_SECONDS), _alerts(config))


def _alerts(config: Config) -> Group:
    return Group(
        "headway-health",
        FILE,
        (
            _hardware_fault(config),
            _memory_fault(config),
            _lost(config),
            _throttled(config),
            _nvlink(config),
            _memory_pressure(config),
            _storage_low(config),
            _nic_down(config),
        ),
        LOOK_SECONDS,
    )


def _count(condition: str, *labels: str) -> str:
    """Of each run the places for which a condition holds, however many series say so."""
    inside = textwrap.indent(of_all_runs(condition), "  ")
    return f"count by (run) (\n  count by ({', '.join(('run', 'pod_index', *labels))}) (\n{inside}\n  )\n)"


def _gpus(condition: str) -> str:
    """The GPUs for which a condition holds now, by pod and UUID; one that was lost before the sidecar began never gave its UUID."""
    name = "{{ with $one.Labels.UUID }}{{ . }}{{ else }}GPU {{ $one.Labels.gpu }}{{ end }}"
    found = f"max by (pod_index, gpu, UUID) ({in_a_line(condition)})"
    return names_of(found, "UUID", name + " in pod {{ $one.Labels.pod_index }}")


def _hardware_fault(config: Config) -> Alert:
    return Alert(
        name="HeadwayGpuHardwareFault",
        severity="critical",
        expr=_count(_FAULTY, "UUID"),
        summary=f"GPUs of run {RUN} with a hardware fault: {NUMBER}",
        description=(
            f"The driver reported a hardware error, or asks that the GPU be reset or drained: {_gpus(_FAULTY)}. Drain the node of run "
            f"{RUN}; let nothing be placed there before the GPU was reset and tested."
        ),
        keep_seconds=max(3_600, config.keep_firing_seconds),
    )


def _memory_fault(config: Config) -> Alert:
    return Alert(
        name="HeadwayGpuMemoryFault",
        severity="critical",
        expr=_count(_BAD_MEMORY, "UUID"),
        summary=f"GPUs of run {RUN} whose memory cannot be trusted: {NUMBER}",
        description=(
            f"Uncorrected memory errors, or a bad row that could not be replaced: {_gpus(_BAD_MEMORY)}. Losses of run {RUN} since then "
            "may be wrong. Drain the node and go back to a checkpoint from before."
        ),
        keep_seconds=max(3_600, config.keep_firing_seconds),
    )


def _lost(config: Config) -> Alert:
    return Alert(
        name="HeadwayGpuLost",
        severity="critical",
        expr=_count(_GONE, "gpu", "UUID"),  # of those that never gave a UUID there may be several
        summary=f"GPUs of run {RUN} that are gone: {NUMBER}",
        description=(
            f"The driver does not answer for {_gpus(_GONE)}: the GPU is lost, or the driver hangs. No restart on "
            "this node helps. Look with nvidia-smi and for Xid in dmesg, drain the node, then reset the GPU or reboot."
        ),
        wait_seconds=30,
        keep_seconds=config.keep_firing_seconds,
    )


def _throttled(config: Config) -> Alert:
    return Alert(
        name="HeadwayGpuThrottled",
        severity="warning",
        expr=_count(_HELD_BACK, "UUID"),
        summary=f"GPUs of run {RUN} that are held back by heat or power: {NUMBER}",
        description=(
            f"The hardware holds down the clock of {_gpus(_HELD_BACK)}. Every rank of run {RUN} waits for the slowest one. Check cooling "
            "and power of the node."
        ),
        wait_seconds=config.throttled_seconds,
        keep_seconds=config.keep_firing_seconds,
    )


def _nvlink(config: Config) -> Alert:
    return Alert(
        name="HeadwayNvlinkDegraded",
        severity="warning",
        expr=_count(_BAD_LINKS, "UUID"),
        summary=f"GPUs of run {RUN} with NVLinks down or in error: {NUMBER}",
        description=(
            f"Link errors, or fewer links than other GPUs of the model have: {_gpus(_BAD_LINKS)}. Collectives of run {RUN} get slow or "
            "hang; drain the node."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )


def _memory_pressure(config: Config) -> Alert:
    full = f"""\
max by (run, pod_index, scope) (headway_host_memory_used_bytes{{{THIS_RUN}}})
/ on (run, pod_index, scope)
(max by (run, pod_index, scope) (headway_host_memory_limit_bytes{{{THIS_RUN}}}) > 0)
> {config.memory_pressure_ratio:g}"""
    fullest = names_of(
        f"topk({MOST_NAMED}, {in_a_line(full)})",
        "pod_index",
        "{{ $one.Labels.scope }} of pod {{ $one.Labels.pod_index }} ({{ $one.Value | humanizePercentage }})",
    )
    return Alert(
        name="HeadwayHostMemoryPressure",
        severity="warning",
        expr=f"max by (run) (\n{of_all_runs(full)}\n)",
        summary=f"A pod of run {RUN}, or its node, uses {PERCENT} of its memory",
        description=(
            f"The fullest: {fullest}. The kernel will kill a process of run {RUN} when the limit is reached, and the checkpoint writers "
            "are the largest. Find out what grows (queued saves, data workers, another pod on the node), or raise the limit."
        ),
        wait_seconds=300,
        keep_seconds=config.keep_firing_seconds,
    )


def _storage_low(config: Config) -> Alert:
    left = f"""\
min by (run, pod_index, volume) (headway_storage_available_bytes{{{THIS_RUN}}})
/ on (run, pod_index, volume)
(max by (run, pod_index, volume) (headway_storage_size_bytes{{{THIS_RUN}}}) > 0)
< {config.storage_low_ratio:g}
or
headway_storage_inodes_available_ratio{{{THIS_RUN}}} < {config.storage_low_ratio:g}"""
    volumes = names_of(
        f"min by (volume) ({in_a_line(left)})",
        "volume",
        "{{ $one.Labels.volume }} ({{ $one.Value | humanizePercentage }})",
    )
    return Alert(
        name="HeadwayStorageLow",
        severity="warning",
        expr=f"min by (run) (\n{of_all_runs(left)}\n)",
        summary=f"A volume of run {RUN} has only {PERCENT} left",
        description=(
            f"Nearly full: {volumes}. The next checkpoints of run {RUN} will fail when it has no more space, or room for files. Remove old "
            "checkpoints, never the newest two that are durable, or make the volume larger."
        ),
        wait_seconds=300,
        keep_seconds=config.keep_firing_seconds,
    )


def _nic_down(config: Config) -> Alert:
    cards = names_of(
        "max by (pod_index, device) (headway_nic_up{run=%q} == 0)",
        "device",
        "{{ $one.Labels.device }} in pod {{ $one.Labels.pod_index }}",
    )
    return Alert(
        name="HeadwayNicDown",
        severity="warning",
        expr="count by (run) (count by (run, pod_index, device) (headway_nic_up == 0))",
        summary=f"Network links of run {RUN} that are down: {NUMBER}",
        description=(
            f"Down: {cards}. Collectives of run {RUN} take a detour or time out. Check cable and switch port, or drain the node."
        ),
        wait_seconds=60,
        keep_seconds=config.keep_firing_seconds,
    )
