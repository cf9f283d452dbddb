"""The sidecar's halves put together: one thread folds what the follower finds, others read the pod's state under a lock.

With a state folder the same thread takes a snapshot now and then, when all that was read is folded, and hands it to the store's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter import memory, records
from headway_exporter.collectors import PodCollector
from headway_exporter.exchange import Exchange, Patience
from headway_exporter.observations import NANOSECONDS, StepsSeen
from headway_exporter.resume import Where, begin, position, without_memory
from headway_exporter.seam import ABSENCE_SECONDS, Seam
from headway_exporter.shift import moved
from headway_exporter.state_files import pod_folder
from headway_exporter.status import status
from headway_exporter.store import Snapshot, Store, View, new_session
from headway_exporter.summary import summary
from headway_exporter.telemetry import Telemetry
from headway_exporter.thresholds import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headway_exporter.health.instruments import AnyInstrument
    from headway_exporter.health.xids import XidTable
    from headway_exporter.observations import Observation
    from headway_exporter.pod import Pod
    from headway_exporter.thresholds import Thresholds

_log = logging.getLogger("headway.exporter")

POLL_SECONDS: Final = 1.0
"""A death wakes the follower at once; nothing else is in such a hurry, and each look costs processor time, whatever it finds."""
HEALTHY_SECONDS: Final = 10.0
TELL_SECONDS: Final = 5.0
"""How often is looked for incidents to tell of: each look compares all that are kept."""
_AT_ONCE: Final = 2_000
"""Observations folded before a waiting scrape gets its turn."""


class Sidecar:
    """Follows one pod's journals; `start` to `stop`, or `poll` by hand."""

    def __init__(
        self,
        directory: Path,
        run: str,
        pod_index: str,
        *,
        silence_seconds: float,
        state_dir: Path | None = None,
        telemetry: Telemetry | None = None,
        thresholds: Thresholds = DEFAULT,
        xids: XidTable | None = None,
        instruments: Sequence[AnyInstrument] = (),
    ) -> None:
        """`state_dir`: where its memory is kept, and with it what the sidecar before it knew; `telemetry`: who is told of incidents.

        `instruments` are started and stopped with it; `xids`: what the GPU driver's errors mean, None: the built-in table.
        """
        self.where = where = Where(directory, run, pod_index, silence_seconds, thresholds, xids)
        self.state_dir = state_dir
        folder = None if state_dir is None else pod_folder(state_dir, run, pod_index)
        beginning = without_memory(where) if folder is None else begin(where, folder)
        self._pod = beginning.pod
        self._follower = beginning.follower
        self._shift_ns = beginning.shift_ns
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headway-follower", daemon=True)
        self._telemetry = telemetry or Telemetry.off()
        self._told = -TELL_SECONDS
        self.began = self._polled = clock.monotonic()
        self._encoder = memory.encoder()
        self.collector = PodCollector(self._pod, self._follower, self._lock)
        self._instruments = self.collector.instruments = instruments
        self._store: Store | None = None
        if folder is not None:
            session = new_session(beginning.session_before)
            view = self._view(beginning.written_wall)
            self._store = Store(folder, run, pod_index, session, view, lost=beginning.lost)
            self.collector.store = self._store
            if beginning.written_wall is not None and clock.wall() - beginning.written_wall > ABSENCE_SECONDS:
                self.collector.seam = Seam(view.samples)
        self._patience = Patience(thresholds)
        self._exchange: Exchange | None = None
        if state_dir is not None and beginning.lost is None:
            self._exchange = Exchange(state_dir, run, pod_index, thresholds)

    def start(self) -> None:
        """Follows in a thread of its own."""
        for instrument in self._instruments:
            instrument.start()
        self._thread.start()
        if self._store is not None and self._exchange is not None:
            self._store.every_second(self._settle_with_others)

    def stop(self) -> None:
        """Ends following, after a last look, of which the memory is kept."""
        self._stopping.set()
        self._follower.wake.set()
        self._thread.join()
        for instrument in self._instruments:
            instrument.end()  # all of them first: whoever hangs is waited for while the others end
        for instrument in self._instruments:
            instrument.stop()
        self.poll()
        self.collector.seam = None  # the last word is no place for what was
        kept = self._store is not None and self._last_word(self._store)
        self._tell()
        self._telemetry.stop()
        with self._lock:
            sent = self._telemetry.take_counts()
            self._pod.exports.update(sent)
        if self._store is not None:
            if sent and kept:  # what became of the last ones is remembered, and shown, too
                self._last_word(self._store)
            self._store.close()
        self._follower.close()

    @property
    def healthy(self) -> bool:
        """Whether the journals were looked at lately, or nobody is to look at them any more."""
        return self._stopping.is_set() or clock.monotonic() - self._polled < HEALTHY_SECONDS

    @property
    def ranks_live(self) -> bool:
        """Whether a trainer's process lives in this pod, as far as is known."""
        with self._lock:
            return bool(self._pod.alive)

    @property
    def launcher_lives(self) -> bool:
        """Whether `headway run` has told of a launcher, and not yet of its end."""
        with self._lock:
            return self._pod.launcher_lives

    @property
    def checkpoint_dir(self) -> str:
        """Where the trainer says that its checkpoints lie; empty: it says nothing."""
        return self._pod.info.checkpoint_dir

    def linked_ports(self, boot: str) -> list[tuple[str, str]]:
        """Device and number of the network cards' ports that had a link, since the machine's start of that name."""
        with self._lock:
            return self._pod.nics.linked(boot)

    @property
    def gpus_here(self) -> tuple[tuple[str, ...], ...]:
        """The GPUs of this machine as far as is remembered: values of their labels."""
        return self._pod.gpus.present

    def status(self) -> dict[str, Any]:
        """What `/status.json` shows."""
        if self._store is not None and self._store.lost is None:
            return self._store.published.status
        with self._lock:
            return status(self._pod, self.collector.dropped)

    @contextlib.contextmanager
    def held(self) -> Iterator[Pod]:
        """The pod, which stands still meanwhile: for who copies from it, and is quick about it."""
        with self._lock:
            yield self._pod

    @property
    def state_trouble(self) -> str | None:
        """Why the state folder is not written, for people; None while all is well, or there is none."""
        return None if self._store is None else self._store.trouble

    def every_second(self, chore: Callable[[], None]) -> None:
        """Has something done with the state folder, which may hang, where it keeps nobody waiting; without a folder it is not done."""
        if self._store is not None:
            self._store.every_second(chore)

    def poll(self) -> None:
        """Reads what is new and folds it."""
        batch = self._follower.poll()
        observations: Sequence[Observation] = batch.observations
        measured = [seen for one in self._instruments for seen in one.observations()]
        if measured:
            observations = sorted((*observations, *measured), key=lambda seen: seen.key)
        if self._shift_ns:
            observations = [moved(seen, self._shift_ns) for seen in observations]
        mono = batch.mono + self._shift_ns / NANOSECONDS
        with self._lock:
            self._pod.set_clock(mono, batch.wall)
        for portion in _portions(observations):
            with self._lock:
                self._pod.fold(portion)
            self._polled = clock.monotonic()
        with self._lock:
            self._pod.advance(mono)
            self._give_up_waiting()
            self._pod.exports.update(self._telemetry.take_counts())
        self._polled = clock.monotonic()
        if not self._keeps and self._polled - self._told >= TELL_SECONDS:
            self._tell()
        if self._store is not None and self._store.wants(self._polled, caught_up=self._follower.caught_up):
            self._remember(self._store)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - it must go on whatever the folder holds
                _log.exception("the journals could not be followed this time; trying again")
                self._stopping.wait(1.0)
            if self._follower.caught_up:
                self._follower.wake.wait(POLL_SECONDS)

    # Other pods.

    def _settle_with_others(self) -> None:
        """Tells other pods what is known of failures, and takes what was settled; in the store's thread, because the folder may hang."""
        exchange, store = self._exchange, self._store
        if exchange is None or store is None or store.superseded or self._stopping.is_set():
            return  # superseded: the pod is another sidecar's now
        with self._lock:
            claims, absence = self._pod.claims(), self._pod.absence()
        seen = exchange.turn(clock.monotonic(), claims, absence)
        with self._lock:
            self._pod.fold(seen)
            self._pod.dropped += exchange.dropped
        exchange.dropped.clear()

    def _give_up_waiting(self) -> None:
        """Decides alone what the other pods did not settle in time, whatever became of the folder; the caller holds the lock."""
        waiting = self._pod.failures.undecided.tries
        self._pod.fold(self._patience.overdue(clock.monotonic(), [one.exchange for one in waiting]))

    # Telemetry.

    @property
    def _keeps(self) -> bool:
        """Records are kept on disk, so that nobody is to hear of one before."""
        return self._store is not None and self._store.lost is None

    def _tell(self) -> None:
        """Tells of incidents of which something new is known."""
        self._told = clock.monotonic()
        if self._store is not None and self._keeps:
            self._on_disk(self._store)
        elif self._telemetry.wanted:
            with self._lock:
                due = records.due(self._pod)
            self._tell_of(due)

    def _tell_of(self, found: list[dict[str, Any]]) -> None:
        with self._lock:
            for record in found:
                records.written(self._pod, record)
        for record in found:
            self._telemetry.export(record)

    # Memory.

    def _on_disk(self, store: Store) -> None:
        """Takes what the store has done since it was last asked."""
        appended, faults = store.acknowledged()
        with self._lock:
            self._pod.dropped.update(faults)
        self._tell_of(appended)

    def _view(self, wall: float | None) -> View:
        """What there is to show now; under the lock once the threads run."""
        return View(self.collector.samples(), status(self._pod, self.collector.dropped) | {"written_wall": wall}, wall)

    def _remember(self, store: Store) -> bool:
        """Hands the store a snapshot, between two polls: what was read is folded. Returns whether there are records in it."""
        try:
            return self._offer_to(store)
        except Exception as error:  # noqa: BLE001 - following goes on, and the metrics tell
            _log.exception("state folder: no snapshot could be taken")
            store.failed(f"no snapshot could be taken ({type(error).__name__})")
            return False

    def _offer_to(self, store: Store) -> bool:
        began = clock.processor()
        self._on_disk(store)
        with self._lock:
            wall = self._pod.wall_of(
                self._pod.now
            )  # of what is shown, which on a busy machine is older than the present moment
            view, due = self._view(wall), records.due(self._pod)
            told = summary(self._pod, self.collector.dropped, wall)
            fold = self._encoder.encode(self._pod)
        body = {"summary": told, "fold": fold, "position": position(self._follower, self._shift_ns)}
        store.offer(Snapshot(view, body, due), clock.processor() - began)
        return bool(due)

    def _last_word(self, store: Store) -> bool:
        """Persists what is known at the end; twice where records were due, so that the ledger says that they are written.

        Returns whether the folder answered in time.
        """
        answered = store.settle()
        more = answered and store.lost is None
        while more and not store.superseded:
            had_records = self._remember(store)
            answered = store.settle()
            more = answered and had_records and store.trouble is None
        return answered


def _portions(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Parts of a bounded size; many steps in one observation are a part of their own."""
    portion: list[Observation] = []
    for seen in observations:
        portion.append(seen)
        if isinstance(seen, StepsSeen) or len(portion) >= _AT_ONCE:
            yield portion
            portion = []
    yield portion
