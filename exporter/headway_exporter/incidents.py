"""Incidents: from the first evidence of a failure to a verdict on what became of it.

    running -- failed --> open -- restarted --> restarting -- first step --> resumed -- above the mark --> progressing
                           ^                                                    |                               |
                           +--- failed again: one more attempt of the same incident ----------------------------+
                                                                                                                |
                                                                  recovered <-- a newer checkpoint is durable --+

`TRANSITIONS` is the whole of it: it decides every pair of state and happening. Three more ways end an incident: the run finished
(recovered), the operator ended it (cancelled), nobody came back (abandoned). After these two a later restart still completes the
record of the recovery, and the next failure opens an incident of its own.

A pure fold: it takes what others saw, and reads no clock.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headway_exporter import verdicts
from headway_exporter.attempts import Attempts
from headway_exporter.labels import LAYERS
from headway_exporter.recoveries import MOST_TRIES, first_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway_exporter.causes import Diagnosis
    from headway_exporter.recoveries import Recovery, Try
    from headway_exporter.runinfo import Circumstances
    from headway_exporter.scene import Evidence
    from headway_exporter.thresholds import Thresholds

MOST_TRACEBACKS: Final = 8
MOST_LOADS: Final = 64
"""Different checkpoints whose loads are counted in one incident."""


class State(str, enum.Enum):
    """Where an incident is."""

    RUNNING = "running"
    OPEN = "open"
    RESTARTING = "restarting"
    RESUMED = "resumed"
    PROGRESSING = "progressing"
    RECOVERED = "recovered"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class Happening(str, enum.Enum):
    """What moves it on."""

    FAILED = "failed"
    """Evidence of a failure."""
    RESTARTED = "restarted"
    """New processes, or training entered again."""
    ESCALATED = "escalated"
    """The same, by a layer outside of those that tried before."""
    STEPPED = "stepped"
    """The first step after a restart."""
    PROGRESSED = "progressed"
    """A step above the mark at opening."""
    COMMITTED = "committed"
    """A checkpoint newer than any at opening became durable."""
    FINISHED = "finished"
    """The run is complete."""
    STOPPED = "stopped"
    """The operator's signal has ended all processes."""
    GONE = "gone"
    """No process lives, and none has for long."""


CLOSED: Final = frozenset({State.RECOVERED, State.CANCELLED, State.ABANDONED})
BACK: Final = frozenset({State.RESUMED, State.PROGRESSING})
"""Training goes on, and nothing proves yet that it will last."""

_ENDS: Final = {
    Happening.FAILED: State.OPEN,
    Happening.FINISHED: State.RECOVERED,
    Happening.STOPPED: State.CANCELLED,
    Happening.GONE: State.ABANDONED,
}
_MOVES: Final[Mapping[State, Mapping[Happening, State]]] = {
    State.RUNNING: {Happening.FAILED: State.OPEN},
    State.OPEN: {
        **_ENDS,
        Happening.RESTARTED: State.RESTARTING,
        Happening.ESCALATED: State.RESTARTING,
        Happening.STEPPED: State.RESUMED,
    },
    # A checkpoint that becomes durable before the first step was written before the failure: it proves nothing.
    State.RESTARTING: {**_ENDS, Happening.STEPPED: State.RESUMED},
    # Below the mark nor does one: what broke may break again where it did, and then it is the same incident.
    State.RESUMED: {**_ENDS, Happening.PROGRESSED: State.PROGRESSING},
    State.PROGRESSING: {**_ENDS, Happening.COMMITTED: State.RECOVERED},
    State.RECOVERED: {},
    State.CANCELLED: {},
    State.ABANDONED: {},
}
TRANSITIONS: Final[Mapping[tuple[State, Happening], State]] = MappingProxyType(
    {(state, happening): _MOVES[state].get(happening, state) for state in State for happening in Happening}
)
"""What is not a move leaves the state as it is."""


@dataclass(slots=True)
class Incident:
    """One incident. Times are CLOCK_MONOTONIC seconds unless named wall."""

    opened: float
    opened_wall: float
    mark: int
    """Highest step ever completed, at opening."""
    durable: int | None
    """Newest durable checkpoint at opening, or since then found to be the newest that loads."""
    recent: deque[Try]
    """The last tries of all its recoveries, the one under way included."""
    state: State = State.RUNNING
    recoveries: list[Recovery] = field(default_factory=list)
    """The first and the last ones."""
    layer: str | None = None
    """The outermost that restarted."""
    escalated: bool = False
    attempts: Attempts = field(default_factory=Attempts)
    """As far as their layers are known."""
    mark_changes: int = 0
    settled_at_mark: int = 0
    """Attempts that were settled when the mark last rose."""
    settled_at_commit: int = 0
    loads: Counter[int] = field(default_factory=Counter)
    recurred: frozenset[str] = frozenset()
    """Reasons that were found for good."""
    closed: float | None = None
    closed_wall: float | None = None
    id: str = ""
    """The same on every pod (`incident_ids`)."""
    incarnation: str | None = None
    """The one that failed; None before there was any."""
    circumstances: Circumstances | None = None
    """What was in force when it opened."""
    tracebacks: list[str] = field(default_factory=list)
    """Those kept in its evidence."""
    booked: dict[str, int] = field(default_factory=dict)
    """What the pod's books said of `losses.STATES` when it opened, nanoseconds."""
    lost: dict[str, int] = field(default_factory=dict)
    """What they have said more since then: up to its closure, and once the mark is regained up to then."""
    written: str = ""
    """What its record said when it was last written (a checksum)."""
    looked_at: str = ""
    """How much was known of it when its record was last compared with that."""
    revision: int = 0
    """Of the record to be written next."""
    decided_revision: int | None = None
    """The first one of its record that no verdict of other pods can change any more, once it is written."""
    at_rest: bool = False
    """Nothing more will become known of it."""
    left_out: int = 0
    """Recoveries that are not kept."""
    steps_left_out: int = 0
    """Steps that those lost."""

    @classmethod
    def at(cls, evidence: Evidence, mark: int, durable: int | None, limits: Thresholds) -> Incident:
        """A new one that begins with this evidence; `limits` say how many tries are compared."""
        compared = max(MOST_TRIES, limits.same_fingerprint_failures, limits.same_step_reloads + 1)
        return cls(evidence.at, evidence.wall, mark, durable, deque(maxlen=compared))

    def wall_of(self, at: float) -> float:
        """Seconds since 1970 of a moment, by the wall clock of its opening: who sets the clock meanwhile makes no recovery last a year."""
        return self.opened_wall + (at - self.opened)

    @property
    def node(self) -> str:
        """Of this pod, when it opened."""
        return "" if self.circumstances is None else self.circumstances.node

    def more_than_when_opened(self, booked: Mapping[str, int]) -> dict[str, int]:
        """Nanoseconds by state that the books have now and had not then."""
        return {state: max(0, amount - self.booked.get(state, 0)) for state, amount in booked.items()}

    def keep(self, evidence: Evidence) -> Evidence:
        """The evidence as it is kept: with its traceback as long as there are not many, and not the same one again."""
        if evidence.traceback and (len(self.tracebacks) >= MOST_TRACEBACKS or evidence.traceback in self.tracebacks):
            return replace(evidence, traceback="")
        if evidence.traceback:
            self.tracebacks.append(evidence.traceback)
        return evidence

    @property
    def current(self) -> Try:
        """The try under way, or the last one."""
        return self.recent[-1]

    @property
    def diagnosis(self) -> Diagnosis:
        """Where and why it began."""
        return first_known([one.diagnosis for one in self._tries])

    @property
    def telling(self) -> Try:
        """The try whose diagnosis is the incident's."""
        return next((one for one in self._tries if not one.diagnosis.vague), self._tries[0])

    @property
    def decided(self) -> bool:
        """No verdict of other pods is awaited."""
        return all(one.decided_by is not None for one in self._tries)

    @property
    def _tries(self) -> list[Try]:
        return [one for recovery in self.recoveries for one in recovery.tries]

    @property
    def attempts_now(self) -> Attempts:
        """With the one under way, whose layer may be an expectation."""
        one = self.current
        if one.restarted is not None or not one.evidence:
            return self.attempts
        return self.attempts.tried(one.expected_layer, one.evidence[0].wall)

    @property
    def expected_layer(self) -> str:
        """The outermost that is needed, as far as is known."""
        return max(self.layer or LAYERS[0], self.current.expected_layer, key=LAYERS.index)

    def happens(self, happening: Happening) -> State:
        """One step of the machine."""
        self.escalated = self.escalated or (happening is Happening.ESCALATED and self.state not in CLOSED)
        self.state = TRANSITIONS[self.state, happening]
        return self.state

    def begin(self, recovery: Recovery) -> None:
        """A failure after training had gone on, or the first one."""
        self.recoveries.append(recovery)
        if len(self.recoveries) > MOST_TRIES:
            gone = self.recoveries.pop(1)  # it is in no record any more
            gone.let_go()
            self.left_out += 1
            self.steps_left_out += gone.steps_lost or 0

    @property
    def steps_lost(self) -> int | None:
        """By all its recoveries; None while no training has gone on."""
        known = [one.steps_lost for one in self.recoveries if one.steps_lost is not None]
        return self.steps_left_out + sum(known) if known or self.left_out else None

    def restarted_by(self, layer: str) -> None:
        """The try under way got as far as a restart."""
        outer = self.layer is not None and LAYERS.index(layer) > LAYERS.index(self.layer)
        self.layer = layer if self.layer is None or outer else self.layer
        self.attempts = self.attempts.tried(layer, self.current.evidence[0].wall)
        self.happens(Happening.ESCALATED if outer else Happening.RESTARTED)

    def stepped(self, limits: Thresholds) -> None:
        """Its first step: the attempt counts, whatever comes, and so do the reasons that it gave."""
        self.attempts = self.attempts.stepped()
        self.recurred |= verdicts.reasons(self, limits)
        self.happens(Happening.STEPPED)

    def step(self, step: int, *, above_mark: bool) -> None:
        """A step of a pod that trains again; `above_mark`: nobody had ever completed it."""
        if above_mark:
            self.mark_changes += 1
            self.settled_at_mark = self.attempts.settled
        if step > self.mark:
            self.happens(Happening.PROGRESSED)

    def loaded(self, step: int) -> None:
        """A checkpoint was loaded: no newer one is durable."""
        self.durable = None if self.durable is None else min(self.durable, step)
        if step in self.loads or len(self.loads) < MOST_LOADS:
            self.loads[step] += 1

    def committed(self, step: int) -> None:
        """A checkpoint became durable."""
        if self.durable is None or step > self.durable:
            self.settled_at_commit = self.attempts.settled
            self.happens(Happening.COMMITTED)
