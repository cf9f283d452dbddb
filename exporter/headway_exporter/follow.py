"""Follows a pod's journal folder and turns it into observations in time order.

The folder may be missing, appear late, be replaced, or be hostile. Each poll reads the clock first and everything that was written
second, so all that happened up to that moment is in hand and can be put in order; what bears a later time waits for the next poll.
While a file has more than a portion to read (a sidecar that starts late), only what lies before its last portion is given out.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.events import encode, parse
from headway.journal import identity, rotated_path
from headway.ring import RingFormatError, parse_ring_name, ring_name
from headway_exporter.folder import MOST_ENTRIES, PASSING, Entry, closed, entries
from headway_exporter.held import weight
from headway_exporter.lives import Lives
from headway_exporter.lost_rings import LostRings
from headway_exporter.merge import merged
from headway_exporter.observations import Batch, EventSeen, Run, StepSeen
from headway_exporter.sources import JournalSource, RingSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headway_exporter.lives import Released
    from headway_exporter.observations import DeathSeen
    from headway_exporter.sources import Found, Source

LAUNCHER_JOURNAL: Final = "launcher.jsonl"
MOST_SLOTS: Final = 64
"""A slot is a local rank: a number from here on is none. So whatever else lies in the folder, each real slot has its place."""
MOST_RINGS_A_SLOT: Final = 4
MOST_NAMES: Final = 1_024
"""Files and other runs whose names one sidecar tells the next, so that each counts once."""
OTHER_RUNS_SECONDS: Final = 5.0
_ROUNDS: Final = 2
_MOST_HELD: Final = 2_048
"""Observations of a file that wait for those of others."""
_MOST_HELD_TOGETHER: Final = 65_536
"""Those of all files, roughly: what bounds the memory of a late start, however many files there are."""
_LEAST_HELD: Final = 128
_SAVED: Final = ""
"""In place of a file's name: what the follower before held back."""
_SLOT_JOURNAL: Final = re.compile(r"slot-(0|[1-9][0-9]{0,3})\.jsonl")


def slot_journals(folder: Path) -> list[str]:
    """Names of the ranks' journals there."""
    return [name for name in entries(folder) if _SLOT_JOURNAL.fullmatch(name)]


class Follower:
    """Reads everything below `directory / run`; call `poll` from one thread, a few times a second or when `wake` is set."""

    def __init__(
        self, directory: Path, run: str, *, silence_seconds: float = 30.0, saved: Mapping[str, Any] | None = None
    ) -> None:
        """`saved`: the `position` of another follower, to go on there.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none.
        """
        self.wake = threading.Event()
        """Set when something happened that should be looked at without delay."""
        self.caught_up = True
        """False: more can be read at once."""
        self.dropped: Counter[str] = Counter()
        """What could not be used, by reason, since the start: as of the last poll, replaced as a whole."""
        self.clock_went_back = 0
        """Events of a life that were dated before an earlier one of it, likewise."""
        self._directory = directory
        self._run = run
        self._folder = directory / run
        self._lives = Lives(self._folder, silence_seconds, self.wake.set)
        self._lost_rings = LostRings()
        self._sources: dict[str, Source] = {}
        self._inodes: dict[str, int] = {}
        self._held: dict[str, list[Found]] = {}
        self._released: dict[tuple[int, int], Released] = {}
        self._dropped: Counter[str] = Counter()
        self._missing: set[str] = set()
        self._left_at: OrderedDict[str, int] = (
            OrderedDict()
        )  # rings that went away: a step must not count again when they are back
        self._rings: Counter[int] = Counter()
        self._refused: dict[tuple[str, int], str] = {}
        self._other_runs: set[str] = set()
        self._other_runs_at = -OTHER_RUNS_SECONDS
        self._went_back = 0
        self._saved_journals: dict[str, Any] = {}
        if saved is not None:
            self._resume(saved)
        self._tally()

    def poll(self) -> Batch:
        """What became known since the last poll; never raises OSError."""
        self.wake.clear()
        mono, wall = clock.monotonic(), clock.wall()
        released = self._lives.released()  # before reading: all that the dead wrote is in the files by now
        self._released.update({(one.slot, one.life): one for one in released if self._lives.remembers(one)})
        self._discover()
        frontier = self._read(mono)
        self.caught_up = frontier >= mono
        singles, runs = self._ready(frontier)
        observations = merged(singles, runs)
        deaths = [death for seen in observations for death in self._lives.note(seen)]
        self._lives.wait_for_new()
        if self.caught_up:
            deaths += [*self._lives.judge(self._released.values()), *self._lives.silent(mono)]
        self._released = {} if self.caught_up else self._lives.still(self._released)
        self._look_for_other_runs(mono)
        if deaths:
            observations = merged([*singles, *deaths], runs)
        for seen in observations:
            self._lost_rings.note(seen, self._left_at)
        self._tally()
        return Batch(tuple(observations), frontier, wall - mono + frontier)

    def _tally(self) -> None:
        """Sums up for other threads, to whom sources that come and go meanwhile would make sums of neither before nor after."""
        sources = self._sources.values()
        self.dropped = sum((source.counts() for source in sources), self._dropped.copy())
        journals = (source for source in sources if isinstance(source, JournalSource))
        self.clock_went_back = self._went_back + sum(source.clock_went_back for source in journals)

    # From one sidecar to the next.

    def position(self) -> dict[str, Any]:
        """How far everything was read and given out by `poll`, as JSON: another follower goes on there."""
        journals = {name: source.saved() for name, source in self._sources.items() if isinstance(source, JournalSource)}
        rings = {
            name: self._given_out(name, source)
            for name, source in self._sources.items()
            if isinstance(source, RingSource)
        }
        held = [seen for held in self._held.values() for seen in held if isinstance(seen, EventSeen)]
        return {
            "journals": self._saved_journals | journals,
            "rings": dict(self._left_at) | rings,
            "held": [[seen.slot, encode(seen.event).decode()] for seen in held],
            "lives": self._lives.saved(),
            "lost_rings": self._lost_rings.saved(),
            "refused": [[name, inode, reason] for (name, inode), reason in sorted(self._refused.items())[:MOST_NAMES]],
            "other_runs": sorted(self._other_runs),
            "dropped": dict(self.dropped),
            "clock_went_back": self.clock_went_back,
        }

    def _given_out(self, name: str, source: RingSource) -> int:
        """Number of the ring's first record that `poll` did not give out yet."""
        held = self._held.get(name, ())
        return min((seen.sequence for seen in held if isinstance(seen, (Run, StepSeen))), default=source.position)

    def _resume(self, saved: Mapping[str, Any]) -> None:
        self._saved_journals = dict(saved["journals"])
        self._left_at.update(saved["rings"])
        self._held[_SAVED] = [EventSeen(slot, parse(line.encode(), most=None)) for slot, line in saved["held"]]
        self._lives.resume(saved["lives"])
        if "lost_rings" in saved:  # an older version's position has none
            self._lost_rings.resume(saved["lost_rings"])
        self._refused = {(name, inode): reason for name, inode, reason in saved["refused"][:MOST_NAMES]}
        self._other_runs = set(saved["other_runs"][:MOST_NAMES])
        self._dropped.update(saved["dropped"])
        self._went_back = int(saved["clock_went_back"])

    def close(self) -> None:
        """Closes all files; the threads that wait for locks end with the process."""
        for source in self._sources.values():
            source.close()

    # Files.

    def _discover(self) -> None:
        """Begins to follow files that are new, and lets go of rings that were removed, once they are read."""
        present = entries(self._folder, self._wanted())
        if not present and closed(self._folder):
            self._refuse(Entry(self._folder, "", 0), "unreadable")
        self._forget_refused(present)
        for entry in present.values():
            if entry.name not in self._sources:
                self._adopt(entry)
        for name in [name for name, source in self._sources.items() if isinstance(source, RingSource)]:
            if name in present and present[name].inode == self._inodes[name]:
                self._missing.discard(name)
            elif name not in self._missing:
                self._missing.add(name)  # read once more: it may have been removed with something new in it
            elif not self._held.get(name):
                self._drop_source(name)
        lost = self._lost_rings.look({*present, *self._sources})
        if lost:
            self._dropped["ring_gone"] += lost

    def _wanted(self) -> Iterator[str]:
        """Names of files that matter, whatever else lies in the folder."""
        yield LAUNCHER_JOURNAL
        yield from (f"slot-{number}.jsonl" for number in range(MOST_SLOTS))
        yield from (ring_name(slot, life) for slot, life in self._lives.remembered())
        yield from self._sources

    def _forget_refused(self, present: Mapping[str, Entry]) -> None:
        """Makes room, once there is little, where a refused file is gone."""
        if len(self._refused) > MOST_ENTRIES // 2:
            there = {(entry.name, entry.inode) for entry in present.values()}
            self._refused = {key: reason for key, reason in self._refused.items() if key in there}

    def _adopt(self, entry: Entry) -> None:
        ring, journal = parse_ring_name(entry.name), _SLOT_JOURNAL.fullmatch(entry.name)
        if entry.name == LAUNCHER_JOURNAL:
            self._follow(entry, self._source(entry.path, None, None))
            return
        slot = ring[0] if ring else int(journal[1]) if journal else None
        if slot is None or self._refused.get((entry.name, entry.inode), "limit") != "limit":
            return
        if slot >= MOST_SLOTS or (ring and self._rings[slot] >= MOST_RINGS_A_SLOT):
            self._refuse(entry, "limit")  # there may be room later
        elif not entry.regular:
            self._refuse(entry, "unreadable")
        else:
            self._open(entry, slot, ring[1] if ring else None)

    def _open(self, entry: Entry, slot: int, life: int | None) -> None:
        try:
            self._follow(entry, self._source(entry.path, slot, life))
            self._rings[slot] += life is not None
        except RingFormatError:
            self._refuse(entry, "bad_ring")
        except OSError as error:
            if error.errno not in PASSING:
                self._refuse(entry, "unreadable")

    def _source(self, path: Path, slot: int | None, life: int | None) -> Source:
        if slot is None or life is None:
            return JournalSource(path, slot, self._saved_journals.pop(path.name, None))
        return RingSource(path, slot, life, self._left_at.get(path.name, 0))

    def _follow(self, entry: Entry, source: Source) -> None:
        self._sources[entry.name] = source
        self._inodes[entry.name] = entry.inode

    def _refuse(self, entry: Entry, reason: str) -> None:
        key = entry.name, entry.inode
        if key not in self._refused and len(self._refused) < MOST_ENTRIES:
            self._refused[key] = reason
            self._dropped[reason] += 1

    def _drop_source(self, name: str) -> None:
        source = self._sources.pop(name)
        if isinstance(source, RingSource):
            self._rings[source.slot] -= 1
            self._left_at[name] = source.position
            if len(self._left_at) > MOST_NAMES:
                self._left_at.popitem(last=False)
        self._dropped += source.counts()
        source.close()
        self._missing.discard(name)
        del self._inodes[name]

    def _look_for_other_runs(self, mono: float) -> None:
        if mono - self._other_runs_at < OTHER_RUNS_SECONDS:
            return
        self._other_runs_at = mono
        for name in entries(self._directory):
            if name == self._run or name in self._other_runs or len(self._other_runs) >= MOST_NAMES:
                continue
            journals = slot_journals(self._directory / name)
            if journals:
                self._other_runs.add(name)
                self._dropped["other_run"] += len(journals)

    # Order.

    def _read(self, mono: float) -> float:
        """Reads every file to its end, or several portions of it; returns until when all is in hand."""
        frontier = mono
        most = max(_LEAST_HELD, min(_MOST_HELD, _MOST_HELD_TOGETHER // max(1, 2 * len(self._sources))))
        for name, source in self._sources.items():
            held = self._held.setdefault(name, [])
            if not _read_on(source, held, mono, most):
                frontier = min(frontier, max(seen.mono for seen in held))
        return frontier

    def _ready(self, frontier: float) -> tuple[list[EventSeen | StepSeen | DeathSeen], list[Run]]:
        """What is dated up to the frontier; the rest is held back."""
        limit = round(frontier * 1e6)
        singles: list[EventSeen | StepSeen | DeathSeen] = []
        runs: list[Run] = []
        for name, held in list(self._held.items()):
            later: list[Found] = []
            for seen in held:
                if isinstance(seen, Run):
                    early, late = seen.split(limit)
                    runs += [early] if early is not None else []
                    later += [late] if late is not None else []
                else:
                    (singles if seen.key[0] <= limit else later).append(seen)
            self._held[name] = later
            if not later and name not in self._sources:
                del self._held[name]
        return singles, runs


def anything_left(folder: Path, saved: Mapping[str, Any]) -> bool:
    """Whether a file that is known from the saved position is still in the folder, or none was known: if not, the pod is another one."""
    journals, rings = saved["journals"], saved["rings"]
    known = {name: one["place"][0] for name, one in journals.items() if one["place"] is not None}
    if not known and not rings:
        return True
    present = entries(folder, rings)
    paths = (
        (folder / name, crc) for name, crc in known.items() if _SLOT_JOURNAL.fullmatch(name) or name == LAUNCHER_JOURNAL
    )
    return not present.keys().isdisjoint(rings) or any(
        crc in (identity(path), identity(rotated_path(path))) for path, crc in paths
    )


def _read_on(source: Source, held: list[Found], mono: float, most: int) -> bool:
    """Adds what is new to `held`, which may grow to twice `most`, or a portion of a journal more; whether that is all there is."""
    for _ in range(_ROUNDS):
        if sum(len(seen) if isinstance(seen, Run) else weight(seen) for seen in held) >= most:
            return False
        new = source.read(mono, most)
        if not new:
            return True
        held += new
        if source.at_end:
            return True
    return False
