"""*GPU and host health*, beside the ranks that run on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway_dashboards import common, hosts, links, panels, words
from headway_dashboards.model import Dashboard, Value
from headway_dashboards.queries import health as queries
from headway_dashboards.queries import parts
from headway_dashboards.queries import run as run_queries

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTHS: Final = {
    "Pod": 55,
    "Rank": 60,
    "GPU": 55,
    "UUID": 365,
    "Failures": 85,
    "Answers": 85,
    "ECC errors": 105,
    "Link errors": 105,
    "Held down by": 150,
    "Temperature": 110,
}
"""Pixels; the other columns share the rest."""
_COUNT: Final = {
    "decimals": 0,
    "thresholds": panels.colour_steps(((0.5, words.BAD),), "text"),
    "custom.cellOptions": {"type": "color-text"},
}


def _words(values: Mapping[int, Value]) -> dict[str, Any]:
    """As text what is not worth a word is grey: the colour of a timeline's empty stretch could not be read."""
    return common.coloured({**values, 0: Value(values[0].text, words.FAINT)})


_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "Failures": {"decimals": 0},
    "Answers": common.coloured(words.ANSWERS),
    "Last XID": {"unit": "dateTimeFromNow"},
    "ECC errors": _COUNT,
    "Link errors": _COUNT,
    "Bad rows": _words(words.MEMORY_ROWS),
    "Held down by": _words(words.HELD_DOWN),
    "Temperature": {"unit": "celsius", "decimals": 0},
    "Driver wants": _words(words.RECOVERY_ACTION),
}

_RANKS: Final = (
    common.state_timeline(parts.STATE_BY_POD, links.TO_WINDOW, height=6),
    panels.table(
        "GPUs and the ranks on them",
        "A row for each GPU and rank; the UUID stays with the card when it moves. Failures: those that began on the rank, since the run "
        "began. Last XID: the driver's last error that is more than news or an echo. ECC and link errors: uncorrected memory errors and "
        "NVLink errors in the time shown. Bad rows: of memory. The rest is as it is now. Drain the node of a rank that fails again and "
        "again beside red in its row.",
        queries.RANKS,
        columns={"pod_index": "Pod", "rank": "Rank", "gpu": "GPU", "UUID": "UUID"},
        values=tuple(queries.BY_RANK),
        overrides=[
            *(panels.override(name, properties) for name, properties in _LOOKS.items()),
            *(panels.override(name, {"custom.width": width}) for name, width in _WIDTHS.items()),
        ],
        sort=(("Failures", True),),
        empty="none",
    ),
    panels.series(
        "Slowest rank against the median rank",
        "Median step time of the slowest local rank over that of the median one; 1 is even. One pod that stays above the rest has a slow "
        "GPU, host or link.",
        queries.SLOWEST,
        "none",
        height=6,
        decimals=2,
    ),
    panels.series(
        "Ranks alive",
        "Trainer processes of each pod that live.",
        queries.ALIVE,
        "none",
        height=6,
        decimals=0,
        stairs=True,
    ),
)

_GPUS: Final = (
    panels.states(
        "GPU answers",
        "Whether the driver answers for the GPU. down: it has fallen off the bus, drain the node.",
        queries.GPU_UP,
        words.UP,
        width=8,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.states(
        "Clock held down",
        "Whether the GPU runs slower than it could. At its power limit it does so under full load, which is normal; minutes of heat, or of "
        "what the hardware does by itself, are not.",
        queries.THROTTLE,
        words.HELD_DOWN,
        width=8,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.states(
        "Recovery that the driver asks for",
        "What the GPU needs before it can be trusted again, of which nothing but an operator's hand can give it; the driver's manual has "
        "the list.",
        queries.ACTION,
        words.RECOVERY_ACTION,
        width=8,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.series(
        "GPU utilisation",
        "Share of the time in which a kernel ran. One GPU that is always lower than the others waits for its data or for its host.",
        queries.UTILIZATION,
        "percentunit",
        width=6,
        height=6,
        empty=words.UNMEASURED,
        most=1,
    ),
    panels.series(
        "GPU memory",
        "Memory in use, as a share of all. At 100 % the next allocation fails.",
        queries.GPU_MEMORY,
        "percentunit",
        width=6,
        height=6,
        empty=words.UNMEASURED,
        most=1,
    ),
    panels.series(
        "Temperature",
        "Of chip or memory, whichever is hotter. The clock is held down when it is too hot.",
        queries.TEMPERATURE,
        "celsius",
        width=6,
        height=6,
        empty=words.UNMEASURED,
        decimals=0,
    ),
    panels.series(
        "GPU clock",
        "What the streaming multiprocessors run at. All of a model should be alike; below, the panel above says what holds one down.",
        queries.CLOCK,
        "hertz",
        width=6,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.series(
        "Power, as a share of the limit",
        "What each GPU draws of what it may. During a step all should draw alike; one at 100% is held down by its limit.",
        queries.POWER,
        "percentunit",
        width=6,
        height=6,
        empty=words.UNMEASURED,
        usual_most=1,
    ),
    panels.stat(
        "Energy of the GPUs",
        "Used by all GPUs of the pods chosen, in the time shown.",
        queries.ENERGY,
        "watth",
        width=4,
        height=6,
        empty=words.UNMEASURED,
        decimals=1,
    ),
    panels.series(
        "NVLinks up",
        "Links of each GPU that are up. All GPUs of a node should have the same.",
        queries.NVLINKS,
        "none",
        width=6,
        height=6,
        empty=words.UNMEASURED,
        decimals=0,
        stairs=True,
    ),
    panels.series(
        "Memory replaced",
        "Rows of memory that the GPU has put spare ones in the place of, by the errors that were the reason, or pages that older GPUs use "
        "no more; in the GPU's life. Each uncorrectable one was an error that ended a process.",
        queries.REPLACED,
        "none",
        width=8,
        height=6,
        empty=words.NO_ERRORS,
        decimals=0,
        stairs=True,
    ),
    panels.series(
        "XID errors",
        "Driver errors as they come. One at the time and on the GPU of a rank's failure may be its cause; not 45, which follows whatever "
        "killed the process, nor 63, which only informs.",
        queries.XIDS,
        "none",
        width=8,
        height=6,
        empty=words.NO_ERRORS,
        decimals=0,
    ),
    panels.series(
        "Memory errors (ECC)",
        "New errors. Corrected ones are harmless when they are few; an uncorrected one ends the process that reads there.",
        queries.ECC,
        "none",
        width=8,
        height=6,
        empty=words.NO_ERRORS,
        decimals=0,
    ),
    panels.series(
        "NVLink and PCIe errors",
        "New errors. Packets that were sent again cost only time, when they are few; any other kind that keeps coming slows collectives "
        "down or breaks them.",
        queries.LINK_ERRORS,
        "none",
        width=8,
        height=6,
        empty=words.NO_ERRORS,
        decimals=0,
    ),
)

DASHBOARD: Final = Dashboard(
    uid="headway-health",
    title="GPU and host health",
    description="GPUs and hosts beside the ranks that run on them.",
    variables=(parts.DATASOURCE, parts.RUN, parts.PODS),
    notes=run_queries.NOTES,
    panels=(
        panels.row("Ranks"),
        *_RANKS,
        panels.row("GPUs"),
        *_GPUS,
        panels.row("Hosts"),
        *hosts.HOSTS,
        panels.row("Headway itself", hosts.ITSELF),
    ),
)
