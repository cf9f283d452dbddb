"""GPU and host health."""

from __future__ import annotations

from typing import Final

from headway_alerts.config import Config
from headway_dashboards.model import Query
from headway_dashboards.queries.parts import OF_PODS

STORAGE_LOW: Final = Config().storage_low_ratio
MEMORY_HIGH: Final = Config().memory_pressure_ratio

_GPU: Final = "pod {{pod_index}} GPU {{gpu}}"


def _per_gpu(name: str, *labels: str) -> str:
    return f"max by ({', '.join(('pod_index', 'gpu', *labels))}) ({name}{{{OF_PODS}}})"


def _increase(name: str, *labels: str) -> str:
    kept = ", ".join(("pod_index", "gpu", *labels))
    return f"max by ({kept}) (increase({name}{{{OF_PODS}}}[$__rate_interval])) > 0"


RANKS: Final = (
    Query(
        f"""\
max by (pod_index, rank, gpu, UUID) (
  headway_rank_failures_total{{{OF_PODS}}}
  * on (run, pod_index, rank) group_left (gpu, UUID)
  headway_rank_info{{{OF_PODS}}}
)""",
        form="table",
    ),
)
SLOWEST: Final = (Query(f"max by (pod_index) (headway_slowest_rank_ratio{{{OF_PODS}}})", "pod {{pod_index}}"),)
ALIVE: Final = (Query(f"pod:headway_ranks:max{{{OF_PODS}}}", "pod {{pod_index}}"),)

UTILIZATION: Final = (Query(_per_gpu("headway_gpu_utilization_ratio"), _GPU),)
GPU_MEMORY: Final = (
    Query(
        "max by (pod_index, gpu) (\n"
        f"  headway_gpu_memory_used_bytes{{{OF_PODS}}}\n  / headway_gpu_memory_total_bytes{{{OF_PODS}}}\n)",
        _GPU,
    ),
)
TEMPERATURE: Final = (Query(_per_gpu("headway_gpu_temperature_celsius"), _GPU),)
POWER: Final = (Query(_per_gpu("headway_gpu_power_watts"), _GPU),)
GPU_UP: Final = (Query(_per_gpu("headway_gpu_up"), _GPU),)
XIDS: Final = (
    Query(
        f"""\
max by (pod_index, gpu, xid, class) (
  increase(headway_gpu_xid_errors_total{{{OF_PODS}}}[$__rate_interval]) > 0
  or
  (
    headway_gpu_xid_errors_total{{{OF_PODS}}}
    unless
    headway_gpu_xid_errors_total{{{OF_PODS}}} offset $__rate_interval
  )
)""",
        _GPU + " XID {{xid}}",
    ),
)
"""The first of a number begins a series, and what begins does not increase."""
ECC: Final = (Query(_increase("headway_gpu_ecc_errors_total", "type"), _GPU + " {{type}}"),)
REMAP: Final = (Query(_per_gpu("headway_gpu_row_remap_failed"), _GPU),)
ACTION: Final = (Query(_per_gpu("headway_gpu_recovery_action"), _GPU),)
THROTTLE: Final = (
    Query(
        f"""\
max by (pod_index, gpu) (
  headway_gpu_throttle_active{{{OF_PODS},reason="sw_power_cap"}}
  or
  2 * headway_gpu_throttle_active{{{OF_PODS},reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"}}
)""",
        _GPU,
    ),
)
"""A line for each of six reasons of each GPU can be read by nobody."""
NVLINKS: Final = (Query(_per_gpu("headway_gpu_nvlinks_active"), _GPU),)
NVLINK_ERRORS: Final = (Query(_increase("headway_gpu_nvlink_errors_total", "kind"), _GPU + " {{kind}}"),)

MEMORY: Final = (
    Query(
        f"max by (pod_index, scope) (\n  headway_host_memory_used_bytes{{{OF_PODS}}}\n  / headway_host_memory_limit_bytes{{{OF_PODS}}}\n)",
        "pod {{pod_index}} {{scope}}",
    ),
)
STORAGE: Final = (
    Query(
        f"min by (pod_index, volume) (\n  headway_storage_available_bytes{{{OF_PODS}}}\n  / headway_storage_size_bytes{{{OF_PODS}}}\n)",
        "pod {{pod_index}} {{volume}}",
    ),
)
NIC: Final = (Query(f"min by (pod_index, device) (headway_nic_up{{{OF_PODS}}})", "pod {{pod_index}} {{device}}"),)
NIC_ERRORS: Final = (
    Query(
        f"max by (pod_index, device, kind) (increase(headway_nic_errors_total{{{OF_PODS}}}[$__rate_interval])) > 0",
        "pod {{pod_index}} {{device}} {{kind}}",
    ),
)
BUSY: Final = (
    Query(f"max by (pod_index) (headway_host_cpu_ratio{{{OF_PODS}}})", "pod {{pod_index}} processors busy"),
    Query(
        f"max by (pod_index) (headway_host_memory_pressure_ratio{{{OF_PODS}}})", "pod {{pod_index}} waits for memory"
    ),
)


def _throughput(size: str, times: str) -> str:
    """Bytes over seconds, in the stretches of time in which there were any."""
    done, seconds = (
        f"max by (pod_index) (rate({name}{{{OF_PODS}}}[$__rate_interval]))" for name in (size, f"{times}_sum")
    )
    return f"({done} > 0)\n/ on (pod_index)\n{seconds}"


THROUGHPUT: Final = (
    Query(
        _throughput("headway_storage_written_bytes_total", "headway_checkpoint_write_seconds"),
        "pod {{pod_index}} saves",
    ),
    Query(
        _throughput("headway_storage_read_bytes_total", "headway_checkpoint_load_seconds"), "pod {{pod_index}} loads"
    ),
)
