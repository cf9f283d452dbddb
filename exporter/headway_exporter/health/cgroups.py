"""The trainer's container, as its processes tell by their samples: the sidecar, in another one, cannot look into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.events import Event
    from headway_exporter.collectors import Sample
    from headway_exporter.pod import Pod


@dataclass(slots=True)
class Container:
    """The fold of samples' control group fields. Bytes; times are CLOCK_MONOTONIC seconds."""

    used_bytes: int | None = None
    """Memory that the kernel cannot take back at once: cached pages of files are left out, or every large save would look like a leak."""
    limit_bytes: int | None = None
    """None: there is no limit, or nobody said."""
    kills: int = 0
    """Out-of-memory kills that were seen to happen."""
    counter: int | None = None
    """The kernel's own counter, as far as its rise is counted."""
    rose: float | None = None
    """When it was last seen to have risen, while nobody knows yet what for."""
    counters: dict[int, int] = field(default_factory=dict)
    """What the ranks read of it last, by slot: they may be in control groups of their own, each with a counter."""

    def sample(self, slot: int, event: Event) -> None:
        """What a local rank reads: all of them are in the same container."""
        used, cache = event.fields.get("cgroup_used_bytes"), event.fields.get("cgroup_cache_bytes", 0)
        self.used_bytes = None if used is None else max(0, used - max(0, cache))
        self.limit_bytes = event.fields.get("cgroup_limit_bytes")
        counter = event.fields.get("oom_kills")
        if counter is not None:
            self._count(slot, counter, event.mono)

    def _count(self, slot: int, counter: int, at: float) -> None:
        """One kill is seen by all ranks and counted once; what a counter had when it was first seen is not ours."""
        before = self.counters.get(slot)
        if before is not None and counter < before:  # it begins anew
            self.counters.clear()
            self.counter = before = None
        known = counter if before is None else max(before, self.counter or 0)
        if counter > known:
            self.kills += counter - known
            self.rose = at
        if before is not None or self.counter is None:
            self.counter = max(counter, self.counter or 0)
        self.counters[slot] = counter

    def take_kill(self, at: float, within_seconds: float) -> bool:
        """Whether a kill was seen so long before or after; a failure that it explains takes it, so that it explains no other one."""
        found = self.rose is not None and abs(at - self.rose) <= within_seconds
        if found:
            self.rose = None
        return found

    def replaced(self) -> None:
        """There is another container in its place, whose counter begins at 0."""
        self.used_bytes = self.limit_bytes = self.counter = self.rose = None
        self.counters.clear()


def samples(pod: Pod) -> Iterator[Sample]:
    """Metrics of the container and of the trainers in it; what a dead process said last is not shown."""
    alive = pod.alive
    yield "headway_host_oom_kills_total", (), pod.container.kills
    if alive:
        yield "headway_host_memory_used_bytes", ("container",), pod.container.used_bytes
        yield "headway_host_memory_limit_bytes", ("container",), pod.container.limit_bytes
    resident = [slot.rss_bytes for slot in alive if slot.rss_bytes is not None]
    yield "headway_host_trainer_memory_bytes", (), sum(resident) if resident else None
    files = [slot.open_files for slot in alive if slot.open_files is not None]
    yield "headway_host_open_files", (), max(files, default=None)
