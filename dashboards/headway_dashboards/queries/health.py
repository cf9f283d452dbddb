"""GPU and host health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headway_alerts.config import Config
from headway_dashboards.model import Query
from headway_dashboards.queries.parts import OF_PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

STORAGE_LOW: Final = Config().storage_low_ratio
MEMORY_HIGH: Final = Config().memory_pressure_ratio

NEW_SECONDS: Final = 300
"""How long ago an XID may have come that is shown as one that came."""

_POD: Final = "pod {{pod_index}}"
_GPU: Final = _POD + " GPU {{gpu}}"


def _per_gpu(name: str, *labels: str) -> str:
    return f"max by ({', '.join(('pod_index', 'gpu', *labels))}) ({name}{{{OF_PODS}}})"


def _increase(name: str, *labels: str) -> str:
    kept = ", ".join(("pod_index", "gpu", *labels))
    return f"max by ({kept}) (increase({name}{{{OF_PODS}}}[$__rate_interval])) > 0"


def _rise(name: str, *labels: str, by: str = "increase") -> str:
    kept = ", ".join(("pod_index", *labels))
    return f"max by ({kept}) ({by}({name}{{{OF_PODS}}}[$__rate_interval]))"


def _beside_ranks(gpu: str) -> str:
    """A value of each GPU, by (run, pod_index, gpu, UUID), with the ranks that run on it: a row for each, and one for a GPU without.

    On the side of the ranks are many: several may share a GPU. One whose GPU is not measured has a row by what is known of it. GPUs that
    were lost before the sidecar began have no UUID, which no rank can be joined by.
    """
    named = f"(\n{gpu}\nunless on (UUID)\nvector(1)\n)"
    joined = f"{named}\n* on (run, pod_index, UUID) group_right (gpu)\nheadway_rank_info{{{OF_PODS}}}"
    every = f"max by (pod_index, rank, gpu, UUID) (\n{joined}\nor on (run, pod_index, UUID)\n{gpu}\n)"
    return f'label_replace(\n{every},\n"rank", "none", "rank", ""\n)'


def _gpu_of(condition: str) -> str:
    return f"max by (run, pod_index, gpu, UUID) ({condition})"


_HELD_DOWN: Final = (
    f'headway_gpu_throttle_active{{{OF_PODS},reason="sw_power_cap"}}\n'
    f'or\n2 * headway_gpu_throttle_active{{{OF_PODS},reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"}}'
)
_TO_REPLACE: Final = (
    f"headway_gpu_row_remap_pending{{{OF_PODS}}}\nor\n"
    f'label_replace(2 * headway_gpu_row_remap_failed{{{OF_PODS}}}, "of", "failed", "", "")'
)

BY_RANK: Final[Mapping[str, str]] = {
    "Failures": f"""\
max by (pod_index, rank, gpu, UUID) (
  headway_rank_failures_total{{{OF_PODS}}}
  * on (run, pod_index, rank) group_left (gpu, UUID)
  max by (run, pod_index, rank, gpu, UUID) (headway_rank_info{{{OF_PODS}}})
)""",
    "Answers": _beside_ranks(_gpu_of(f"headway_gpu_up{{{OF_PODS}}}")),
    "Last XID": "1000 * "
    + _beside_ranks(
        _gpu_of(
            f'headway_gpu_xid_last_timestamp_seconds{{{OF_PODS},class=~"application|driver|hardware|fabric|unknown"}}'
        )
    ),
    "ECC errors": _beside_ranks(
        _gpu_of(f'increase(headway_gpu_ecc_errors_total{{{OF_PODS},type="uncorrected"}}[$__range])')
    ),
    "Link errors": _beside_ranks(
        "sum by (run, pod_index, gpu, UUID) (\n  max by (run, pod_index, gpu, UUID, kind) "
        f'(increase(headway_gpu_nvlink_errors_total{{{OF_PODS},kind!="replay"}}[$__range]))\n)'
    ),
    "Bad rows": _beside_ranks(_gpu_of(_TO_REPLACE)),
    "Held down by": _beside_ranks(_gpu_of(_HELD_DOWN)),
    "Temperature": _beside_ranks(_gpu_of(f"headway_gpu_temperature_celsius{{{OF_PODS}}}")),
    "Driver wants": _beside_ranks(_gpu_of(f"headway_gpu_recovery_action{{{OF_PODS}}}")),
}
"""Columns of the table of GPUs and the ranks on them."""
RANKS: Final = tuple(Query(expr, form="table") for expr in BY_RANK.values())
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
POWER: Final = (
    Query(
        "max by (pod_index, gpu) (\n"
        f"  headway_gpu_power_watts{{{OF_PODS}}}\n  / headway_gpu_power_limit_watts{{{OF_PODS}}}\n)",
        _GPU,
    ),
)
ENERGY: Final = (
    Query(
        "sum(\n  max by (run, pod_index, UUID) "
        f"(increase(headway_gpu_energy_joules_total{{{OF_PODS}}}[$__range]))\n) / 3600",
        "energy",
        "now",
    ),
)
"""Watt-hours."""
CLOCK: Final = (Query(_per_gpu("headway_gpu_clock_hertz").replace(OF_PODS, f'{OF_PODS},domain="sm"'), _GPU),)
GPU_UP: Final = (Query(_per_gpu("headway_gpu_up"), _GPU),)
XIDS: Final = (
    Query(
        f"""\
max by (pod_index, gpu, xid, class) (
  increase(headway_gpu_xid_errors_total{{{OF_PODS}}}[$__rate_interval]) > 0
  or
  (
    headway_gpu_xid_errors_total{{{OF_PODS}}}
    unless on (run, pod_index, UUID, xid)
    headway_gpu_xid_errors_total{{{OF_PODS}}} offset $__rate_interval
    and on (run, pod_index, UUID, class)
    headway_gpu_xid_last_timestamp_seconds{{{OF_PODS}}} > time() - {NEW_SECONDS}
  )
)""",
        _GPU + " XID {{xid}}",
    ),
)
"""The first of a number begins a series, and what begins does not increase. What a sidecar after a pause remembers begins one too."""
ECC: Final = (Query(_increase("headway_gpu_ecc_errors_total", "type"), _GPU + " {{type}}"),)
REPLACED: Final = (
    Query(
        f"""\
max by (pod_index, gpu, state) (headway_gpu_remapped_rows{{{OF_PODS}}}) > 0
or
label_replace(
  max by (pod_index, gpu) (headway_gpu_retired_pages{{{OF_PODS}}}) > 0,
  "state", "retired pages", "", ""
)""",
        _GPU + " {{state}}",
    ),
)
ACTION: Final = (Query(_per_gpu("headway_gpu_recovery_action"), _GPU),)
THROTTLE: Final = (Query(f"max by (pod_index, gpu) (\n{_HELD_DOWN}\n)", _GPU),)
"""A line for each of six reasons of each GPU can be read by nobody."""
NVLINKS: Final = (Query(_per_gpu("headway_gpu_nvlinks_active"), _GPU),)
LINK_ERRORS: Final = (
    Query(
        f"""\
{_increase("headway_gpu_nvlink_errors_total", "kind")}
or
label_replace(
  {_increase("headway_gpu_pcie_replays_total")},
  "kind", "PCIe replay", "", ""
)""",
        _GPU + " {{kind}}",
    ),
)

MEMORY: Final = (
    Query(
        f"max by (pod_index, scope) (\n  headway_host_memory_used_bytes{{{OF_PODS}}}\n  / headway_host_memory_limit_bytes{{{OF_PODS}}}\n)",
        "pod {{pod_index}} {{scope}}",
    ),
)
STORAGE: Final = (
    Query(
        f"""\
min by (pod_index, volume) (
  headway_storage_available_bytes{{{OF_PODS}}}
  / headway_storage_size_bytes{{{OF_PODS}}}
  or
  label_replace(headway_storage_inodes_available_ratio{{{OF_PODS}}}, "of", "files", "", "")
)""",
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
BUSY: Final = tuple(
    Query(f"max by (pod_index) ({name}{{{OF_PODS}}})", f"pod {{{{pod_index}}}} {words}")
    for name, words in (
        ("headway_host_cpu_ratio", "busy"),
        ("headway_host_load_ratio", "load"),
        ("headway_host_memory_pressure_ratio", "waits for memory"),
    )
)
TRAINER_MEMORY: Final = (Query(f"max by (pod_index) (headway_host_trainer_memory_bytes{{{OF_PODS}}})", _POD),)
OPEN_FILES: Final = (Query(f"max by (pod_index) (headway_host_open_files{{{OF_PODS}}})", _POD),)


def _ends(expr: str, label: str, words: str) -> str:
    """What rose, in words: `$1` stands for the label's value."""
    return f'label_replace(\n  {expr} > 0,\n  "end", "{words}", "{label}", "(.*)"\n)'


ENDS: Final = (
    Query(
        "\nor\n".join(
            (
                _ends(_rise("headway_container_ends_total", "reason"), "reason", "container: $1"),
                _ends(_rise("headway_pod_disruptions_total", "reason"), "reason", "pod: $1"),
                _ends(_rise("headway_container_restarts", "container", by="delta"), "container", "$1 restarted"),
                _ends(_rise("headway_host_oom_kills_total"), "", "process: out of memory"),
            )
        ),
        _POD + " {{end}}",
    ),
)
"""What Kubernetes says, and what the trainers saw of their container. One who does not ask Kubernetes has only the last."""


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

_READINGS: Final = "kubernetes|nvml|host|nics|state|storage_checkpoints|storage_state|storage_journal"

WORKS: Final = (Query(f"min by (collector) (headway_collector_success{{{OF_PODS}}})", "{{collector}}"),)
TOOK: Final = (
    Query(
        f'max by (collector) (headway_collector_duration_seconds{{{OF_PODS},collector=~"{_READINGS}"}})',
        "{{collector}}",
    ),
    Query(
        "max(\n  sum by (run, pod_index) "
        f'(headway_collector_duration_seconds{{{OF_PODS},collector!~"{_READINGS}"}})\n)',
        "all that a scrape waits for",
    ),
)
"""Readings are made beside the scrapes, which show the newest."""
SIDECAR_CPU: Final = (Query(f"max by (pod_index) (headway_sidecar_cpu_ratio{{{OF_PODS}}})", _POD),)
SIDECAR_MEMORY: Final = (Query(f"max by (pod_index) (headway_sidecar_memory_bytes{{{OF_PODS}}})", _POD),)
LEFT_OUT: Final = (
    Query(
        f"""\
sum by (reason) (max by (run, pod_index, reason) (increase(headway_events_dropped_total{{{OF_PODS}}}[$__range]))) > 0
or
sum by (reason) (max by (run, pod_index, reason) (increase(headway_clock_anomalies_total{{{OF_PODS}}}[$__range]))) > 0
or
label_replace(
  sum by (outcome) (
    max by (run, pod_index, signal, outcome) (
      increase(headway_telemetry_exports_total{{{OF_PODS},outcome=~"failed|dropped"}}[$__range])
    )
  ) > 0,
  "reason", "export $1", "outcome", "(.*)"
)
or
label_replace(
  sum by (reason) (max by (run, pod_index, reason) (increase(headway_requests_refused_total{{{OF_PODS}}}[$__range]))) > 0,
  "reason", "request $1", "reason", "(.*)"
)""",
        "{{reason}}",
        "now",
    ),
)
