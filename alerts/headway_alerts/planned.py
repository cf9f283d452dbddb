"""Metrics that rules already use and that the sidecar does not export yet: health of host, network cards and storage.

Their rules are silent until then. A family whose metrics are in the exporter's schema leaves this list (a test says so), and from then on
the schema alone is what the rules are checked against.
"""

from __future__ import annotations

from typing import Final

from headway_exporter.schema import METRICS, Metric

FAMILIES: Final = ("headway_gpu_", "headway_host_", "headway_nic_", "headway_storage_")

_CATALOGUE: Final = (
    Metric("headway_host_memory_used_bytes", "gauge", "Memory that the trainer's container uses."),
    Metric("headway_host_memory_limit_bytes", "gauge", "What it may use."),
    Metric("headway_nic_up", "gauge", "1 when the link of a network card is up.", {"device": None}),
    Metric("headway_storage_available_bytes", "gauge", "Free space of a volume.", {"volume": None}),
    Metric("headway_storage_size_bytes", "gauge", "Size of a volume.", {"volume": None}),
)

PLANNED: Final = {metric.name: metric for metric in _CATALOGUE}
KNOWN: Final = {**PLANNED, **METRICS}
"""All that a rule may name; the schema has the last word."""
