"""Which fields of NVML (`NVML_FI_DEV_…` in nvml.h) a GPU is asked for.

The numbers are part of its binary interface and never change their meaning. They are apart from what is made of them, because the process
that asks is small and needs nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Field = tuple[int, int]
"""Number of a field and its scope: the link, where the field is one of NVLink's, else 0."""

MOST_LINKS: Final = 36
"""NVLinks of a GPU (NVML_NVLINK_MAX_LINKS)."""

ECC: Final[Mapping[tuple[str, str], int]] = {
    ("corrected", "volatile"): 3,
    ("uncorrected", "volatile"): 4,
    ("corrected", "aggregate"): 5,
    ("uncorrected", "aggregate"): 6,
}
RETIRED: Final = (29, 30)
MEMORY_TEMPERATURE: Final = 82
ENERGY: Final = 83
PCIE_REPLAYS: Final = 94
REMAPPED: Final[Mapping[str, int]] = {"correctable": 142, "uncorrectable": 143}
REMAP_PENDING: Final = 144
REMAP_FAILED: Final = 145
RECOVERY_ACTION: Final = 230

LINK_TOTALS: Final[Mapping[str, tuple[int, ...]]] = {
    "crc": (38, 45),
    "replay": (52,),
    "recovery": (59,),
    "ecc": (160,),
}
"""All links of a GPU together; up to Hopper."""
LINK_FIELDS: Final[Mapping[str, tuple[int, ...]]] = {
    "crc": (163,),
    "replay": (161,),
    "recovery": (162, 215),
    "receive": (208,),
    "integrity": (211,),
}
"""Link by link: where a driver knows no totals. From 208 on they are NVLink 5's, which has none of the others."""
OF_LINKS: Final = frozenset(
    number for table in (LINK_TOTALS, LINK_FIELDS) for numbers in table.values() for number in numbers
)

PLAIN_FIELDS: Final[tuple[Field, ...]] = tuple(
    (number, 0)
    for number in (
        *ECC.values(),
        *RETIRED,
        MEMORY_TEMPERATURE,
        ENERGY,
        PCIE_REPLAYS,
        *REMAPPED.values(),
        REMAP_PENDING,
        REMAP_FAILED,
        RECOVERY_ACTION,
        *(number for numbers in LINK_TOTALS.values() for number in numbers),
    )
)
"""Asked of every GPU."""


def link_fields(links: Iterable[int]) -> tuple[Field, ...]:
    """Asked of a GPU with these NVLinks."""
    numbers = [number for numbers in LINK_FIELDS.values() for number in numbers]
    return tuple((number, link) for link in links for number in numbers)
