"""As `alert_cases`, for the hardware and the host."""

from __future__ import annotations

from alert_cases import Case
from promtool import Expected, one

_GPU = {"gpu": "0", "UUID": "GPU-a", "pci_bus_id": "0000:01:00.0", "modelName": "H200"}
_OTHER = _GPU | {"gpu": "1", "UUID": "GPU-b", "pci_bus_id": "0000:02:00.0"}
_NAMELESS = {"gpu": "1", "UUID": "", "pci_bus_id": "", "modelName": ""}
"""Lost before the sidecar began."""

HEALTH_CASES = (
    Case(
        "HeadwayGpuHardwareFault",
        {one("headway_gpu_xid_last_timestamp_seconds", **{"class": "hardware"}, **_GPU): "_x21 315x380"},
        silent="5m",
        fires="5m30s",
        since="5m15s",
        resolved="81m",
        expected=Expected(
            "critical",
            "GPUs of run demo with a hardware fault: 1",
            "The driver reported a hardware error, or asks that the GPU be reset or drained: GPU-a in pod 0. Drain the node of run demo; "
            "let nothing be placed there before the GPU was reset and tested.",
        ),
        near={
            "an application's error": {
                one("headway_gpu_xid_last_timestamp_seconds", **{"class": "application"}, **_GPU): "_x21 315x380"
            },
            "one of long ago": {
                one("headway_gpu_xid_last_timestamp_seconds", **{"class": "hardware"}, **_GPU): "-900x400"
            },
        },
    ),
    Case(
        "HeadwayGpuHardwareFault",
        {
            one("headway_gpu_recovery_action", **_GPU): "0x20 4x40 0x300",
            one("headway_gpu_recovery_action", **_OTHER): "0x20 1x40 0x300",
        },
        silent="5m",
        fires="6m",
        since="5m15s",
        resolved="76m",
        expected=Expected(
            "critical",
            "GPUs of run demo with a hardware fault: 2",
            "The driver reported a hardware error, or asks that the GPU be reset or drained: GPU-a in pod 0, GPU-b in pod 0. Drain the "
            "node of run demo; let nothing be placed there before the GPU was reset and tested.",
        ),
        near={"it asks for nothing": {one("headway_gpu_recovery_action", **_GPU): "0x400"}},
    ),
    Case(
        "HeadwayGpuMemoryFault",
        {one("headway_gpu_ecc_errors_total", type="uncorrected", counter="volatile", **_GPU): "0x20 1x380"},
        silent="5m",
        fires="5m30s",
        since="5m15s",
        resolved="81m",
        expected=Expected(
            "critical",
            "GPUs of run demo whose memory cannot be trusted: 1",
            "Uncorrected memory errors, or a bad row that could not be replaced: GPU-a in pod 0. Losses of run "
            "demo since then may be wrong. "
            "Drain the node and go back to a checkpoint from before.",
        ),
        near={
            "corrected errors": {
                one("headway_gpu_ecc_errors_total", type="corrected", counter="volatile", **_GPU): "0x20 90x380"
            }
        },
    ),
    Case(
        "HeadwayGpuMemoryFault",
        {one("headway_gpu_row_remap_failed", **_GPU): "0x20 1x40 0x300"},
        silent="5m",
        fires="5m30s",
        since="5m15s",
        resolved="76m",
        expected=Expected(
            "critical",
            "GPUs of run demo whose memory cannot be trusted: 1",
            "Uncorrected memory errors, or a bad row that could not be replaced: GPU-a in pod 0. Losses of run demo since then may be "
            "wrong. Drain the node and go back to a checkpoint from before.",
        ),
        near={"a row that the next reset replaces": {one("headway_gpu_row_remap_pending", **_GPU): "0x20 1x380"}},
    ),
    Case(
        "HeadwayGpuLost",
        {one("headway_gpu_up", **_GPU): "1x20 0x40 1x300", one("headway_gpu_up", **_OTHER): "1x400"},
        silent="5m30s",
        fires="5m45s",
        resolved="21m",
        expected=Expected(
            "critical",
            "GPUs of run demo that are gone: 1",
            "The driver does not answer for GPU-a in pod 0: the GPU is lost, or the driver hangs. No restart on "
            "this node helps. Look with nvidia-smi and for Xid in dmesg, drain the node, then reset the GPU or reboot.",
        ),
        near={"one missed answer": {one("headway_gpu_up", **_GPU): "1x20 0 1x300"}},
    ),
    Case(
        "HeadwayGpuLost",
        {one("headway_gpu_up", **(_NAMELESS | {"gpu": gpu})): "_x21 0x40 stale" for gpu in "12"},
        silent="5m30s",
        fires="5m45s",
        resolved="21m",
        expected=Expected(
            "critical",
            "GPUs of run demo that are gone: 2",
            "The driver does not answer for GPU 1 in pod 0, GPU 2 in pod 0: the GPU is lost, or the driver hangs. No restart on this node "
            "helps. Look with nvidia-smi and for Xid in dmesg, drain the node, then reset the GPU or reboot.",
        ),
        near={"the driver gave no handle once": {one("headway_gpu_up", **_NAMELESS): "_x21 0 1x300"}},
    ),
    Case(
        "HeadwayGpuThrottled",
        {one("headway_gpu_throttle_active", reason="hw_thermal", **_GPU): "0x20 1x80 0x300"},
        silent="15m",
        fires="15m15s",
        resolved="31m",
        expected=Expected(
            "warning",
            "GPUs of run demo that are held back by heat or power: 1",
            "The hardware holds down the clock of GPU-a in pod 0. Every rank of run demo waits for the slowest "
            "one. Check cooling and power of "
            "the node.",
        ),
        near={"at its power limit": {one("headway_gpu_throttle_active", reason="sw_power_cap", **_GPU): "0x20 1x380"}},
    ),
    Case(
        "HeadwayNvlinkDegraded",
        {one("headway_gpu_nvlink_errors_total", kind="crc", **_GPU): "0x20 7x380"},
        silent="6m",
        fires="6m15s",
        resolved="26m",
        expected=Expected(
            "warning",
            "GPUs of run demo with NVLinks down or in error: 1",
            "Link errors, or fewer links than other GPUs of the model have: GPU-a in pod 0. Collectives of run demo get slow or hang; "
            "drain the node.",
        ),
        near={
            "packets sent again": {one("headway_gpu_nvlink_errors_total", kind="replay", **_GPU): "0+3x400"},
            "a model with fewer links": {
                one("headway_gpu_nvlinks_active", **_GPU): "18x400",
                one("headway_gpu_nvlinks_active", **(_OTHER | {"modelName": "L40S"})): "0x400",
            },
        },
    ),
    Case(
        "HeadwayNvlinkDegraded",
        {
            one("headway_gpu_nvlinks_active", **_GPU): "18x20 17x40 18x300",
            one("headway_gpu_nvlinks_active", **_OTHER): "18x400",
        },
        silent="6m",
        fires="6m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "GPUs of run demo with NVLinks down or in error: 1",
            "Link errors, or fewer links than other GPUs of the model have: GPU-a in pod 0. Collectives of run demo get slow or hang; "
            "drain the node.",
        ),
        near={"all have the same": {one("headway_gpu_nvlinks_active", **gpu): "17x400" for gpu in (_GPU, _OTHER)}},
    ),
    Case(
        "HeadwayHostMemoryPressure",
        {
            one("headway_host_memory_used_bytes", scope="container"): "50x20 97x40 50x300",
            one("headway_host_memory_limit_bytes", scope="container"): "100x400",
        },
        silent="10m",
        fires="10m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "A pod of run demo, or its node, uses 97% of its memory",
            "The fullest: container of pod 0 (97%). The kernel will kill a process of run demo when the limit is reached, and the "
            "checkpoint writers are the largest. Find out what grows (queued saves, data workers, another pod on the node), or raise the "
            "limit.",
        ),
        near={
            "full, but not over": {
                one("headway_host_memory_used_bytes", scope="container"): "50x20 95x380",
                one("headway_host_memory_limit_bytes", scope="container"): "100x400",
            },
            "no limit, on a node with room": {
                one("headway_host_memory_used_bytes", scope="container"): "50x20 97x380",
                one("headway_host_memory_used_bytes", scope="node"): "150x20 197x380",
                one("headway_host_memory_limit_bytes", scope="node"): "1000x400",
            },
            "a container above what the node has in use": {
                one("headway_host_memory_used_bytes", scope="container"): "97x400",
                one("headway_host_memory_limit_bytes", scope="container"): "200x400",
                one("headway_host_memory_used_bytes", scope="node"): "50x400",
                one("headway_host_memory_limit_bytes", scope="node"): "100x400",
            },
        },
    ),
    Case(
        "HeadwayStorageLow",
        {
            one("headway_storage_available_bytes", volume="checkpoints"): "50x20 9x40 50x300",
            one("headway_storage_size_bytes", volume="checkpoints"): "100x400",
        },
        silent="10m",
        fires="10m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "A volume of run demo has only 9% left",
            "Nearly full: checkpoints (9%). The next checkpoints of run demo will fail when it has no more space, or room for files. "
            "Remove old checkpoints, never the newest two that are durable, or make the volume larger.",
        ),
        near={
            "a tenth is left": {
                one("headway_storage_available_bytes", volume="checkpoints"): "50x20 10x380",
                one("headway_storage_size_bytes", volume="checkpoints"): "100x400",
            }
        },
    ),
    Case(
        "HeadwayStorageLow",
        {
            one("headway_storage_available_bytes", volume="checkpoints"): "50x400",
            one("headway_storage_size_bytes", volume="checkpoints"): "100x400",
            one("headway_storage_inodes_available_ratio", volume="checkpoints"): "0.5x20 0.02x40 0.5x300",
        },
        silent="10m",
        fires="10m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "A volume of run demo has only 2% left",
            "Nearly full: checkpoints (2%). The next checkpoints of run demo will fail when it has no more space, or room for files. "
            "Remove old checkpoints, never the newest two that are durable, or make the volume larger.",
        ),
        near={"a tenth is left": {one("headway_storage_inodes_available_ratio", volume="checkpoints"): "0.1x400"}},
    ),
    Case(
        "HeadwayNicDown",
        {one("headway_nic_up", device="mlx5_0"): "1x20 0x40 1x300"},
        silent="6m",
        fires="6m15s",
        resolved="21m",
        expected=Expected(
            "warning",
            "Network links of run demo that are down: 1",
            "Down: mlx5_0 in pod 0. Collectives of run demo take a detour or time out. Check cable and switch port, or drain the node.",
        ),
        near={"a short flap": {one("headway_nic_up", device="mlx5_0"): "1x20 0x2 1x300"}},
    ),
)
