"""Panels on what carries the run beside its GPUs: hosts, networks, storage and containers; and on Headway itself."""

from __future__ import annotations

from typing import Final

from headway_dashboards import panels, words
from headway_dashboards.queries import health as queries

NO_SAMPLES: Final = "no trainer has told yet"

HOSTS: Final = (
    panels.series(
        "Host memory",
        "Use of the trainer container's memory limit and of the node's memory, cached files left out. At 100 % the kernel kills a process.",
        queries.MEMORY,
        "percentunit",
        width=8,
        height=6,
        empty=words.UNMEASURED,
        most=1,
        steps=((queries.MEMORY_HIGH, words.BAD),),
    ),
    panels.series(
        "Processors, load and memory pressure",
        "busy: share of the node's processors. load: processes that ran or waited to, for each processor; above 100% they wait. waits for "
        "memory: share of the time in which some process did; minutes of that come before the kernel kills one.",
        queries.BUSY,
        "percentunit",
        width=8,
        height=6,
        empty=words.UNMEASURED,
        usual_most=1,
    ),
    panels.series(
        "Free storage",
        "Free share of each volume: of its space or of the files that it can hold, whichever is scarcer. Without it checkpoints fail.",
        queries.STORAGE,
        "percentunit",
        width=8,
        height=6,
        empty=words.UNMEASURED,
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
        empty=words.UNMEASURED,
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
        "Memory of the trainers",
        "Resident memory of a pod's ranks, without their checkpoint writers. It should be level: a slope ends in an out-of-memory kill.",
        queries.TRAINER_MEMORY,
        "bytes",
        width=8,
        height=6,
        empty=NO_SAMPLES,
    ),
    panels.series(
        "Open files",
        "Of the local rank that has the most. It should be level: one that leaks files fails at its limit, often 1024.",
        queries.OPEN_FILES,
        "none",
        width=8,
        height=6,
        empty=NO_SAMPLES,
        decimals=0,
    ),
    panels.series(
        "Ends of containers and pods",
        "Containers that ended or were restarted and pods that were taken away, by how Kubernetes says, and processes killed for lack of "
        "memory, as the trainers see it. One at the time of a failure is its cause, or follows from it.",
        queries.ENDS,
        "none",
        width=8,
        height=6,
        empty="none, or Kubernetes is not asked",
        decimals=0,
    ),
)

ITSELF: Final = (
    panels.states(
        "Parts of the sidecars that work",
        "Whether each part could be read in all the pods chosen. A failed one costs its own metrics, which are then missing, not old; its "
        "log says why.",
        queries.WORKS,
        words.WORKS,
        width=16,
        height=10,
    ),
    panels.bars(
        "Left out and contradicted",
        "In the time shown: events, steps and files that could not be used, times that contradicted each other, incidents that an "
        "OpenTelemetry endpoint did not take, and requests that a sidecar's port turned away. Empty is good: the pictures are complete.",
        queries.LEFT_OUT,
        "none",
        width=8,
        height=10,
        decimals=0,
        colour=words.BAD,
        empty="nothing, all was read",
    ),
    panels.series(
        "Processor time of the sidecars",
        "Share of one processor. A hundredth is usual; more for a while after a start, when journals are read again.",
        queries.SIDECAR_CPU,
        "percentunit",
        width=8,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.series(
        "Memory of the sidecars",
        "Resident memory. It should be level, below the container's limit.",
        queries.SIDECAR_MEMORY,
        "bytes",
        width=8,
        height=6,
        empty=words.UNMEASURED,
    ),
    panels.series(
        "Time that each reading takes",
        "Of the slowest pod. Readings are made beside the scrapes and cannot delay them; one that takes seconds has a slow driver, disk or "
        "API behind it.",
        queries.TOOK,
        "s",
        width=8,
        height=6,
    ),
)
