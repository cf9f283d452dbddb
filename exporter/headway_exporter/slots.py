"""What is known of each process place of the pod: who lives there, where it stands, what its last signs were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.events import Event

TERMINATION_SIGNALS: Final = (2, 15)
_LONGEST_UUID: Final = 128


@dataclass(slots=True)
class Slot:
    """One process place; times are CLOCK_MONOTONIC seconds. None: nobody said so."""

    number: int
    rank: int | None = None
    """Global rank in the current incarnation."""
    initial_rank: int | None = None
    """Global rank at the start of the process: what NVRx's records use."""
    life: int | None = None
    pid: int | None = None
    alive: bool = False
    died: float = 0.0
    left_in_order: bool = False
    """The life said that it was about to end."""
    finished: bool = False
    """The rank completed the run."""
    started: float = 0.0
    generation: tuple[int, int, int] = (0, 0, 0)
    """Attempt of the orchestrator, launchers seen and moves to another node before this life: a higher one means that the pod was
    started again."""
    entered: float | None = None
    """When this life last entered the training function."""
    reserve: bool = False
    gone: bool = False
    """The others go on without it: NVRx gave it up, or they trained again while it had no process."""
    incarnation: str | None = None
    step: int | None = None
    step_end: float = 0.0
    told: int | None = None
    """Last step of this life that is known, by its record or by its own word."""
    saved: int = 0
    """Highest step of which its lives, this one or former ones, told that they saved it."""
    numbers_agree: bool = False
    """A checkpoint was told of at the very step whose number it has."""
    sampled: float | None = None
    in_collective: bool | None = None
    terminated: float | None = None
    """When the life was told to end by a signal."""
    hard_timeout: float | None = None
    dropped: int = 0
    """Events and steps that the life could not record."""
    gpu_uuid: str = ""
    depth: int = 0
    oldest_wall: float | None = None
    writer_up: bool | None = None
    writer_bytes: int | None = None
    rss_bytes: int | None = None
    """Resident memory of the trainer, by its last sample."""
    open_files: int | None = None
    former_pids: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    replaced_at: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    """When the successor of each of these processes started."""
    former_lives: deque[int] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def began(self) -> float:
        """When it entered training, or its process started."""
        return max(self.started, self.entered or 0.0)

    @property
    def takes_part(self) -> bool:
        """It is neither in reserve nor given up."""
        return not self.reserve and not self.gone

    def absent_since(self, at: float) -> bool:
        """Its last process was gone by then, before it completed the run, and has no successor."""
        return self.life is not None and not self.alive and not self.finished and self.died < at

    def start(self, event: Event, generation: tuple[int, int, int]) -> None:
        """A new life."""
        if self.pid is not None:
            self.former_pids.append(self.pid)
            self.replaced_at.append(event.mono)
        if self.life is not None:
            self.former_lives.append(self.life)
        fields = event.fields
        self.life, self.pid = event.life, fields.get("pid")
        self.rank = self.initial_rank = fields.get("rank", self.number)
        self.alive, self.left_in_order, self.finished, self.reserve = True, False, False, False
        self.started, self.generation, self.dropped = event.mono, generation, 0
        self.entered = self.sampled = self.in_collective = self.terminated = None
        self.incarnation = self.told = None
        self.gone = False
        self.depth, self.oldest_wall, self.writer_up, self.writer_bytes = 0, None, None, None
        self.rss_bytes = self.open_files = None
        self.gpu_uuid = fields.get("gpu_uuid", self.gpu_uuid)[:_LONGEST_UUID]
        self.hard_timeout = number(fields.get("settings", {}).get("hard_timeout_seconds"))

    def enter(self, event: Event) -> None:
        """The training function begins, or the rank is put in reserve."""
        self.entered, self.incarnation = event.mono, event.incarnation
        self.rank = event.fields.get("rank", self.rank)
        self.reserve = event.fields.get("mode", "active") == "inactive"
        self.sampled = self.in_collective = None

    def sample(self, event: Event) -> None:
        """A sign of life with what the process is doing."""
        self.sampled, self.in_collective = event.mono, event.fields.get("collective")
        self.writer_bytes = event.fields.get("writer_rss_bytes")
        self.rss_bytes, self.open_files = event.fields.get("rss_bytes"), event.fields.get("open_files")

    def queue(self, fields: Any) -> None:
        """The checkpoint queue changed."""
        self.depth = max(0, fields.get("depth", self.depth))
        self.oldest_wall = fields.get("oldest_wall") if self.depth else None
        self.writer_up = fields.get("writer_alive", self.writer_up)
        if self.writer_up is False:
            self.writer_bytes = None

    def signs(self, at: float) -> bool:
        """The current life wrote something: if that was after its death, it was none; whether that is so."""
        revived = not self.alive and at > self.died
        self.alive = self.alive or revived
        self.gone = self.gone and not revived
        return revived

    def tells_more(self, step: int, tip: int | None) -> bool:
        """Whether the process, by its own word at `step`, has made steps since that no record told of."""
        known = (tip or 0) if self.told is None else self.told
        if step in (known, known + 1):
            return False
        self.told = step
        return True

    def saves(self, step: int, tip: int | None) -> bool:
        """The process tells of a checkpoint; whether it must have made steps before it since that no record told of.

        Believed only of a slot whose checkpoints were seen to bear its steps' numbers: others number them by epochs, or by samples.
        """
        known = (tip or 0) if self.told is None else self.told
        self.numbers_agree = self.numbers_agree or step in (known, known + 1)
        if not self.numbers_agree:
            return False
        self.saved = max(self.saved, step)
        if step <= known + 1:
            return False
        self.told = step
        return True

    def complete(self, step: int, at: float) -> None:
        """A step of the current life."""
        self.step, self.step_end = step, at
        self.told = step

    def complete_unseen(self, at: float) -> None:
        """Steps of the current life that no record tells of: it is not known which is the last."""
        self.step, self.step_end = None, at

    def replaced(self, pid: int | None) -> float | None:
        """When the successor of that process started; None: it had none, or that was long ago."""
        known = zip(reversed(self.former_pids), reversed(self.replaced_at), strict=False)
        return next((at for former, at in known if former == pid), None)

    def die(self, at: float) -> None:
        """The process is gone, and with it its queue and its writer."""
        self.alive, self.died = False, at
        self.depth, self.oldest_wall, self.writer_bytes = 0, None, None
        self.writer_up = None if self.writer_up is None else False


def mark_gone(slots: Iterable[Slot], initial_ranks: Iterable[object]) -> None:
    """NVRx goes on without these ranks for good."""
    gone = list(initial_ranks)
    for slot in slots:
        slot.gone = slot.gone or (slot.initial_rank is not None and slot.initial_rank in gone)


def number(value: object) -> float | None:
    """The value when it is a finite number, else None: journals are not to be trusted."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18:
        return float(value)
    return None
