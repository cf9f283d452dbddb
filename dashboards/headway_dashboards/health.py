"""*GPU and host health*, beside the ranks that run on them."""

from __future__ import annotations

from typing import Final

from headway_dashboards import common, links, panels, words
from headway_dashboards.model import Dashboard
from headway_dashboards.queries import health as queries
from headway_dashboards.queries import parts
from headway_dashboards.queries import run as run_queries

_WIDTHS: Final = {"Pod": 70, "Rank": 70, "GPU": 70, "Failures": 90}
"""Pixels: the rest is for the UUID."""
UNMEASURED: Final = "this sidecar does not measure it"
NO_ERRORS: Final = "none, or no GPU is measured"
"""Of what is shown only when it happens: that there is nothing to see is good news."""

_RANKS: Final = (
    common.state_timeline(parts.STATE_BY_POD, links.TO_WINDOW, height=6),
    panels.table(
        "Ranks and their GPUs",
        "Which rank runs on which GPU, and how many failures began on it since the run began. The UUID stays with the card when it moves.",
        queries.RANKS,
        columns={"pod_index": "Pod", "rank": "Rank", "gpu": "GPU", "UUID": "UUID"},
        values=("Failures",),
        overrides=[panels.override(name, {"custom.width": width}) for name, width in _WIDTHS.items()],
        sort=(("Failures", True),),
        width=12,
    ),
    panels.series(
        "Slowest rank against the median rank",
        "Median step time of the slowest local rank over that of the median one; 1 is even. One pod that stays above the rest has a slow "
        "GPU, host or link.",
        queries.SLOWEST,
        "none",
        width=6,
        decimals=2,
    ),
    panels.series(
        "Ranks alive",
        "Trainer processes of each pod that live.",
        queries.ALIVE,
        "none",
        width=6,
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
        width=12,
        height=6,
        empty=UNMEASURED,
    ),
    panels.states(
        "Clock held down",
        "Whether the GPU runs slower than it could. At its power limit it does so under full load, which is normal; minutes of heat, or of "
        "what the hardware does by itself, are not.",
        queries.THROTTLE,
        words.HELD_DOWN,
        width=12,
        height=6,
        empty=UNMEASURED,
    ),
    panels.series(
        "GPU utilisation",
        "Share of the time in which a kernel ran. One GPU that is always lower than the others waits for its data or for its host.",
        queries.UTILIZATION,
        "percentunit",
        width=6,
        height=6,
        empty=UNMEASURED,
        most=1,
    ),
    panels.series(
        "GPU memory",
        "Memory in use, as a share of all. At 100 % the next allocation fails.",
        queries.GPU_MEMORY,
        "percentunit",
        width=6,
        height=6,
        empty=UNMEASURED,
        most=1,
    ),
    panels.series(
        "Temperature",
        "Of chip or memory, whichever is hotter. The clock is held down when it is too hot.",
        queries.TEMPERATURE,
        "celsius",
        width=6,
        height=6,
        empty=UNMEASURED,
        decimals=0,
    ),
    panels.series(
        "Power",
        "What each GPU draws. During a step all of a model should draw alike.",
        queries.POWER,
        "watt",
        width=6,
        height=6,
        empty=UNMEASURED,
        decimals=0,
    ),
    panels.series(
        "XID errors",
        "Driver errors as they come. One at the time and on the GPU of a rank's failure may be its cause; not 45, which follows whatever "
        "killed the process, nor 63, which only informs.",
        queries.XIDS,
        "none",
        width=8,
        height=6,
        empty=NO_ERRORS,
        decimals=0,
    ),
    panels.series(
        "Memory errors (ECC)",
        "New errors. Corrected ones are harmless when they are few; an uncorrected one ends the process that reads there.",
        queries.ECC,
        "none",
        width=8,
        height=6,
        empty=NO_ERRORS,
        decimals=0,
    ),
    panels.series(
        "NVLink errors",
        "New errors. Any that keep coming slow collectives down.",
        queries.NVLINK_ERRORS,
        "none",
        width=8,
        height=6,
        empty=NO_ERRORS,
        decimals=0,
    ),
    panels.states(
        "Row remap failed",
        "yes: the GPU has no spare rows left, it must be replaced.",
        queries.REMAP,
        words.YES_IS_BAD,
        width=8,
        height=6,
        empty=UNMEASURED,
    ),
    panels.series(
        "NVLinks up",
        "Links of each GPU that are up. All GPUs of a node should have the same.",
        queries.NVLINKS,
        "none",
        width=8,
        height=6,
        empty=UNMEASURED,
        decimals=0,
        stairs=True,
    ),
    panels.series(
        "Recovery that the driver asks for",
        "0: none. Anything else: the GPU wants a reset, a reboot or to be drained; the driver's manual has the list.",
        queries.ACTION,
        "none",
        width=8,
        height=6,
        empty=UNMEASURED,
        decimals=0,
        stairs=True,
    ),
)

_HOST: Final = (
    panels.series(
        "Host memory",
        "Use of the trainer container's memory limit and of the node's memory, cached files left out. At 100 % the kernel kills a process.",
        queries.MEMORY,
        "percentunit",
        width=8,
        height=6,
        empty=UNMEASURED,
        most=1,
        steps=((queries.MEMORY_HIGH, words.BAD),),
    ),
    panels.series(
        "Free storage",
        "Free share of each volume. Checkpoints fail when it runs out.",
        queries.STORAGE,
        "percentunit",
        width=8,
        height=6,
        empty=UNMEASURED,
        most=1,
        steps=((queries.STORAGE_LOW, words.BAD),),
    ),
    panels.states(
        "Network cards",
        "Whether each InfiniBand, RoCE or EFA device that ever had a link has one.",
        queries.NIC,
        words.UP,
        width=8,
        height=6,
        empty=UNMEASURED,
    ),
    panels.series(
        "Processors and memory pressure",
        "Share of the node's processors that are busy, and of the time in which some process waited for memory: minutes of that come "
        "before the kernel kills one.",
        queries.BUSY,
        "percentunit",
        width=8,
        height=6,
        empty=UNMEASURED,
        most=1,
    ),
    panels.series(
        "Checkpoint throughput",
        "Bytes of all local ranks over the time of the slowest one, of each save and load. One pod far below the rest has a slow way to "
        "the storage.",
        queries.THROUGHPUT,
        "Bps",
        width=8,
        height=6,
        empty="no save or load in this time",
    ),
    panels.series(
        "Network errors",
        "What the cards count anew: lost links and broken symbols are a cable's, retries and time-outs the path's. Single ones are normal.",
        queries.NIC_ERRORS,
        "none",
        width=8,
        height=6,
        empty="none",
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
        *_HOST,
    ),
)
