"""Metrics that rules already use and that the sidecar does not export yet: health of GPUs.

Their rules are silent until then. A family whose metrics are in the exporter's schema leaves this list (a test says so), and from then on
the schema alone is what the rules are checked against.
"""

from __future__ import annotations

from typing import Final

from headway_exporter.schema import METRICS, Labels, Metric

FAMILIES: Final = ("headway_gpu_",)

_GPU: Final[Labels] = {"gpu": None, "UUID": None, "pci_bus_id": None, "modelName": None}

_CATALOGUE: Final = (
    Metric("headway_gpu_up", "gauge", "1 when the driver answers for this GPU, 0 when it is gone.", _GPU),
    Metric("headway_gpu_throttle_active", "gauge", "1 when the clock is held down.", {**_GPU, "reason": None}),
    Metric("headway_gpu_ecc_errors_total", "counter", "Memory errors.", {**_GPU, "type": None, "counter": None}),
    Metric("headway_gpu_row_remap_failed", "gauge", "1 when a bad row could not be replaced.", _GPU),
    Metric("headway_gpu_nvlinks_active", "gauge", "NVLinks that are up.", _GPU),
    Metric("headway_gpu_nvlink_errors_total", "counter", "NVLink errors.", {**_GPU, "kind": None}),
    Metric("headway_gpu_xid_errors_total", "counter", "Driver errors.", {**_GPU, "xid": None, "class": None}),
    Metric("headway_gpu_recovery_action", "gauge", "What the driver asks for; 0 is nothing.", _GPU),
)

PLANNED: Final = {metric.name: metric for metric in _CATALOGUE}
KNOWN: Final = {**PLANNED, **METRICS}
"""All that a rule may name; the schema has the last word."""
