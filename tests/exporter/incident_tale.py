"""Stories of incidents as data: a line of acts, told to a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pod_story import Story

if TYPE_CHECKING:
    from headway_exporter.incidents import Incident

GAP = 1.0
"""Seconds between two acts."""


class Tale(Story):
    """Tells acts, apart by commas.

    `steps 9-12` · `fail 1` (rank 1 raises) · `echo 1` (its collective broke) · `kill 1` · `stop` (the launcher is told to end) ·
    `gone` (all processes die) · `in_process 8`, `launcher 8`, `orchestrator 8` (restart, and load of step 8) · `commit 12` ·
    `reject 12` · `finish` · `wait 100` (seconds).
    """

    def __init__(
        self,
        ranks: int = 2,
        pod_index: str = "0",
        run: str = "story",
        first_rank: int = 0,
        world_size: int | None = None,
        **told: Any,
    ) -> None:
        super().__init__(pod_index, run)
        self.first_rank, self.world_size = first_rank, world_size
        self.told = told
        """Fields of every `process_started`."""
        self.ranks = tuple(range(ranks))
        self.now = self.running(steps=10, slots=self.ranks, **told)
        self._restarts = 0

    def tell(self, acts: str) -> Tale:
        """The acts in their order."""
        for act in acts.split(","):
            word, _, rest = act.strip().partition(" ")
            getattr(self, f"_{word}")(rest)
            self.now += GAP
            self.pod.advance(self.now)
        return self

    @property
    def incidents(self) -> list[Incident]:
        """All of them."""
        return list(self.pod.failures.incidents)

    @property
    def recurring(self) -> set[str]:
        """Reasons of the last incident."""
        return set(self.pod.failures.recurring(self.incidents[-1]))

    def _steps(self, span: str) -> None:
        first, last = map(int, span.split("-"))
        self.now = self.steps(self.now, *self.ranks, first=first, last=last)

    def _fail(self, rank: str) -> None:
        self.caught(int(rank), self.now, message=f"step {self.now} went wrong")

    def _echo(self, rank: str) -> None:
        self.echo(int(rank), self.now)

    def _kill(self, rank: str) -> None:
        self.die(int(rank), self.now)

    def _gone(self, _: str) -> None:
        for slot in self.ranks:
            self.die(slot, self.now)

    def _stop(self, _: str) -> None:
        self.event(None, "signal", self.now, signal=15, name="SIGTERM")

    def _in_process(self, load: str) -> None:
        self._again(load)

    def _launcher(self, load: str) -> None:
        self._restarts += 1
        self.start(self.now, *self.ranks, cycle=self._restarts, attempt=self.pod._generation[0], **self.told)
        self._again(load)

    def _orchestrator(self, load: str) -> None:
        self.start(self.now, *self.ranks, attempt=self.pod._generation[0] + 1, **self.told)
        self._again(load)

    def _again(self, load: str) -> None:
        self.enter(self.now + 0.1, *self.ranks, incarnation=str(self.now), load=int(load))

    def _commit(self, step: str) -> None:
        self.event(0, "checkpoint", self.now, stage="committed", step=int(step))

    def _reject(self, step: str) -> None:
        self.event(0, "checkpoint", self.now, stage="rejected", step=int(step))

    def _finish(self, _: str) -> None:
        for slot in self.ranks:
            self.event(slot, "train_finished", self.now)

    def _wait(self, seconds: str) -> None:
        self.now += float(seconds)
