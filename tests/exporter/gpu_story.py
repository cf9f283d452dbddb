"""Stories with a GPU for each rank, to which something may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pod_story import Story

from headway_exporter import records
from headway_exporter.observations import GpuSeen, GpusFound
from headway_exporter.pod import Pod

if TYPE_CHECKING:
    from headway_exporter.causes import Diagnosis
    from headway_exporter.health.xids import XidTable

Kind = Literal["xid", "ecc", "nvlink", "lost", "hung", "back", "remap"]


def uuid(rank: int) -> str:
    """UUID of the GPU of that rank."""
    return f"GPU-{rank:08x}-0000-0000-0000-000000000000"


def gpu_texts(record: dict[str, Any]) -> list[str]:
    """What the record tells of GPUs."""
    return [sign["text"] for sign in record["evidence"] if sign["kind"] == "gpu"]


class GpuStory(Story):
    """Ranks that train since second 10 and have made ten steps, each on a GPU of its own: it is second 20."""

    def __init__(
        self,
        ranks: int = 2,
        *,
        names: dict[int, str] | None = None,
        xids: XidTable | None = None,
        pod: int = 0,
        pods: int = 1,
    ) -> None:
        """`names`: what ranks call their GPUs, where that is not the UUID; with several pods they settle together where it began."""
        super().__init__()
        self.pod = Pod("story", str(pod), xids=xids, shared_verdicts=pods > 1)
        self.pod.set_clock(0.0, self.wall)
        self.ranks, self.pods = tuple(range(ranks)), pods
        self.first_rank, self.world_size = pod * ranks, pods * ranks
        self.names = names or {}
        mine = tuple((str(slot), uuid(self.first_rank + slot), "", "") for slot in self.ranks)
        self.pod.fold([GpusFound(mine, (), 0.0)])
        self.event(None, "launcher_started", 0.0, pid=1)
        self.begin(1.0)
        self.enter(10.0, *self.ranks, incarnation="first", load=0)
        self.steps(10.0, *self.ranks, first=1, last=10)

    def begin(self, at: float, cycle: int = 0) -> None:
        """New processes of all ranks."""
        for slot in self.ranks:
            name = self.names.get(slot, uuid(self.first_rank + slot))
            self.start(at, slot, cycle=cycle, gpu_uuid=name, pods_expected=self.pods)

    def again(self, at: float, *, load: int = 10, steps: int = 2, launcher: bool = True) -> float:
        """A restart by the launcher, or in the process, and steps after the loaded one; when the last of them is complete."""
        if launcher:
            self.begin(at, cycle=round(at))
        self.enter(at + 1, *self.ranks, incarnation=str(at), load=load)
        return self.steps(at + 2, *self.ranks, first=load + 1, last=load + steps)

    def gpu(
        self, slot: int, at: float, kind: Kind = "xid", xid: int = 0, told: float | None = None, **more: Any
    ) -> None:
        """Something happens to the GPU of that slot; the sidecar is told at second `told`, or at once."""
        self.pod.fold([GpuSeen(uuid(self.first_rank + slot), kind, at, self.wall + at, xid, **more)])
        self.pod.advance(at if told is None else told)

    def xid(self, slot: int, at: float, number: int, told: float | None = None) -> None:
        """The driver reports an error of the GPU of that slot."""
        self.gpu(slot, at, "xid", number, told)

    def exit(self, slot: int, at: float, code: int) -> None:
        """The launcher tells how the slot's process ended."""
        self.event(None, "worker_exited", at, local_rank=slot, exit_code=code, pid=self.pid(slot))

    @property
    def diagnosis(self) -> Diagnosis:
        """Of the newest recovery."""
        return self.pod.failures.recoveries[-1].diagnosis

    @property
    def answer(self) -> tuple[str, int | None, str]:
        """Cause, origin rank and confidence of the newest recovery."""
        assert self.pod.dropped["malformed"] == 0  # the fold passes over what it cannot take
        found = self.diagnosis
        return found.cause, found.origin, found.confidence

    def record(self, index: int = -1) -> dict[str, Any]:
        """An incident's record as it is known now."""
        return records.record(self.pod, self.pod.failures.incidents[index], self.pod.wall_of(self.pod.now))

    def written(self) -> list[dict[str, Any]]:
        """The records that are due, which are on disk from now on."""
        found = records.due(self.pod)
        for one in found:
            records.written(self.pod, one)
        return found
